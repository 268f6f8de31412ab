// Leftmost-longest matching of added tokens.
#include "text/tokenizer_added.h"

namespace hadal::text {

AddedTokenMatcher::AddedTokenMatcher(const std::vector<AddedToken>& tokens) {
  for (const AddedToken& token : tokens) rounds_[token.normalized ? 1 : 0].Insert(token.content, token.id);
}

void AddedTokenMatcher::Split(std::string_view text, absl::FunctionRef<void(std::string_view)> plain,
                              absl::FunctionRef<void(int32_t)> token) const {
  rounds_[0].Split(
      text, [&](std::string_view rest) { rounds_[1].Split(rest, plain, token); }, token);
}

void AddedTokenMatcher::Trie::Insert(std::string_view content, int32_t id) {
  first_bytes.set(static_cast<unsigned char>(content[0]));
  uint32_t node = 0;
  for (const char c : content) {
    const uint64_t edge = uint64_t{node} << 8 | static_cast<unsigned char>(c);
    const auto [it, added] = edges.try_emplace(edge, static_cast<uint32_t>(ids.size()));
    node = it->second;
    if (added) ids.push_back(-1);
  }
  ids[node] = id;
}

size_t AddedTokenMatcher::Trie::Match(std::string_view text, int32_t* id) const {
  size_t length = 0;
  uint32_t node = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const auto it = edges.find(uint64_t{node} << 8 | static_cast<unsigned char>(text[i]));
    if (it == edges.end()) break;
    node = it->second;
    if (ids[node] >= 0) {
      length = i + 1;
      *id = ids[node];
    }
  }
  return length;
}

void AddedTokenMatcher::Trie::Split(std::string_view text, absl::FunctionRef<void(std::string_view)> plain,
                                    absl::FunctionRef<void(int32_t)> token) const {
  size_t start = 0;
  for (size_t at = 0; at < text.size();) {
    int32_t id = 0;
    const size_t length = first_bytes[static_cast<unsigned char>(text[at])] ? Match(text.substr(at), &id) : 0;
    if (length == 0) {
      ++at;
      continue;
    }
    if (at > start) plain(text.substr(start, at - start));
    token(id);
    at += length;
    start = at;
  }
  if (start < text.size()) plain(text.substr(start));
}

}  // namespace hadal::text
