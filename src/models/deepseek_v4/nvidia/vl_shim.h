// The vision wrapper around NVIDIA's text model, which repacks its weights when it has all of them.
#pragma once

#include "models/deepseek_v4/common/vl/vl_shim.h"

namespace hadal::models::deepseek_v4::nvidia {

inline constexpr VlShim kVlShim = {PlainTextRules, true};

}  // namespace hadal::models::deepseek_v4::nvidia
