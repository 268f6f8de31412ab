// Replaces the heap of C++ by memory that a GPU reads and writes at the host's addresses, so that the operator tests,
// which keep their data in vectors, run on a card as they are. Memory that was given back serves again by its size.
#include <cuda_runtime_api.h>
#include <sys/mman.h>

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

namespace {

constexpr size_t kHeapBytes = size_t{6} << 30;
constexpr size_t kLeast = 256;  // as cudaMalloc aligns
constexpr int kClasses = 40;

struct Heap {
  std::byte* base = nullptr;
  size_t used = 0;
  std::array<void*, kClasses> free = {};
  std::mutex mutex;
};

Heap& TheHeap() {
  // Constructed in place and never destroyed: other objects' destructors give memory back.
  alignas(Heap) static std::byte storage[sizeof(Heap)];
  static Heap* heap = [] {
    auto* made = new (storage) Heap();
    void* memory =
        mmap(nullptr, kHeapBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) __builtin_trap();
    made->base = static_cast<std::byte*>(memory);
    int devices = 0;
    if (cudaGetDeviceCount(&devices) == cudaSuccess && devices > 0) {
      if (cudaHostRegister(memory, kHeapBytes, cudaHostRegisterDefault) != cudaSuccess) __builtin_trap();
    }
    return made;
  }();
  return *heap;
}

// A block of class c has kLeast << c bytes, the first kLeast of which hold the class.
void* Take(size_t bytes) {
  const size_t whole = std::bit_ceil(bytes + kLeast);
  const int size_class = std::countr_zero(whole) - std::countr_zero(kLeast);
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  void*& list = heap.free[size_class];
  std::byte* block = static_cast<std::byte*>(list);
  if (block != nullptr) {
    list = *reinterpret_cast<void**>(block + kLeast);
  } else {
    if (heap.used + whole > kHeapBytes) throw std::bad_alloc();
    block = heap.base + heap.used;
    heap.used += whole;
  }
  *reinterpret_cast<int*>(block) = size_class;
  return block + kLeast;
}

void Give(void* data) {
  if (data == nullptr) return;
  std::byte* block = static_cast<std::byte*>(data) - kLeast;
  const int size_class = *reinterpret_cast<int*>(block);
  Heap& heap = TheHeap();
  const std::lock_guard lock(heap.mutex);
  *reinterpret_cast<void**>(data) = heap.free[size_class];
  heap.free[size_class] = block;
}

}  // namespace

void* operator new(size_t bytes) { return Take(bytes); }
void* operator new[](size_t bytes) { return Take(bytes); }
void* operator new(size_t bytes, std::align_val_t) { return Take(bytes); }
void* operator new[](size_t bytes, std::align_val_t) { return Take(bytes); }
void operator delete(void* data) noexcept { Give(data); }
void operator delete[](void* data) noexcept { Give(data); }
void operator delete(void* data, size_t) noexcept { Give(data); }
void operator delete[](void* data, size_t) noexcept { Give(data); }
void operator delete(void* data, std::align_val_t) noexcept { Give(data); }
void operator delete[](void* data, std::align_val_t) noexcept { Give(data); }
void operator delete(void* data, size_t, std::align_val_t) noexcept { Give(data); }
void operator delete[](void* data, size_t, std::align_val_t) noexcept { Give(data); }
