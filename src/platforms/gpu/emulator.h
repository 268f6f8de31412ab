// Runs kernels on the host, a block at a time, every thread of it as a fiber. Barriers and exchanges switch fibers;
// a barrier that not all reach ends the process with the reason. For tests of kernels where there is no GPU.
//
// A wave has 32 lanes, or 64 as on AMD's CDNA: only mma.h asks for it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>

namespace hadal::gpu::emulator {

struct Grid {
  unsigned x, y, z;
};

// Calls body as every thread of every block, block after block. wave: 32 or 64.
void Run(int wave, Grid blocks, unsigned threads, size_t shared_bytes, const std::function<void()>& body);

// In a kernel.
int Thread();
int Threads();
int Block(int axis);
int Blocks(int axis);
int Wave();  // lanes of a wave
void* DynamicShared();
void BlockBarrier();
void GroupBarrier();  // the 32 lanes of the caller's group
void WaveBarrier();

// Writes `bytes` (up to 16) for the other lanes of the group, waits for them, and reads what `lane` wrote.
void ExchangeBytes(const void* mine, size_t bytes, int lane, void* theirs);

template <typename T>
T Exchange(T value, int lane) {
  static_assert(sizeof(T) <= 16);
  T out;
  ExchangeBytes(&value, sizeof(T), lane, &out);
  return out;
}

// Lets the other lanes of the wave see `mine` until the next WaveBarrier; returns what each lane showed ([Wave()]).
const void* const* ShowWave(const void* mine);

}  // namespace hadal::gpu::emulator
