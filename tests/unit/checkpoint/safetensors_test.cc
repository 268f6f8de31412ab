// The container: a table of malformed headers, truncated files, and what the writer writes.
#include "checkpoint/safetensors.h"

#include "test_util.h"

namespace hadal::checkpoint {
namespace {

constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

struct BadHeader {
  const char* what;
  std::string json;
  const char* message;
};

std::string Deep(int levels) { return std::string(levels, '['); }

std::vector<BadHeader> BadHeaders() {
  const std::string ok = R"("dtype":"F32","shape":[2],"data_offsets":[0,8])";
  return {
      {"empty", "", "not valid JSON"},
      {"not an object", "[]", "expected a JSON object, found an array"},
      {"number", "7", "expected a JSON object, found a number"},
      {"cut off", R"({"a":{)", "not valid JSON"},
      {"trailing text", "{} x", "not valid JSON"},
      {"NaN literal", R"({"a":NaN})", "not valid JSON"},
      {"huge number", R"({"a":{"dtype":"F32","shape":[1e999],"data_offsets":[0,8]}})", "not valid JSON"},
      {"not UTF-8", "{\"a\xff\":{" + ok + "}}", "not valid JSON"},
      {"entry is a string", R"({"a":"b"})", "expected an object with dtype, shape and data_offsets"},
      {"entry is null", R"({"a":null})", "found null"},
      {"empty name", "{\"\":{" + ok + "}}", "empty name"},
      {"long name", "{\"" + std::string(600, 'n') + "\":{" + ok + "}}", "longer than 512 bytes"},
      {"duplicate name", "{\"a\":{" + ok + "},\"a\":{" + ok + "}}", "appears twice in the header"},
      {"unknown member", "{\"a\":{" + ok + ",\"x\":1}}", "unknown member \"x\""},
      {"duplicate member", "{\"a\":{" + ok + ",\"dtype\":\"F32\"}}", "dtype appears twice"},
      {"no dtype", R"({"a":{"shape":[2],"data_offsets":[0,8]}})", "dtype is missing"},
      {"no shape", R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", "shape is missing"},
      {"no offsets", R"({"a":{"dtype":"F32","shape":[2]}})", "data_offsets is missing"},
      {"unknown dtype", R"({"a":{"dtype":"F99","shape":[2],"data_offsets":[0,8]}})", "unknown dtype \"F99\""},
      {"dtype is a number", R"({"a":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})", "dtype must be a string"},
      {"negative dimension", R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", "negative dimension -2"},
      {"fractional dimension", R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", "non-negative integers"},
      {"shape is an object", R"({"a":{"dtype":"F32","shape":{},"data_offsets":[0,8]}})", "shape must be an array"},
      {"nested shape", R"({"a":{"dtype":"F32","shape":[[2]],"data_offsets":[0,8]}})", "shape must be an array"},
      {"too many dimensions", R"({"a":{"dtype":"F32","shape":[1,1,1,1,1,1,1,1,1],"data_offsets":[0,4]}})",
       "more than 8 dimensions"},
      {"huge dimension", R"({"a":{"dtype":"F32","shape":[18446744073709551615],"data_offsets":[0,8]}})", "too large"},
      {"overflowing shape", R"({"a":{"dtype":"F32","shape":[4294967296,4294967296,4294967296],"data_offsets":[0,0]}})",
       "overflows"},
      {"overflowing bytes", R"({"a":{"dtype":"I64","shape":[4611686018427387904],"data_offsets":[0,0]}})", "overflows"},
      {"half a byte", R"({"a":{"dtype":"F4","shape":[3],"data_offsets":[0,2]}})", "not a whole number of bytes"},
      {"negative offset", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", "negative offset -8"},
      {"one offset", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0]}})", "must be two numbers, found 1"},
      {"three offsets", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8,9]}})", "more than two numbers"},
      {"backwards", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", "run backwards"},
      {"too few bytes", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,4]}})", "needs 8 bytes"},
      {"too many bytes", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,12]}})", "needs 8 bytes"},
      {"outside", R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[16,24]}})", "truncated"},
      {"overlap",
       R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
       "\"a\" [0, 8] and \"b\" [4, 12] overlap"},
      {"metadata is a list", R"({"__metadata__":[]})", "found an array"},
      {"metadata value", R"({"__metadata__":{"a":1}})", "__metadata__ \"a\": expected a string"},
      {"deep", "{\"a\":" + Deep(100000), "found an array"},
      {"deep objects",
       [] {
         std::string text;
         for (int i = 0; i < 100000; ++i) text += "{\"a\":";
         return text;
       }(),
       "unknown member"},
  };
}

TEST(ParseHeader, NamesWhatIsWrong) {
  for (const BadHeader& bad : BadHeaders()) {
    SCOPED_TRACE(bad.what);
    ExpectError(ParseHeader(bad.json, 16, "file"), kInvalid, {"file: ", bad.message});
  }
}

TEST(ParseHeader, ReadsEntriesMetadataAndPadding) {
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"data_offsets":[8,16],"shape":[2,2,2],"dtype":"F8_E4M3FN"},)"
      R"("a":{"dtype":"F4","shape":[4,4],"data_offsets":[0,8]},"empty":{"dtype":"F32","shape":[0,7],"data_offsets":[16,16]},)"
      R"("scalar":{"dtype":"F8_E8M0FNU","shape":[],"data_offsets":[16,17]}}   )";
  const auto header = ParseHeader(json, 17);
  ASSERT_TRUE(header.ok()) << Message(header.status());
  ASSERT_EQ(header->entries.size(), 4);
  EXPECT_EQ(header->entries[0].name, "b");
  EXPECT_EQ(header->entries[0].dtype, DType::kF8E4M3);
  EXPECT_EQ(header->entries[0].shape, (std::vector<int64_t>{2, 2, 2}));
  EXPECT_EQ(header->entries[1].dtype, DType::kF4E2M1);
  EXPECT_EQ(header->entries[3].dtype, DType::kF8E8M0);
  EXPECT_EQ(header->entries[3].end, 17);
  EXPECT_EQ(header->metadata.at("format"), "pt");
  EXPECT_TRUE(ParseHeader("{}", 0).ok());
}

