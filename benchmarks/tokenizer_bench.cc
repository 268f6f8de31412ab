// How fast is text turned into tokens? MB/s on one core with DeepSeek V3's vocabulary, by kind of text and mixed.
//
// The text is made here: words are drawn from the vocabulary with Zipf's law (the order of merges is close to the order
// of frequency), and one word in eight is joined from two so that it is no single token. Nothing repeats but words, as
// in real text: the tokenizer's cache of words gets what it would get there, not a text it has seen.
// The limit to compare with is the requirement of 5 MB/s; a prompt of 1M tokens then takes under a second.
#include <benchmark/benchmark.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "golden/tokenizer/deepseek_tokenizer.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"

namespace hadal {
namespace {

using test::DeepSeekTokenizer;
using test::DeepSeekVersion;
using text::Tokenizer;

constexpr size_t kTextBytes = 4 << 20;

// Fixed by its seed on every platform, unlike the distributions of <random>.
class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed) {}
  uint64_t Next() {
    state_ += 0x9E3779B97F4A7C15u;
    uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return z ^ (z >> 31);
  }
  size_t Below(size_t bound) { return Next() % bound; }
  // Probability about 1 / (1 + rank).
  size_t Zipf(size_t bound) {
    const double uniform = static_cast<double>(Next() >> 11) * 0x1p-53;
    return static_cast<size_t>(std::exp(uniform * std::log(static_cast<double>(bound) + 1.0))) - 1;
  }

 private:
  uint64_t state_;
};

// Words of the vocabulary in merge order.
struct Words {
  std::vector<std::string> english;  // " the"
  std::vector<std::string> names;    // "return": letters, no space
  std::vector<std::string> chinese;

  explicit Words(const Tokenizer& tokenizer) {
    for (int32_t id = test::kByteTokens; id < test::kBaseVocab; ++id) {
      const std::string_view bytes = tokenizer.TokenBytes(id);
      const std::string_view tail = bytes[0] == ' ' ? bytes.substr(1) : bytes;
      if (tail.find_first_not_of("abcdefghijklmnopqrstuvwxyz") == std::string_view::npos && tail.size() > 1) {
        (bytes[0] == ' ' ? english : names).emplace_back(bytes);
      } else if (bytes.size() % 3 == 0 && IsHan(bytes)) {
        chinese.emplace_back(bytes);
      }
    }
  }
  static bool IsHan(std::string_view bytes) {
    for (size_t i = 0; i < bytes.size(); i += 3) {
      const int lead = static_cast<unsigned char>(bytes[i]);
      if (lead < 0xE5 || lead > 0xE8) return false;
    }
    return true;
  }
};

const Words& TheWords() {
  static const Words words(*DeepSeekTokenizer(DeepSeekVersion::kV3));
  return words;
}

void AddEnglish(Random& random, std::string* text) {
  const std::vector<std::string>& words = TheWords().english;
  for (size_t count = 4 + random.Below(20), i = 0; i < count; ++i) {
    *text += words[random.Zipf(words.size())];
    if (random.Below(8) == 0) *text += words[random.Zipf(words.size())].substr(1);
    if (random.Below(12) == 0) *text += ",";
  }
  *text += random.Below(5) == 0 ? ".\n\n" : ".";
}

void AddCode(Random& random, std::string* text) {
  const std::vector<std::string>& words = TheWords().names;
  const auto name = [&] {
    std::string result = words[random.Zipf(words.size())];
    if (random.Below(2) == 0) result += "_" + words[random.Zipf(words.size())];
    return result;
  };
  static constexpr const char* kMiddles[] = {" = ", "(", "->", " + ", ", ", "[i].", " == ", "::"};
  text->append(4 * (1 + random.Below(4)), ' ');
  *text += random.Below(4) == 0 ? "if (" : "const auto ";
  for (size_t count = 1 + random.Below(4), i = 0; i < count; ++i) *text += name() + kMiddles[random.Below(8)];
  *text += name() + (random.Below(4) == 0 ? ") {\n" : ");\n");
}

void AddChinese(Random& random, std::string* text) {
  const std::vector<std::string>& words = TheWords().chinese;
  for (size_t count = 3 + random.Below(12), i = 0; i < count; ++i) *text += words[random.Zipf(words.size())];
  *text += random.Below(3) == 0 ? "。" : "，";
}

void AddDigits(Random& random, std::string* text) {
  for (size_t count = 1 + random.Below(8), i = 0; i < count; ++i) {
    *text += fmt::format(" {}.{},", random.Below(100000), random.Below(1000));
  }
  *text += "\n";
}

