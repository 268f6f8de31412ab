// Reading the index and opening the shards.
#include "checkpoint/shard_index.h"

#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>

#include "base/status.h"
#include "checkpoint/tensor_table.h"

namespace hadal::checkpoint {
namespace {

using Json = nlohmann::json;
namespace fs = std::filesystem;

constexpr uint64_t kMaxIndexBytes = 64 << 20;

// Takes the strings of the top-level member "weight_map"; skips everything else, counting depth only.
class IndexReader : public nlohmann::json_sax<Json> {
 public:
  explicit IndexReader(std::map<std::string, std::string>* out) : out_(out) {}

  const std::string& error() const { return error_; }
  bool found() const { return found_; }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Value(); }

  bool string(string_t& value) override {
    if (!InMap()) return Value();
    const auto [it, inserted] = out_->emplace(name_, value);
    if (!inserted && it->second != value) {
      return Fail(fmt::format("tensor \"{}\" is mapped to both {} and {}", name_, it->second, value));
    }
    return true;
  }

  bool start_object(std::size_t) override {
    if (InMap()) return Fail(fmt::format("weight_map \"{}\": expected a file name, found an object", name_));
    if (depth_ == 1 && name_ == "weight_map") found_ = map_open_ = true;
    ++depth_;
    return true;
  }
  bool end_object() override {
    if (--depth_ == 1) map_open_ = false;
    return true;
  }
  bool start_array(std::size_t) override {
    if (InMap()) return Fail(fmt::format("weight_map \"{}\": expected a file name, found a list", name_));
    if (depth_ == 0) return Fail("expected a JSON object, found a list");
    if (depth_ == 1 && name_ == "weight_map") return Fail("weight_map: expected an object, found a list");
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    return true;
  }
  bool key(string_t& name) override {
    if (depth_ == 1 || InMap()) name_ = name;
    return true;
  }
  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    return Fail(fmt::format("not valid JSON at byte {}: {}", position, error.what()));
  }

 private:
  bool InMap() const { return map_open_ && depth_ == 2; }

  bool Value() {
    if (InMap()) return Fail(fmt::format("weight_map \"{}\": expected a file name", name_));
    if (depth_ == 0) return Fail("expected a JSON object");
    if (depth_ == 1 && name_ == "weight_map") return Fail("weight_map: expected an object");
    return true;
  }
  bool Fail(std::string text) {
    if (error_.empty()) error_ = std::move(text);
    return false;
  }

  std::map<std::string, std::string>* out_;
  std::string error_, name_;
  int depth_ = 0;
  bool map_open_ = false, found_ = false;
};

absl::Status CheckShardNames(const std::map<std::string, std::string>& map, std::string_view source) {
  for (const auto& [tensor, shard] : map) {
    // A checkpoint must not reach outside of its directory.
    if (shard.empty() || shard.find('/') != std::string::npos || shard.find('\0') != std::string::npos ||
        shard == "." || shard == "..") {
      return InvalidArgument("{}: tensor \"{}\": expected the name of a file beside the index, found \"{}\"", source,
                             tensor, shard);
    }
  }
  return absl::OkStatus();
}

absl::Status OpenNamed(const std::string& dir, const std::set<std::string>& shards, ShardSet* set) {
  std::vector<std::string> missing;
  for (const std::string& shard : shards) {
    std::error_code ignored;
    if (!fs::exists(fs::path(dir) / shard, ignored)) missing.push_back(shard);
  }
  if (!missing.empty()) {
    return NotFound("{}: {} of {} shards that {} names are missing: {}", dir, missing.size(), shards.size(), kIndexFile,
                    NameList(missing));
  }
  for (const std::string& shard : shards) {
    HADAL_ASSIGN_OR_RETURN(std::unique_ptr<SafetensorsFile> file,
                           SafetensorsFile::Open((fs::path(dir) / shard).string()));
    set->files.push_back(std::move(file));
  }
  return absl::OkStatus();
}

