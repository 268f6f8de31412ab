// A small tokenizer.json for tests: the 256 bytes, a few merges, a few added tokens. Tests change the parsed JSON.
#pragma once

#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/status.h"
#include "text/tokenizer.h"

namespace hadal::test {

// "Ġ" and the like: the character of the byte-level alphabet for each byte.
inline std::string AlphabetCharacter(int wanted) {
  int next = 0x100;
  for (int byte = 0; byte < 256; ++byte) {
    const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
    const int character = itself ? byte : next++;
    if (byte != wanted) continue;
    if (character < 0x80) return {static_cast<char>(character)};
    return {static_cast<char>(0xC0 | character >> 6), static_cast<char>(0x80 | (character & 0x3F))};
  }
  return {};
}

// Ids: 0-255 the bytes by value; 256 "he", 257 "ll", 258 "llo", 259 "hello", 260 " hello"; added: 261 "<s>" (special),
// 262 "<s>x" and 263 "<u>". Merges in this order of rank.
inline nlohmann::json SmallTokenizerJson() {
  using Json = nlohmann::json;
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) vocab[AlphabetCharacter(byte)] = byte;
  for (const auto& [token, id] : {std::pair("he", 256), std::pair("ll", 257), std::pair("llo", 258),
                                  std::pair("hello", 259), std::pair("Ġhello", 260)}) {
    vocab[token] = id;
  }
  const auto added = [](int id, const char* content, bool special) {
    return Json{{"id", id}, {"content", content}, {"special", special}, {"normalized", false}};
  };
  return Json{
      {"added_tokens", {added(261, "<s>", true), added(262, "<s>x", false), added(263, "<u>", false)}},
      {"normalizer", nullptr},
      {"pre_tokenizer",
       {{"type", "Sequence"},
        {"pretokenizers",
         {{{"type", "Split"}, {"pattern", {{"Regex", " ?\\p{L}+"}}}, {"behavior", "Isolated"}, {"invert", false}},
          {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}}}}},
      {"decoder", {{"type", "ByteLevel"}}},
      {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", {"h e", "l l", "ll o", "he llo", "Ġ hello"}}}}};
}

inline std::shared_ptr<const text::Tokenizer> SmallTokenizer() {
  auto tokenizer = text::Tokenizer::FromJson(SmallTokenizerJson().dump());
  HADAL_CHECK(tokenizer.ok());
  return *tokenizer;
}

}  // namespace hadal::test
