// The vision wrapper around AMD's text model: shared experts join the routed product, scales of third-party exports are
// taken too, and weights are shuffled after the generic quantisation pass (spec deepseek-v4-vision-and-cache 7.1, 7.2).
#pragma once

#include "models/deepseek_v4/common/vl/vl_shim.h"

namespace hadal::models::deepseek_v4::amd {

inline checkpoint::WeightMapRules TextRules(checkpoint::ExpertDType expert_dtype) {
  checkpoint::WeightMapRules rules =
      checkpoint::V4TextRules({.expert_dtype = expert_dtype, .fuse_shared_experts = true});
  // Those of experts keep the name: their module reads it.
  rules.regex.push_back({R"((?<!\.w1)(?<!\.w2)(?<!\.w3)\.weight_scale$)", ".weight_scale_inv"});
  return rules;
}
inline constexpr VlShim kVlShim = {TextRules, false};

}  // namespace hadal::models::deepseek_v4::amd
