// Pre-tokenizer on PCRE2: compiling the rules and applying them one after another.
#include "text/pretokenizer.h"

#include <cstdint>
#include <new>
#include <utility>

#include "base/status.h"
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

// Replaces \s and \S by the White_Space property. An escaped backslash is skipped as a pair, so "\\s" stays.
std::string WithUnicodeSpaces(std::string_view pattern) {
  std::string result;
  for (size_t i = 0; i < pattern.size(); ++i) {
    if (pattern[i] != '\\' || i + 1 == pattern.size()) {
      result += pattern[i];
      continue;
    }
    const char escaped = pattern[++i];
    if (escaped == 's') {
      result += "\\p{White_Space}";
    } else if (escaped == 'S') {
      result += "\\P{White_Space}";
    } else {
      result += '\\';
      result += escaped;
    }
  }
  return result;
}

template <typename T>
T* OrBadAlloc(T* pointer) {
  if (pointer == nullptr) throw std::bad_alloc();
  return pointer;
}

}  // namespace

struct Pretokenizer::Code {
  struct Free {
    void operator()(pcre2_code* code) const { pcre2_code_free(code); }
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

absl::StatusOr<Pretokenizer> Pretokenizer::Create(const std::vector<Rule>& rules) {
  if (rules.size() > kMaxRules) {
    return InvalidArgument("{} split rules, expected at most {}", rules.size(), kMaxRules);
  }
  Pretokenizer result;
  for (size_t i = 0; i < rules.size(); ++i) {
    if (rules[i].pattern.empty() || rules[i].pattern.size() > kMaxPatternBytes) {
      return InvalidArgument("split rule {}: the pattern has {} bytes, expected 1 to {}", i, rules[i].pattern.size(),
                             kMaxPatternBytes);
    }
    const std::string pattern = rules[i].literal ? rules[i].pattern : WithUnicodeSpaces(rules[i].pattern);
    const uint32_t options =
        rules[i].literal ? PCRE2_LITERAL | PCRE2_UTF : PCRE2_UTF | PCRE2_UCP | PCRE2_NEVER_BACKSLASH_C;
    int error = 0;
    PCRE2_SIZE offset = 0;
    Code code;
    code.code.reset(
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(pattern.data()), pattern.size(), options, &error, &offset, nullptr));
    if (code.code == nullptr) {
      unsigned char message[256] = {};
      pcre2_get_error_message(error, message, sizeof(message));
      return InvalidArgument("split rule {}: the regex does not compile: {} (at byte {})", i,
                             reinterpret_cast<const char*>(message), offset);
    }
    // Fails only where the system forbids executable memory; the interpreter gives the same matches.
    code.jit = pcre2_jit_compile(code.code.get(), PCRE2_JIT_COMPLETE) == 0;
    result.codes_.push_back(std::move(code));
  }
  return result;
}

bool Pretokenizer::jit() const {
  for (const Code& code : codes_) {
    if (!code.jit) return false;
  }
  return true;
}

bool Pretokenizer::Find(const Code& code, std::string_view piece, size_t from, Scratch& scratch, size_t* begin,
                        size_t* end) const {
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

void Pretokenizer::Apply(size_t rule, std::string_view piece, Scratch& scratch,
                         absl::FunctionRef<void(std::string_view)> emit) const {
  if (rule == codes_.size()) {
    emit(piece);
    return;
  }
  size_t done = 0;
  size_t begin = 0;
  size_t end = 0;
  while (done < piece.size() && Find(codes_[rule], piece, done, scratch, &begin, &end)) {
    if (begin > done) Apply(rule + 1, piece.substr(done, begin - done), scratch, emit);
    Apply(rule + 1, piece.substr(begin, end - begin), scratch, emit);
    done = end;
  }
  if (done < piece.size()) Apply(rule + 1, piece.substr(done), scratch, emit);
}

void Pretokenizer::Split(std::string_view text, Scratch& scratch,
                         absl::FunctionRef<void(std::string_view)> emit) const {
  while (!text.empty()) {
    const size_t valid = ValidUtf8Prefix(text);
    if (valid > 0) Apply(0, text.substr(0, valid), scratch, emit);
    text.remove_prefix(valid);
    size_t invalid = 0;
    while (invalid < text.size() && NextUtf8(text.substr(invalid)).kind != Utf8Step::Kind::kChar) ++invalid;
    if (invalid > 0) emit(text.substr(0, invalid));
    text.remove_prefix(invalid);
  }
}

}  // namespace hadal::text
