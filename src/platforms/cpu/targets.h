// One kernel table per instruction set, made through Highway's run-time dispatch.
#pragma once

#include <array>
#include <cstdint>
#include <mutex>

#include "absl/functional/function_ref.h"
#include "hwy/targets.h"
#include "platforms/cpu/row_kernels.h"

namespace hadal::cpu {

template <typename Table>
class TargetTables {
 public:
  // make() is called once per limit with Highway's targets restricted to it.
  explicit TargetTables(absl::FunctionRef<Table()> make) {
    // Highway's chosen target is process-wide: one table is made at a time.
    static std::mutex mutex;
    const std::lock_guard<std::mutex> lock(mutex);
    const int64_t all = hwy::SupportedTargets();
    for (const Isa isa : {Isa::kBaseline, Isa::kAvx2, Isa::kAvx512}) {
      int64_t allowed = all;
      if (isa != Isa::kAvx512) allowed &= ~static_cast<int64_t>(HWY_AVX3 | HWY_AVX3_DL);
      if (isa == Isa::kBaseline) allowed &= ~static_cast<int64_t>(HWY_AVX2);
      hwy::SetSupportedTargetsForTest(allowed);
      hwy::GetChosenTarget().Update(hwy::SupportedTargets());
      tables_[static_cast<int>(isa)] = make();
    }
    hwy::SetSupportedTargetsForTest(0);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }

  const Table& For(Isa limit) const {
    return tables_[static_cast<int>(limit == Isa::kAuto || limit == Isa::kAmx ? Isa::kAvx512 : limit)];
  }

 private:
  std::array<Table, 4> tables_ = {};
};

}  // namespace hadal::cpu
