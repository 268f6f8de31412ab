// Helpers on tensor entries that need no file.
#include "checkpoint/tensor_entry.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstring>

#include "base/float_formats.h"
#include "base/status.h"

namespace hadal::checkpoint {
namespace {

// Applies advice to whole pages: all pages touched (outward) or only pages that belong to the entry alone (inward).
void Advise(const TensorEntry& entry, int advice, bool outward) {
  if (entry.bytes <= 0) return;
  const uintptr_t page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  uintptr_t begin = reinterpret_cast<uintptr_t>(entry.data);
  uintptr_t end = begin + static_cast<uintptr_t>(entry.bytes);
  begin = outward ? begin / page * page : (begin + page - 1) / page * page;
  end = outward ? (end + page - 1) / page * page : end / page * page;
  // NOLINTNEXTLINE(performance-no-int-to-ptr): pages are found by address
  if (begin < end) madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

std::string ShapeText(const std::vector<int64_t>& shape) { return fmt::format("[{}]", fmt::join(shape, ", ")); }

absl::StatusOr<std::vector<float>> ReadFloats(const TensorEntry& entry) {
  const size_t n = static_cast<size_t>(entry.elements());
  std::vector<float> out(n);
  switch (entry.dtype) {
    case DType::kF32:
      std::memcpy(out.data(), entry.data, n * 4);
      return out;
    case DType::kBF16:
    case DType::kF16:
      for (size_t i = 0; i < n; ++i) {
        uint16_t bits;
        std::memcpy(&bits, entry.data + 2 * i, 2);
        out[i] = entry.dtype == DType::kBF16 ? ToFloat(BFloat16{bits}) : F16ToFloat(bits);
      }
      return out;
    default:
      return InvalidArgument("tensor \"{}\": expected F32, BF16 or F16, found {}", entry.name, DTypeName(entry.dtype));
  }
}

void Prefetch(const TensorEntry& entry) { Advise(entry, MADV_WILLNEED, true); }

void DropPages(const TensorEntry& entry) {
  // Anonymous memory (copies, dummy weights) would come back as zeros: only mapped files may be dropped.
  if (!entry.droppable) return;
  Advise(entry, MADV_PAGEOUT, false);   // out of the page cache too, where the kernel permits it
  Advise(entry, MADV_DONTNEED, false);  // out of this process in any case
}

void ReleasePages(const TensorEntry& entry) {
  if (entry.droppable) Advise(entry, MADV_DONTNEED, false);
}

absl::StatusOr<const TensorEntry*> WeightSource::Get(std::string_view name) const {
  const TensorEntry* entry = Find(name);
  if (entry == nullptr) return NotFound("tensor \"{}\" is not in the checkpoint", name);
  return entry;
}

}  // namespace hadal::checkpoint
