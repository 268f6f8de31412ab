// Finds added tokens ("<｜User｜>") in text: leftmost, longest (spec/deepseek-v4-text.md section 5).
//
// As in the reference library there are two rounds: tokens with `normalized: false` are matched first, those with
// `normalized: true` in what is left. The rounds differ only where a token of one kind overlaps one of the other.
#pragma once

#include <array>
#include <bitset>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/functional/function_ref.h"

namespace hadal::text {

// One entry of `added_tokens` in tokenizer.json.
struct AddedToken {
  int32_t id = 0;
  std::string content;
  bool special = false;     // left out by "skip special tokens" decoding
  bool normalized = false;  // matched in the second round
};

class AddedTokenMatcher {
 public:
  explicit AddedTokenMatcher(const std::vector<AddedToken>& tokens);

  // Calls `plain` with each non-empty stretch of text without tokens and `token` with each id, in order. Every byte of
  // `text` belongs to exactly one call. Cost: at worst the length of the text times that of the longest token.
  void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> plain,
             absl::FunctionRef<void(int32_t)> token) const;

 private:
  // Byte trie. Node 0 is the root.
  struct Trie {
    void Insert(std::string_view content, int32_t id);
    // Length of the longest token that `text` starts with, 0 if none; sets `id`.
    size_t Match(std::string_view text, int32_t* id) const;
    void Split(std::string_view text, absl::FunctionRef<void(std::string_view)> plain,
               absl::FunctionRef<void(int32_t)> token) const;

    std::bitset<256> first_bytes;
    absl::flat_hash_map<uint64_t, uint32_t> edges;  // node << 8 | byte -> node
    std::vector<int32_t> ids = {-1};                // by node; -1 if no token ends there
  };

  std::array<Trie, 2> rounds_;
};

}  // namespace hadal::text
