// How long does a token mask take? For texts that people ask for, with DeepSeek V3's vocabulary filled up to 129280
// tokens: the time per mask (and the longest) when the grammar has seen such states before, and when it is new.
//
// The limit to compare with is a decoding step, 10 ms and more: masks should be no part of it (below 1 ms on average),
// and a new grammar should not be felt (below 50 ms for the worst).
#include <benchmark/benchmark.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "golden/tokenizer/deepseek_tokenizer.h"
#include "guided/grammar.h"
#include "guided/matcher.h"
#include "text/tokenizer.h"

namespace hadal::guided {
namespace {

constexpr int32_t kVocabulary = 129280;
using Kind = GuidedSpec::Kind;

std::shared_ptr<const text::Tokenizer> TheTokenizer() { return test::DeepSeekTokenizer(test::DeepSeekVersion::kV3); }

std::shared_ptr<const TokenVocabulary> TheVocabulary() {
  static const auto vocabulary = [] {
    const auto tokenizer = TheTokenizer();
    std::vector<std::string> bytes(kVocabulary);
    std::vector<int32_t> special;
    for (int32_t id = 0; id < tokenizer->vocab_size(); ++id) {
      bytes[static_cast<size_t>(id)] = tokenizer->TokenBytes(id);
      if (tokenizer->IsAdded(id)) special.push_back(id);
    }
    const std::vector<int32_t> ends = {1};
    return *TokenVocabulary::Create(std::move(bytes), special, ends);
  }();
  return vocabulary;
}

struct Case {
  const char* name;
  GuidedSpec spec;
  std::string text;
};

std::string LongString() {
  std::string words;
  for (int i = 0; i < 60; ++i) words += "The quick brown fox jumps over 13 lazy dogs; 你好，世界。 ";
  return words;
}

const std::vector<Case>& Cases() {
  static const std::vector<Case> cases = [] {
    const std::string schema = R"({"type":"object","properties":{
        "name":{"type":"string","maxLength":200},"age":{"type":"integer","minimum":0,"maximum":150},
        "email":{"type":"string","format":"email"},"score":{"type":"number","minimum":0,"maximum":1},
        "tags":{"type":"array","items":{"enum":["red","green","blue"]},"maxItems":8},
        "address":{"$ref":"#/$defs/address"},"children":{"type":"array","items":{"$ref":"#"}}},
      "required":["name","age"],"additionalProperties":false,
      "$defs":{"address":{"type":"object","properties":{"street":{"type":"string"},"zip":{"type":"string",
        "pattern":"^[0-9]{5}$"}},"required":["street"]}}})";
    const std::string person = R"({"name": "Ada Lovelace", "age": 36, "email": "ada@example.org", "score": 0.75,
  "tags": ["red", "blue"], "address": {"street": "12 St James's Square", "zip": "12345"},
  "children": [{"name": "Byron", "age": 12, "children": []}, {"name": "Annabella", "age": 9}]})";
    const std::string nested = R"({"a": [1, 2.5, -3e10, true, null, "x"], "b": {"c": {"d": [[1, [2, [3]]], {}]}},
  "items": [{"id": 1, "name": "first"}, {"id": 2, "name": "second"}, {"id": 3, "name": "third"}]})";
    std::vector<Case> all;
    const auto add = [&](const char* name, Kind kind, const std::string& spec, const std::string& text) {
      all.push_back({.name = name, .spec = {.kind = kind, .text = spec}, .text = text});
    };
    add("json_object", Kind::kJsonObject, "", nested);
    add("json_string", Kind::kJsonObject, "", "{\"text\": \"" + LongString() + "\"}");
    add("json_schema", Kind::kJsonSchema, schema, person);
    add("regex", Kind::kRegex, R"([A-Z][a-z]+(, [A-Z][a-z]+)*: \d{3}-\d{4}\.)", "Paris, London, Tokyo: 555-0199.");
    add("grammar", Kind::kGrammar, "root ::= expr\nexpr ::= term | expr ' + ' term\nterm ::= [0-9]+ | '(' expr ')'\n",
        "(12 + (3 + 4)) + ((5 + 6) + 789)");
    return all;
  }();
  return cases;
}

// Masks for every token of the text; the longest in microseconds.
double Walk(Matcher* matcher, const std::vector<int32_t>& tokens, benchmark::State& state) {
  std::vector<uint32_t> mask(TheVocabulary()->mask_words());
  double longest = 0;
  for (const int32_t token : tokens) {
    const auto begin = std::chrono::steady_clock::now();
    const bool ok = matcher->FillMask(mask).ok() && matcher->Accept(token);
    const std::chrono::duration<double, std::micro> took = std::chrono::steady_clock::now() - begin;
    longest = std::max(longest, took.count());
    if (!ok) {
      state.SkipWithError("the text is not accepted");
      break;
    }
  }
  return longest;
}

void BM_Masks(benchmark::State& state, bool warm) {
  const Case& bench = Cases()[static_cast<size_t>(state.range(0))];
  const std::vector<int32_t> tokens = TheTokenizer()->Encode(bench.text);
  auto grammar = *Compile(bench.spec, TheVocabulary());
  double longest = 0;
  if (warm) {
    Matcher matcher(grammar);
    Walk(&matcher, tokens, state);
  }
  for (auto _ : state) {
    if (!warm) {
      state.PauseTiming();
      grammar = *Compile(bench.spec, TheVocabulary());
      state.ResumeTiming();
    }
    Matcher matcher(grammar);
    longest = std::max(longest, Walk(&matcher, tokens, state));
  }
  const auto masks = static_cast<double>(tokens.size());
  state.counters["time/mask"] =
      benchmark::Counter(masks, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
  state.counters["longest"] = longest * 1e-6;  // seconds
  state.counters["tokens"] = masks;
  state.SetLabel(bench.name);
}
void BM_WarmMasks(benchmark::State& state) { BM_Masks(state, true); }
void BM_ColdMasks(benchmark::State& state) { BM_Masks(state, false); }
BENCHMARK(BM_WarmMasks)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_ColdMasks)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);

void BM_Compile(benchmark::State& state) {
  const Case& bench = Cases()[static_cast<size_t>(state.range(0))];
  for (auto _ : state) benchmark::DoNotOptimize(Compile(bench.spec, TheVocabulary()).ok());
  state.SetLabel(bench.name);
}
BENCHMARK(BM_Compile)->DenseRange(0, 4)->Unit(benchmark::kMillisecond);

void BM_Vocabulary(benchmark::State& state) {
  std::vector<std::string> bytes(kVocabulary);
  for (int32_t id = 0; id < kVocabulary; ++id) bytes[static_cast<size_t>(id)] = TheVocabulary()->Text(id);
  for (auto _ : state) benchmark::DoNotOptimize(TokenVocabulary::Create(bytes, {}, {}).ok());
}
BENCHMARK(BM_Vocabulary)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hadal::guided

BENCHMARK_MAIN();
