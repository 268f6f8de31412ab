// The part of Highway's runtime that its dispatch needs, for the static build only: Debian ships that runtime as a
// shared library. Declared in hwy/targets.h; which CPU features a target needs is Highway's own list (hwy/targets.cc).
#include <atomic>
#include <cstdint>

#include "hwy/targets.h"

namespace hwy {
namespace {

std::atomic<int64_t> disabled{0};
std::atomic<int64_t> mocked{0};

// __builtin_cpu_supports also asks whether the operating system saves the registers.
int64_t DetectTargets() {
  int64_t targets = HWY_STATIC_TARGET;
  __builtin_cpu_init();
  if (!__builtin_cpu_supports("ssse3")) return targets;
  targets |= HWY_SSSE3;
  if (!__builtin_cpu_supports("sse4.2") || !__builtin_cpu_supports("pclmul") || !__builtin_cpu_supports("aes")) {
    return targets;
  }
  targets |= HWY_SSE4;
  for (const bool has : {__builtin_cpu_supports("avx2") != 0, __builtin_cpu_supports("fma") != 0,
                         __builtin_cpu_supports("f16c") != 0, __builtin_cpu_supports("lzcnt") != 0,
                         __builtin_cpu_supports("bmi") != 0, __builtin_cpu_supports("bmi2") != 0}) {
    if (!has) return targets;
  }
  targets |= HWY_AVX2;
  for (const bool has : {__builtin_cpu_supports("avx512f") != 0, __builtin_cpu_supports("avx512vl") != 0,
                         __builtin_cpu_supports("avx512dq") != 0, __builtin_cpu_supports("avx512bw") != 0}) {
    if (!has) return targets;
  }
  return targets | HWY_AVX3;
}

}  // namespace

int64_t SupportedTargets() {
  static const int64_t detected = DetectTargets();
  const int64_t mock = mocked.load();
  const int64_t targets = (mock != 0 ? mock : detected) & ~disabled.load();
  return targets != 0 ? targets : HWY_STATIC_TARGET;
}

void DisableTargets(int64_t disabled_targets) { disabled.store(disabled_targets & ~HWY_STATIC_TARGET); }

void SetSupportedTargetsForTest(int64_t targets) { mocked.store(targets); }

ChosenTarget& GetChosenTarget() {
  static ChosenTarget chosen;
  return chosen;
}

}  // namespace hwy
