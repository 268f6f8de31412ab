#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include "base/status.h"
#include "runtime/philox.h"
#include "runtime/row_math.h"

namespace hadal::runtime {
namespace {

constexpr float kLargest = std::numeric_limits<float>::max();
constexpr double kLowestTemperature = 0.01;  // spec 5.1, step 6
constexpr float kMaxBias = 100.0f;
constexpr size_t kMaxBiasEntries = 1024;
constexpr int kMaxLogprobs = 20;
constexpr int kMaxAnswers = 128;
constexpr size_t kMaxBadWords = 256;  // sequences: two for each of 128 words
constexpr int64_t kMaxMinTokens = INT32_MAX;
constexpr size_t kMaxBadWordTokens = 1024;  // in all bad words together

// What random numbers are for (spec 5.3).
constexpr uint32_t kTargetStream = 0, kDraftStream = 1, kAcceptStream = 2, kResidualStream = 3;

// u = (bits + 1/2) / 2^32 lies inside (0, 1), so both logarithms are finite.
double Uniform(uint32_t bits) { return (bits + 0.5) * 0x1p-32; }
double Gumbel(uint32_t bits) { return -std::log(-std::log(Uniform(bits))); }

// The random bits of one position and stream, by token.
struct Noise {
  uint64_t seed;
  int64_t position;
  uint32_t stream;

  PhiloxBlock Counter(size_t token) const {
    const auto p = static_cast<uint64_t>(position);
    return {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), stream, static_cast<uint32_t>(token / 4)};
  }
  uint32_t Bits(size_t token) const { return Philox4x32(seed, Counter(token))[token % 4]; }
};

bool InRange(double v, double low, double high) { return v >= low && v <= high; }

absl::Status CheckIds(const char* name, std::span<const int32_t> ids, int64_t vocab) {
  for (const int32_t id : ids) {
    if (id < 0 || id >= vocab) {
      return InvalidArgument("{}: expected token ids from 0 to {}, found {}", name, vocab - 1, id);
    }
  }
  return absl::OkStatus();
}

absl::Status CheckBadWords(const std::vector<std::vector<int32_t>>& words, int64_t vocab) {
  if (words.size() > kMaxBadWords) {
    return InvalidArgument("bad_words: expected at most {}, found {}", kMaxBadWords, words.size());
  }
  size_t tokens = 0;
  for (const std::vector<int32_t>& word : words) {
    if (word.empty()) return InvalidArgument("bad_words: expected non-empty words, found an empty one");
    HADAL_RETURN_IF_ERROR(CheckIds("bad_words", word, vocab));
    tokens += word.size();
  }
  if (tokens <= kMaxBadWordTokens) return absl::OkStatus();
  return InvalidArgument("bad_words: expected at most {} tokens in all, found {}", kMaxBadWordTokens, tokens);
}

std::string NotFinite(std::span<const float> row) {
  const auto bad = std::find_if(row.begin(), row.end(), [](float v) { return !(v < kInfinity); });
  return fmt::format("{} at token {}", *bad, bad - row.begin());
}

size_t MaskWords(size_t vocab) { return (vocab + 31) / 32; }

// -infinity where the mask has no bit.
void ApplyMask(std::span<const uint32_t> mask, std::span<float> scores) {
  for (size_t word = 0; word < mask.size(); ++word) {
    if (mask[word] == UINT32_MAX) continue;
    const size_t begin = 32 * word, count = std::min<size_t>(32, scores.size() - begin);
    for (size_t j = 0; j < count; ++j) {
      if ((mask[word] >> j & 1) == 0) scores[begin + j] = -kInfinity;
    }
  }
}

// The first token with this score, which the row holds.
int32_t FirstWith(std::span<const float> row, float score) {
  size_t begin = 0;
  for (; begin + kRowBlock <= row.size(); begin += kRowBlock) {
    uint32_t found = 0;
    for (size_t j = 0; j < kRowBlock; ++j) found |= static_cast<uint32_t>(row[begin + j] == score);
    if (found != 0) break;
  }
  while (row[begin] != score) ++begin;
  return static_cast<int32_t>(begin);
}

// The token with the largest log_weight(token) + Gumbel noise, the lowest id among equals; -1 if all weights are
// -infinity. log_weight(token) must not be above row[token], and that not above 0. `first` is looked at first: a likely
// token there saves work.
//
// Few tokens can win, and only for those log_weight and the noise's two logarithms are computed. The noise
// -log(-log(u)) is at most -log(1 - u); so with the best score b so far a token needs 1 - u <= e^(row[token] - b), and
// no bits need be drawn for a block whose scores lie further below b than the largest possible noise. One exponential,
// that of its largest score, serves a block. The bar takes b a little lower than it is, by more than what fp32 can be
// wrong: 2^-24 |b| in b itself, below 23 * 2^-24 in the difference (a larger one decides nothing), and 2^-22 in the
// exponential and 1 - u.
template <typename LogWeight>
int32_t GumbelMax(std::span<const float> row, const Noise& noise, int32_t first, LogWeight log_weight) {
  static const auto kMaxGumbel = static_cast<float>(Gumbel(UINT32_MAX));
  int32_t best = -1;
  double best_score = -kInfinity;
  float bar = -kLargest;
  const auto look = [&](size_t token, uint32_t bits) {
    const double weight = log_weight(token);
    if (weight == -kInfinity) return;
    const double score = weight + Gumbel(bits);
    const auto id = static_cast<int32_t>(token);
    if (score < best_score || (score == best_score && id > best)) return;
    best = id;
    best_score = score;
    bar = static_cast<float>(score - 1e-5 - std::abs(score) * 0x1p-23);
  };
  look(first, noise.Bits(first));
  ForEachBlock(row, [&](const float* values, size_t begin) {
    const float highest = BlockMax(values);
    if (highest == -kInfinity || highest < bar - kMaxGumbel) return;
    std::array<std::array<uint32_t, 4>, 4> words;
    PhiloxBlocks<4>(noise.seed, noise.Counter(begin), &words);
    // Bits for which 1 - u, which is (2^32 - 1 - bits + 1/2) / 2^32, is small enough.
    const float limit = highest < bar ? 0x1p32f * ExpOfNegative(highest - bar) : 0x1p32f;
    const uint32_t least = limit < 0x1p32f ? ~static_cast<uint32_t>(limit) : 0;
    uint32_t any = 0;
    for (const auto& word : words) {
      for (const uint32_t bits : word) any |= static_cast<uint32_t>(bits >= least);
    }
    if (any == 0) return;
    const size_t end = std::min(begin + kRowBlock, row.size());
    for (size_t token = begin; token < end; ++token) {
      const uint32_t bits = words[token % 4][(token - begin) / 4];
      if (bits >= least && row[token] >= bar - kMaxGumbel) look(token, bits);
    }
  });
  return best;
}

}  // namespace

