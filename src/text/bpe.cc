// Byte-pair encoding: the merge table, a scan for short pieces and a heap for long ones.
#include "text/bpe.h"

#include <algorithm>
#include <functional>

#include "base/status.h"

namespace hadal::text {
namespace {

// Above this many bytes a heap beats scanning all ranks for the lowest (benchmarks/tokenizer_bench.cc, Chinese text).
constexpr size_t kShortPiece = 96;
// Positions are 32 bits wide. A piece beyond this is cut; one word of a gigabyte has no right answer to protect.
constexpr size_t kMaxPiece = size_t{1} << 30;
// Working memory that a Scratch keeps between calls, in elements of each array.
constexpr size_t kKeptElements = 1 << 16;
constexpr uint32_t kNone = 0xFFFFFFFF;

template <typename T>
void TrimVector(std::vector<T>* vector) {
  if (vector->capacity() > kKeptElements) std::vector<T>().swap(*vector);
}

}  // namespace

void Bpe::Scratch::Trim() {
  TrimVector(&ids_);
  TrimVector(&ranks_);
  TrimVector(&next_);
  TrimVector(&previous_);
  TrimVector(&heap_);
}

absl::StatusOr<Bpe> Bpe::Create(const std::array<int32_t, 256>& byte_ids, const std::vector<Merge>& merges) {
  Bpe bpe;
  bpe.byte_ids_ = byte_ids;
  int bits = 4;
  while ((size_t{1} << bits) < merges.size() * 2) ++bits;
  bpe.slots_.resize(size_t{1} << bits);
  bpe.shift_ = 64 - bits;
  bpe.products_.reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    const Merge& merge = merges[rank];
    Slot& slot = bpe.slots_[bpe.Locate(Pair(merge.left, merge.right))];
    if (slot.rank != kNoRank) {
      return InvalidArgument("model.merges[{}] repeats the pair of model.merges[{}]", rank, slot.rank);
    }
    slot = Slot{Pair(merge.left, merge.right), static_cast<uint32_t>(rank), merge.product};
    bpe.products_.push_back(merge.product);
  }
  bpe.byte_ranks_.resize(256 * 256);
  for (size_t pair = 0; pair < bpe.byte_ranks_.size(); ++pair) {
    bpe.byte_ranks_[pair] = bpe.Rank(byte_ids[pair >> 8], byte_ids[pair & 0xFF]);
  }
  return bpe;
}

void Bpe::Encode(std::string_view piece, Scratch& scratch, std::vector<int32_t>* out) const {
  while (piece.size() > kMaxPiece) {
    EncodeLong(piece.substr(0, kMaxPiece), scratch, out);
    piece.remove_prefix(kMaxPiece);
  }
  if (piece.empty()) return;
  if (piece.size() == 1) {
    out->push_back(byte_ids_[static_cast<unsigned char>(piece[0])]);
  } else if (piece.size() <= BpeCache::kMaxPiece) {
    const BpeCache::Key key = BpeCache::MakeKey(piece);
    if (scratch.cache_.Find(key, out)) return;
    const size_t before = out->size();
    EncodeShort(piece, out);
    scratch.cache_.Insert(key, out->data() + before, out->size() - before);
  } else if (piece.size() <= kShortPiece) {
    EncodeShort(piece, out);
  } else {
    EncodeLong(piece, scratch, out);
  }
}

// Dense arrays: ranks[i] is the rank of merging tokens i and i+1. Each merge scans them all and closes the gap.
void Bpe::EncodeShort(std::string_view piece, std::vector<int32_t>* out) const {
  int32_t ids[kShortPiece];
  uint32_t ranks[kShortPiece];
  size_t count = piece.size();
  for (size_t i = 0; i < count; ++i) ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
  for (size_t i = 0; i + 1 < count; ++i) ranks[i] = ByteRank(piece[i], piece[i + 1]);
  while (count > 1) {
    // The minimum of (rank, place) in one word compiles without branches.
    uint64_t lowest = ~uint64_t{0};
    for (size_t i = 0; i + 1 < count; ++i) lowest = std::min(lowest, uint64_t{ranks[i]} << 32 | i);
    const uint32_t rank = static_cast<uint32_t>(lowest >> 32);
    if (rank == kNoRank) break;
    const size_t best = static_cast<uint32_t>(lowest);
    ids[best] = products_[rank];
    --count;
    std::copy(ids + best + 2, ids + count + 1, ids + best + 1);
    std::copy(ranks + best + 1, ranks + count, ranks + best);
    if (best + 1 < count) ranks[best] = Rank(ids[best], ids[best + 1]);
    if (best > 0) ranks[best - 1] = Rank(ids[best - 1], ids[best]);
  }
  out->insert(out->end(), ids, ids + count);
}

// A linked list of tokens and a heap of (rank, position). Entries that a neighbour's merge made stale stay in the heap;
// they are recognised when they come up, because ranks[position] no longer is their rank.
void Bpe::EncodeLong(std::string_view piece, Scratch& scratch, std::vector<int32_t>* out) const {
  const uint32_t count = static_cast<uint32_t>(piece.size());
  std::vector<int32_t>& ids = scratch.ids_;
  std::vector<uint32_t>& ranks = scratch.ranks_;
  std::vector<uint32_t>& next = scratch.next_;
  std::vector<uint32_t>& previous = scratch.previous_;
  std::vector<uint64_t>& heap = scratch.heap_;
  ids.resize(count);
  ranks.resize(count);
  next.resize(count);
  previous.resize(count);
  heap.clear();
  const auto entry = [](uint32_t rank, uint32_t position) { return uint64_t{rank} << 32 | position; };
  for (uint32_t i = 0; i < count; ++i) {
    ids[i] = byte_ids_[static_cast<unsigned char>(piece[i])];
    next[i] = i + 1 < count ? i + 1 : kNone;
    previous[i] = i > 0 ? i - 1 : kNone;
  }
  for (uint32_t i = 0; i < count; ++i) {
    ranks[i] = i + 1 < count ? ByteRank(piece[i], piece[i + 1]) : kNoRank;
    if (ranks[i] != kNoRank) heap.push_back(entry(ranks[i], i));
  }
  std::make_heap(heap.begin(), heap.end(), std::greater<>());
  const auto rerank = [&](uint32_t position) {
    const uint32_t right = next[position];
    ranks[position] = right == kNone ? kNoRank : Rank(ids[position], ids[right]);
    if (ranks[position] == kNoRank) return;
    heap.push_back(entry(ranks[position], position));
    std::push_heap(heap.begin(), heap.end(), std::greater<>());
  };
  while (!heap.empty()) {
    std::pop_heap(heap.begin(), heap.end(), std::greater<>());
    const uint32_t position = static_cast<uint32_t>(heap.back());
    const uint32_t rank = static_cast<uint32_t>(heap.back() >> 32);
    heap.pop_back();
    if (ranks[position] != rank) continue;
    const uint32_t gone = next[position];
    ids[position] = products_[rank];
    ranks[gone] = kNoRank;
    next[position] = next[gone];
    if (next[gone] != kNone) previous[next[gone]] = position;
    rerank(position);
    if (previous[position] != kNone) rerank(previous[position]);
  }
  for (uint32_t i = 0; i != kNone; i = next[i]) out->push_back(ids[i]);
}

}  // namespace hadal::text
