// Where test data lies: the committed selection, and the full vector sets where HADAL_VECTORS points at them.
#pragma once

#include <cstdlib>
#include <optional>
#include <string>
#include <vector>

namespace hadal::test {

// The source tree: HADAL_TEST_ROOT for programs that were carried to another machine, else where they were built.
inline std::string SourceRoot() {
  const char* root = std::getenv("HADAL_TEST_ROOT");
  return root == nullptr || *root == '\0' ? std::string(HADAL_SOURCE_DIR) : std::string(root);
}

// tests/data/<name>: the committed selection.
inline std::string DataPath(const std::string& name) { return SourceRoot() + "/tests/data/" + name; }

// models/<name>: the bundled checkpoint.
inline std::string BundledModel() { return SourceRoot() + "/models/tiny-v4-vision"; }

// $HADAL_VECTORS/<name>, or nothing when the full sets are not at hand.
inline std::optional<std::string> FullVectors(const std::string& name) {
  const char* root = std::getenv("HADAL_VECTORS");
  if (root == nullptr || *root == '\0') return std::nullopt;
  return std::string(root) + "/" + name;
}

// For the instantiation of tests that need a full set: its directory, or nothing when the sets are not at hand, so that
// there are no such tests then.
inline std::vector<std::string> FullVectorsOnly(const std::string& name) {
  const std::optional<std::string> full = FullVectors(name);
  return full.has_value() ? std::vector<std::string>{*full} : std::vector<std::string>{};
}

// The full set if at hand, else the committed selection of the same name.
inline std::string VectorsPath(const std::string& name) {
  const std::optional<std::string> full = FullVectors(name);
  return full.has_value() ? *full : DataPath(name);
}

}  // namespace hadal::test