absl::Status CheckSamplingParams(const SamplingParams& p, int64_t vocab) {
  if (!InRange(p.temperature, 0, 2)) {
    return InvalidArgument("temperature: expected a number from 0 to 2, found {}", p.temperature);
  }
  if (!(p.top_p > 0 && p.top_p <= 1)) {
    return InvalidArgument("top_p: expected a number above 0 and up to 1, found {}", p.top_p);
  }
  if (p.top_k < -1) return InvalidArgument("top_k: expected -1 or 0 (off) or at least 1, found {}", p.top_k);
  if (!InRange(p.min_p, 0, 1)) return InvalidArgument("min_p: expected a number from 0 to 1, found {}", p.min_p);
  if (!(p.repetition_penalty > 0 && std::isfinite(p.repetition_penalty))) {
    return InvalidArgument("repetition_penalty: expected a finite number above 0, found {}", p.repetition_penalty);
  }
  if (!InRange(p.presence_penalty, -2, 2)) {
    return InvalidArgument("presence_penalty: expected a number from -2 to 2, found {}", p.presence_penalty);
  }
  if (!InRange(p.frequency_penalty, -2, 2)) {
    return InvalidArgument("frequency_penalty: expected a number from -2 to 2, found {}", p.frequency_penalty);
  }
  if (p.logprobs < -1 || p.logprobs > kMaxLogprobs) {
    return InvalidArgument("logprobs: expected 0 to {}, found {}", kMaxLogprobs, p.logprobs);
  }
  if (p.prompt_logprobs < -1 || p.prompt_logprobs > kMaxLogprobs) {
    return InvalidArgument("prompt_logprobs: expected 0 to {}, found {}", kMaxLogprobs, p.prompt_logprobs);
  }
  if (p.n < 1 || p.n > kMaxAnswers) return InvalidArgument("n: expected 1 to {}, found {}", kMaxAnswers, p.n);
  if (p.thinking_token_budget < -1) {
    return InvalidArgument("thinking_token_budget: expected at least 0, found {}", p.thinking_token_budget);
  }
  if (p.min_tokens < 0 || p.min_tokens > kMaxMinTokens) {
    return InvalidArgument("min_tokens: expected 0 to {}, found {}", kMaxMinTokens, p.min_tokens);
  }
  HADAL_RETURN_IF_ERROR(CheckIds("stop_token_ids", p.stop_token_ids, vocab));
  HADAL_RETURN_IF_ERROR(CheckIds("allowed_token_ids", p.allowed_token_ids, vocab));
  HADAL_RETURN_IF_ERROR(CheckBadWords(p.bad_words, vocab));
  if (p.logit_bias.size() > kMaxBiasEntries) {
    return InvalidArgument("logit_bias: expected at most {} entries, found {}", kMaxBiasEntries, p.logit_bias.size());
  }
  for (const auto& [id, bias] : p.logit_bias) {
    if (id < 0 || id >= vocab) {
      return InvalidArgument("logit_bias: expected token ids from 0 to {}, found {}", vocab - 1, id);
    }
    if (std::isnan(bias)) return InvalidArgument("logit_bias: expected a number for token {}, found NaN", id);
  }
  return absl::OkStatus();
}

