// Which files a checkpoint consists of, and which tensor lies where (spec deepseek-v4-text 2.1; field report B129).
//
// The index says which shards there are; the headers of the shards say what they hold. Where the two differ, headers
// are trusted and a warning tells.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/safetensors.h"

namespace hadal::checkpoint {

inline constexpr std::string_view kIndexFile = "model.safetensors.index.json";

// weight_map of an index: tensor name -> shard file name. InvalidArgument for anything malformed; a shard name must be
// a plain file name. Memory is bounded by a small multiple of the text.
absl::StatusOr<std::map<std::string, std::string>> ParseIndex(std::string_view json, std::string_view source);

// The opened shards of a directory.
struct ShardSet {
  std::vector<std::unique_ptr<SafetensorsFile>> files;
  std::vector<std::string> warnings;
};

// With an index: opens the shards it names. Without: the only *.safetensors file of the directory. Files beside them
// are ignored. Errors: no index and none or several files; an index naming a shard that is missing; a tensor in two
// shards.
absl::StatusOr<ShardSet> OpenShards(const std::string& dir);

}  // namespace hadal::checkpoint
