// The bytes of all tokens, arranged for asking "which tokens may come next": a trie of their bytes in preorder, so that
// a walk reads memory from front to back and skips a subtree by one jump. One object per tokenizer, shared by all
// grammars.
//
// Control tokens have a place in it too: their spelling between two bytes that UTF-8 cannot contain (ControlBytes). A
// grammar that holds these bytes demands exactly that token; text can neither hold it nor spell it.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hadal::guided {

class TokenVocabulary {
 public:
  struct Node {
    uint32_t subtree_end;  // the first node behind this one's subtree
    uint32_t tokens;  // index into sorted_tokens of the first token that ends here; the last is before the next node's
    uint32_t parent;  // kNoParent for first bytes
    uint16_t depth;   // bytes up to here, this one included
    uint8_t byte;
  };
  static constexpr uint32_t kNoParent = 0xFFFFFFFF;
  static constexpr size_t kMaxTokenBytes = 1024;
  static constexpr char kControlByte = '\xFF';

  // What stands for the control token of that spelling in a grammar.
  static std::string ControlBytes(std::string_view spelling);

  // `bytes_by_id`: what each token adds to the text, possibly part of a character. `special`: control and other tokens
  // that are never text, whatever their bytes; only what names them allows them. `ends`: tokens that end the output;
  // they are allowed where the text may end, and only there. `forbidden`: never allowed (image placeholders). An id may
  // stand in several lists; forbidden comes before end, end before special. Tokens without bytes (ids the tokenizer
  // does not know) are never allowed, nor are other than special ones that hold the byte kControlByte.
  // InvalidArgument for ids outside the vocabulary and for tokens of more than kMaxTokenBytes.
  static absl::StatusOr<std::shared_ptr<const TokenVocabulary>> Create(std::vector<std::string> bytes_by_id,
                                                                       std::span<const int32_t> special,
                                                                       std::span<const int32_t> ends,
                                                                       std::span<const int32_t> forbidden = {});

  // Number of tokens.
  int32_t size() const { return static_cast<int32_t>(bytes_.size()); }
  // 32-bit words of a mask.
  size_t mask_words() const { return (bytes_.size() + 31) / 32; }
  // Length of the longest Text.
  size_t longest_token() const { return longest_token_; }
  // What the token adds to the text, or the ControlBytes of a special one; empty if it is never matched.
  std::string_view Text(int32_t id) const { return bytes_[static_cast<size_t>(id)]; }
  // Whether one of the special tokens is spelled so.
  bool HasControl(std::string_view spelling) const;
  bool IsEnd(int32_t id) const;
  const std::vector<int32_t>& ends() const { return ends_; }

  // In preorder, children by byte; one more node than there are, for the ends.
  std::span<const Node> nodes() const { return {nodes_.data(), nodes_.size() - 1}; }
  // The tokens that end at a node.
  std::span<const int32_t> TokensAt(uint32_t node) const {
    return {sorted_tokens_.data() + nodes_[node].tokens, sorted_tokens_.data() + nodes_[node + 1].tokens};
  }

 private:
  TokenVocabulary() = default;
  void BuildTrie();

  std::vector<std::string> bytes_;  // empty if never matched
  std::vector<int32_t> ends_;       // ascending
  std::vector<Node> nodes_;
  std::vector<int32_t> sorted_tokens_;  // by their bytes
  size_t longest_token_ = 0;
};

}  // namespace hadal::guided
