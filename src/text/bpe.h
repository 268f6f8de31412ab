// Byte-pair encoding of one piece of text.
//
// Specification: spec/deepseek-v4-text.md section 5. A piece starts as one token for each byte; then, again and again,
// the adjacent pair of lowest merge rank is replaced by its product, the leftmost on equal rank, until no pair has a
// merge. Cost: O(n log n) in the length of the piece, with about 40 bytes of working memory a byte of a long one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/bpe_cache.h"

namespace hadal::text {

class Bpe {
 public:
  // Its place in the list is its rank.
  struct Merge {
    int32_t left;
    int32_t right;
    int32_t product;
  };

  // Working memory of Encode. One thread uses it at a time, with one Bpe only: it caches that one's answers.
  class Scratch {
   public:
    // Frees what a very long piece needed.
    void Trim();

   private:
    friend class Bpe;
    BpeCache cache_;
    std::vector<int32_t> ids_;
    std::vector<uint32_t> ranks_;
    std::vector<uint32_t> next_;
    std::vector<uint32_t> previous_;
    std::vector<uint64_t> heap_;
  };

  // `byte_ids[b]` is the token of byte b alone. Error (InvalidArgument): a pair that occurs twice, naming both places.
  // Ids must be >= 0.
  static absl::StatusOr<Bpe> Create(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges);

  // Appends the tokens of `piece` (any bytes) to `out`.
  void Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* out) const;

 private:
  static constexpr uint32_t kNoRank = 0xFFFFFFFF;
  // One of a power of two of open-addressing slots, at most half of them used.
  struct Slot {
    uint64_t pair = ~uint64_t{0};  // left << 32 | right; all ones if the slot is free
    uint32_t rank = kNoRank;
    int32_t product = -1;
  };

  static uint64_t Pair(int32_t left, int32_t right) {
    return uint64_t{static_cast<uint32_t>(left)} << 32 | static_cast<uint32_t>(right);
  }
  // The slot of the pair, or the free slot where it would go.
  size_t Locate(uint64_t pair) const {
    size_t at = (pair * 0x9E3779B97F4A7C15u) >> shift_;
    while (slots_[at].pair != pair && slots_[at].pair != ~uint64_t{0}) at = (at + 1) & (slots_.size() - 1);
    return at;
  }
  // Rank of merging the two, kNoRank if there is no such merge.
  uint32_t Rank(int32_t left, int32_t right) const { return slots_[Locate(Pair(left, right))].rank; }

  uint32_t ByteRank(char left, char right) const {
    return byte_ranks_[static_cast<unsigned char>(left) << 8 | static_cast<unsigned char>(right)];
  }

  void EncodeShort(std::string_view piece, std::vector<int32_t>* out) const;
  void EncodeLong(std::string_view piece, Scratch& scratch, std::vector<int32_t>* out) const;

  std::array<int32_t, 256> byte_ids_{};
  // Ranks of pairs of bytes, first << 8 | second: every piece starts with these, and here they are near.
  std::vector<uint32_t> byte_ranks_;
  std::vector<int32_t> products_;  // by rank
  std::vector<Slot> slots_;
  int shift_ = 63;
};

}  // namespace hadal::text
