// Reads tokenizer.json into plain data, checked: what comes out of here is consistent, and what hadal cannot do exactly
// as the file asks is an error that names the field, never a silent difference.
//
// Accepted (spec/deepseek-v4-text.md section 5): model BPE over the byte-level alphabet; merges as "a b" or as
// ["a", "b"]; pre_tokenizer a Sequence of Split (Isolated; Regex or String) that ends with ByteLevel; no normalizer, or
// empty Sequences; decoder ByteLevel. `post_processor`, `truncation`, `padding` and `version` are not applied:
// which control tokens a prompt has is the chat encoding's business.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"

namespace hadal::text {

struct TokenizerJson {
  std::vector<std::string> tokens;  // by id: the bytes the token stands for
  std::array<int32_t, 256> byte_ids{};
  std::vector<Bpe::Merge> merges;
  std::vector<AddedToken> added;
  std::vector<Pretokenizer::Rule> split_rules;
};

// Errors: InvalidArgument for a file that is malformed or contradicts itself (not JSON, a key given twice, a missing or
// mistyped field, an id used twice, a hole in the ids, a merge of unknown tokens, a missing byte token);
// Unimplemented for a valid file that needs something else than the above. Messages start with the field's path.
absl::StatusOr<TokenizerJson> ParseTokenizerJson(std::string_view text);

}  // namespace hadal::text
