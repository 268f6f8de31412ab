// A look at a model's first logits before anything is served: weights or kernels that are broken as a whole give logits
// that are not finite, or all alike, and are better found now than in somebody's answer (field report B139).
#pragma once

#include <span>

#include "absl/status/status.h"
#include "models/model.h"

namespace hadal::runtime {

// FailedPrecondition if a value is not finite or if all are equal; the message gives the numbers and advice.
absl::Status CheckLogits(std::span<const float> logits);

// Runs a few tokens from position 0 of sequence 0, enough that compressed attention takes part, and checks the logits
// of the last one. The sequence has to be started afresh afterwards.
absl::Status CheckFirstLogits(models::Model* model);

}  // namespace hadal::runtime
