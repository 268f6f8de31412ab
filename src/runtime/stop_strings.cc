#include "runtime/stop_strings.h"

#include <algorithm>

#include "base/status.h"

namespace hadal::runtime {

absl::Status CheckStopStrings(const std::vector<std::string>& stops) {
  if (stops.size() > kMaxStopStrings) {
    return InvalidArgument("stop: expected at most {} strings, found {}", kMaxStopStrings, stops.size());
  }
  for (const std::string& stop : stops) {
    if (stop.empty()) return InvalidArgument("stop: expected non-empty strings, found an empty one");
    if (stop.size() > kMaxStopBytes) {
      return InvalidArgument("stop: expected strings of at most {} bytes, found one of {}", kMaxStopBytes, stop.size());
    }
  }
  return absl::OkStatus();
}

// Length of the longest suffix of text_ that is a proper prefix of a stop string.
size_t StopStrings::HeldSuffix() const {
  size_t held = 0;
  for (const std::string& stop : stops_) {
    for (size_t n = std::min(stop.size() - 1, text_.size()); n > held; --n) {
      if (std::string_view(text_).substr(text_.size() - n) == std::string_view(stop).substr(0, n)) held = n;
    }
  }
  return held;
}

std::string StopStrings::Push(std::string_view piece) {
  if (matched()) return {};
  text_ += piece;
  size_t begin = 0, end = std::string::npos;
  for (size_t i = 0; i < stops_.size(); ++i) {
    const size_t at = text_.find(stops_[i]);
    if (at == std::string::npos) continue;
    if (at + stops_[i].size() < end || (at + stops_[i].size() == end && at < begin)) {
      begin = at;
      end = at + stops_[i].size();
      match_ = static_cast<int>(i);
    }
  }
  const size_t keep = matched() ? text_.size() - begin : HeldSuffix();
  std::string out = text_.substr(0, text_.size() - keep);
  text_.erase(0, matched() ? std::string::npos : out.size());
  return out;
}

std::string StopStrings::Flush() {
  std::string out;
  out.swap(text_);
  return out;
}

}  // namespace hadal::runtime
