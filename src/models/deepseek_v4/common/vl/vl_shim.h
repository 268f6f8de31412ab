// What a platform's text model means for the vision wrapper around it (spec deepseek-v4-vision-and-cache 7.2, 7.3): how
// its modules are named, and when it finalizes its weights. Everything else of the wrapper is common.
#pragma once

#include "checkpoint/model_config.h"
#include "checkpoint/weight_map.h"

namespace hadal::models::deepseek_v4 {

struct VlShim {
  checkpoint::WeightMapRules (*text_rules)(checkpoint::ExpertDType expert_dtype);
  bool finalizes_during_load;
};

// Platforms that read weights as they lie in the files.
inline checkpoint::WeightMapRules PlainTextRules(checkpoint::ExpertDType expert_dtype) {
  return checkpoint::V4TextRules({.expert_dtype = expert_dtype});
}
inline constexpr VlShim kPlainShim = {PlainTextRules, true};

}  // namespace hadal::models::deepseek_v4
