// The vocabulary of the bundled model.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "guided/vocabulary.h"
#include "text/tokenizer.h"

namespace hadal::guided::test {

inline std::shared_ptr<const text::Tokenizer> BundledTokenizer() {
  static const auto tokenizer = *text::Tokenizer::Load(HADAL_SOURCE_DIR "/models/tiny-v4-vision");
  return tokenizer;
}

inline int32_t BundledEnd() { return *BundledTokenizer()->TokenId("<｜end▁of▁sentence｜>"); }

inline std::shared_ptr<const TokenVocabulary> BundledVocabulary() {
  static const auto vocabulary = [] {
    const auto tokenizer = BundledTokenizer();
    std::vector<std::string> bytes;
    std::vector<int32_t> special;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      bytes.emplace_back(tokenizer->TokenBytes(id));
      if (tokenizer->IsAdded(id)) special.push_back(id);
    }
    const std::vector<int32_t> ends = {BundledEnd()};
    return *TokenVocabulary::Create(std::move(bytes), special, ends);
  }();
  return vocabulary;
}

}  // namespace hadal::guided::test
