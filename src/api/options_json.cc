// Engine options as a JSON object (hadal.h).
#include <fmt/ranges.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <vector>

#include "api/convert.h"
#include "base/status.h"
#include "serving/openai/fields.h"
#include "text/json_text.h"

namespace hadal::api {

absl::StatusOr<EngineOptions> ReadEngineOptions(std::string_view json) {
  EngineOptions options;
  if (json.empty()) return options;
  HADAL_ASSIGN_OR_RETURN(const text::Json object, text::ParseJson(json));
  if (!object.is_object()) return InvalidArgument("options: expected an object, found {}", serving::Describe(object));
  const serving::Fields fields(object);
  std::vector<std::string_view> known;
  absl::Status status;
  const auto read = [&](const char* name, auto* value) {
    known.emplace_back(name);
    if (status.ok()) status = fields.Read(name, value);
  };
  int64_t threads = options.threads;
  read("tokenizer", &options.tokenizer);
  read("load_format", &options.load_format);
  read("device", &options.device);
  read("threads", &threads);
  read("cpu_isa", &options.cpu_isa);
  read("numerics", &options.numerics);
  read("mmap", &options.mmap);
  read("max_model_len", &options.max_model_len);
  read("max_num_seqs", &options.max_num_seqs);
  read("max_num_batched_tokens", &options.max_num_batched_tokens);
  read("max_waiting", &options.max_waiting);
  read("limit_images_per_prompt", &options.limit_images_per_prompt);
  read("kv_cache_memory", &options.kv_cache_memory);
  read("kv_cache_dtype", &options.kv_cache_dtype);
  read("block_size", &options.block_size);
  read("prefix_cache", &options.prefix_cache);
  read("kv_cache_dir", &options.kv_cache_dir);
  read("kv_cache_dir_size", &options.kv_cache_dir_size);
  read("num_speculative_tokens", &options.num_speculative_tokens);
  read("rejection_sampling", &options.rejection_sampling);
  read("memory_check", &options.memory_check);
  HADAL_RETURN_IF_ERROR(status);
  known.emplace_back("model_class_overrides");
  HADAL_RETURN_IF_ERROR(fields.ReadStrings("model_class_overrides", &options.model_class_overrides));
  if (threads < 0 || threads > 4096) return InvalidArgument("threads: expected 0 to 4096, found {}", threads);
  options.threads = static_cast<int>(threads);
  for (const auto& [name, value] : object.items()) {
    if (std::find(known.begin(), known.end(), name) == known.end()) {
      return InvalidArgument("options: expected one of {}, found \"{}\"", fmt::join(known, ", "), name);
    }
  }
  return options;
}

}  // namespace hadal::api