TEST(SafetensorsFile, TruncationHasItsOwnMessageWithSizes) {
  const TempDir dir;
  const std::string header = R"({"a":{"dtype":"F32","shape":[1000],"data_offsets":[0,4000]}})";
  const std::string whole = RawFile(header, 4000);
  WriteFile(dir / "whole", whole);
  EXPECT_TRUE(SafetensorsFile::Open(dir / "whole").ok());

  WriteFile(dir / "empty", "");
  ExpectError(SafetensorsFile::Open(dir / "empty"), kInvalid, {"empty: truncated", "at least 8 bytes", "has 0"});
  WriteFile(dir / "head", whole.substr(0, 20));
  ExpectError(SafetensorsFile::Open(dir / "head"), kInvalid,
              {"head: truncated", fmt::format("at least {} bytes", header.size() + 8).c_str(), "has 20"});
  WriteFile(dir / "data", whole.substr(0, whole.size() - 1));
  ExpectError(SafetensorsFile::Open(dir / "data"), kInvalid,
              {"data: truncated: tensor \"a\" ends at byte 4000 of the data, but only 3999",
               fmt::format("the file has {} bytes", whole.size() - 1).c_str()});
}

TEST(SafetensorsFile, RefusesOtherFiles) {
  const TempDir dir;
  ExpectError(SafetensorsFile::Open(dir / "nowhere"), absl::StatusCode::kNotFound, {"nowhere: cannot open"});
  ExpectError(SafetensorsFile::Open(dir.path()), kInvalid, {"expected a regular file"});
  WriteFile(dir / "text", "version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 5\n");
  ExpectError(SafetensorsFile::Open(dir / "text"), kInvalid, {"above the limit", "not a safetensors file"});
}

TEST(SafetensorsFile, EveryPrefixOfAFileIsRefusedOrRead) {
  const TempDir dir;
  WriteTensors(dir / "a.safetensors",
               {{"x", DType::kI64, {2}, std::string(16, '\1')}, {"y", DType::kBF16, {3}, "abcdef"}});
  const std::string whole = ReadFile(dir / "a.safetensors");
  for (size_t n = 0; n < whole.size(); ++n) {
    WriteFile(dir / "cut", whole.substr(0, n));
    EXPECT_FALSE(SafetensorsFile::Open(dir / "cut").ok()) << n;
  }
}

TEST(SafetensorsWriter, RoundTripsAndAligns) {
  const TempDir dir;
  WriteTensors(dir / "a.safetensors", {{"i64", DType::kI64, {1}, "12345678"},
                                       {"bf16", DType::kBF16, {3}, "abcdef"},
                                       {"fp4", DType::kF4E2M1, {2, 4}, "ABCD"}});
  const auto file = SafetensorsFile::Open(dir / "a.safetensors");
  ASSERT_TRUE(file.ok()) << Message(file.status());
  ASSERT_EQ((*file)->entries().size(), 3);
  const TensorEntry& bf16 = (*file)->entries()[1];
  EXPECT_EQ(bf16.name, "bf16");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(bf16.data), bf16.bytes), "abcdef");
  EXPECT_EQ(bf16.file, dir / "a.safetensors");
  EXPECT_EQ(reinterpret_cast<uintptr_t>((*file)->entries()[0].data) % 64, 0u);
  EXPECT_EQ((*file)->entries()[2].shape, (std::vector<int64_t>{2, 4}));
  EXPECT_EQ((*file)->entries()[2].bytes, 4);
}

TEST(SafetensorsWriter, LeavesNothingBehindUnlessFinished) {
  const TempDir dir;
  {
    auto writer = SafetensorsWriter::Create(dir / "a", {{"x", DType::kU8, {4}}});
    ASSERT_TRUE(writer.ok());
    const std::string bytes = "abcde";
    ExpectError((*writer)->Append(std::as_bytes(std::span(bytes))), absl::StatusCode::kFailedPrecondition,
                {"1 bytes more than the 4"});
    ASSERT_OK((*writer)->Append(std::as_bytes(std::span(bytes).first(3))));
    ExpectError((*writer)->Finish(), absl::StatusCode::kFailedPrecondition, {"3 of 4 payload bytes"});
  }
  EXPECT_TRUE(std::filesystem::is_empty(dir.path()));
  ExpectError(SafetensorsWriter::Create(dir / "no/such/dir/a", {}), kInvalid, {"cannot create"});
}

TEST(ReadFloats, WidensExactly) {
  TensorEntry entry{.name = "x", .dtype = DType::kBF16, .shape = {2}};
  const uint16_t bf16[2] = {0x3F80, 0xC040};
  entry.data = reinterpret_cast<const std::byte*>(bf16);
  EXPECT_EQ(*ReadFloats(entry), (std::vector<float>{1.0f, -3.0f}));
  entry.dtype = DType::kI8;
  ExpectError(ReadFloats(entry), kInvalid, {"\"x\": expected F32, BF16 or F16, found I8"});
}

}  // namespace
}  // namespace hadal::checkpoint
