// Vocabularies, and texts against a grammar byte by byte.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "guided/grammar.h"
#include "guided/matcher.h"

namespace hadal::guided::test {

using Kind = GuidedSpec::Kind;

// One token for each byte, with the byte as its id, and 256 as the end.
inline constexpr int32_t kByteEnd = 256;
inline std::shared_ptr<const TokenVocabulary> ByteVocabulary() {
  static const auto vocabulary = [] {
    std::vector<std::string> bytes;
    for (int byte = 0; byte < 256; ++byte) bytes.emplace_back(1, static_cast<char>(byte));
    bytes.emplace_back("<end>");
    const std::vector<int32_t> ends = {kByteEnd};
    return *TokenVocabulary::Create(std::move(bytes), {}, ends);
  }();
  return vocabulary;
}

inline std::shared_ptr<const Grammar> MustCompile(
    Kind kind, std::string text, std::shared_ptr<const TokenVocabulary> vocabulary = ByteVocabulary()) {
  const auto grammar = Compile({.kind = kind, .text = text}, std::move(vocabulary));
  EXPECT_TRUE(grammar.ok()) << text << ": " << grammar.status();
  return grammar.ok() ? *grammar : nullptr;
}

// The message of the error that compiling gives.
inline std::string CompileError(Kind kind, std::string text, const CompileLimits& limits = {}) {
  const auto grammar = Compile({.kind = kind, .text = text}, ByteVocabulary(), limits);
  if (grammar.ok()) return "no error";
  EXPECT_TRUE(absl::IsInvalidArgument(grammar.status())) << grammar.status();
  return std::string(grammar.status().message());
}

// Feeds the text through single bytes; false if it is no prefix.
inline bool Feed(Matcher* matcher, std::string_view text) {
  for (const char c : text) {
    if (!matcher->Accept(static_cast<uint8_t>(c))) return false;
  }
  return true;
}

inline bool Accepts(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return Feed(&matcher, text) && matcher.IsAccepting();
}

inline bool IsPrefix(const std::shared_ptr<const Grammar>& grammar, std::string_view text) {
  Matcher matcher(grammar);
  return Feed(&matcher, text);
}

inline bool HasBit(const std::vector<uint32_t>& mask, int32_t id) {
  return (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
}

struct Language {
  std::string spec;
  std::vector<std::string> accepted, refused;
};

inline void CheckLanguage(Kind kind, const Language& language) {
  const auto grammar = MustCompile(kind, language.spec);
  if (grammar == nullptr) return;
  for (const std::string& text : language.accepted)
    EXPECT_TRUE(Accepts(grammar, text)) << language.spec << " <- " << text;
  for (const std::string& text : language.refused)
    EXPECT_FALSE(Accepts(grammar, text)) << language.spec << " <- " << text;
}

}  // namespace hadal::guided::test
