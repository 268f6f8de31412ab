// How much memory this process may still use: /proc/meminfo and the limits of its cgroups.
#include <algorithm>
#include <charconv>
#include <sstream>

#include "base/status.h"
#include "checkpoint/memory_plan.h"
#include "checkpoint/safetensors.h"

namespace hadal::checkpoint {
namespace {

// Files under /proc and /sys report a size of 0, so they are read as streams.
std::optional<std::string> ReadSmall(const std::string& path) {
  std::FILE* file = std::fopen(path.c_str(), "re");
  if (file == nullptr) return std::nullopt;
  std::string text(1 << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  return text;
}

std::optional<int64_t> ReadNumber(const std::string& path) {
  const std::optional<std::string> text = ReadSmall(path);
  if (!text.has_value()) return std::nullopt;
  int64_t value = 0;
  const auto [rest, error] = std::from_chars(text->data(), text->data() + text->size(), value);
  if (error != std::errc() || value < 0) return std::nullopt;  // also "max"
  return value;
}

// "MemAvailable:   24 kB" -> 24; "inactive_file 4096" -> 4096.
std::optional<int64_t> Field(const std::string& text, std::string_view key) {
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line.compare(0, key.size(), key) != 0) continue;
    const size_t digits = line.find_first_of("0123456789", key.size());
    int64_t value = 0;
    if (digits == std::string::npos ||
        std::from_chars(line.data() + digits, line.data() + line.size(), value).ec != std::errc()) {
      return std::nullopt;
    }
    return value;
  }
  return std::nullopt;
}

struct CgroupFiles {
  const char* limit;
  const char* usage;
};
constexpr CgroupFiles kV2 = {"memory.max", "memory.current"};
constexpr CgroupFiles kV1 = {"memory.limit_in_bytes", "memory.usage_in_bytes"};

// The limit of `group` and of every group above it counts.
void ApplyCgroup(const std::string& mount, std::string group, const CgroupFiles& files, AvailableMemory* available) {
  while (true) {
    const std::string dir = mount + group;
    const std::optional<int64_t> limit = ReadNumber(fmt::format("{}/{}", dir, files.limit));
    const std::optional<int64_t> usage = ReadNumber(fmt::format("{}/{}", dir, files.usage));
    if (limit.has_value() && usage.has_value()) {
      // Clean page cache is charged to the group but goes away when memory is needed.
      const std::string stat = ReadSmall(dir + "/memory.stat").value_or("");
      const int64_t cache = Field(stat, "inactive_file ").value_or(0) + Field(stat, "active_file ").value_or(0);
      const int64_t free = std::max<int64_t>(0, *limit - std::max<int64_t>(0, *usage - cache));
      if (free < available->bytes) {
        *available = {free, fmt::format("{} of cgroup {}", files.limit, group.empty() ? "/" : group)};
      }
    }
    if (group.empty()) return;
    group.resize(group.rfind('/') == std::string::npos ? 0 : group.rfind('/'));
  }
}

}  // namespace

absl::StatusOr<AvailableMemory> ReadAvailableMemory(const std::string& root) {
  const std::string meminfo_path = root + "/proc/meminfo";
  const std::optional<std::string> meminfo = ReadSmall(meminfo_path);
  const std::optional<int64_t> kib = meminfo.has_value() ? Field(*meminfo, "MemAvailable:") : std::nullopt;
  if (!kib.has_value()) return NotFound("{}: expected a line \"MemAvailable: <n> kB\"", meminfo_path);
  AvailableMemory available{std::min(*kib, INT64_MAX / 1024) * 1024, "MemAvailable of /proc/meminfo"};

  // Lines "0::/path" (v2) and "4:memory,cpu:/path" (v1).
  std::istringstream groups(ReadSmall(root + "/proc/self/cgroup").value_or(""));
  for (std::string line; std::getline(groups, line);) {
    const size_t first = line.find(':');
    const size_t second = first == std::string::npos ? first : line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = fmt::format(",{},", line.substr(first + 1, second - first - 1));
    std::string group = line.substr(second + 1);
    if (group == "/") group.clear();
    if (controllers == ",,") {
      ApplyCgroup(root + "/sys/fs/cgroup", group, kV2, &available);
    } else if (controllers.find(",memory,") != std::string::npos) {
      ApplyCgroup(root + "/sys/fs/cgroup/memory", group, kV1, &available);
    }
  }
  return available;
}

}  // namespace hadal::checkpoint
