// The safetensors container (spec deepseek-v4-text 2.1): a checked reader over a mapped file, and a writer.
//
// File = u64 little-endian header length N, N bytes of JSON, payload. JSON: {"name": {"dtype": "BF16", "shape": [..],
// "data_offsets": [begin, end]}, ..., "__metadata__": {..}}, offsets relative to byte 8 + N.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "base/dtype.h"
#include "checkpoint/tensor_entry.h"

namespace hadal::checkpoint {

// Limits on what a header may ask for; a header beyond them is refused.
inline constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the limit of the format's own library
inline constexpr size_t kMaxNameBytes = 512;
inline constexpr size_t kMaxRank = 8;

struct HeaderEntry {
  std::string name;
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes, relative to the payload
  uint64_t end = 0;
};

struct SafetensorsHeader {
  std::vector<HeaderEntry> entries;  // in the order of the JSON
  std::map<std::string, std::string> metadata;
};

// Checks everything that a header can get wrong: JSON and UTF-8, members and their types, dtype, shape, size against
// offsets, offsets against `payload_bytes`, overlaps, duplicate names. `source` is what messages call the file. Memory
// is bounded by a small multiple of the header's size, for any input.
absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t payload_bytes,
                                              std::string_view source = "safetensors header");

// A file mapped read-only. Entries point into the mapping and live as long as this object.
class SafetensorsFile {
 public:
  // NotFound if the file cannot be opened, InvalidArgument naming the file for anything else. A file shorter than its
  // header says has its own message ("truncated") with the expected and the actual size.
  static absl::StatusOr<std::unique_ptr<SafetensorsFile>> Open(const std::string& path);
  ~SafetensorsFile();
  SafetensorsFile(const SafetensorsFile&) = delete;
  SafetensorsFile& operator=(const SafetensorsFile&) = delete;

  const std::string& path() const { return path_; }
  // As the file has them: raw names, dtypes and shapes, `data` aligned only as the file aligns it.
  const std::vector<TensorEntry>& entries() const { return entries_; }
  const std::map<std::string, std::string>& metadata() const { return metadata_; }
  int64_t file_bytes() const { return static_cast<int64_t>(size_); }

 private:
  SafetensorsFile() = default;

  std::string path_;
  void* mapping_ = nullptr;
  size_t size_ = 0;
  std::vector<TensorEntry> entries_;
  std::map<std::string, std::string> metadata_;
};

// Writes a file as a stream: names, dtypes and shapes first, then the bytes of each tensor in the same order. The file
// appears under its name only when Finish() succeeds (written beside it, then renamed); otherwise nothing is left
// behind.
class SafetensorsWriter {
 public:
  struct Spec {
    std::string name;
    DType dtype = DType::kF32;
    std::vector<int64_t> shape;
  };

  // Payload offsets are aligned to the size of an element when tensors are given with falling element sizes; the
  // header is padded with spaces to a multiple of 64 bytes.
  static absl::StatusOr<std::unique_ptr<SafetensorsWriter>> Create(
      const std::string& path, const std::vector<Spec>& specs, const std::map<std::string, std::string>& metadata = {});
  ~SafetensorsWriter();
  SafetensorsWriter(const SafetensorsWriter&) = delete;
  SafetensorsWriter& operator=(const SafetensorsWriter&) = delete;

  // The next bytes of the payload; tensors may be cut anywhere.
  absl::Status Append(std::span<const std::byte> bytes);
  // FailedPrecondition if the payload is not complete.
  absl::Status Finish();

  int64_t payload_bytes() const { return payload_bytes_; }

 private:
  SafetensorsWriter() = default;
  absl::Status WriteAll(std::span<const std::byte> bytes);

  std::string path_;
  std::string temporary_path_;
  int fd_ = -1;
  int64_t payload_bytes_ = 0;
  int64_t written_ = 0;
};

// The whole file, for small text files such as config.json. NotFound, or InvalidArgument above `max_bytes`.
absl::StatusOr<std::string> ReadTextFile(const std::string& path, uint64_t max_bytes);

// Replaces the file with `text` at once (temporary file, then rename).
absl::Status WriteTextFile(const std::string& path, std::string_view text);

}  // namespace hadal::checkpoint