uint64_t RandomSeed() {
  std::random_device entropy;
  return (static_cast<uint64_t>(entropy()) << 32 | entropy()) >> 1;
}

absl::StatusOr<Sampler> Sampler::Create(int64_t vocab, SamplingParams params, std::span<const int32_t> prompt,
                                        std::span<const int32_t> banned, std::span<const int32_t> ends) {
  HADAL_RETURN_IF_ERROR(CheckSamplingParams(params, vocab));
  Sampler sampler;
  sampler.params_ = std::move(params);
  const SamplingParams& p = sampler.params_;
  for (const int32_t id : banned) {
    if (id >= 0 && id < vocab) sampler.banned_.push_back(id);
  }
  const auto size = static_cast<size_t>(vocab);
  if (p.min_tokens > 0) {
    sampler.first_free_ = static_cast<int64_t>(prompt.size()) + p.min_tokens;
    for (const auto ids : {ends, std::span<const int32_t>(p.stop_token_ids)}) {
      std::copy_if(ids.begin(), ids.end(), std::back_inserter(sampler.late_),
                   [&](int32_t id) { return id >= 0 && id < vocab; });
    }
  }
  if (!p.allowed_token_ids.empty()) {
    sampler.allowed_.assign(MaskWords(size), 0);
    for (const int32_t id : p.allowed_token_ids) sampler.allowed_[id / 32] |= 1u << id % 32;
    std::vector<uint32_t> left = sampler.allowed_;
    const auto remove = [&](int32_t id) { left[id / 32] &= ~(1u << id % 32); };
    for (const auto* never : {&sampler.banned_, &sampler.late_}) std::for_each(never->begin(), never->end(), remove);
    for (const std::vector<int32_t>& word : p.bad_words) {
      if (word.size() == 1) remove(word.front());
    }
    if (std::all_of(left.begin(), left.end(), [](uint32_t word) { return word == 0; })) {
      return InvalidArgument(
          "allowed_token_ids: expected a token that may be drawn, found only such as bad_words, min_tokens or images "
          "rule out");
    }
  }
  for (const std::vector<int32_t>& word : p.bad_words) {
    sampler.longest_bad_word_ = std::max(sampler.longest_bad_word_, word.size());
  }
  sampler.tail_.reserve(sampler.longest_bad_word_);
  sampler.scores_.resize(size);
  sampler.top_.reserve(static_cast<size_t>(std::max({p.logprobs, p.prompt_logprobs, 0})) + 1);
  if (!p.greedy() && (p.top_k > 0 || p.top_p < 1)) sampler.candidates_.reserve(size);
  sampler.penalties_ = p.repetition_penalty != 1 || p.presence_penalty != 0 || p.frequency_penalty != 0;
  if (sampler.penalties_) {
    sampler.counts_.assign(size, 0);
    sampler.is_seen_.assign(size, 0);
    sampler.seen_.reserve(size);
    for (const int32_t id : prompt) sampler.Note(id);
  }
  return sampler;
}