void AddEmoji(Random& random, std::string* text) {
  // U+1F300 to U+1F5FF.
  for (size_t count = 1 + random.Below(5), i = 0; i < count; ++i) {
    const size_t character = 0x1F300 + random.Below(0x300);
    *text += {'\xF0', '\x9F', static_cast<char>(0x80 | (character >> 6 & 0x3F)),
              static_cast<char>(0x80 | (character & 0x3F))};
  }
  *text += " ok";
}

using Adder = void (*)(Random&, std::string*);

std::string MakeText(const std::vector<Adder>& adders) {
  Random random(42);
  std::string text;
  while (text.size() < kTextBytes) adders[random.Below(adders.size())](random, &text);
  return text;
}

void BenchEncode(benchmark::State& state, const std::vector<Adder>& adders, Tokenizer::Special special) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV3);
  const std::string text = MakeText(adders);
  std::vector<int32_t> ids;
  for (auto _ : state) {
    ids.clear();
    tokenizer->Encode(text, special, &ids);
    benchmark::DoNotOptimize(ids.data());
  }
  if (tokenizer->Decode(ids) != text) state.SkipWithError("the ids do not decode to the text");
  const double bytes = static_cast<double>(text.size()) * static_cast<double>(state.iterations());
  state.counters["MB/s"] = benchmark::Counter(bytes / 1e6, benchmark::Counter::kIsRate);
  state.counters["bytes/token"] = static_cast<double>(text.size()) / static_cast<double>(ids.size());
  state.SetLabel("required: 5 MB/s mixed");
}

const std::vector<Adder> kMixed = {AddEnglish, AddEnglish, AddCode,   AddCode,
                                   AddChinese, AddChinese, AddDigits, AddEmoji};

void BM_EncodeMixed(benchmark::State& state) { BenchEncode(state, kMixed, Tokenizer::Special::kPlain); }
void BM_EncodeMixedMatchingAdded(benchmark::State& state) { BenchEncode(state, kMixed, Tokenizer::Special::kMatch); }
void BM_EncodeEnglish(benchmark::State& state) { BenchEncode(state, {AddEnglish}, Tokenizer::Special::kPlain); }
void BM_EncodeCode(benchmark::State& state) { BenchEncode(state, {AddCode}, Tokenizer::Special::kPlain); }
void BM_EncodeChinese(benchmark::State& state) { BenchEncode(state, {AddChinese}, Tokenizer::Special::kPlain); }
void BM_EncodeDigits(benchmark::State& state) { BenchEncode(state, {AddDigits}, Tokenizer::Special::kPlain); }
void BM_EncodeEmoji(benchmark::State& state) { BenchEncode(state, {AddEmoji}, Tokenizer::Special::kPlain); }
BENCHMARK(BM_EncodeMixed)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeMixedMatchingAdded)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeEnglish)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeCode)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeChinese)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeDigits)->Unit(benchmark::kMillisecond);
BENCHMARK(BM_EncodeEmoji)->Unit(benchmark::kMillisecond);

// One word without end: must grow with the length, not with its square.
void BM_EncodeOneLetter(benchmark::State& state) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV3);
  const std::string text(static_cast<size_t>(state.range(0)), 'a');
  for (auto _ : state) benchmark::DoNotOptimize(tokenizer->Encode(text));
  const double bytes = static_cast<double>(text.size()) * static_cast<double>(state.iterations());
  state.counters["MB/s"] = benchmark::Counter(bytes / 1e6, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_EncodeOneLetter)->Arg(1 << 10)->Arg(1 << 15)->Arg(1 << 20)->Unit(benchmark::kMillisecond);

void BM_Detokenize(benchmark::State& state) {
  const auto tokenizer = DeepSeekTokenizer(DeepSeekVersion::kV3);
  const std::string text = MakeText(kMixed);
  const std::vector<int32_t> ids = tokenizer->Encode(text);
  for (auto _ : state) {
    text::Detokenizer detokenizer(tokenizer);
    size_t bytes = 0;
    for (const int32_t id : ids) bytes += detokenizer.Push(id).size();
    benchmark::DoNotOptimize(bytes + detokenizer.Flush().size());
  }
  const double tokens = static_cast<double>(ids.size()) * static_cast<double>(state.iterations());
  state.counters["tokens/s"] = benchmark::Counter(tokens, benchmark::Counter::kIsRate);
}
BENCHMARK(BM_Detokenize)->Unit(benchmark::kMillisecond);

void BM_Load(benchmark::State& state) {
  const std::string json = test::DeepSeekTokenizerJson(DeepSeekVersion::kV3);
  for (auto _ : state) benchmark::DoNotOptimize(Tokenizer::FromJson(json).ok());
}
BENCHMARK(BM_Load)->Unit(benchmark::kMillisecond);

}  // namespace
}  // namespace hadal

BENCHMARK_MAIN();
