// What compiling one grammar may cost.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "base/status.h"

namespace hadal::guided {

// Limits of one compilation (spec serving-runtime 5.7). Exceeding one is InvalidArgument and says which.
struct CompileLimits {
  double seconds = 10;
  size_t text_bytes = 64 << 10;  // of the schema, regex, grammar or list of choices
  int depth = 64;                // of JSON values or groups inside one another
  size_t states = 500'000;       // of the automaton, after repetitions are written out
};

// The limits of a compilation that is under way.
class Budget {
 public:
  explicit Budget(const CompileLimits& limits);

  const CompileLimits& limits() const { return limits_; }
  // Fails once the time is over. Cheap enough for every step of a loop: the clock is read every 256th time.
  absl::Status CheckTime();
  // The same for steps that are not small.
  absl::Status CheckTimeNow() const;
  absl::Status CheckText(std::string_view what, std::string_view text) const;
  absl::Status CheckStates(size_t states) const;

 private:
  CompileLimits limits_;
  std::chrono::steady_clock::time_point deadline_;
  uint32_t calls_ = 0;
};

}  // namespace hadal::guided
