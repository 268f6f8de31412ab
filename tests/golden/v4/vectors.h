// Golden vectors of V4 models: cases of a manifest and the tensors of one case.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/safetensors.h"

namespace hadal::test {

struct VectorCase {
  std::string model;  // directory of the checkpoint
  std::string set;    // v4 or random-v4
  std::string name;
  std::string file;
  bool full = false;  // from the full set, not from the committed selection
  int64_t tokens = 0;
  int64_t images = 0;
  double logit_std = 0;
  double noise_mean = 0;  // rounding_noise: mean difference of the logits of the reference against itself
};
inline void PrintTo(const VectorCase& c, std::ostream* os) { *os << c.set << "/" << c.name; }

// Cases of the v4 and random-v4 manifests: the committed selection, then what HADAL_VECTORS has besides. The full set's
// file of a committed case holds more rows of logits and comes as a case of its own.
const std::vector<VectorCase>& AllCases();

class Vectors {
 public:
  explicit Vectors(const std::string& path);
  bool Has(const std::string& name) const { return entries_.count(name) != 0; }
  std::vector<int64_t> Shape(const std::string& name) const;
  // F32 or BF16 as fp32; I32 or I64 as int32.
  std::vector<float> Floats(const std::string& name) const;
  std::vector<int32_t> Ints(const std::string& name) const;
  std::vector<uint8_t> Bytes(const std::string& name) const;

 private:
  const checkpoint::TensorEntry& At(const std::string& name) const;
  std::unique_ptr<checkpoint::SafetensorsFile> file_;
  std::map<std::string, const checkpoint::TensorEntry*> entries_;
};

}  // namespace hadal::test
