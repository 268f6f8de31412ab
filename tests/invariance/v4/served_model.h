// A V4 model fed with steps of a chosen shape, and the logits of every row it was fed: what invariance tests compare.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <string>
#include <vector>

#include "checkpoint/checkpoint.h"
#include "models/model.h"

namespace hadal::test {

// How much of the sweep a platform runs.
enum class Scope {
  kFull,    // every length and chunk size
  kMedium,  // lengths up to 513
  kShort,   // lengths up to 130
};

struct ServedParam {
  std::string name;  // of the test
  std::string model;
  std::string device;
  std::string isa;
  Scope scope = Scope::kFull;
};
inline void PrintTo(const ServedParam& p, std::ostream* os) { *os << p.name; }

inline constexpr int64_t kMaxLength = 2052;

// `count` text ids that look random and are the same on every machine.
std::vector<int32_t> PseudoRandomIds(int64_t count, uint32_t seed);

// Logits of consecutive rows of one sequence [rows, vocab].
using Logits = std::vector<float>;

struct Row {
  int32_t seq = 0;
  int32_t position = 0;
  int32_t id = 0;
  int32_t next_id = 0;  // what a draft step takes
};

class ServedModel {
 public:
  // Failures throw std::runtime_error, which fails the test.
  ServedModel(const ServedParam& param, int threads, int64_t max_seqs);

  int64_t vocab() const { return model_->config().vocab_size; }

  // One step; logits of all its rows.
  Logits Step(const std::vector<Row>& rows, models::StepObserver* observer = nullptr);
  // Draft block 0 over the rows of the last step.
  Logits Draft(const std::vector<Row>& rows);

  // `ids` from position 0 on in slot `seq`, `chunk` rows a step. With `drafts`, every step is followed by a draft step
  // (its last row takes id 3 as the token that follows), whose logits are appended there.
  Logits Run(const std::vector<int32_t>& ids, int64_t chunk, int32_t seq = 0, Logits* drafts = nullptr);

 private:
  Logits Call(const std::vector<Row>& rows, bool draft, models::StepObserver* observer);

  std::unique_ptr<checkpoint::Checkpoint> checkpoint_;
  std::unique_ptr<models::Model> model_;
};

// The first row in which the two differ in any bit; -1 when all rows of the shorter one are equal.
int64_t FirstDifference(const Logits& a, const Logits& b, int64_t vocab);

}  // namespace hadal::test