// Where index and headers differ, headers win.
absl::Status Compare(const std::map<std::string, std::string>& index, ShardSet* set) {
  std::unordered_map<std::string_view, const SafetensorsFile*> holder;
  std::vector<std::string> unlisted, moved, absent;
  for (const auto& file : set->files) {
    for (const TensorEntry& entry : file->entries()) {
      const auto [it, inserted] = holder.emplace(entry.name, file.get());
      if (!inserted) {
        return InvalidArgument("tensor \"{}\" is in two shards: {} and {}", entry.name, it->second->path(),
                               file->path());
      }
      const auto listed = index.find(entry.name);
      if (listed == index.end()) {
        unlisted.push_back(entry.name);
      } else if (fs::path(file->path()).filename() != listed->second) {
        moved.push_back(entry.name);
      }
    }
  }
  for (const auto& [name, shard] : index) {
    if (!holder.contains(name)) absent.push_back(name);
  }
  const auto warn = [set](const std::vector<std::string>& names, std::string_view what) {
    if (!names.empty()) {
      set->warnings.push_back(fmt::format("{}: {} tensors {}: {}", kIndexFile, names.size(), what, NameList(names, 5)));
    }
  };
  warn(unlisted, "are in the shards but not in the index (used all the same)");
  warn(moved, "lie in another shard than the index says (the shards are trusted)");
  warn(absent, "are in the index but in no shard");
  return absl::OkStatus();
}

absl::StatusOr<ShardSet> OpenSingle(const std::string& dir) {
  std::vector<std::string> names;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (it->path().extension() == ".safetensors") names.push_back(it->path().filename().string());
  }
  if (error) return NotFound("{}: cannot list the directory: {}", dir, error.message());
  std::sort(names.begin(), names.end());
  if (names.empty()) return NotFound("{}: expected {} or a *.safetensors file, found neither", dir, kIndexFile);
  if (names.size() > 1) {
    return InvalidArgument("{}: {} *.safetensors files ({}) but no {} that says which belong together", dir,
                           names.size(), NameList(names, 5), kIndexFile);
  }
  ShardSet set;
  HADAL_RETURN_IF_ERROR(OpenNamed(dir, {names[0]}, &set));
  return set;
}

}  // namespace

absl::StatusOr<std::map<std::string, std::string>> ParseIndex(std::string_view json, std::string_view source) {
  if (json.size() > kMaxIndexBytes) {
    return InvalidArgument("{}: {} bytes, expected at most {}", source, json.size(), kMaxIndexBytes);
  }
  std::map<std::string, std::string> map;
  IndexReader reader(&map);
  bool parsed = false;
  try {
    parsed = Json::sax_parse(json.begin(), json.end(), &reader);
  } catch (const std::exception& error) {
    return InvalidArgument("{}: {}", source, error.what());
  }
  if (!parsed || !reader.error().empty()) return InvalidArgument("{}: {}", source, reader.error());
  if (!reader.found()) return InvalidArgument("{}: field \"weight_map\" is missing, expected an object", source);
  HADAL_RETURN_IF_ERROR(CheckShardNames(map, source));
  return map;
}

absl::StatusOr<ShardSet> OpenShards(const std::string& dir) {
  const std::string index_path = (fs::path(dir) / kIndexFile).string();
  std::error_code ignored;
  if (!fs::exists(index_path, ignored)) return OpenSingle(dir);
  HADAL_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(index_path, kMaxIndexBytes));
  HADAL_ASSIGN_OR_RETURN(const auto index, ParseIndex(text, index_path));
  std::set<std::string> shards;
  for (const auto& [tensor, shard] : index) shards.insert(shard);
  if (shards.empty()) return InvalidArgument("{}: weight_map names no tensor", index_path);
  ShardSet set;
  HADAL_RETURN_IF_ERROR(OpenNamed(dir, shards, &set));
  HADAL_RETURN_IF_ERROR(Compare(index, &set));
  return set;
}

}  // namespace hadal::checkpoint
