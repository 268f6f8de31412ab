#include "platforms/gpu/emulator.h"

#include <algorithm>
#include <array>
#include <boost/context/fiber.hpp>
#include <boost/context/fixedsize_stack.hpp>
#include <memory>
#include <vector>

#include "base/status.h"

namespace hadal::gpu::emulator {
namespace {

namespace context = boost::context;

constexpr int kGroupLanes = 32;
constexpr int kMostWave = 64;
constexpr size_t kStackBytes = 64 * 1024;

enum class State : uint8_t { kReady, kAtBlock, kAtGroup, kAtWave, kDone };

struct Fiber {
  context::fiber resume;
  State state = State::kReady;
  uint8_t parity = 0;  // of its exchanges: a lane may be one ahead of another
};

// Stacks are kept between blocks and launches: mapping them anew would take most of the time.
class StackPool {
 public:
  context::stack_context allocate() {
    if (free_.empty()) return context::fixedsize_stack(kStackBytes).allocate();
    const context::stack_context stack = free_.back();
    free_.pop_back();
    return stack;
  }
  void deallocate(context::stack_context& stack) { free_.push_back(stack); }

 private:
  std::vector<context::stack_context> free_;
};

struct StackAllocator {
  StackPool* pool;
  context::stack_context allocate() { return pool->allocate(); }
  void deallocate(context::stack_context& stack) { pool->deallocate(stack); }
};

struct Machine {
  StackPool stacks;
  std::vector<Fiber> fibers;
  std::vector<std::array<std::array<std::array<std::byte, 16>, kGroupLanes>, 2>> slots;  // a group each
  std::vector<std::array<const void*, kMostWave>> shown;                                 // a wave each
  std::vector<std::byte> shared;
  context::fiber scheduler;
  Grid blocks = {1, 1, 1};
  Grid block = {0, 0, 0};
  int threads = 0;
  int current = 0;
  int wave = kGroupLanes;
};

Machine& machine() {
  static thread_local Machine instance;
  return instance;
}

void Wait(State state) {
  Machine& m = machine();
  m.fibers[m.current].state = state;
  m.scheduler = std::move(m.scheduler).resume();
}

// Releases the fibers of [first, last) if all that live wait for `state`. Threads that returned count as arrived.
bool Release(Machine& m, int first, int last, State state) {
  int waiting = 0;
  for (int i = first; i < last; ++i) {
    if (m.fibers[i].state == State::kDone) continue;
    if (m.fibers[i].state != state) return false;
    ++waiting;
  }
  for (int i = first; i < last; ++i) {
    if (m.fibers[i].state == state) m.fibers[i].state = State::kReady;
  }
  return waiting > 0;
}

void RunBlock(Machine& m, const std::function<void()>& body) {
  for (int i = 0; i < m.threads; ++i) {
    Fiber& fiber = m.fibers[i];
    fiber.state = State::kReady;
    fiber.parity = 0;
    fiber.resume = context::fiber(std::allocator_arg, StackAllocator{&m.stacks}, [&m, &body](context::fiber&& from) {
      m.scheduler = std::move(from);
      body();
      m.fibers[m.current].state = State::kDone;
      return std::move(m.scheduler);
    });
  }
  int done = 0;
  while (done < m.threads) {
    bool moved = false;
    for (int i = 0; i < m.threads; ++i) {
      Fiber& fiber = m.fibers[i];
      if (fiber.state != State::kReady) continue;
      moved = true;
      m.current = i;
      fiber.resume = std::move(fiber.resume).resume();
      if (fiber.state == State::kDone) ++done;
    }
    for (int g = 0; g < m.threads; g += kGroupLanes) {
      moved = Release(m, g, std::min(g + kGroupLanes, m.threads), State::kAtGroup) || moved;
    }
    for (int w = 0; w < m.threads; w += m.wave) {
      moved = Release(m, w, std::min(w + m.wave, m.threads), State::kAtWave) || moved;
    }
    moved = Release(m, 0, m.threads, State::kAtBlock) || moved;
    HADAL_CHECK(moved || done == m.threads);  // a barrier or exchange that not all threads reach
  }
}

}  // namespace

int Thread() { return machine().current; }
int Threads() { return machine().threads; }
int Block(int axis) {
  const Grid& block = machine().block;
  return static_cast<int>(axis == 0 ? block.x : axis == 1 ? block.y : block.z);
}
int Blocks(int axis) {
  const Grid& blocks = machine().blocks;
  return static_cast<int>(axis == 0 ? blocks.x : axis == 1 ? blocks.y : blocks.z);
}
int Wave() { return machine().wave; }
void* DynamicShared() {
  constexpr size_t kAlignment = 1024;
  std::byte* shared = machine().shared.data();
  return shared + (kAlignment - reinterpret_cast<uintptr_t>(shared) % kAlignment) % kAlignment;
}
void BlockBarrier() { Wait(State::kAtBlock); }
void GroupBarrier() { Wait(State::kAtGroup); }
void WaveBarrier() { Wait(State::kAtWave); }

void ExchangeBytes(const void* mine, size_t bytes, int lane, void* theirs) {
  Machine& m = machine();
  const int thread = m.current;
  Fiber& fiber = m.fibers[thread];
  auto& slots = m.slots[thread / kGroupLanes][fiber.parity];
  fiber.parity ^= 1;
  std::memcpy(slots[thread % kGroupLanes].data(), mine, bytes);
  GroupBarrier();
  std::memcpy(theirs, slots[lane % kGroupLanes].data(), bytes);
}

const void* const* ShowWave(const void* mine) {
  Machine& m = machine();
  const int thread = m.current;
  auto& shown = m.shown[thread / m.wave];
  shown[thread % m.wave] = mine;
  WaveBarrier();
  return shown.data();
}

void Run(int wave, Grid blocks, unsigned threads, size_t shared_bytes, const std::function<void()>& body) {
  Machine& m = machine();
  HADAL_CHECK(wave == kGroupLanes || wave == kMostWave);
  m.wave = wave;
  m.blocks = blocks;
  m.threads = static_cast<int>(threads);
  HADAL_CHECK(m.threads >= 1 && m.threads <= 1024);
  m.fibers.resize(threads);
  m.slots.resize((threads + kGroupLanes - 1) / kGroupLanes);
  m.shown.resize((threads + m.wave - 1) / m.wave);
  m.shared.assign(shared_bytes + 1024, std::byte{0xA5});
  for (unsigned z = 0; z < blocks.z; ++z) {
    for (unsigned y = 0; y < blocks.y; ++y) {
      for (unsigned x = 0; x < blocks.x; ++x) {
        m.block = {x, y, z};
        RunBlock(m, body);
      }
    }
  }
}

}  // namespace hadal::gpu::emulator
