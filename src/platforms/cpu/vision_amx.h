// Attention of all queries of an image over all its rows on AMX, one head at a time.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hadal::cpu {

inline constexpr int64_t kTileKeys = 32;     // keys of a block
inline constexpr int64_t kTileQueries = 32;  // queries of a call

// A head's keys and values as the tiles want them: blocks of 32 rows, and what is left of N as it is.
//   keys    [N/32][2][dim/32][16 pairs of dims][16 keys][2], then [N%32][dim]
//   values  [N/32][dim/16][16 pairs of keys][16 dims][2], then [N%32][dim]
// Lays one block out from `count` rows of keys and values [count][dim]; rows up to 32 are zero.
void PackTileBlock(const uint16_t* keys, const uint16_t* values, int64_t count, int64_t dim, uint16_t* key_block,
                   uint16_t* value_block);

// Scratch of AttendAllAmx for up to n rows of up to `dim` values.
size_t AttendAllAmxScratch(int64_t n, int64_t dim);

// out[i] = sum_j softmax_j(scale * q_i . key_j) * value_j, fp32 [count][dim], for count <= kTileQueries queries
// (bf16 [count][dim], dim a multiple of 32). Scores and sums are fp32, a probability enters the value product as the
// sum of two bf16 numbers, so it keeps 16 bits. The result of a query does not depend on the other queries of the call.
void AttendAllAmx(const uint16_t* q, int64_t count, int64_t dim, const uint16_t* keys, const uint16_t* values,
                  int64_t n, float scale, std::byte* scratch, float* out);

}  // namespace hadal::cpu
