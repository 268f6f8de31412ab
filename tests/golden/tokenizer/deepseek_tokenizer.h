// Rebuilds the tokenizer.json of DeepSeek V3 and V4 from tests/data/tokenizer-v3/merges.bin (format: README there) and
// the table of added tokens in spec/deepseek-v4-text.md section 5, for tests and benchmarks.
#pragma once

#include <cstdint>
#include <fstream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "support/paths.h"
#include "text/tokenizer.h"

namespace hadal::test {

enum class DeepSeekVersion { kV3, kV4 };

inline constexpr int kBaseVocab = 128000;
inline constexpr int kByteTokens = 259;  // ids below: three added tokens and the bytes

inline std::string Utf8Below800(int character) {
  if (character < 0x80) return {static_cast<char>(character)};
  return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
}

// Keys of model.vocab by id, and the merges as pairs of ids.
struct BaseVocab {
  std::vector<std::string> tokens = {"<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>", "<｜▁pad▁｜>"};
  std::vector<std::pair<uint32_t, uint32_t>> merges;
};

inline BaseVocab ReadBaseVocab() {
  BaseVocab vocab;
  std::vector<std::string> others;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    if (itself) {
      vocab.tokens.push_back(Utf8Below800(byte));
    } else {
      others.push_back(Utf8Below800(0x100 + static_cast<int>(others.size())));
    }
  }
  vocab.tokens.insert(vocab.tokens.end(), others.begin(), others.end());
  std::ifstream file(DataPath("tokenizer-v3/merges.bin"), std::ios::binary);
  const std::string bits((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t buffer = 0;
  int held = 0;
  size_t at = 0;
  const auto next = [&] {
    while (held < 17) {
      HADAL_CHECK(at < bits.size());
      buffer |= uint64_t{static_cast<unsigned char>(bits[at++])} << held;
      held += 8;
    }
    const uint32_t id = buffer & 0x1FFFF;
    buffer >>= 17;
    held -= 17;
    return id;
  };
  while (vocab.tokens.size() < kBaseVocab) {
    const uint32_t left = next();
    const uint32_t right = next();
    vocab.merges.emplace_back(left, right);
    vocab.tokens.push_back(vocab.tokens.at(left) + vocab.tokens.at(right));
  }
  return vocab;
}

struct DeepSeekAddedToken {
  int id;
  std::string content;
  bool special;
};

inline std::vector<DeepSeekAddedToken> DeepSeekAddedTokens(DeepSeekVersion version) {
  std::vector<DeepSeekAddedToken> tokens = {
      {0, "<｜begin▁of▁sentence｜>", true}, {1, "<｜end▁of▁sentence｜>", true}, {2, "<｜▁pad▁｜>", true}};
  const auto add = [&](const std::string& content, bool special = false) {
    tokens.push_back({kBaseVocab + static_cast<int>(tokens.size()) - 3, content, special});
  };
  for (int n = 0; n < 800; ++n) add(fmt::format("<｜place▁holder▁no▁{}｜>", n), true);
  for (const char* name : {"fim▁hole", "fim▁begin", "fim▁end", "User", "Assistant"}) add(fmt::format("<｜{}｜>", name));
  add("<|EOT|>", true);
  for (const char* name :
       {"tool▁calls▁begin", "tool▁calls▁end", "tool▁call▁begin", "tool▁call▁end", "tool▁outputs▁begin",
        "tool▁outputs▁end", "tool▁output▁begin", "tool▁output▁end", "tool▁sep"}) {
    add(fmt::format("<｜{}｜>", name));
  }
  if (version == DeepSeekVersion::kV3) return tokens;
  for (const char* name : {"begin▁of▁repo▁name", "end▁of▁repo▁name", "begin▁of▁file▁name", "end▁of▁file▁name",
                           "begin▁of▁file", "end▁of▁file"}) {
    add(fmt::format("<｜{}｜>", name));
  }
  add("<think>");
  add("</think>");
  add("<｜place▁holder▁for▁copy｜>");
  add("<｜place▁holder▁for▁pointer▁replace｜>");
  add("｜DSML｜");
  for (const char* name : {"begin▁sys", "end▁sys", "latest_reminder", "action", "query", "authority", "domain", "task",
                           "political", "entity", "title", "safety", "answer", "search"}) {
    add(fmt::format("<｜{}｜>", name));
  }
  add("<dsml:");
  add("</dsml:");
  for (const char* name : {"search▁begin", "search▁end", "extracted_url", "read_url", "end_of_query"}) {
    add(fmt::format("<｜{}｜>", name));
  }
  for (int n = 21; n < 21 + 415; ++n) add(fmt::format("<|place_holder_mm_span_{:04}|>", n));
  for (const char* name : {"rl_image_pad", "rl_image_start", "image2"}) add(fmt::format("<｜{}｜>", name));
  // The specification gives the kinds and the order of 129265 to 129278 but not each spelling.
  add("<｜/table>｜");
  for (const char* name : {"table", "/tr", "tr", "/td", "td", "/polygon", "polygon", "/point", "point", "/box", "box",
                           "/ref", "ref", "image"}) {
    add(fmt::format("<｜{}｜>", name));
  }
  return tokens;
}

// The whole tokenizer.json.
inline std::string DeepSeekTokenizerJson(DeepSeekVersion version) {
  using Json = nlohmann::json;
  const BaseVocab base = ReadBaseVocab();
  Json vocab = Json::object();
  for (size_t id = 0; id < base.tokens.size(); ++id) vocab[base.tokens[id]] = id;
  Json merges = Json::array();
  for (const auto& [left, right] : base.merges) merges.push_back(base.tokens[left] + " " + base.tokens[right]);
  Json added = Json::array();
  for (const DeepSeekAddedToken& token : DeepSeekAddedTokens(version)) {
    const bool normalized = !token.special || token.content == "<|EOT|>";
    added.push_back({{"id", token.id},
                     {"content", token.content},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", normalized},
                     {"special", token.special}});
  }
  Json steps = Json::array();
  for (const char* regex : {R"(\p{N}{1,3})", "[一-龥\u3040-ゟ゠-ヿ]+",
                            R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^)"
                            "\r\n"
                            R"(\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[)"
                            "\r\n"
                            R"(]*|\s*[)"
                            "\r\n"
                            R"(]+|\s+(?!\S)|\s+)"}) {
    steps.push_back({{"type", "Split"}, {"pattern", {{"Regex", regex}}}, {"behavior", "Isolated"}, {"invert", false}});
  }
  const Json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", false}};
  steps.push_back(byte_level);
  const Json root = {{"version", "1.0"},
                     {"truncation", nullptr},
                     {"padding", nullptr},
                     {"added_tokens", added},
                     {"normalizer", {{"type", "Sequence"}, {"normalizers", Json::array()}}},
                     {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", steps}}},
                     {"post_processor", byte_level},
                     {"decoder", byte_level},
                     {"model",
                      {{"type", "BPE"},
                       {"dropout", nullptr},
                       {"unk_token", nullptr},
                       {"continuing_subword_prefix", nullptr},
                       {"end_of_word_suffix", nullptr},
                       {"fuse_unk", false},
                       {"byte_fallback", false},
                       {"vocab", vocab},
                       {"merges", merges}}}};
  return root.dump();
}

// The loaded tokenizer, made once in a process. Aborts if it does not load: tests of loading are elsewhere.
inline std::shared_ptr<const text::Tokenizer> DeepSeekTokenizer(DeepSeekVersion version) {
  const auto load = [](DeepSeekVersion which) {
    auto tokenizer = text::Tokenizer::FromJson(DeepSeekTokenizerJson(which));
    HADAL_CHECK(tokenizer.ok());
    return *tokenizer;
  };
  if (version == DeepSeekVersion::kV3) {
    static const std::shared_ptr<const text::Tokenizer> v3 = load(DeepSeekVersion::kV3);
    return v3;
  }
  static const std::shared_ptr<const text::Tokenizer> v4 = load(DeepSeekVersion::kV4);
  return v4;
}

}  // namespace hadal::test
