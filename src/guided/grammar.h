// Guided decoding: what a request demands of the output's form, compiled to something that says before each token which
// tokens may come next (spec serving-runtime 1.6 and 5.7).
//
//   GuidedSpec --Compile--> Grammar (immutable, shared by requests) --> Matcher (matcher.h, one per sequence)
//
// All kinds become one representation (expression.h, automaton.h): a context-free grammar over bytes, so that a token
// may end inside a character. What each kind takes and refuses is written in its front end: json_schema.h,
// json_syntax.h (spelling and whitespace of JSON), regex.h, ebnf.h, tool_calls.h.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "guided/automaton.h"
#include "guided/budget.h"
#include "guided/token_masks.h"
#include "guided/vocabulary.h"

namespace hadal::guided {

struct GuidedSpec {
  enum class Kind {
    kJsonObject,  // any JSON object; text is not used
    kJsonSchema,  // text: the schema
    kRegex,       // text: the pattern; the whole output must match
    kChoice,      // text: a JSON array of strings, one of which is the output
    kGrammar,     // text: EBNF whose rule `root` is the output
    kToolCalls,   // text: from ToolCallsSpec (tool_calls.h)
  };
  Kind kind = Kind::kJsonObject;
  std::string text = {};

  bool operator==(const GuidedSpec&) const = default;
};

// Compiled, for one vocabulary. May be used from any number of threads at once.
class Grammar {
 public:
  Grammar(Automaton automaton, std::shared_ptr<const TokenVocabulary> vocabulary)
      : automaton_(std::move(automaton)), vocabulary_(std::move(vocabulary)) {}

  const Automaton& automaton() const { return automaton_; }
  const TokenVocabulary& vocabulary() const { return *vocabulary_; }
  const TokenMaskCache& masks() const { return masks_; }

 private:
  const Automaton automaton_;
  const std::shared_ptr<const TokenVocabulary> vocabulary_;
  const TokenMaskCache masks_;
};

// InvalidArgument, with what and where, for a spec that is malformed, uses what is not supported, exceeds a limit or
// that no text can satisfy. Takes no longer than limits.seconds and memory in proportion to limits.states; meant to be
// called off the serving thread.
absl::StatusOr<std::shared_ptr<const Grammar>> Compile(const GuidedSpec& spec,
                                                       std::shared_ptr<const TokenVocabulary> vocabulary,
                                                       const CompileLimits& limits = {});

}  // namespace hadal::guided
