#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <random>

#include "base/status.h"
#include "runtime/philox.h"

namespace hadal::runtime {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();
constexpr double kLowestTemperature = 0.01;  // spec 5.1, step 6
constexpr float kMaxBias = 100.0f;
constexpr size_t kMaxBiasEntries = 1024;
constexpr int kMaxLogprobs = 20;
constexpr size_t kMaxBadWords = 256;  // sequences: two for each of 128 words
constexpr int64_t kMaxMinTokens = INT32_MAX;
constexpr size_t kMaxBadWordTokens = 1024;  // in all bad words together
constexpr uint32_t kTargetStream = 0;       // streams 1 to 3 belong to drafting (spec 5.3)

PhiloxBlock RandomBlock(uint64_t seed, int64_t position, uint32_t token_block) {
  const auto p = static_cast<uint64_t>(position);
  return Philox4x32(seed, {static_cast<uint32_t>(p), static_cast<uint32_t>(p >> 32), kTargetStream, token_block});
}

// u = (bits + 1/2) / 2^32 lies inside (0, 1), so both logarithms are finite.
double Gumbel(uint32_t bits) { return -std::log(-std::log((bits + 0.5) * 0x1p-32)); }

bool InRange(double v, double low, double high) { return v >= low && v <= high; }

// Whether every value is below +infinity, which a NaN is not either.
bool AllBelowInfinity(std::span<const float> row) {
  uint32_t bad = 0;
  for (const float v : row) bad |= !(v < kInfinity);
  return bad == 0;
}

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

absl::Status BadLogit(std::span<const float> row, int64_t position) {
  const auto bad = std::find_if(row.begin(), row.end(), [](float v) { return !(v < kInfinity); });
  return absl::InternalError(
      fmt::format("the logits for position {} are not finite: {} at token {}", position, *bad, bad - row.begin()));
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
  if (!(p.repetition_penalty > 0 && p.repetition_penalty <= 100)) {
    return InvalidArgument("repetition_penalty: expected a number above 0 and up to 100, found {}",
                           p.repetition_penalty);
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
    sampler.is_allowed_.assign(size, 0);
    for (const int32_t id : p.allowed_token_ids) sampler.is_allowed_[id] = 1;
    std::vector<uint8_t> left = sampler.is_allowed_;
    for (const auto* never : {&sampler.banned_, &sampler.late_}) {
      for (const int32_t id : *never) left[id] = 0;
    }
    for (const std::vector<int32_t>& word : p.bad_words) {
      if (word.size() == 1) left[word.front()] = 0;
    }
    if (std::count(left.begin(), left.end(), 1) == 0) {
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
  sampler.top_.reserve(static_cast<size_t>(std::max(p.logprobs, 0)) + 1);
  if (!p.greedy() && (p.min_p > 0 || p.top_k > 0 || p.top_p < 1)) sampler.candidates_.reserve(size);
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
  for (size_t i = 0; i < is_allowed_.size(); ++i) {
    if (is_allowed_[i] == 0) scores_[i] = -kInfinity;
  }
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
    const auto repetition = static_cast<float>(params_.repetition_penalty);
    const auto frequency = static_cast<float>(params_.frequency_penalty);
    const auto presence = static_cast<float>(params_.presence_penalty);
    for (const int32_t id : seen_) {
      float& score = scores_[id];
      score = score > 0 ? std::min(score / repetition, std::numeric_limits<float>::max()) : score * repetition;
      score -= frequency * static_cast<float>(counts_[id]);
      if (counts_[id] > 0) score -= presence;
    }
  }
  Forbid(position);
}

// -1 if all scores are -infinity.
int32_t Sampler::Greedy() const {
  int32_t best = -1;
  float best_score = -kInfinity;
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (scores_[i] > best_score) {
      best_score = scores_[i];
      best = static_cast<int32_t>(i);
    }
  }
  return best;
}

// A token whose score lies further below the best noisy score than the largest possible noise cannot win: its noise is
// not computed. That leaves the result as it is and most of the vocabulary untouched.
int32_t Sampler::DrawFromAll(int64_t position) const {
  static const double kMaxGumbel = Gumbel(UINT32_MAX);
  const int32_t top = Greedy();
  int32_t best = top;
  double best_score = scores_[top] + Gumbel(RandomBlock(params_.seed, position, top / 4)[top % 4]);
  const size_t vocab = scores_.size();
  for (size_t block = 0; 4 * block < vocab; ++block) {
    const size_t begin = 4 * block, end = std::min(begin + 4, vocab);
    const float highest = *std::max_element(&scores_[begin], scores_.data() + end);
    if (highest == -kInfinity || highest + kMaxGumbel < best_score) continue;
    const PhiloxBlock bits = RandomBlock(params_.seed, position, static_cast<uint32_t>(block));
    for (size_t i = begin; i < end; ++i) {
      if (scores_[i] == -kInfinity) continue;
      const double score = scores_[i] + Gumbel(bits[i - begin]);
      if (score > best_score || (score == best_score && static_cast<int32_t>(i) < best)) {
        best_score = score;
        best = static_cast<int32_t>(i);
      }
    }
  }
  return best;
}

int32_t Sampler::DrawFromCandidates(int64_t position) const {
  int32_t best = -1;
  double best_score = 0;
  for (const Candidate& c : candidates_) {
    const double score =
        c.score + Gumbel(RandomBlock(params_.seed, position, static_cast<uint32_t>(c.id) / 4)[c.id % 4]);
    if (best < 0 || score > best_score || (score == best_score && c.id < best)) {
      best_score = score;
      best = c.id;
    }
  }
  return best;
}

// Steps 8 to 10. Scores are relative to the largest, which is 0.
void Sampler::Filter() {
  const auto lowest = static_cast<float>(std::log(params_.min_p));  // -infinity: off
  candidates_.clear();
  for (size_t i = 0; i < scores_.size(); ++i) {
    if (scores_[i] >= lowest && scores_[i] > -kInfinity) {
      candidates_.push_back({scores_[i], static_cast<int32_t>(i)});
    }
  }
  KeepTopK();
  KeepTopP();
}

void Sampler::KeepTopK() {
  if (params_.top_k <= 0 || static_cast<size_t>(params_.top_k) >= candidates_.size()) return;
  const auto kth = candidates_.begin() + (params_.top_k - 1);
  std::nth_element(candidates_.begin(), kth, candidates_.end(),
                   [](const Candidate& a, const Candidate& b) { return a.score > b.score; });
  const float lowest = kth->score;
  const auto end = std::partition(kth + 1, candidates_.end(), [&](const Candidate& c) { return c.score == lowest; });
  candidates_.erase(end, candidates_.end());
}

// Takes tokens off a heap until their mass is enough: cheap when few tokens hold it.
void Sampler::KeepTopP() {
  if (params_.top_p >= 1) return;
  double total = 0;
  for (const Candidate& c : candidates_) total += std::exp(static_cast<double>(c.score));
  const auto lower = [](const Candidate& a, const Candidate& b) {
    return a.score < b.score || (a.score == b.score && a.id > b.id);
  };
  std::make_heap(candidates_.begin(), candidates_.end(), lower);
  auto heap_end = candidates_.end();
  const double wanted = params_.top_p * total;
  for (double mass = 0; heap_end != candidates_.begin() && mass < wanted;) {
    std::pop_heap(candidates_.begin(), heap_end, lower);
    --heap_end;
    mass += std::exp(static_cast<double>(heap_end->score));
  }
  candidates_.erase(candidates_.begin(), heap_end);
}

void Sampler::ReportLogprobs(std::span<const float> logits, SampledToken* token) {
  const float highest = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(static_cast<double>(v) - highest);
  const double log_sum = highest + std::log(sum);
  token->logprob = static_cast<float>(logits[token->id] - log_sum);

  const auto wanted = std::min(static_cast<size_t>(params_.logprobs), logits.size());
  top_.clear();
  for (size_t i = 0; wanted > 0 && i < logits.size(); ++i) {
    if (top_.size() == wanted && !(logits[i] > top_.back().logprob)) continue;
    const auto place = std::find_if(top_.begin(), top_.end(), [&](const auto& t) { return logits[i] > t.logprob; });
    top_.insert(place, {static_cast<int32_t>(i), logits[i]});
    if (top_.size() > wanted) top_.pop_back();
  }
  for (TokenLogprob& entry : top_) entry.logprob = static_cast<float>(entry.logprob - log_sum);
  token->top = top_;
}

absl::StatusOr<SampledToken> Sampler::Next(std::span<const float> logits, int64_t position) {
  HADAL_CHECK(logits.size() == scores_.size());
  if (!AllBelowInfinity(logits)) return BadLogit(logits, position);
  std::copy(logits.begin(), logits.end(), scores_.begin());
  Adjust(position);
  SampledToken token;
  token.id = Greedy();
  if (token.id < 0) {
    const std::string text =
        fmt::format("no token is possible at position {}: all of them are ruled out or have logit -inf", position);
    const bool asked_for = !is_allowed_.empty() || !params_.bad_words.empty() || position < first_free_;
    return asked_for ? absl::InvalidArgumentError(text) : absl::InternalError(text);
  }
  if (!params_.greedy()) {
    const float highest = scores_[token.id];
    const auto inverse = static_cast<float>(1.0 / std::max(params_.temperature, kLowestTemperature));
    for (float& score : scores_) score = (score - highest) * inverse;
    if (candidates_.capacity() > 0) {
      Filter();
      token.id = DrawFromCandidates(position);
    } else {
      token.id = DrawFromAll(position);
    }
  }
  if (params_.logprobs >= 0) ReportLogprobs(logits, &token);
  return token;
}

}  // namespace hadal::runtime
