#include "invariance/v4/served_model.h"

#include <algorithm>
#include <cstring>
#include <stdexcept>

#include "models/registry/registry.h"

namespace hadal::test {
namespace {

void Require(const absl::Status& status) {
  if (!status.ok()) throw std::runtime_error(status.ToString());
}

}  // namespace

std::vector<int32_t> PseudoRandomIds(int64_t count, uint32_t seed) {
  // Ids 3 to 1270 are text in both checkpoints: behind the control tokens, before the image tokens.
  std::vector<int32_t> ids(count);
  uint32_t state = seed * 2654435761u + 12345u;
  for (int32_t& id : ids) {
    state = state * 1664525u + 1013904223u;
    id = static_cast<int32_t>(3 + (state >> 8) % 1268);
  }
  return ids;
}

ServedModel::ServedModel(const ServedParam& param, int threads, int64_t max_seqs) {
  auto opened = checkpoint::Checkpoint::Open(param.model);
  Require(opened.status());
  checkpoint_ = *std::move(opened);
  models::ModelOptions options;
  options.device = param.device;
  options.isa = param.isa;
  options.deterministic = true;
  options.threads = threads;
  options.limits.max_seqs = max_seqs;
  options.limits.max_context = kMaxLength + 60;
  options.limits.max_batch_tokens = kMaxLength;
  options.limits.max_logit_rows = kMaxLength;
  auto created = models::CreateModel(*checkpoint_, options);
  Require(created.status());
  model_ = *std::move(created);
}

Logits ServedModel::Call(const std::vector<Row>& rows, bool draft, models::StepObserver* observer) {
  std::vector<int32_t> ids, positions, seqs, all;
  for (const Row& row : rows) {
    ids.push_back(draft ? row.next_id : row.id);
    positions.push_back(row.position);
    seqs.push_back(row.seq);
    all.push_back(static_cast<int32_t>(all.size()));
  }
  Logits logits(rows.size() * vocab());
  const models::StepInput step = {ids, positions, seqs, all, logits.data(), observer};
  Require(draft ? model_->Draft(0, step) : model_->Forward(step));
  return logits;
}

Logits ServedModel::Step(const std::vector<Row>& rows, models::StepObserver* observer) {
  return Call(rows, false, observer);
}

Logits ServedModel::Draft(const std::vector<Row>& rows) { return Call(rows, true, nullptr); }

Logits ServedModel::Run(const std::vector<int32_t>& ids, int64_t chunk, int32_t seq, Logits* drafts) {
  Logits out;
  const auto count = static_cast<int64_t>(ids.size());
  for (int64_t first = 0; first < count; first += chunk) {
    std::vector<Row> rows;
    for (int64_t p = first; p < std::min(count, first + chunk); ++p) {
      rows.push_back({seq, static_cast<int32_t>(p), ids[p], p + 1 < count ? ids[p + 1] : 3});
    }
    const Logits logits = Step(rows);
    out.insert(out.end(), logits.begin(), logits.end());
    if (drafts == nullptr) continue;
    const Logits draft = Draft(rows);
    drafts->insert(drafts->end(), draft.begin(), draft.end());
  }
  return out;
}

int64_t FirstDifference(const Logits& a, const Logits& b, int64_t vocab) {
  const auto rows = static_cast<int64_t>(std::min(a.size(), b.size())) / vocab;
  for (int64_t r = 0; r < rows; ++r) {
    if (std::memcmp(a.data() + r * vocab, b.data() + r * vocab, vocab * sizeof(float)) != 0) return r;
  }
  return -1;
}

}  // namespace hadal::test
