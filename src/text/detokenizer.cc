// Incremental detokenizer.
#include "text/detokenizer.h"

#include <utility>

#include "text/tokenizer_utf8.h"

namespace hadal::text {

Detokenizer::Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special)
    : tokenizer_(std::move(tokenizer)), skip_special_(skip_special) {}

std::string Detokenizer::Push(int32_t id) {
  if (skip_special_ && tokenizer_->IsSpecialFlag(id)) return {};
  pending_ += tokenizer_->TokenBytes(id);
  std::string_view rest = pending_;
  std::string text;
  while (!rest.empty()) {
    const size_t valid = ValidUtf8Prefix(rest);
    text.append(rest.substr(0, valid));
    rest.remove_prefix(valid);
    if (rest.empty()) break;
    const Utf8Step step = NextUtf8(rest);
    if (step.kind == Utf8Step::Kind::kTruncated) break;
    text.append(kReplacementCharacter);
    rest.remove_prefix(step.length);
  }
  pending_.erase(0, pending_.size() - rest.size());
  return text;
}

std::string Detokenizer::Flush() {
  std::string text;
  AppendLossyUtf8(pending_, &text);
  pending_.clear();
  return text;
}

}  // namespace hadal::text
