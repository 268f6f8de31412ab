// Incremental detokenizer: token ids in, one at a time; text out that never ends inside a character.
//
// A token may hold part of a character (emoji, Chinese); decoding each alone would show U+FFFD (field report B11). The
// detokenizer keeps the bytes of a character that is valid so far, at most three, until it is complete. All that Push
// and Flush return, joined, is exactly Tokenizer::Decode of the same ids.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "text/tokenizer.h"

namespace hadal::text {

// For one sequence; not for use from two threads at once.
class Detokenizer {
 public:
  // `skip_special` as in Tokenizer::Decode.
  explicit Detokenizer(std::shared_ptr<const Tokenizer> tokenizer, bool skip_special = false);

  // The text that `id` completes: valid UTF-8, possibly empty. Bytes that can be part of no character become U+FFFD as
  // soon as that is certain.
  std::string Push(int32_t id);

  // The end of the sequence: U+FFFD if it stopped inside a character, else nothing. The detokenizer is then as new.
  std::string Flush();

  // The bytes of the unfinished character, 0 to 3.
  std::string_view pending() const { return pending_; }

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace hadal::text
