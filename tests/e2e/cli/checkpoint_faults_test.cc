// What is wrong with a checkpoint is said in one line that names the place, with its own exit code, before any answer.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "cli_process.h"

namespace hadal::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::HasSubstr;

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

class CheckpointFaults : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           fmt::format("hadal-cli-{}-{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(dir_);
    for (const auto& entry : fs::directory_iterator(BundledModel())) {
      fs::copy_file(entry.path(), dir_ / entry.path().filename());
      fs::permissions(dir_ / entry.path().filename(), fs::perms::owner_write, fs::perm_options::add);
    }
  }
  void TearDown() override { fs::remove_all(dir_); }

  CliResult Run(std::vector<std::string> more = {}) {
    more.insert(more.begin(), "hi");
    return RunHadal(RunArgs(more, dir_.string()));
  }

  void EditConfig(const std::function<void(json*)>& edit) {
    json config = json::parse(ReadAll(dir_ / "config.json"));
    edit(&config);
    WriteAll(dir_ / "config.json", config.dump(2));
  }

  // The shard that holds `tensor`.
  fs::path ShardOf(const std::string& tensor) {
    const json index = json::parse(ReadAll(dir_ / "model.safetensors.index.json"));
    return dir_ / index.at("weight_map").at(tensor).get<std::string>();
  }

  // Edits the header entry of a tensor; the data keeps its place.
  void EditEntry(const std::string& tensor, const std::function<void(json*)>& edit) {
    const std::string bytes = ReadAll(ShardOf(tensor));
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), 8);
    json header = json::parse(bytes.substr(8, size));
    edit(&header.at(tensor));
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t new_size = text.size();
    std::string out(8, '\0');
    std::memcpy(out.data(), &new_size, 8);
    WriteAll(ShardOf(tensor), out + text + bytes.substr(8 + size));
  }

  void EditData(const std::string& tensor, const std::function<void(char* data, size_t size)>& edit) {
    std::string bytes = ReadAll(ShardOf(tensor));
    uint64_t size = 0;
    std::memcpy(&size, bytes.data(), 8);
    const json offsets = json::parse(bytes.substr(8, size)).at(tensor).at("data_offsets");
    const uint64_t begin = offsets[0], end = offsets[1];
    edit(bytes.data() + 8 + size + begin, end - begin);
    WriteAll(ShardOf(tensor), bytes);
  }

  fs::path dir_;
};

TEST_F(CheckpointFaults, IntactCopyRuns) { EXPECT_EQ(Run({"--max-tokens", "1"}).code, 0); }

TEST_F(CheckpointFaults, NoDirectory) {
  ExpectFailure(RunHadal(RunArgs({"hi"}, "/nonexistent/model")), 3, "/nonexistent/model");
}

TEST_F(CheckpointFaults, NoConfig) {
  fs::remove(dir_ / "config.json");
  ExpectFailure(Run(), 3, "config.json");
}

TEST_F(CheckpointFaults, ConfigIsNotJson) {
  WriteAll(dir_ / "config.json", "{\"hidden_size\": ");
  ExpectFailure(Run(), 3, "config.json");
  WriteAll(dir_ / "config.json", std::string(100000, '['));
  ExpectFailure(Run(), 3, "config.json");
}

TEST_F(CheckpointFaults, ConfigWithoutADimension) {
  EditConfig([](json* config) { config->erase("hidden_size"); });
  ExpectFailure(Run(), 3, "hidden_size");
}

TEST_F(CheckpointFaults, UnknownArchitecture) {
  EditConfig([](json* config) {
    (*config)["architectures"] = {"LlamaForCausalLM"};
    (*config)["model_type"] = "llama";
  });
  ExpectFailure(Run(), 4, "LlamaForCausalLM");
}

TEST_F(CheckpointFaults, MalformedHeader) {
  std::string bytes = ReadAll(dir_ / kFirst);
  bytes[8] = 'x';
  WriteAll(dir_ / kFirst, bytes);
  ExpectFailure(Run(), 3, kFirst);
}