void Sampler::Note(int32_t id) {
  if (id < 0 || static_cast<size_t>(id) >= is_seen_.size() || is_seen_[id] != 0) return;
  is_seen_[id] = 1;
  seen_.push_back(id);
}

void Sampler::Accept(int32_t id) {
  if (longest_bad_word_ > 1) {
    if (tail_.size() + 1 == longest_bad_word_) tail_.erase(tail_.begin());
    tail_.push_back(id);
  }
  if (!penalties_) return;
  Note(id);
  if (id >= 0 && static_cast<size_t>(id) < counts_.size()) ++counts_[id];
}

// What cannot be drawn at `position`.
void Sampler::Forbid(int64_t position) {
  ApplyMask(allowed_, scores_);
  for (const std::vector<int32_t>& word : params_.bad_words) {
    const size_t before = word.size() - 1;
    if (before <= tail_.size() && std::equal(word.begin(), word.end() - 1, tail_.end() - before)) {
      scores_[word.back()] = -kInfinity;
    }
  }
  if (position < first_free_) {
    for (const int32_t id : late_) scores_[id] = -kInfinity;
  }
  for (const int32_t id : banned_) scores_[id] = -kInfinity;
}

// Steps 2 to 5 of the specification, on scores_.
void Sampler::Adjust(int64_t position) {
  for (const auto& [id, bias] : params_.logit_bias) scores_[id] += std::clamp(bias, -kMaxBias, kMaxBias);
  if (penalties_) {
    const auto repetition =
        static_cast<float>(std::clamp<double>(params_.repetition_penalty, std::numeric_limits<float>::min(), kLargest));
    const auto frequency = static_cast<float>(params_.frequency_penalty);
    const auto presence = static_cast<float>(params_.presence_penalty);
    for (const int32_t id : seen_) {
      float& score = scores_[id];
      if (score == -kInfinity) continue;
      score = score > 0 ? std::min(score / repetition, kLargest) : std::max(score * repetition, -kLargest);
      score -= frequency * static_cast<float>(counts_[id]);
      if (counts_[id] > 0) score -= presence;
    }
  }
  Forbid(position);
}

// Step 7, after which the largest score is 0.
void Sampler::Scale(float highest) {
  const auto inverse = static_cast<float>(1.0 / std::max(params_.temperature, kLowestTemperature));
  for (float& score : scores_) score = (score - highest) * inverse;
}

// Steps 8 to 10. Scores are relative to the largest, which is 0.
void Sampler::Filter() {
  auto lowest = static_cast<float>(std::log(params_.min_p));  // -infinity: off
  if (params_.top_k > 0 && params_.top_k < static_cast<int64_t>(scores_.size())) {
    // Where fewer than k are above min_p's limit, the k-th lies below it and does nothing, as it should.
    lowest = std::max(lowest, KthLargest(static_cast<size_t>(params_.top_k)));
  }
  Cut(lowest, INT32_MAX);
  if (params_.top_p < 1) KeepTopP();
}

// Rules out what comes behind token `last` with score `lowest` in descending order, lower ids first among equals.
void Sampler::Cut(float lowest, int32_t last) {
  if (lowest == -kInfinity) return;
  for (size_t i = 0; i < scores_.size(); ++i) {
    const auto id = static_cast<int32_t>(i);
    // Without branches, so that the compiler takes several at once.
    const auto above = static_cast<uint32_t>(scores_[i] > lowest);
    const uint32_t tie = static_cast<uint32_t>(scores_[i] == lowest) & static_cast<uint32_t>(id <= last);
    const uint32_t bits = 0u - (above | tie);
    scores_[i] = std::bit_cast<float>((std::bit_cast<uint32_t>(scores_[i]) & bits) |
                                      (std::bit_cast<uint32_t>(-kInfinity) & ~bits));
  }
}

