// Calls in control tokens: the forms of V3.1 and of V3 and R1. Every text here is also cut at every byte.
#include <random>

#include "parser_harness.h"
#include "text/output_parser.h"

namespace hadal::text {
namespace {

#define EOS "<｜end▁of▁sentence｜>"
#define CALLS "<｜tool▁calls▁begin｜>"
#define CALLS_END "<｜tool▁calls▁end｜>"
#define CALL "<｜tool▁call▁begin｜>"
#define SEP "<｜tool▁sep｜>"
#define CALL_END "<｜tool▁call▁end｜>"
#define V31_CALL(name, arguments) CALL name SEP arguments CALL_END
#define V3_CALL(name, arguments) CALL "function" SEP name "\n```json\n" arguments "\n```" CALL_END

ParserOptions With(CallMarkup markup, ParserOptions options = {}) {
  options.markup = markup;
  return options;
}
std::string V31(std::string_view text, ParserOptions options = {}, EndCause cause = EndCause::kStop) {
  return Parsed(text, With(CallMarkup::kTokens, std::move(options)), cause);
}
std::string V3(std::string_view text, ParserOptions options = {}, EndCause cause = EndCause::kStop) {
  return Parsed(text, With(CallMarkup::kFencedTokens, std::move(options)), cause);
}

TEST(TokenCalls, Text) {
  EXPECT_EQ(V31("Hello." EOS "more"), "C[Hello.]");
  EXPECT_EQ(V31("r</think>c" EOS, InReasoning()), "R[r]C[c]");
  EXPECT_EQ(V31("c</think>d"), "C[cd]");
  for (const char* text :
       {"<｜tool▁call", "<｜tool▁calls▁begin", "a <", "｜DSML｜", "</｜DSML｜invoke>", "<｜tool▁sep|>"}) {
    EXPECT_EQ(V31(text), "C[" + std::string(text) + "]");
    EXPECT_EQ(V3(text), "C[" + std::string(text) + "]");
  }
  // To the other dialect they are words.
  EXPECT_EQ(Parsed(CALLS V31_CALL("f", "{}") CALLS_END), "C[" CALLS V31_CALL("f", "{}") CALLS_END "]");
}

TEST(TokenCalls, V31) {
  EXPECT_EQ(V31("text\n" CALLS V31_CALL("f", "{\"a\": \"b\"}") V31_CALL("g", "{}") CALLS_END EOS),
            "C[text] call f{\"a\": \"b\"} call g{}");
  EXPECT_EQ(V31(" \n" CALLS V31_CALL("f", "{\"a\": {\"b\": [1, \"}\\\"]\"]}}") CALLS_END "ignored" EOS),
            " call f{\"a\": {\"b\": [1, \"}\\\"]\"]}}");
  EXPECT_EQ(V31("r</think>\n" CALLS V31_CALL("f", "{}") CALLS_END EOS, InReasoning()), "R[r] call f{}");
  EXPECT_EQ(V31("r" CALLS V31_CALL("f", "{}") CALLS_END EOS, InReasoning()), "R[r] call f{}");  // </think> is implied
}

TEST(TokenCalls, V3) {
  EXPECT_EQ(V3("text" CALLS V3_CALL("f", "{\"a\": \"b\"}") "\n" V3_CALL("g", "{}") CALLS_END EOS),
            "C[text] call f{\"a\": \"b\"} call g{}");
  EXPECT_EQ(V3("\nr\n</think>\n\n" CALLS V3_CALL("f", "{}") CALLS_END EOS, InReasoning()), "R[r] call f{}");
  // Behind a tool result R1 opens its reasoning itself; elsewhere the tag is text.
  EXPECT_EQ(V3("<think>\nr\n</think>\n\nc" EOS), "R[r]C[c]");
  EXPECT_EQ(V3("c<think>d" EOS), "C[c<think>d]");
}

// Each form may have a fence or none, and whitespace around everything.
TEST(TokenCalls, LooseForms) {
  EXPECT_EQ(V31(CALLS V31_CALL("\nf\n", "\n```json\n{\"a\":1}\n```\n") CALLS_END), " call f{\"a\":1}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "``` {\"a\":1}") CALLS_END), " call f{\"a\":1}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "") CALLS_END), " call f{}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "```json\n```") CALLS_END), " call f{}");
  EXPECT_EQ(V3(CALLS CALL "function" SEP "f{\"a\":1}" CALL_END CALLS_END), " call f{\"a\":1}");
  EXPECT_EQ(V3(CALLS CALL "function" SEP "\nf```{\"a\":1}```" CALL_END CALLS_END), " call f{\"a\":1}");
  // Missing tags: the block, the ends.
  EXPECT_EQ(V31("c" V31_CALL("f", "{}") EOS), "C[c] call f{}");
  EXPECT_EQ(V31(CALLS CALL "f" SEP "{}" CALL "g" SEP "{}" CALLS_END), " call f{} call g{}");
  EXPECT_EQ(V31(CALLS CALL "f" SEP "{\"a\":1}"), " call f{\"a\":1}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{}") EOS), " call f{}");
  EXPECT_EQ(V31(CALLS CALLS V31_CALL("f", "{}") CALLS_END), " call f{}");
  // Tags out of place say nothing.
  EXPECT_EQ(V31("a" SEP "b" CALL_END "c" CALLS_END "d" EOS), "C[abcd]");
}

