// Pre-tokenizer on PCRE2: compiling the rules and applying them one after another.
#include "text/pretokenizer.h"

#include <algorithm>
#include <cstdint>
#include <new>
#include <utility>

#include "base/status.h"
#include "text/pretokenizer_regex.h"
#include "text/tokenizer_utf8.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

namespace hadal::text {
namespace {

constexpr size_t kMaxPatternBytes = 64 * 1024;
constexpr size_t kMaxRules = 64;
// PCRE2's default is 10 million backtracking points a match, about a second. Rules of real files need a few for each
// character of a piece only in runs of white space.
constexpr uint32_t kMatchLimit = 10'000'000;
// Only the interpreter uses this heap (KiB): without it one match might take gigabytes.
constexpr uint32_t kHeapLimitKib = 256 * 1024;
constexpr size_t kJitStackStart = 32 * 1024;
constexpr size_t kJitStackMax = 1024 * 1024;

template <typename T>
T* OrBadAlloc(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct Pretokenizer::Code {
  struct Free {
    void operator()(pcre2_code* compiled) const { pcre2_code_free(compiled); }
  };
  std::unique_ptr<pcre2_code, Free> code;
  bool jit = false;
};

Pretokenizer::Scratch::Scratch()
    : match_data_(OrBadAlloc(pcre2_match_data_create(1, nullptr))),
      context_(OrBadAlloc(pcre2_match_context_create(nullptr))),
      jit_stack_(pcre2_jit_stack_create(kJitStackStart, kJitStackMax, nullptr)) {
  pcre2_set_match_limit(context_, kMatchLimit);
  pcre2_set_heap_limit(context_, kHeapLimitKib);
  // Without a stack of our own (null where there is no JIT) PCRE2 uses 32 KiB of the machine stack.
  pcre2_jit_stack_assign(context_, nullptr, jit_stack_);
}

Pretokenizer::Scratch::~Scratch() {
  pcre2_jit_stack_free(jit_stack_);
  pcre2_match_context_free(context_);
  pcre2_match_data_free(match_data_);
}

Pretokenizer::Pretokenizer() = default;
Pretokenizer::Pretokenizer(Pretokenizer&&) noexcept = default;
Pretokenizer& Pretokenizer::operator=(Pretokenizer&&) noexcept = default;
Pretokenizer::~Pretokenizer() = default;

absl::StatusOr<Pretokenizer::Code> Pretokenizer::Compile(const std::string& pattern, uint32_t options) {
  int error = 0;
  PCRE2_SIZE offset = 0;
  Code code;
  code.code.reset(
      pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr));
  if (code.code == nullptr) {
    unsigned char message[256] = {};
    pcre2_get_error_message(error, message, sizeof(message));
    return InvalidArgument("the regex does not compile: {} (at byte {})", reinterpret_cast<const char*>(message),
                           offset);
  }
  // Fails only where the system forbids executable memory; the interpreter gives the same matches.
  code.jit = pcre2_jit_compile(code.code.get(), PCRE2_JIT_COMPLETE) == 0;
  return code;
}

absl::StatusOr<Pretokenizer> Pretokenizer::Create(const std::vector<Rule>& rules) {
  if (rules.size() > kMaxRules) {
    return InvalidArgument("{} split rules, expected at most {}", rules.size(), kMaxRules);
  }
  Pretokenizer result;
  for (size_t i = 0; i < rules.size(); ++i) {
    const Rule& rule = rules[i];
    if (rule.pattern.empty() || rule.pattern.size() > kMaxPatternBytes) {
      return InvalidArgument("split rule {}: the pattern has {} bytes, expected 1 to {}", i, rule.pattern.size(),
                             kMaxPatternBytes);
    }
    for (const UnicodeVersion version : {UnicodeVersion::kOfPcre2, UnicodeVersion::k16}) {
      absl::StatusOr<Code> code = rule.literal ? Compile(rule.pattern, PCRE2_LITERAL | PCRE2_UTF)
                                               : Compile(TranslateRegex(rule.pattern, version),
                                                         PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C);
      if (!code.ok()) return InvalidArgument("split rule {}: {}", i, Message(code.status()));
      (version == UnicodeVersion::kOfPcre2 ? result.codes_ : result.newer_codes_).push_back(*std::move(code));
    }
  }
  return result;
}

bool Pretokenizer::jit() const {
  return std::all_of(codes_.begin(), codes_.end(), [](const Code& code) { return code.jit; });
}

bool Pretokenizer::Find(const Code& code, std::string_view piece, size_t from, Scratch& scratch, size_t* begin,
                        size_t* end) {
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(piece.data());
  // The text was validated once, in Split; an empty match would be an empty piece.
  constexpr uint32_t kOptions = PCRE2_NOTEMPTY | PCRE2_NO_UTF_CHECK;
  const int found = code.jit ? pcre2_jit_match(code.code.get(), subject, piece.size(), from, PCRE2_NOTEMPTY,
                                               scratch.match_data_, scratch.context_)
                             : pcre2_match(code.code.get(), subject, piece.size(), from, kOptions, scratch.match_data_,
                                           scratch.context_);
  if (found < 0) return false;  // no match, or a limit
  const PCRE2_SIZE* offsets = pcre2_get_ovector_pointer(scratch.match_data_);
  *begin = offsets[0];
  *end = offsets[1];
  // \K can move the start of a match: never backwards into earlier pieces, never behind its end.
  return *begin >= from && *begin < *end;
}

void Pretokenizer::Apply(const std::vector<Code>& codes, size_t rule, std::string_view piece, Scratch& scratch,
                         absl::FunctionRef<void(std::string_view)> emit) {
  if (rule == codes.size()) {
    emit(piece);
    return;
  }
  size_t done = 0;
  size_t begin = 0;
  size_t end = 0;
  while (done < piece.size() && Find(codes[rule], piece, done, scratch, &begin, &end)) {
    if (begin > done) Apply(codes, rule + 1, piece.substr(done, begin - done), scratch, emit);
    Apply(codes, rule + 1, piece.substr(begin, end - begin), scratch, emit);
    done = end;
  }
  if (done < piece.size()) Apply(codes, rule + 1, piece.substr(done), scratch, emit);
}

void Pretokenizer::Split(std::string_view text, Scratch& scratch,
                         absl::FunctionRef<void(std::string_view)> emit) const {
  while (!text.empty()) {
    const std::string_view valid = text.substr(0, ValidUtf8Prefix(text));
    if (!valid.empty()) Apply(HasNewerCharacters(valid) ? newer_codes_ : codes_, 0, valid, scratch, emit);
    text.remove_prefix(valid.size());
    size_t invalid = 0;
    while (invalid < text.size() && NextUtf8(text.substr(invalid)).kind != Utf8Step::Kind::kChar) ++invalid;
    if (invalid > 0) emit(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

}  // namespace hadal::text
