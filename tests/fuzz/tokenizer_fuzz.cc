// Fuzzes the tokenizer. Input that starts with "{" is a tokenizer.json and then its own text to encode; other input is
// text for a fixed tokenizer, cut into spans and streamed back. Whatever comes, nothing crashes and all bytes come
// back.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/tokenizer_utf8.h"
#include "unit/text_tokenizer/small_tokenizer.h"

namespace {

using hadal::text::Detokenizer;
using hadal::text::Tokenizer;

std::string Bytes(const Tokenizer& tokenizer, const std::vector<int32_t>& ids) {
  std::string bytes;
  for (const int32_t id : ids) bytes += tokenizer.TokenBytes(id);
  return bytes;
}

void FuzzFile(std::string_view json) {
  const auto tokenizer = Tokenizer::FromJson(json);
  if (!tokenizer.ok()) return;
  const std::string_view text = json.substr(0, 2000);
  HADAL_CHECK(Bytes(**tokenizer, (*tokenizer)->Encode(text)) == text);
  (*tokenizer)->Encode(text, Tokenizer::Special::kMatch);
}

void FuzzText(std::string_view text) {
  static const std::shared_ptr<const Tokenizer> tokenizer = hadal::test::SmallTokenizer();
  const std::vector<int32_t> plain = tokenizer->Encode(text);
  HADAL_CHECK(Bytes(*tokenizer, plain) == text);
  const std::vector<int32_t> matched = tokenizer->Encode(text, Tokenizer::Special::kMatch);
  HADAL_CHECK(Bytes(*tokenizer, matched) == text);

  const size_t cut = text.empty() ? 0 : static_cast<unsigned char>(text[0]) % (text.size() + 1);
  const Tokenizer::Span trusted[] = {{text.substr(0, cut), true}, {text.substr(cut), true}};
  HADAL_CHECK(tokenizer->EncodeSpans(trusted) == matched);
  const Tokenizer::Span mixed[] = {{text.substr(0, cut), true}, {text.substr(cut), false}};
  HADAL_CHECK(Bytes(*tokenizer, tokenizer->EncodeSpans(mixed)) == text);

  Detokenizer detokenizer(tokenizer);
  std::string streamed;
  for (const int32_t id : matched) {
    const std::string part = detokenizer.Push(id);
    HADAL_CHECK(hadal::text::ValidUtf8Prefix(part) == part.size());
    streamed += part;
  }
  HADAL_CHECK(streamed + detokenizer.Flush() == tokenizer->Decode(matched));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view rest(reinterpret_cast<const char*>(data) + 1, size - 1);
  if (data[0] == '{') {
    FuzzFile(std::string_view(reinterpret_cast<const char*>(data), size));
  } else {
    FuzzText(rest);
  }
  return 0;
}
