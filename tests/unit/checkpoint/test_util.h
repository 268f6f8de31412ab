// Helpers of the checkpoint tests: a temporary directory, small files, hand-made safetensors.
#pragma once

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace hadal::checkpoint {

#define ASSERT_OK(expr) \
  if (absl::Status assert_status = (expr); !assert_status.ok()) FAIL() << Message(assert_status)

// Expects a failed Status or StatusOr whose message holds all the given parts.
inline const absl::Status& AsStatus(const absl::Status& status) { return status; }
template <typename T>
const absl::Status& AsStatus(const absl::StatusOr<T>& result) {
  return result.status();
}
template <typename T>
void ExpectError(const T& result, absl::StatusCode code, std::initializer_list<const char*> parts) {
  const absl::Status& status = AsStatus(result);
  EXPECT_EQ(status.code(), code) << Message(status);
  for (const char* part : parts) {
    EXPECT_NE(Message(status).find(part), std::string_view::npos)
        << "missing \"" << part << "\" in: " << Message(status);
  }
}

class TempDir {
 public:
  TempDir() {
    std::string pattern = (std::filesystem::temp_directory_path() / "hadal_test_XXXXXX").string();
    path_ = mkdtemp(pattern.data());
  }
  ~TempDir() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;

  const std::string& path() const { return path_; }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

inline void WriteFile(const std::string& path, const std::string& bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path, std::ios::binary) << bytes;
}

inline std::string ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

// A file of this header and so many payload bytes.
inline std::string RawFile(const std::string& header, size_t payload) {
  const uint64_t length = header.size();
  std::string file(8, '\0');
  std::memcpy(file.data(), &length, 8);
  return file + header + std::string(payload, 'x');
}

struct OwnedTensor {
  std::string name;
  DType dtype;
  std::vector<int64_t> shape;
  std::string bytes;
};

inline void WriteTensors(const std::string& path, const std::vector<OwnedTensor>& tensors) {
  std::vector<SafetensorsWriter::Spec> specs;
  for (const OwnedTensor& t : tensors) specs.push_back({t.name, t.dtype, t.shape});
  auto writer = SafetensorsWriter::Create(path, specs);
  ASSERT_TRUE(writer.ok()) << Message(writer.status());
  for (const OwnedTensor& t : tensors) ASSERT_OK((*writer)->Append(std::as_bytes(std::span(t.bytes))));
  ASSERT_OK((*writer)->Finish());
}

}  // namespace hadal::checkpoint