float Sampler::KthLargest(size_t k) {
  const auto larger = [](const Candidate& a, const Candidate& b) { return a.score > b.score; };
  candidates_.clear();
  if (k > 1024) {
    for (const float score : scores_) candidates_.push_back({score, 0});
    const auto kth = candidates_.begin() + static_cast<std::ptrdiff_t>(k - 1);
    std::nth_element(candidates_.begin(), kth, candidates_.end(), larger);
    return kth->score;
  }
  // A heap of the largest so far with the least on top, which few blocks of a long row reach.
  float least = -kInfinity;
  ForEachBlock(scores_, [&](const float* values, size_t) {
    if (candidates_.size() == k && BlockMax(values) <= least) return;
    for (size_t j = 0; j < kRowBlock; ++j) {
      if (candidates_.size() < k) {
        candidates_.push_back({values[j], 0});
        if (candidates_.size() == k) std::make_heap(candidates_.begin(), candidates_.end(), larger);
      } else if (values[j] > candidates_.front().score) {
        std::pop_heap(candidates_.begin(), candidates_.end(), larger);
        candidates_.back().score = values[j];
        std::push_heap(candidates_.begin(), candidates_.end(), larger);
      }
    }
    if (candidates_.size() == k) least = candidates_.front().score;
  });
  return least;
}

// Nothing but the neighbourhood of the set's end is sorted. Masses are summed by distance from the likeliest token in
// steps of 1/4, which gives the step in which the set ends; of the tokens of that step the upper half either holds
// enough mass, then it has the end, or all of it belongs to the set.
void Sampler::KeepTopP() {
  constexpr int32_t kSteps = 128;  // the last takes all that is further away: e^-31.75 of a likeliest token each
  const auto step_of = [](float score) {
    const auto distance = std::bit_cast<uint32_t>(-score) & INT32_MAX;
    return static_cast<int32_t>(4 * std::bit_cast<float>(std::min(distance, std::bit_cast<uint32_t>(31.75f))));
  };
  // Alternately in one of two: additions to one number wait for each other.
  std::array<std::array<double, kSteps>, 2> masses = {};
  ForEachBlock(scores_, [&](const float* values, size_t) {
    if (BlockMax(values) == -kInfinity) return;
    std::array<float, kRowBlock> mass;
    std::array<int32_t, kRowBlock> step;
    for (size_t j = 0; j < kRowBlock; ++j) mass[j] = ExpOfNegative(values[j]);
    for (size_t j = 0; j < kRowBlock; ++j) step[j] = step_of(values[j]);
    for (size_t j = 0; j < kRowBlock; ++j) masses[j % 2][step[j]] += mass[j];
  });
  double total = 0;
  for (int32_t i = 0; i < kSteps; ++i) total += masses[0][i] + masses[1][i];
  const double wanted = params_.top_p * total;
  int32_t last_step = 0;
  double mass = 0;  // of what is certain to belong to the set
  for (; last_step + 1 < kSteps; ++last_step) {
    const double with = mass + (masses[0][last_step] + masses[1][last_step]);
    if (with >= wanted) break;
    mass = with;
  }
  candidates_.clear();
  const float lowest = last_step + 1 == kSteps ? -kLargest : -0.25f * static_cast<float>(last_step + 1);
  ForEachBlock(scores_, [&](const float* values, size_t begin) {
    if (BlockMax(values) < lowest) return;
    for (size_t j = 0; j < kRowBlock; ++j) {
      if (values[j] >= lowest && step_of(values[j]) == last_step) {
        candidates_.push_back({values[j], static_cast<int32_t>(begin + j)});
      }
    }
  });
  const auto before = [](const Candidate& a, const Candidate& b) {
    return a.score > b.score || (a.score == b.score && a.id < b.id);
  };
  auto begin = candidates_.begin(), end = candidates_.end();
  while (end - begin > 32) {
    const auto middle = begin + (end - begin) / 2;
    std::nth_element(begin, middle, end, before);
    double upper = mass;
    for (auto c = begin; c != middle; ++c) upper += ExpOfNegative(c->score);
    if (upper >= wanted) {
      end = middle;
    } else {
      begin = middle;
      mass = upper;
    }
  }
  std::sort(begin, end, before);
  auto last = begin;
  mass += ExpOfNegative(last->score);
  while (mass < wanted && last + 1 != end) {
    ++last;
    mass += ExpOfNegative(last->score);
  }
  Cut(last->score, last->id);
}

