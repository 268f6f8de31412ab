// The tokens of pieces seen lately, so that the common words of a text are merged once and not each time.
//
// A direct-mapped table of fixed size: one cache line a slot, a newer piece evicts an older one. Only short pieces with
// few tokens fit, which is nearly all that repeat. It changes the speed of the tokenizer, never its answer.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <memory>
#include <string_view>
#include <vector>

namespace hadal::text {

class BpeCache {
 public:
  // Longest piece that fits: three words hold it and its length.
  static constexpr size_t kMaxPiece = 23;
  static constexpr size_t kMaxTokens = 9;

  struct Key {
    std::array<uint64_t, 3> words;
  };

  BpeCache() : slots_(std::make_unique<Slot[]>(kSlots)) {}

  // The key of a piece of 1 to kMaxPiece bytes: zero-padded, with the length in the last byte.
  static Key MakeKey(std::string_view piece) {
    char bytes[24] = {};
    std::memcpy(bytes, piece.data(), piece.size());
    bytes[23] = static_cast<char>(piece.size());
    Key key;
    std::memcpy(key.words.data(), bytes, sizeof(bytes));
    return key;
  }

  // Appends the tokens of the piece if they are known.
  bool Find(const Key& key, std::vector<int32_t>* out) const {
    const Slot& slot = slots_[Index(key)];
    // Not operator==, which calls memcmp.
    const uint64_t difference =
        (slot.words[0] ^ key.words[0]) | (slot.words[1] ^ key.words[1]) | (slot.words[2] ^ key.words[2]);
    if (difference != 0) return false;
    if (slot.count == 1) {
      out->push_back(slot.ids[0]);
    } else {
      out->insert(out->end(), slot.ids, slot.ids + slot.count);
    }
    return true;
  }

  // Remembers the tokens, unless there are more than kMaxTokens.
  void Insert(const Key& key, const int32_t* ids, size_t count) {
    if (count > kMaxTokens) return;
    Slot& slot = slots_[Index(key)];
    slot.words = key.words;
    slot.count = static_cast<int32_t>(count);
    std::memcpy(slot.ids, ids, count * sizeof(int32_t));
  }

 private:
  static constexpr size_t kSlots = 16384;  // 1 MiB: stays in a core's second-level cache
  struct alignas(64) Slot {
    std::array<uint64_t, 3> words{};  // all zero if free; no key is, because of its length byte
    int32_t count = 0;
    int32_t ids[kMaxTokens] = {};
  };

  static size_t Index(const Key& key) {
    uint64_t hash = (key.words[0] ^ 0x9E3779B97F4A7C15u) * 0xBF58476D1CE4E5B9u;
    hash = (hash ^ (hash >> 32) ^ key.words[1]) * 0x94D049BB133111EBu;
    hash = (hash ^ (hash >> 32) ^ key.words[2]) * 0xD6E8FEB86659FD93u;
    return static_cast<size_t>(hash >> 50);
  }
  static_assert(kSlots == size_t{1} << 14, "Index takes the upper 14 bits");

  std::unique_ptr<Slot[]> slots_;
};

}  // namespace hadal::text
