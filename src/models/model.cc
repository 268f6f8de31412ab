#include "models/model.h"

#include "base/status.h"

namespace hadal::models {

absl::Status Model::EncodeImage(const ImagePatches& /*image*/, ops::Tensor /*out*/) {
  return absl::FailedPreconditionError(config().has_vision() ? "images are disabled: the vision tower was not loaded"
                                                             : "this model has no vision tower: it takes text only");
}

const KvLayout& Model::kv_layout() const {
  static const auto* const kNone = new KvLayout();
  return *kNone;
}

std::span<int32_t> Model::BlockTable(int64_t /*group*/, int32_t /*seq*/) { return {}; }

void Model::ReadSlab(int32_t /*slab*/, std::byte* /*to*/, int64_t /*bytes*/) {
  HADAL_CHECK(false);  // a model with a cache has its own
}
void Model::WriteSlab(int32_t /*slab*/, const std::byte* /*from*/, int64_t /*bytes*/) { HADAL_CHECK(false); }

}  // namespace hadal::models
