// The state of one sequence under a grammar.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "guided/grammar.h"
#include "guided/item_sets.h"
#include "guided/token_masks.h"

namespace hadal::guided {

// Not safe for several threads; matchers of one grammar do not disturb each other.
class Matcher {
 public:
  // Tokens that can be taken back. Drafts of one step are at most 16 (spec 5.7: at least K + 1).
  static constexpr size_t kMaxRollback = 64;

  explicit Matcher(std::shared_ptr<const Grammar> grammar);
  ~Matcher();
  Matcher(Matcher&&) noexcept;
  Matcher& operator=(Matcher&&) noexcept;

  // Sets the bit of each token that may come next and clears all others: bit id % 32 of word id / 32. `mask` has at
  // least the vocabulary's mask_words(); words beyond those are cleared too. End tokens are allowed where the text may
  // end. All bits are clear after an end token, and where the vocabulary has no token that goes on: the caller reports
  // that. ResourceExhausted, with all bits clear, if the grammar is so ambiguous that a mask takes unreasonable work or
  // memory; the request should then end with this error.
  absl::Status FillMask(std::span<uint32_t> mask);

  // Takes a token into the output. False, with nothing changed, if FillMask would not allow it.
  bool Accept(int32_t token);
  // Takes back the last `count` accepted tokens, an end token among them. False, with nothing changed, if that is more
  // than were accepted or than kMaxRollback.
  bool Rollback(size_t count);

  // How many of `tokens` could be accepted from here, one after the other. Changes nothing.
  size_t AcceptedPrefix(std::span<const int32_t> tokens);

  // An end token was accepted.
  bool IsTerminated() const { return terminated_; }
  // The text so far is complete: an end token would be accepted. False after one was.
  bool IsAccepting() const;
  // Whether any token is allowed; as much work as FillMask.
  bool CanContinue();

 private:
  struct Recent {
    SetId set;
    std::vector<uint32_t> mask;
  };

  SetId current() const { return ids_.back(); }
  SetId After(SetId set, int32_t token);
  absl::Status FillTextMask(std::span<uint32_t> mask);
  void BeginCall();

  std::shared_ptr<const Grammar> grammar_;
  std::unique_ptr<ItemSets> sets_;
  // Sets after the last tokens, the current one at the back: one more than can be taken back.
  std::vector<SetId> ids_;
  bool terminated_ = false;    // then the end token is one more accepted token, which has no set
  std::deque<Recent> recent_;  // masks of the last sets; texts often stay in one set for long
  uint64_t recent_compactions_ = 0;
};

}  // namespace hadal::guided