// What JSON forbids in strings is escaped on the way; control tokens that stand in them are text.
TEST(TokenCalls, ArgumentsAreRepaired) {
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{\"a\": \"x\ny\tz\"}") CALLS_END), " call f{\"a\": \"x\\ny\\tz\"}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{\"a\": \"</think>é<think>\"}") CALLS_END),
            " call f{\"a\": \"</think>é<think>\"}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{\"a\": 1} and more {") CALLS_END), " call f{\"a\": 1}");
  const ParserOptions tools =
      WithTools(R"([{"function":{"name":"f","parameters":{"properties":{"n":{"type":"integer"}}}}}])");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "5") CALLS_END, tools), " call f{\"n\": 5}");
}

TEST(TokenCalls, BrokenOnes) {
  // No JSON: not complete, and since the model went on to write a good one nothing becomes content.
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{\"a\": }") V31_CALL("g", "{}") CALLS_END EOS),
            " call f{\"a\": } (open) call g{}");
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{\"a\": 1]") V31_CALL("g", "{}") CALLS_END EOS),
            " call f{\"a\": 1] (open) call g{}");
  // No name: given up, its siblings kept; if there are none its text is the answer.
  EXPECT_EQ(V31(CALLS V31_CALL("", "{}") V31_CALL("g", "{}") CALLS_END EOS), " call g{}");
  EXPECT_EQ(V31("c\n" CALLS V31_CALL("two words", "{\"a\":1}") CALLS_END EOS), "C[c\n\ntwo words{\"a\":1}]");
  EXPECT_EQ(V3(CALLS CALL "function" CALL_END CALLS_END EOS), "C[function]");
  EXPECT_EQ(V31(CALLS CALL "f" CALLS_END EOS), "C[f]");
  // Not allowed.
  ParserOptions none;
  none.tools_allowed = false;
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{}") CALLS_END EOS, none), "C[f{}]");
  ParserOptions known = WithTools(R"([{"function":{"name":"g"}}])");
  known.pass_unknown_tools = false;
  EXPECT_EQ(V31(CALLS V31_CALL("f", "{}") V31_CALL("g", "{}") CALLS_END EOS, known), " call g{}");
}

// A limit: what was streamed of a call stays open, and no half tag comes out.
TEST(TokenCalls, CutOff) {
  const std::string whole = "c" CALLS V31_CALL("f", "{\"a\": \"b\"}") CALLS_END EOS;
  for (size_t size = 0; size < whole.size(); ++size) {
    const std::string_view text = std::string_view(whole).substr(0, size);
    const std::string seen = V31(text, {}, EndCause::kLength);
    if (text.find(CALL_END) == text.npos) {
      EXPECT_EQ(seen.find("call f") != seen.npos, text.find(SEP) != text.npos) << text;
      EXPECT_TRUE(seen.find("call f") == seen.npos || seen.ends_with(" (open)")) << seen;
    } else {
      EXPECT_EQ(seen, "C[c] call f{\"a\": \"b\"}");
    }
  }
  EXPECT_EQ(V31(CALLS CALL "f" SEP "{\"a\": \"b", {}, EndCause::kLength), " call f{\"a\": \"b (open)");
  EXPECT_EQ(V31(CALLS CALL "f" SEP "{\"a\": 1}", {}, EndCause::kLength), " call f{\"a\": 1} (open)");
}

