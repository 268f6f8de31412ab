// Guided decoding: any bytes as schema, regex, grammar or list of choices give a status within bounded time; what
// compiles is walked at random. On the way, a mask allows what Accept takes and nothing else, Rollback undoes, and the
// text of a JSON schema that came to an end parses.
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "guided/matcher.h"
#include "guided/response_format.h"

namespace {

using namespace hadal;
using namespace hadal::guided;

constexpr int32_t kEnd = 256;

// Every byte, the end, and some longer tokens.
std::shared_ptr<const TokenVocabulary> Vocabulary() {
  static const auto* const vocabulary = [] {
    std::vector<std::string> tokens;
    for (int byte = 0; byte < 256; ++byte) tokens.emplace_back(1, static_cast<char>(byte));
    tokens.emplace_back("");
    for (const char* token :
         {"\":", "\",", "\"}", "{\"", "}]", ",\n ", "true", "null", "12", "ab", "aa", "é", "\\u00"}) {
      tokens.emplace_back(token);
    }
    const std::vector<int32_t> ends = {kEnd};
    return new auto(*TokenVocabulary::Create(std::move(tokens), {}, ends));
  }();
  return *vocabulary;
}

void CheckMask(Matcher* matcher, const std::vector<uint32_t>& mask) {
  for (int32_t id = 0; id < Vocabulary()->size(); ++id) {
    const bool allowed = (mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0;
    HADAL_CHECK((matcher->AcceptedPrefix({&id, 1}) == 1) == allowed);
  }
}

// The text that was drawn, if it came to its end.
bool Walk(const std::shared_ptr<const Grammar>& grammar, uint32_t random, std::string* text) {
  Matcher matcher(grammar);
  std::vector<uint32_t> mask(Vocabulary()->mask_words());
  for (int step = 0; step < 40; ++step) {
    if (!matcher.FillMask(mask).ok()) return false;
    if (step < 4) CheckMask(&matcher, mask);
    std::vector<int32_t> allowed;
    for (int32_t id = 0; id < Vocabulary()->size(); ++id) {
      if ((mask[static_cast<size_t>(id) / 32] >> (static_cast<uint32_t>(id) % 32) & 1) != 0) allowed.push_back(id);
    }
    if (allowed.empty()) return false;
    random = random * 1664525 + 1013904223;
    const int32_t token =
        allowed.back() == kEnd || (random >> 30) == 0 ? allowed.back() : allowed[(random >> 8) % allowed.size()];
    HADAL_CHECK(matcher.Accept(token));
    HADAL_CHECK(matcher.Rollback(1));
    HADAL_CHECK(matcher.Accept(token));
    if (matcher.IsTerminated()) return true;
    *text += Vocabulary()->Text(token);
  }
  return false;
}

}  // namespace

// Input: a byte for the kind, a byte for the walk, the text.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const auto kind = static_cast<GuidedSpec::Kind>(data[0] % 6);
  const std::string text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const nlohmann::ordered_json body = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!body.is_discarded()) (void)ParseResponseFormat(body);
  const CompileLimits limits = {.seconds = 2, .text_bytes = 4096, .states = 20'000};
  const auto grammar = Compile({.kind = kind, .text = text}, Vocabulary(), limits);
  HADAL_CHECK(grammar.ok() || (absl::IsInvalidArgument(grammar.status()) && !grammar.status().message().empty()));
  if (!grammar.ok()) return 0;
  std::string output;
  const bool is_json = kind == GuidedSpec::Kind::kJsonSchema || kind == GuidedSpec::Kind::kJsonObject;
  if (Walk(*grammar, data[1] * 2654435761u, &output) && is_json) {
    HADAL_CHECK(nlohmann::ordered_json::accept(output));
  }
  return 0;
}