TEST_F(CheckpointFaults, HeaderLongerThanTheFile) {
  std::string bytes = ReadAll(dir_ / kFirst);
  std::memset(bytes.data(), 0x7F, 8);
  WriteAll(dir_ / kFirst, bytes);
  ExpectFailure(Run(), 3, kFirst);
}

TEST_F(CheckpointFaults, EmptyShard) {
  WriteAll(dir_ / kFirst, "");
  ExpectFailure(Run(), 3, kFirst);
}

TEST_F(CheckpointFaults, TruncatedShard) {
  fs::resize_file(dir_ / kSecond, fs::file_size(dir_ / kSecond) / 2);
  ExpectFailure(Run(), 3, kSecond);
}

TEST_F(CheckpointFaults, MissingShard) {
  fs::remove(dir_ / kSecond);
  ExpectFailure(Run(), 3, kSecond);
}

TEST_F(CheckpointFaults, WrongDType) {
  EditEntry("norm.weight", [](json* entry) { (*entry)["dtype"] = "F16"; });
  ExpectFailure(Run(), 3, "norm.weight");
}

TEST_F(CheckpointFaults, WrongShape) {
  EditEntry("norm.weight", [](json* entry) { (*entry)["shape"] = {128, 2}; });
  ExpectFailure(Run(), 3, "norm.weight");
}

TEST_F(CheckpointFaults, NaNScale) {
  EditData("layers.0.attn.wq_a.scale", [](char* data, size_t) { data[0] = '\xFF'; });
  ExpectFailure(Run(), 3, "layers.0.attn.wq_a.scale");
}

// Field report B139.
TEST_F(CheckpointFaults, ZeroedHead) {
  EditData("head.weight", [](char* data, size_t size) { std::memset(data, 0, size); });
  ExpectFailure(Run(), 4, "start-up check");
}

TEST_F(CheckpointFaults, PoisonedLayer) {
  // A bf16 NaN.
  EditData("norm.weight", [](char* data, size_t) { data[0] = '\xC0', data[1] = '\x7F'; });
  ExpectFailure(Run(), 4, "start-up check");
}

TEST_F(CheckpointFaults, MissingTokenizer) {
  fs::remove(dir_ / "tokenizer.json");
  ExpectFailure(Run(), 3, "no tokenizer");
  EXPECT_EQ(Run({"--tokenizer", BundledModel(), "--max-tokens", "1"}).code, 0);
}

TEST_F(CheckpointFaults, BrokenTokenizer) {
  WriteAll(dir_ / "tokenizer.json", "{}");
  ExpectFailure(Run(), 3, "tokenizer.json");
}

TEST_F(CheckpointFaults, MoreLayersThanConfigured) {
  EditConfig([](json* config) {
    (*config)["num_hidden_layers"] = 4;
    (*config)["compress_ratios"] = {0, 4, 128, 4, 0};
  });
  ExpectFailure(Run({"--max-tokens", "1"}), 3,
                "expected 4 layers (num_hidden_layers in config.json), found also layers.4");
}

TEST_F(CheckpointFaults, FewerLayersThanConfigured) {
  EditConfig([](json* config) {
    (*config)["num_hidden_layers"] = 6;
    (*config)["compress_ratios"] = {0, 4, 128, 4, 128, 4, 0};
  });
  ExpectFailure(Run(), 3, "layers.5.");
}

TEST_F(CheckpointFaults, InspectSaysTheSame) {
  fs::remove(dir_ / kSecond);
  ExpectFailure(RunHadal({"inspect", dir_.string()}), 3, kSecond);
}

TEST(Memory, WhatDoesNotFitIsRefusedWithTheNumbers) {
  // V4-Pro alone fits into large machines.
  const CliResult result = RunHadal(
      RunArgs({"hi", "--load-format", "dummy", "--tokenizer", BundledModel(), "--kv-cache-memory", "64TiB"}, "v4-pro"));
  ExpectFailure(result, 5, "does not fit");
  EXPECT_THAT(result.err, HasSubstr("GiB"));
}

}  // namespace
}  // namespace hadal::test