// Where the origin of the bytes is known, text that spells a token is text.
TEST(TokenCalls, SpelledTokensAreText) {
  OutputParser parser(With(CallMarkup::kTokens));
  std::vector<OutputEvent> events = parser.Push("say " CALLS V31_CALL("f", "{}"), Origin::kOrdinary);
  for (const std::string_view token : {CALLS, CALL}) {
    for (OutputEvent& event : parser.Push(token, Origin::kControl)) events.push_back(event);
  }
  for (OutputEvent& event : parser.Push("g", Origin::kOrdinary)) events.push_back(event);
  for (OutputEvent& event : parser.Push(SEP, Origin::kControl)) events.push_back(event);
  for (OutputEvent& event : parser.Push("{\"a\": \"" CALL_END "\"}", Origin::kOrdinary)) events.push_back(event);
  for (const std::string_view token : {CALL_END, CALLS_END, EOS}) {
    for (OutputEvent& event : parser.Push(token, Origin::kControl)) events.push_back(event);
  }
  for (OutputEvent& event : parser.Finish(EndCause::kStop)) events.push_back(event);
  EXPECT_EQ(Seen(events), "C[say " CALLS V31_CALL("f", "{}") "] call g{\"a\": \"" CALL_END "\"}");
}

// A name and its arguments come as soon as they are certain.
TEST(TokenCalls, AreStreamed) {
  OutputParser parser(With(CallMarkup::kTokens));
  EXPECT_TRUE(parser.Push(CALLS CALL "get").empty());
  EXPECT_EQ(Seen(parser.Push("_time" SEP)), " call get_time");
  EXPECT_EQ(Seen(parser.Push("{\"zone\": \"U")), "{\"zone\": \"U");
  EXPECT_EQ(Seen(parser.Push("TC\"}")), "TC\"}");
  const std::vector<OutputEvent> end = parser.Push(CALL_END);
  ASSERT_EQ(end.size(), 1);
  EXPECT_TRUE(end[0].complete);
  EXPECT_EQ(parser.message().tool_calls[0].arguments, "{\"zone\": \"UTC\"}");
}

// Any sequence of tags and pieces, cut anywhere: the parser holds its promises and does not crash.
TEST(TokenCalls, RandomSequences) {
  constexpr std::string_view kPieces[] = {CALLS,      CALLS_END, CALL, SEP, CALL_END, EOS,  "<think>", "</think>",
                                          "function", "f",       "{",  "}", "\"",     "\\", "\n",      "```json\n",
                                          "```",      "[",       "]",  ":", " ",      "é",  "<",       "<｜tool▁"};
  std::mt19937 random(7);
  for (int round = 0; round < 400; ++round) {
    std::string text = CALLS CALL "f" SEP;
    if (round % 2 == 0) text.clear();
    for (int i = 0; i < 14; ++i) text += kPieces[random() % std::size(kPieces)];
    ParserOptions options = round % 3 == 0 ? InReasoning() : ParserOptions();
    for (const EndCause cause : {EndCause::kStop, EndCause::kLength}) {
      const std::string seen = round % 4 < 2 ? V31(text, options, cause) : V3(text, options, cause);
      // Tokens may be text of a string in arguments, but never come out as content.
      const size_t content = seen.find("C[");
      if (content != seen.npos) {
        const std::string_view shown = std::string_view(seen).substr(content, seen.find("] call ", content) - content);
        for (const std::string_view token : {CALLS, CALLS_END, CALL, SEP, CALL_END}) {
          EXPECT_EQ(shown.find(token), shown.npos) << text;
        }
      }
    }
  }
}

}  // namespace
}  // namespace hadal::text
