// Headers of safetensors files, and indices of shards: any bytes give a status, and what is accepted keeps its
// promises.
#include <cstring>
#include <string_view>

#include "base/status.h"
#include "checkpoint/safetensors.h"
#include "checkpoint/shard_index.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace hadal;
  using namespace hadal::checkpoint;
  if (size < 2) return 0;
  uint16_t payload = 0;  // the first two bytes are the size of the payload
  std::memcpy(&payload, data, 2);
  const std::string_view json(reinterpret_cast<const char*>(data) + 2, size - 2);
  const absl::StatusOr<SafetensorsHeader> header = ParseHeader(json, payload);
  if (header.ok()) {
    uint64_t total = 0;
    for (const HeaderEntry& entry : header->entries) {
      int64_t elements = 1;
      for (int64_t dim : entry.shape) elements *= dim;
      HADAL_CHECK(entry.begin <= entry.end && entry.end <= payload);
      HADAL_CHECK(static_cast<uint64_t>(DTypeBytes(entry.dtype, elements)) == entry.end - entry.begin);
      total += entry.end - entry.begin;
    }
    HADAL_CHECK(total <= payload);  // no overlaps
  } else {
    HADAL_CHECK(!header.status().message().empty());
  }
  const auto index = ParseIndex(json, "index");
  if (index.ok()) {
    for (const auto& [tensor, shard] : *index) HADAL_CHECK(!shard.empty() && shard.find('/') == std::string::npos);
  }
  return 0;
}
