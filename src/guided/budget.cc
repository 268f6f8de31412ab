#include "guided/budget.h"

#include "guided/char_set.h"

namespace hadal::guided {

Budget::Budget(const CompileLimits& limits)
    : limits_(limits),
      deadline_(std::chrono::steady_clock::now() + std::chrono::duration_cast<std::chrono::steady_clock::duration>(
                                                       std::chrono::duration<double>(limits.seconds))) {}

absl::Status Budget::CheckTime() {
  if (calls_++ % 256 != 0) return absl::OkStatus();
  absl::Status status = CheckTimeNow();
  if (!status.ok()) calls_ = 0;  // fails again if asked again
  return status;
}

absl::Status Budget::CheckTimeNow() const {
  if (std::chrono::steady_clock::now() < deadline_) return absl::OkStatus();
  return InvalidArgument("compiling takes longer than the {} s allowed", limits_.seconds);
}

absl::Status Budget::CheckText(std::string_view what, std::string_view text) const {
  if (text.size() > limits_.text_bytes) {
    return InvalidArgument("{}: at most {} bytes, found {}", what, limits_.text_bytes, text.size());
  }
  const size_t invalid = FindInvalidUtf8(text);
  if (invalid != std::string_view::npos) return InvalidArgument("{}: not UTF-8 at byte {}", what, invalid);
  return absl::OkStatus();
}

absl::Status Budget::CheckStates(size_t states) const {
  if (states <= limits_.states) return absl::OkStatus();
  return InvalidArgument("expands to more than {} states; large counts of repetitions or lengths are the usual cause",
                         limits_.states);
}

}  // namespace hadal::guided
