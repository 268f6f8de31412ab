#include "models/model.h"

#include "base/status.h"

namespace hadal::models {

absl::Status Model::EncodeImage(const ImagePatches& /*image*/, ops::Tensor /*out*/) {
  return absl::FailedPreconditionError(config().has_vision() ? "images are disabled: the vision tower was not loaded"
                                                             : "this model has no vision tower: it takes text only");
}

}  // namespace hadal::models
