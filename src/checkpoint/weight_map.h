// Mapping of weight names as data (spec deepseek-v4-vision-and-cache 7.1, deepseek-v4-text 2.5).
//
// A map is six ordered lists of rules, applied to each name in this order, every rule of a list in turn, a later rule
// seeing the rewritten name: (1) rename: whole names; (2) regex; (3) substring, first occurrence; (4) stacked
// substring, which also gives the tensor a shard number; (5) prefix; (6) suffix. A rule without a target drops the
// tensor at once.
//
// Two kinds of maps are made here: those from published names to the names of an engine's own modules, and the
// canonicalisers from any on-disk spelling to published names. Applying a map of the first kind to a name that it has
// already mapped is an error ("lm_head.weight" would become "lm_lm_head.weight"); canonicalisers leave canonical names
// alone, whatever is applied twice.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "checkpoint/model_config.h"

namespace hadal::checkpoint {

struct MapRule {
  std::string from;
  std::optional<std::string> to;  // nothing: drop the tensor
};

struct StackedRule {
  std::string from;
  std::string to;
  int shard = 0;
};

struct WeightMapRules {
  std::vector<MapRule> rename = {};
  std::vector<MapRule> regex = {};  // PCRE2 pattern and replacement ($1, ...)
  std::vector<MapRule> substring = {};
  std::vector<StackedRule> stacked = {};
  std::vector<MapRule> prefix = {};
  std::vector<MapRule> suffix = {};
  bool idempotent = false;  // mapped names may be mapped again: canonicalisers
};

struct MappedName {
  std::string name;
  std::optional<int> shard;  // of a stacked tensor
  bool operator==(const MappedName&) const = default;
};

class WeightMap {
 public:
  // InvalidArgument naming the rule if a pattern does not compile or a rule has an empty source.
  static absl::StatusOr<WeightMap> Create(WeightMapRules rules);
  WeightMap(WeightMap&&) noexcept;
  WeightMap& operator=(WeightMap&&) noexcept;
  ~WeightMap();

  // The mapped name, or nothing if the tensor is dropped. FailedPrecondition if `original` bears the mark of this map's
  // output: it begins with the target of a prefix rule, ends with that of a suffix rule or holds that of a stacked or
  // substring rule.
  absl::StatusOr<std::optional<MappedName>> Apply(std::string_view original) const;

  const WeightMapRules& rules() const { return rules_; }

 private:
  struct CompiledRegex;

  WeightMap();
  bool LooksMapped(std::string_view name) const;

  WeightMapRules rules_;
  std::vector<std::unique_ptr<CompiledRegex>> regexes_;
};

// The text model's rules from published names to module names, and the vision model's, which re-root them under
// "language_model." (spec vision-and-cache 7.1).
struct TextMapOptions {
  ExpertDType expert_dtype = ExpertDType::kFp4;
  bool fuse_shared_experts = false;  // shared experts join the routed GEMM: w2 keeps its name
};
WeightMapRules V4TextRules(const TextMapOptions& options);
WeightMapRules V4VisionRules(const WeightMapRules& text, bool image_enabled);

// Puts `root` before the target of every prefix rule; drops stay drops.
WeightMapRules Rerooted(WeightMapRules rules, std::string_view root);

// From any spelling found on disk to the canonical names of the family: one leading "model." goes, aliases of library
// re-saves and synonyms of scale names are replaced, tensors that must be ignored are dropped.
WeightMapRules CanonicalRules(ModelFamily family);

// "layers.0.attn.wq_a" -> the name of its scale tensor in the family's canonical names.
std::string ScaleName(ModelFamily family, std::string_view module);

}  // namespace hadal::checkpoint
