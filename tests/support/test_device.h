// HADAL_TEST_DEVICE names the one device that whole-model tests run on (cuda, hip); unset, they take the CPU's
// instruction sets and the reference.
#pragma once

#include <cstdlib>
#include <string>

namespace hadal::test {

inline std::string TestDevice() {
  const char* device = std::getenv("HADAL_TEST_DEVICE");
  return device == nullptr ? std::string() : std::string(device);
}

}  // namespace hadal::test
