// Tokenizer: text to token ids and back, from the checkpoint's own tokenizer.json.
//
// Specification: spec/deepseek-v4-text.md section 5 (DeepSeek V3, V3.2 and V4 share the base vocabulary and rules and
// differ in added tokens, all of which come from the file). Byte-level BPE: every byte string can be encoded, and
// decoding the ids gives the same bytes back.
//
// Control tokens. A user who types "<｜User｜>" must not forge a control token, so text is encoded without matching
// added tokens unless asked (field report B03). A prompt is a list of spans: those that the chat encoding wrote are
// trusted, those that came in a request are not; see EncodeSpans.
//
// All const members may be called from any number of threads at once.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hadal::text {

class Tokenizer {
 public:
  // What Encode does with added tokens that stand in the text.
  enum class Special {
    kPlain,  // they are ordinary text and give ordinary tokens
    kMatch,  // they give their ids: leftmost, longest
  };

  // Part of a prompt. The text is not copied and must outlive the call it is given to.
  struct Span {
    std::string_view text;
    bool trusted = false;  // true: added tokens are matched in it
  };

  // Reads `path`, or `path`/tokenizer.json if that is a directory. Errors: NotFound for a file that cannot be read,
  // else those of ParseTokenizerJson (text/tokenizer_json.h) with the file's name in front.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> Load(const std::string& path);
  // The same from the file's text; `name` stands for it in messages.
  static absl::StatusOr<std::shared_ptr<const Tokenizer>> FromJson(std::string_view text,
                                                                   std::string_view name = "tokenizer.json");

  ~Tokenizer();
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Token ids of `text`, which may be any bytes: those that are not UTF-8 become byte tokens (text/pretokenizer.h says
  // where the borders are). Adds no BOS or other token (trap 29).
  std::vector<int32_t> Encode(std::string_view text, Special special = Special::kPlain) const;
  // The same, appended to `ids`.
  void Encode(std::string_view text, Special special, std::vector<int32_t>* ids) const;

  // Token ids of the spans' texts joined, with added tokens matched only in trusted spans. Text that lies between two
  // control tokens is joined before it is pre-tokenized, whichever spans it came from, so borders of spans leave no
  // trace: trusted spans alone give what kMatch gives for the joined text, untrusted spans alone what kPlain gives.
  // Neighbouring trusted spans count as one; no token is matched across an untrusted span, be it empty.
  std::vector<int32_t> EncodeSpans(std::span<const Span> spans) const;
  void EncodeSpans(std::span<const Span> spans, std::vector<int32_t>* ids) const;

  // Text of the ids: the bytes of all tokens joined, then what is not UTF-8 replaced by U+FFFD (text/tokenizer_utf8.h).
  // Ids outside the vocabulary give nothing, as in the reference library; models may have more rows than there are
  // tokens. `skip_special` leaves out tokens with the file's `special` flag. In DeepSeek's files that is BOS, EOS,
  // padding and placeholders, but not <｜User｜>, <think> or ｜DSML｜.
  std::string Decode(std::span<const int32_t> ids, bool skip_special = false) const;

  // The bytes a token stands for, possibly part of a character; empty for an id outside the vocabulary.
  std::string_view TokenBytes(int32_t id) const;

  // The token that stands for exactly these bytes, e.g. "<｜User｜>" or " the". An added token comes before an ordinary
  // one.
  std::optional<int32_t> TokenId(std::string_view content) const;

  // True if the id is one of the file's added tokens.
  bool IsAdded(int32_t id) const;
  // True if it is an added token with `special: true`.
  bool IsSpecialFlag(int32_t id) const;

  // Number of tokens; ids are 0 to this - 1, without holes. The model's vocab_size may be larger.
  int32_t vocab_size() const;

  // The pieces of `text` that BPE sees, with added tokens taken as plain text. For tests and inspection.
  std::vector<std::string_view> Pretokenize(std::string_view text) const;

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace hadal::text
