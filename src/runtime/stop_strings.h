// Finds stop strings in text that comes in pieces, and holds back what could still become one
// (spec serving-runtime 5.5).
//
// The match is the one that is complete first; of several that end together the longest. So where the text ends does
// not depend on how it was cut into pieces.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"

namespace hadal::runtime {

inline constexpr size_t kMaxStopStrings = 16;
inline constexpr size_t kMaxStopBytes = 4096;

// InvalidArgument for more than kMaxStopStrings strings, an empty one, or one of more than kMaxStopBytes bytes.
absl::Status CheckStopStrings(const std::vector<std::string>& stops);

class StopStrings {
 public:
  explicit StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {}

  // Takes the next piece; returns the text that no stop string can take back. After a match returns nothing more.
  std::string Push(std::string_view piece);
  // The end of the text: returns what was held back.
  std::string Flush();

  bool matched() const { return match_ >= 0; }
  // The string that was found; only after a match.
  const std::string& match() const { return stops_[match_]; }

 private:
  size_t HeldSuffix() const;

  std::vector<std::string> stops_;
  int match_ = -1;    // into stops_
  std::string text_;  // not yet given out
};

}  // namespace hadal::runtime