// -infinity stays what it is in a row that has nothing else.
void Sampler::Summarise(std::span<const float> row, float highest, int wanted) {
  log_sum_ = highest == -kInfinity ? 0 : highest + std::log(RowMass(row, highest));
  top_.clear();
  const auto size = std::min(static_cast<size_t>(wanted), row.size());
  if (size == 0) return;
  ForEachBlock(row, [&](const float* values, size_t begin) {
    if (top_.size() == size && !(BlockMax(values) > top_.back().logprob)) return;
    const size_t count = std::min(kRowBlock, row.size() - begin);
    for (size_t j = 0; j < count; ++j) {
      const float logit = values[j];
      if (top_.size() == size && !(logit > top_.back().logprob)) continue;
      const auto place = std::find_if(top_.begin(), top_.end(), [&](const auto& t) { return logit > t.logprob; });
      top_.insert(place, {static_cast<int32_t>(begin + j), logit});
      if (top_.size() > size) top_.pop_back();
    }
  });
  for (TokenLogprob& entry : top_) entry.logprob = static_cast<float>(entry.logprob - log_sum_);
}

SampledToken Sampler::Report(std::span<const float> row, int32_t id, int wanted) const {
  SampledToken token;
  token.id = id;
  if (wanted < 0) return token;
  const float logit = row[id];
  token.logprob = static_cast<float>(logit - log_sum_);
  token.rank = 1;
  for (const float other : row) token.rank += static_cast<int32_t>(other > logit);
  token.top = top_;
  return token;
}

// Whose fault it is that no token is left.
absl::Status Sampler::NothingLeft(std::span<const float> logits, int64_t position, const RowOptions& options) {
  if (!options.mask.empty()) {
    std::copy(logits.begin(), logits.end(), scores_.begin());
    Adjust(position);
    if (RowMax(scores_) > -kInfinity) {
      return absl::InternalError(
          fmt::format("no token is possible at position {}: the grammar rules out all that could be", position));
    }
  }
  const std::string text =
      fmt::format("no token is possible at position {}: all of them are ruled out or have logit -inf", position);
  const bool asked_for = !allowed_.empty() || !params_.bad_words.empty() || position < first_free_;
  return asked_for ? absl::InvalidArgumentError(text) : absl::InternalError(text);
}

absl::StatusOr<Sampler::Row> Sampler::Process(std::span<const float> logits, int64_t position,
                                              const RowOptions& options) {
  HADAL_CHECK(logits.size() == scores_.size());
  HADAL_CHECK(options.mask.empty() || options.mask.size() == MaskWords(logits.size()));
  if (!AllBelowInfinity(logits)) {
    return absl::InternalError(
        fmt::format("the logits for position {} are not finite: {}", position, NotFinite(logits)));
  }
  Row row;
  row.raw = !params_.logprobs_processed || options.forced >= 0;
  if (params_.logprobs >= 0 && row.raw) Summarise(logits, RowMax(logits), params_.logprobs);
  if (options.forced >= 0) {
    if (static_cast<size_t>(options.forced) >= logits.size()) {
      return absl::InternalError(fmt::format("token {} is forced at position {}: expected ids from 0 to {}",
                                             options.forced, position, logits.size() - 1));
    }
    row.token = options.forced;
    row.decided = true;
    return row;
  }
  std::copy(logits.begin(), logits.end(), scores_.begin());
  Adjust(position);
  ApplyMask(options.mask, scores_);
  const float highest = RowMax(scores_);
  if (highest == -kInfinity) return NothingLeft(logits, position, options);
  row.token = FirstWith(scores_, highest);
  row.decided = params_.greedy();
  if (!row.decided) {
    Scale(highest);
    Filter();
  }
  if (params_.logprobs >= 0 && !row.raw) Summarise(scores_, row.decided ? highest : 0, params_.logprobs);
  return row;
}

int32_t Sampler::Draw(int64_t position, uint32_t stream, int32_t likeliest) const {
  const Noise noise{params_.seed, position, stream};
  return GumbelMax(scores_, noise, likeliest, [&](size_t token) { return static_cast<double>(scores_[token]); });
}

absl::StatusOr<SampledToken> Sampler::Next(std::span<const float> logits, int64_t position, const RowOptions& options) {
  HADAL_ASSIGN_OR_RETURN(const Row row, Process(logits, position, options));
  const int32_t id = row.decided ? row.token : Draw(position, kTargetStream, row.token);
  return Report(row.raw ? logits : scores_, id, params_.logprobs);
}

