#include "guided/matcher.h"

#include <algorithm>
#include <utility>

#include "base/status.h"

namespace hadal::guided {
namespace {

constexpr size_t kRecentMasks = 8;
// Items looked at by one call: far more than any grammar needs that is not made to be slow, and about a second.
constexpr uint64_t kWorkPerCall = 50'000'000;

}  // namespace

Matcher::Matcher(std::shared_ptr<const Grammar> grammar)
    : grammar_(std::move(grammar)), sets_(std::make_unique<ItemSets>(grammar_->automaton())) {
  sets_->AllowWork(kWorkPerCall);
  ids_.push_back(sets_->Start());
}

Matcher::~Matcher() = default;
Matcher::Matcher(Matcher&&) noexcept = default;
Matcher& Matcher::operator=(Matcher&&) noexcept = default;

void Matcher::BeginCall() {
  sets_->AllowWork(kWorkPerCall);
  if (sets_->wants_compaction()) {
    std::vector<SetId>* const keep[] = {&ids_};
    sets_->Compact(keep);
  }
}

absl::Status Matcher::FillMask(std::span<uint32_t> mask) {
  const TokenVocabulary& vocabulary = grammar_->vocabulary();
  HADAL_CHECK(mask.size() >= vocabulary.mask_words());
  std::fill(mask.begin(), mask.end(), 0);
  if (terminated_) return absl::OkStatus();
  BeginCall();
  const std::span<uint32_t> words = mask.first(vocabulary.mask_words());
  absl::Status status = FillTextMask(words);
  if (!status.ok()) {
    std::fill(words.begin(), words.end(), 0);
    return status;
  }
  if (!IsAccepting()) return absl::OkStatus();
  for (const int32_t end : vocabulary.ends()) {
    words[static_cast<size_t>(end) / 32] |= 1u << (static_cast<uint32_t>(end) % 32);
  }
  return absl::OkStatus();
}

absl::Status Matcher::FillTextMask(std::span<uint32_t> mask) {
  const auto tangled = [] {
    return ResourceExhausted("the grammar is too ambiguous: finding the next tokens takes too much work or memory");
  };
  if (recent_compactions_ != sets_->compactions()) recent_.clear();
  recent_compactions_ = sets_->compactions();
  for (const Recent& recent : recent_) {
    if (recent.set != current()) continue;
    std::copy(recent.mask.begin(), recent.mask.end(), mask.begin());
    return absl::OkStatus();
  }

  TokenWalker walker(grammar_->vocabulary(), sets_.get(), &ids_);
  if (sets_->nesting(current()) + grammar_->vocabulary().longest_token() > kMaxNesting) {
    walker.WalkAll(mask);  // a mask without callers would not see that nesting ends
  } else {
    std::vector<uint32_t> states = sets_->States(current());
    std::shared_ptr<const TokenMask> known = grammar_->masks().Find(states);
    if (known == nullptr) {
      known = std::make_shared<const TokenMask>(walker.WalkStates(states));
      if (sets_->exhausted()) return tangled();
      grammar_->masks().Insert(std::move(states), known);
    }
    std::copy(known->allowed.begin(), known->allowed.end(), mask.begin());
    walker.WalkSubtrees(known->depends, mask);
  }
  if (sets_->exhausted()) return tangled();
  if (recent_compactions_ != sets_->compactions()) return absl::OkStatus();
  if (recent_.size() == kRecentMasks) recent_.pop_front();
  recent_.push_back({.set = current(), .mask = {mask.begin(), mask.end()}});
  return absl::OkStatus();
}

SetId Matcher::After(SetId set, int32_t token) {
  if (token < 0 || token >= grammar_->vocabulary().size()) return kDead;
  const std::string_view text = grammar_->vocabulary().Text(token);
  if (text.empty()) return kDead;
  for (const char c : text) set = sets_->StepByte(set, static_cast<uint8_t>(c));
  return set;
}

bool Matcher::Accept(int32_t token) {
  if (terminated_) return false;
  if (grammar_->vocabulary().IsEnd(token)) {
    terminated_ = IsAccepting();
    return terminated_;
  }
  BeginCall();
  const SetId next = After(current(), token);
  if (next == kDead) return false;
  if (ids_.size() > kMaxRollback) ids_.erase(ids_.begin());
  ids_.push_back(next);
  return true;
}

bool Matcher::Rollback(size_t count) {
  if (count == 0) return true;
  const size_t ends = terminated_ ? 1 : 0;
  if (count > ids_.size() - 1 + ends || count > kMaxRollback) return false;
  ids_.erase(ids_.end() - static_cast<std::ptrdiff_t>(count - ends), ids_.end());
  terminated_ = false;
  return true;
}

size_t Matcher::AcceptedPrefix(std::span<const int32_t> tokens) {
  if (terminated_) return 0;
  BeginCall();
  SetId set = current();
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (grammar_->vocabulary().IsEnd(tokens[i])) return sets_->accepting(set) ? i + 1 : i;
    set = After(set, tokens[i]);
    if (set == kDead) return i;
  }
  return tokens.size();
}

bool Matcher::IsAccepting() const { return !terminated_ && sets_->accepting(current()); }

bool Matcher::CanContinue() {
  std::vector<uint32_t> mask(grammar_->vocabulary().mask_words());
  if (!FillMask(mask).ok()) return false;
  return std::any_of(mask.begin(), mask.end(), [](uint32_t word) { return word != 0; });
}

}  // namespace hadal::guided
