// Pre-tokenizer: cuts text into the pieces that BPE then works on, one at a time and independently.
//
// Specification: spec/deepseek-v4-text.md section 5. The rules of tokenizer.json are applied one after another: the
// first to the text, each further one to every piece that the rules before it made. A rule is "Isolated": each match is
// a piece, and so is each gap between matches. The rules are not combined into one alternation, which would cut
// "a  123" differently (trap 28). A rule sees nothing outside its piece: look-around ends at the piece's borders.
//
// Regexes are those of tokenizer.json, matched by PCRE2 (UTF, UCP, JIT where the system allows executable memory) after
// the translation of text/pretokenizer_regex.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/status/statusor.h"

// PCRE2's own names of its opaque types; its header stays out of ours.
struct pcre2_real_code_8;
struct pcre2_real_match_context_8;
struct pcre2_real_match_data_8;
struct pcre2_real_jit_stack_8;

namespace hadal::text {

class Pretokenizer {
 public:
  struct Rule {
    std::string pattern;   // a regex, or the text itself if `literal`
    bool literal = false;  // true: `pattern` is matched as it stands
  };

  // Working memory of a match. One thread uses it at a time; it fits every Pretokenizer.
  class Scratch {
   public:
    Scratch();
    ~Scratch();
    Scratch(const Scratch&) = delete;
    Scratch& operator=(const Scratch&) = delete;

   private:
    friend class Pretokenizer;
    pcre2_real_match_data_8* match_data_;
    pcre2_real_match_context_8* context_;
    pcre2_real_jit_stack_8* jit_stack_;
  };

  // Compiles the rules. Errors (InvalidArgument): a regex that PCRE2 rejects, with its message and the offset; a
  // pattern above 64 KiB; more than 64 rules. `Rule` i is named as "split rule i".
  static absl::StatusOr<Pretokenizer> Create(const std::vector<Rule>& rules);

  Pretokenizer(Pretokenizer&&) noexcept;
  Pretokenizer& operator=(Pretokenizer&&) noexcept;
  ~Pretokenizer();

  // Calls `emit` with the pieces of `text` in order. They are never empty and together are `text`.
  // Any bytes may come: a maximal run of bytes in which no valid UTF-8 character starts is a piece of its own, and the
  // text on either side of it is cut as if it ended there. A match that exceeds PCRE2's limits counts as "no further
  // match", so a hostile regex costs bounded time and never fails the call.
  void Split(std::string_view text, Scratch& scratch, absl::FunctionRef<void(std::string_view)> emit) const;

  // True if every rule runs as machine code.
  bool jit() const;

 private:
  struct Code;
  Pretokenizer();

  static absl::StatusOr<Code> Compile(const std::string& pattern, uint32_t options);
  static bool Find(const Code& code, std::string_view piece, size_t from, Scratch& scratch, size_t* begin, size_t* end);
  static void Apply(const std::vector<Code>& codes, size_t rule, std::string_view piece, Scratch& scratch,
                    absl::FunctionRef<void(std::string_view)> emit);

  std::vector<Code> codes_;        // for text that PCRE2's Unicode version covers
  std::vector<Code> newer_codes_;  // for text with newer characters
};

}  // namespace hadal::text