int32_t Sampler::DrawDraft(std::span<const float> logits, int64_t position, std::span<float> scaled) {
  HADAL_CHECK(logits.size() == scores_.size());
  HADAL_CHECK(scaled.empty() || scaled.size() == scores_.size());
  if (!AllBelowInfinity(logits)) return -1;
  std::copy(logits.begin(), logits.end(), scores_.begin());
  for (const int32_t id : banned_) scores_[id] = -kInfinity;
  const float highest = RowMax(scores_);
  if (highest == -kInfinity) return -1;
  const int32_t likeliest = FirstWith(scores_, highest);
  if (scaled.empty() || params_.greedy()) return likeliest;
  Scale(highest);
  std::copy(scores_.begin(), scores_.end(), scaled.begin());
  return Draw(position, kDraftStream, likeliest);
}

// A sample of max(p - q, 0) for the target p in scores_ and the draft's q; q is all at `draft` if draft_row is empty.
// Of p itself if there is nothing of that, as when p and q are equal up to rounding.
int32_t Sampler::DrawResidual(int64_t position, int32_t likeliest, double log_mass, int32_t draft,
                              std::span<const float> draft_row, double draft_log_mass) const {
  const auto log_weight = [&](size_t token) -> double {
    if (draft_row.empty()) return static_cast<int32_t>(token) == draft ? -kInfinity : scores_[token];
    // log(p - q) = log(p) + log(1 - q/p), of which the constant log_mass is left out.
    const double ratio = (draft_row[token] - draft_log_mass) - (scores_[token] - log_mass);
    return ratio < 0 ? scores_[token] + std::log1p(-std::exp(ratio)) : -kInfinity;
  };
  const int32_t token = GumbelMax(scores_, {params_.seed, position, kResidualStream}, likeliest, log_weight);
  return token >= 0 ? token : Draw(position, kResidualStream, likeliest);
}

absl::StatusOr<VerifiedToken> Sampler::Verify(std::span<const float> logits, int64_t position, int32_t draft,
                                              std::span<const float> draft_row, const RowOptions& options) {
  HADAL_CHECK(draft_row.empty() || draft_row.size() == scores_.size());
  HADAL_ASSIGN_OR_RETURN(const Row row, Process(logits, position, options));
  VerifiedToken result;
  int32_t id = row.token;
  if (row.decided) {
    result.accepted = id == draft;
  } else {
    const float draft_highest = draft_row.empty() ? 0 : RowMax(draft_row);
    const bool is_draft = draft >= 0 && static_cast<size_t>(draft) < scores_.size() && AllBelowInfinity(draft_row) &&
                          draft_highest > -kInfinity;
    if (!is_draft) {
      id = Draw(position, kResidualStream, row.token);
    } else {
      // p is that of scores_, q that of draft_row or all at the draft.
      const double log_mass = std::log(RowMass(scores_, 0));
      const double draft_log_mass = draft_row.empty() ? 0 : draft_highest + std::log(RowMass(draft_row, draft_highest));
      const double log_p = scores_[draft] - log_mass;
      const double log_q = draft_row.empty() ? 0 : draft_row[draft] - draft_log_mass;
      const double log_u = std::log(Uniform(Noise{params_.seed, position, kAcceptStream}.Bits(0)));
      result.accepted = log_q > -kInfinity && log_p >= log_u + log_q;
      id = result.accepted ? draft : DrawResidual(position, row.token, log_mass, draft, draft_row, draft_log_mass);
    }
  }
  result.token = Report(row.raw ? logits : scores_, id, params_.logprobs);
  return result;
}

absl::StatusOr<SampledToken> Sampler::ReportPrompt(std::span<const float> logits, int32_t token) {
  HADAL_CHECK(logits.size() == scores_.size() && params_.prompt_logprobs >= 0);
  HADAL_CHECK(token >= 0 && static_cast<size_t>(token) < logits.size());
  if (!AllBelowInfinity(logits)) {
    return absl::InternalError(fmt::format("the logits of a row of the prompt are not finite: {}", NotFinite(logits)));
  }
  Summarise(logits, RowMax(logits), params_.prompt_logprobs);
  return Report(logits, token, params_.prompt_logprobs);
}

}  // namespace hadal::runtime
