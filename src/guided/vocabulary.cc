#include "guided/vocabulary.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/status.h"

namespace hadal::guided {

absl::StatusOr<std::shared_ptr<const TokenVocabulary>> TokenVocabulary::Create(std::vector<std::string> bytes_by_id,
                                                                               std::span<const int32_t> special,
                                                                               std::span<const int32_t> ends,
                                                                               std::span<const int32_t> forbidden) {
  std::shared_ptr<TokenVocabulary> vocabulary(new TokenVocabulary());
  vocabulary->bytes_ = std::move(bytes_by_id);
  const std::pair<const char*, std::span<const int32_t>> lists[] = {
      {"special", special}, {"end", ends}, {"forbidden", forbidden}};
  std::vector<std::string> controls;
  for (const auto& [name, ids] : lists) {
    for (const int32_t id : ids) {
      if (id < 0 || id >= vocabulary->size()) {
        return InvalidArgument("{} token {}: the vocabulary has ids 0 to {}", name, id, vocabulary->size() - 1);
      }
    }
  }
  for (const int32_t id : special) controls.push_back(vocabulary->bytes_[static_cast<size_t>(id)]);
  for (const auto& [name, ids] : lists) {
    for (const int32_t id : ids) vocabulary->bytes_[static_cast<size_t>(id)].clear();
  }
  for (size_t id = 0; id < vocabulary->bytes_.size(); ++id) {
    std::string& bytes = vocabulary->bytes_[id];
    if (bytes.size() > kMaxTokenBytes) {
      return InvalidArgument("token {}: at most {} bytes, found {}", id, kMaxTokenBytes, bytes.size());
    }
    if (bytes.find(kControlByte) != std::string::npos) bytes.clear();
  }
  for (size_t i = 0; i < controls.size(); ++i) {
    // Longer ones are no tokens that a grammar names.
    const bool is_named = !controls[i].empty() && controls[i].size() <= kMaxTokenBytes &&
                          controls[i].find(kControlByte) == std::string::npos;
    if (is_named) vocabulary->bytes_[static_cast<size_t>(special[i])] = ControlBytes(controls[i]);
  }
  for (const std::span<const int32_t> ids : {ends, forbidden}) {
    for (const int32_t id : ids) vocabulary->bytes_[static_cast<size_t>(id)].clear();
  }
  for (const std::string& bytes : vocabulary->bytes_) {
    vocabulary->longest_token_ = std::max(vocabulary->longest_token_, bytes.size());
  }
  vocabulary->ends_.assign(ends.begin(), ends.end());
  std::erase_if(vocabulary->ends_,
                [&](int32_t id) { return std::find(forbidden.begin(), forbidden.end(), id) != forbidden.end(); });
  std::sort(vocabulary->ends_.begin(), vocabulary->ends_.end());
  vocabulary->BuildTrie();
  return vocabulary;
}

std::string TokenVocabulary::ControlBytes(std::string_view spelling) {
  std::string bytes(1, kControlByte);
  bytes += spelling;
  return bytes += kControlByte;
}

bool TokenVocabulary::HasControl(std::string_view spelling) const {
  return std::find(bytes_.begin(), bytes_.end(), ControlBytes(spelling)) != bytes_.end();
}

bool TokenVocabulary::IsEnd(int32_t id) const { return std::binary_search(ends_.begin(), ends_.end(), id); }

void TokenVocabulary::BuildTrie() {
  sorted_tokens_.resize(bytes_.size());
  std::iota(sorted_tokens_.begin(), sorted_tokens_.end(), 0);
  std::erase_if(sorted_tokens_, [&](int32_t id) { return Text(id).empty(); });
  std::stable_sort(sorted_tokens_.begin(), sorted_tokens_.end(),
                   [&](int32_t a, int32_t b) { return Text(a) < Text(b); });

  std::vector<uint32_t> path;  // nodes of the previous token
  const auto close_to = [&](size_t depth) {
    while (path.size() > depth) {
      nodes_[path.back()].subtree_end = static_cast<uint32_t>(nodes_.size());
      path.pop_back();
    }
  };
  std::string_view previous;
  for (uint32_t i = 0; i < sorted_tokens_.size(); ++i) {
    const std::string_view text = Text(sorted_tokens_[i]);
    const auto common = static_cast<size_t>(
        std::mismatch(text.begin(), text.end(), previous.begin(), previous.end()).first - text.begin());
    close_to(common);
    for (size_t depth = common; depth < text.size(); ++depth) {
      nodes_.push_back({.subtree_end = 0,
                        .tokens = i,
                        .parent = path.empty() ? kNoParent : path.back(),
                        .depth = static_cast<uint16_t>(depth + 1),
                        .byte = static_cast<uint8_t>(text[depth])});
      path.push_back(static_cast<uint32_t>(nodes_.size() - 1));
    }
    previous = text;
  }
  close_to(0);
  const auto end = static_cast<uint32_t>(nodes_.size());
  nodes_.push_back({.subtree_end = end,
                    .tokens = static_cast<uint32_t>(sorted_tokens_.size()),
                    .parent = kNoParent,
                    .depth = 0,
                    .byte = 0});
}

}  // namespace hadal::guided
