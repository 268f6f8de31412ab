// The tolerant parser: reasoning, content, markup and its recoveries. Every text here is also cut at every byte.
// Numbers B.. are the faults seen in other engines, see the list of field reports.
#include "text/output_parser.h"

#include <random>
#include <thread>

#include "parser_harness.h"

namespace hadal::text {
namespace {

#define D "｜DSML｜"
#define EOS "<｜end▁of▁sentence｜>"
#define BLOCK "\n\n<" D "tool_calls>\n"
#define BLOCK_END "</" D "tool_calls>"
#define INVOKE(name) "<" D "invoke name=\"" name "\">\n"
#define INVOKE_END "</" D "invoke>\n"
#define STRING(key, value) "<" D "parameter name=\"" key "\" string=\"true\">" value "</" D "parameter>\n"
#define JSON(key, value) "<" D "parameter name=\"" key "\" string=\"false\">" value "</" D "parameter>\n"
#define GOOD INVOKE("good") STRING("a", "b") INVOKE_END
#define GOOD_SEEN " call good{\"a\": \"b\"}"

TEST(OutputParser, PlainText) {
  EXPECT_EQ(Parsed("Hello."), "C[Hello.]");
  EXPECT_EQ(Parsed("Hello." EOS), "C[Hello.]");
  EXPECT_EQ(Parsed("a" EOS "b" BLOCK GOOD), "C[a]");
  EXPECT_EQ(Parsed(""), "");
  EXPECT_EQ(Parsed("r</think>c" EOS, InReasoning()), "R[r]C[c]");
  EXPECT_EQ(Parsed("</think>c" EOS, InReasoning()), "C[c]");
}

TEST(OutputParser, NewlinesAtTheBorders) {
  EXPECT_EQ(Parsed("\n\nr\n\ns\n\n</think>\n\nc\n\nd\n" EOS, InReasoning()), "R[r\n\ns]C[c\n\nd\n]");
  EXPECT_EQ(Parsed("\n\nc \n\n" BLOCK GOOD BLOCK_END EOS), "C[c ]" GOOD_SEEN);
  EXPECT_EQ(Parsed(" \n\t" BLOCK GOOD BLOCK_END EOS), GOOD_SEEN);  // whitespace alone is no content beside calls
  EXPECT_EQ(Parsed("\n \n" EOS), "C[ \n]");
  EXPECT_EQ(Parsed(" x" EOS), "C[ x]");
}

TEST(OutputParser, LookalikesAreText) {
  for (const char* text : {"a < b", "a <", "a </", "x\n\n<", "1 <｜ 2", "<｜DSM", "</thin", "<<<", "</</", "｜",
                           "<｜end▁of", "\n<b>\n", "< ｜"}) {
    std::string expected = text;
    while (expected.starts_with('\n')) expected.erase(0, 1);
    EXPECT_EQ(Parsed(text), "C[" + expected + "]");
  }
}

TEST(OutputParser, ThinkTagsOutOfPlace) {
  EXPECT_EQ(Parsed("r</think>a</think>b" EOS, InReasoning()), "R[r]C[ab]");
  EXPECT_EQ(Parsed("</think>b" EOS), "C[b]");
  EXPECT_EQ(Parsed("\n<think>r</think>b" EOS, InReasoning()), "R[r]C[b]");
}

// B15: the end without </think>; policy: a model that stopped there has given its answer.
TEST(OutputParser, UnclosedReasoning) {
  EXPECT_EQ(Parsed("Good morning!" EOS, InReasoning()), "R[Good morning!]C[Good morning!]");
  EXPECT_EQ(Parsed("Good morning!", InReasoning(), EndCause::kLength), "R[Good morning!]");
  ParserOptions options = InReasoning();
  options.unclosed_reasoning_is_content = false;
  EXPECT_EQ(Parsed("Good morning!" EOS, options), "R[Good morning!]");
}

// B21: nothing after </think> is swallowed, and nothing is made up.
TEST(OutputParser, EndRightAfterReasoning) {
  EXPECT_EQ(Parsed("r</think>" BLOCK GOOD BLOCK_END EOS, InReasoning()), "R[r]" GOOD_SEEN);
  EXPECT_EQ(Parsed("r</think>" EOS, InReasoning()), "R[r]");
}

TEST(OutputParser, Calls) {
  EXPECT_EQ(Parsed("text" BLOCK GOOD INVOKE("f") "\n" INVOKE_END BLOCK_END EOS), "C[text]" GOOD_SEEN " call f{}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") JSON("n", " 5 ") STRING("s", "x \"q\" \\ \n <b>") JSON("o", "{\"k\": [1]}")
                       INVOKE_END BLOCK_END),
            " call f{\"n\": 5, \"s\": \"x \\\"q\\\" \\\\ \\n <b>\", \"o\": {\"k\": [1]}}");
  EXPECT_EQ(Parsed(BLOCK GOOD BLOCK_END "\n\ntext" BLOCK GOOD BLOCK_END EOS), GOOD_SEEN);  // ignored after the block
  EXPECT_EQ(Parsed("\n\n<" D "function_calls>\n" GOOD "</" D "function_calls>" EOS), GOOD_SEEN);
  // No newlines at all, and spaces where V4.1 has them.
  EXPECT_EQ(Parsed("<" D " tool_calls><" D " invoke name=\"f\"><" D " parameter name=\"a\" string=\"true\">b</" D
                   "parameter></" D " invoke></" D " tool_calls>"),
            " call f{\"a\": \"b\"}");
}

// B25: three shapes that came out as content elsewhere.
TEST(OutputParser, BareInvoke) {
  EXPECT_EQ(Parsed(GOOD), GOOD_SEEN);
  EXPECT_EQ(Parsed("text\n\n" GOOD GOOD EOS), "C[text]" GOOD_SEEN GOOD_SEEN);
  EXPECT_EQ(Parsed("text\n\n" GOOD "\nmore\n" EOS), "C[text\n\nmore]" GOOD_SEEN);
  EXPECT_EQ(Parsed(GOOD "\nmore" EOS), "C[more]" GOOD_SEEN);
  EXPECT_EQ(Parsed(GOOD BLOCK_END "ignored" EOS), GOOD_SEEN);
  EXPECT_EQ(Parsed("r\n" GOOD EOS, InReasoning()), "R[r]" GOOD_SEEN);
  EXPECT_EQ(Parsed("\n\n<" D "toolcalls>\n" GOOD BLOCK_END EOS), GOOD_SEEN);  // misspelt wrapper
}

TEST(OutputParser, UnclosedBlock) {
  for (const EndCause cause : {EndCause::kStop, EndCause::kLength}) {
    EXPECT_EQ(Parsed("t" BLOCK GOOD, {}, cause), "C[t]" GOOD_SEEN);
    EXPECT_EQ(Parsed("t" BLOCK GOOD "<" D "inv", {}, cause), "C[t]" GOOD_SEEN);
    EXPECT_EQ(
        Parsed("t" BLOCK GOOD INVOKE("f") STRING("x", "1") "<" D "parameter name=\"y\" string=\"true\">2</" D "par", {},
               cause),
        "C[t]" GOOD_SEEN " call f{\"x\": \"1\", \"y\": \"2 (open)");
  }
  // The invoke's own end is missing: complete if the model stopped, not if it was cut off.
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("x", "1") EOS), " call f{\"x\": \"1\"}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("x", "1"), {}, EndCause::kLength), " call f{\"x\": \"1\" (open)");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("x", "1") "</" D "invoke", {}, EndCause::kLength), " call f{\"x\": \"1\"}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("x", "1") GOOD BLOCK_END EOS), " call f{\"x\": \"1\"}" GOOD_SEEN);
}

TEST(OutputParser, MalformedSiblings) {
  for (const char* bad : {
           "<" D "invoke name=\"bad>\n" STRING("a", "x") INVOKE_END,
           "<" D "invoke>\n" STRING("a", "x") INVOKE_END,
           "<" D "invoke xname=\"f\">\n" STRING("a", "x") INVOKE_END,
           "<" D "invoke name=\"\">\n" STRING("a", "x") INVOKE_END,
           "<" D "invoke name=\"a b\">\n" STRING("a", "x") INVOKE_END,
           "<" D "invoke name=\"f\" name=\"g\">\n" STRING("a", "x") INVOKE_END,
           "<" D "invoke name=bad>\n" INVOKE_END,
           "<" D "invoke",
           "<" D "invoke name=\"",
           STRING("lone", "x"),
           "garbage\n",
           "</" D "invoke>\n",
       }) {
    EXPECT_EQ(Parsed("t" BLOCK + std::string(bad) + GOOD BLOCK_END EOS), "C[t]" GOOD_SEEN) << bad;
    EXPECT_EQ(Parsed("t" BLOCK GOOD + std::string(bad) + BLOCK_END EOS), "C[t]" GOOD_SEEN) << bad;
  }
  // Broken after it was announced: visible as an open call, and the sibling is kept.
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter nme=\"x\">1</" D "parameter>\n" INVOKE_END GOOD BLOCK_END EOS),
            " call f (open)" GOOD_SEEN);
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter name=\"x\" string=\"true" GOOD BLOCK_END EOS),
            " call f (open)" GOOD_SEEN);
}

// A forgotten </parameter> does not swallow the sibling; the same tags inside a value that is closed are its text.
TEST(OutputParser, UnclosedValue) {
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter name=\"x\" string=\"true\">1\n" INVOKE_END GOOD BLOCK_END EOS),
            " call f{\"x\": \"1\"}" GOOD_SEEN);
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter name=\"x\" string=\"true\">1\n" INVOKE_END BLOCK_END EOS),
            " call f{\"x\": \"1\"}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter name=\"x\" string=\"true\">1</" D "invoke>\n" EOS),
            " call f{\"x\": \"1\"}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("x", "</" D "invoke> and text") INVOKE_END BLOCK_END EOS),
            " call f{\"x\": \"</" D "invoke> and text\"}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("x", INVOKE("g") "\n" INVOKE_END BLOCK_END) INVOKE_END BLOCK_END EOS),
            " call f{\"x\": \"<" D "invoke name=\\\"g\\\">\\n\\n</" D "invoke>\\n</" D "tool_calls>\"}");
}

// B27: values that end like the closing tag begins.
TEST(OutputParser, ValuesThatEndLikeTags) {
  for (const char* value :
       {"ls 2>&1", "<", "</", "</｜", "</｜DSML｜param", "</｜DSML", "<｜", "<<", "</</", "\n", "a\n", "<｜DSML｜",
        "</｜DSML｜invoke", "<｜DSML｜parameter name=\"x\" string=\"true\">", "</think>", "<think>", "｜DSML｜", ""}) {
    EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter name=\"c\" string=\"true\">" + std::string(value) +
                     "</" D "parameter>\n" INVOKE_END BLOCK_END EOS),
              " call f{\"c\": " + JsonQuoted(value) + "}");
  }
  // The tag without its last '>' at the end of output.
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") "<" D "parameter name=\"c\" string=\"true\">2>&1</" D "parameter"),
            " call f{\"c\": \"2>&1\"}");
}

// B33: a call in the reasoning ends it; text that only spells the marker does not.
TEST(OutputParser, CallInsideReasoning) {
  EXPECT_EQ(Parsed("let me look" BLOCK GOOD BLOCK_END EOS, InReasoning()), "R[let me look]" GOOD_SEEN);
  EXPECT_EQ(Parsed("let me look<" D "tool_calls>\n" GOOD BLOCK_END EOS, InReasoning()), "R[let me look]" GOOD_SEEN);
}

std::string Tokens(const std::vector<std::pair<const char*, Origin>>& tokens, const ParserOptions& options) {
  OutputParser parser(options);
  std::vector<OutputEvent> events;
  for (const auto& [text, origin] : tokens) {
    for (OutputEvent& event : parser.Push(text, origin)) events.push_back(std::move(event));
  }
  for (OutputEvent& event : parser.Finish(EndCause::kStop)) events.push_back(std::move(event));
  return Seen(events);
}

TEST(OutputParser, OnlyControlTokensAreMarkupWhenOriginsAreKnown) {
  constexpr auto kText = Origin::kOrdinary;
  constexpr auto kControl = Origin::kControl;
  EXPECT_EQ(Tokens({{"say \n\n<", kText},
                    {"｜DSML｜", kText},
                    {"tool_calls> or </think>", kText},
                    {"</think>", kControl},
                    {"<｜end▁of▁sentence｜> ", kText},
                    {"ok", kText},
                    {EOS, kControl}},
                   InReasoning()),
            "R[say \n\n<｜DSML｜tool_calls> or </think>]C[<｜end▁of▁sentence｜> ok]");
  EXPECT_EQ(Tokens({{"r", kText},
                    {"\n\n<", kText},
                    {D, kControl},
                    {"tool", kText},
                    {"_calls", kText},
                    {">\n<", kText},
                    {D, kControl},
                    {"invoke name=\"", kText},
                    {"f", kText},
                    {"\">\n<", kText},
                    {D, kControl},
                    {"parameter name=\"x\" string=\"true\">", kText},
                    {"</｜DSML｜parameter>", kText},
                    {"</", kText},
                    {D, kControl},
                    {"parameter>\n</", kText},
                    {D, kControl},
                    {"invoke>\n</", kText},
                    {D, kControl},
                    {"tool_calls>", kText},
                    {EOS, kControl}},
                   InReasoning()),
            "R[r] call f{\"x\": \"</｜DSML｜parameter>\"}");
  // Other control tokens are text, and a control token ends an unfinished character.
  EXPECT_EQ(Tokens({{"a\xE4\xBD", kText}, {"<｜User｜>", kControl}, {"b", kText}}, {}), "C[a\xEF\xBF\xBD<｜User｜>b]");
}

// B35: an invoke name that never ends.
TEST(OutputParser, RunawayNames) {
  const ParserOptions tools = WithTools(R"([{"function":{"name":"record_item"}}])");
  EXPECT_EQ(Parsed("<" D "invoke name=\"record_item {\ncategory: X" EOS, tools), "C[record_item {\ncategory: X]");
  EXPECT_EQ(Parsed("<" D "invoke name=\"record_item {\ncategory: X", tools, EndCause::kLength),
            "C[record_item {\ncategory: X]");
  EXPECT_EQ(Parsed("r" BLOCK "<" D "invoke name=\"record_item and so on" EOS, InReasoning()),
            "R[r]C[record_item and so on]");
  EXPECT_EQ(
      Parsed(BLOCK "<" D "invoke name=\"" + std::string(5000, 'x') + "\">\n" INVOKE_END BLOCK_END EOS).find(" call"),
      std::string::npos);
  EXPECT_EQ(Parsed(BLOCK "<" D "invoke name=\"" + std::string(129, 'x') + "\">\n" INVOKE_END BLOCK_END EOS), "");
}

TEST(OutputParser, WhichNamesAreCalls) {
  ParserOptions tools = WithTools(R"([{"function":{"name":"good"}},{"function":{"name":"odd name"}}])");
  EXPECT_EQ(Parsed(BLOCK INVOKE("odd name") INVOKE_END INVOKE("other") INVOKE_END BLOCK_END EOS, tools),
            " call odd name{} call other{}");
  tools.pass_unknown_tools = false;
  EXPECT_EQ(Parsed(BLOCK INVOKE("other") INVOKE_END GOOD BLOCK_END EOS, tools), GOOD_SEEN);
}

// B13: without tools no call and no markup comes out, and the answer is not lost.
TEST(OutputParser, ToolsNotAllowed) {
  ParserOptions options;
  options.tools_allowed = false;
  EXPECT_EQ(Parsed("Let me see." BLOCK INVOKE("f") STRING("city", "Paris") INVOKE_END BLOCK_END EOS, options),
            "C[Let me see.\n\nParis]");
  EXPECT_EQ(Parsed(BLOCK GOOD BLOCK_END EOS, options), "C[b]");
}

// If the model stops inside its only call, its text is not lost; if it was cut off, the client has the fragments.
TEST(OutputParser, OnlyCallIsCut) {
  const char* text = BLOCK INVOKE("f") "<" D "parameter name=\"city\" string=\"true\">Ber";
  EXPECT_EQ(Parsed(text), "C[Ber] call f{\"city\": \"Ber (open)");
  EXPECT_EQ(Parsed(text, {}, EndCause::kLength), " call f{\"city\": \"Ber (open)");
  OutputParser parser{ParserOptions()};
  parser.Push(text);
  parser.Finish(EndCause::kLength);
  ASSERT_TRUE(parser.incomplete_call().has_value());
  EXPECT_EQ(parser.incomplete_call()->arguments, "{\"city\": \"Ber");
  EXPECT_TRUE(parser.message().tool_calls.empty());
  EXPECT_EQ(parser.BrokenMarkup(), std::string(text).substr(2));
}

// B29: string values stream as they come.
TEST(OutputParser, LongStringsStream) {
  std::string value;
  for (int i = 0; value.size() < 10000; ++i) value += fmt::format("line {} \"x\"\n", i);
  OutputParser parser{ParserOptions()};
  parser.Push(BLOCK INVOKE("write"));
  const auto first = parser.Push("<" D "parameter name=\"text\" string=\"true\">");
  ASSERT_EQ(first.size(), 1);
  EXPECT_EQ(first[0].text, "{\"text\": \"");
  size_t deltas = 0;
  std::string arguments = first[0].text;
  const size_t piece = value.size() / 1000;
  for (size_t i = 0; i < value.size(); i += piece) {
    for (const OutputEvent& event : parser.Push(std::string_view(value).substr(i, piece))) {
      ASSERT_EQ(event.kind, OutputEvent::Kind::kCallArguments);
      arguments += event.text;
      ++deltas;
    }
  }
  EXPECT_GE(deltas, 990);
  for (const OutputEvent& event : parser.Push("</" D "parameter>\n" INVOKE_END BLOCK_END EOS)) arguments += event.text;
  parser.Finish(EndCause::kStop);
  EXPECT_EQ(arguments, parser.message().tool_calls.at(0).arguments);
  EXPECT_EQ(ParseJson(arguments).value()["text"].get<std::string>(), value);
}

TEST(OutputParser, ContentStreamsAtOnce) {
  OutputParser parser{ParserOptions()};
  for (const char* piece : {"Hello", ", ", "world"}) {
    const auto events = parser.Push(piece);
    ASSERT_EQ(events.size(), 1);
    EXPECT_EQ(events[0].text, piece);
  }
  EXPECT_TRUE(parser.Push("\n\n<").empty());
  EXPECT_EQ(parser.Push("b").at(0).text, "\n\n<b");
}

TEST(OutputParser, ReportsWhenReasoningEnds) {
  OutputParser parser(InReasoning());
  EXPECT_TRUE(parser.in_reasoning());
  parser.Push("r</thin");
  EXPECT_TRUE(parser.in_reasoning());
  parser.Push("k>");
  EXPECT_FALSE(parser.in_reasoning());
  EXPECT_FALSE(parser.ended());
  parser.Push(EOS);
  EXPECT_TRUE(parser.ended());
}

// B11: characters cut between tokens; bytes that are no text.
TEST(OutputParser, Utf8) {
  EXPECT_EQ(Parsed("👋🏽 ďábelské 社区"), "C[👋🏽 ďábelské 社区]");
  EXPECT_EQ(Parsed("ok \xE7\xA4"), "C[ok ]");  // cut inside a character: dropped at the end
  EXPECT_EQ(Parsed("\xE7\xA4x\xFFy\xC0\xAFz\xED\xA0\x80"), "C[�x�y��z���]");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") STRING("a", "\xF0\x9F\x98 \x01") INVOKE_END BLOCK_END),
            " call f{\"a\": \"� \\u0001\"}");
  EXPECT_EQ(Parsed(BLOCK INVOKE("f") JSON("a", "[\"\xFF\"]") INVOKE_END BLOCK_END), " call f{\"a\": [\"�\"]}");
  EXPECT_EQ(Parsed("\xF8\xF9\xFA\xFB x"), "C[���� x]");  // the parser's own symbols cannot be forged
}

// Robustness 33: time is linear, whatever the text.
TEST(OutputParser, HostileTextIsLinear) {
  for (const std::string& unit : {std::string("<"), std::string("\n"), std::string("</" D), std::string("<" D "invoke"),
                                  std::string("</" D "invoke>\n"), std::string(GOOD), std::string("</"),
                                  std::string("<" D "parameter name=\"a\" string=\"true\">"), std::string("｜DSML"),
                                  std::string("<" D "invoke name=\"f\">")}) {
    for (const char* prefix : {"", BLOCK INVOKE("f") "<" D "parameter name=\"x\" string=\"true\">"}) {
      std::string text = prefix;
      while (text.size() < 500000) text += unit;
      const auto begin = std::chrono::steady_clock::now();
      OutputParser parser{ParserOptions()};
      for (size_t i = 0; i < text.size(); i += 4096) parser.Push(std::string_view(text).substr(i, 4096));
      parser.Finish(EndCause::kStop);
      const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
      EXPECT_LT(seconds.count(), 20) << unit;  // a quadratic pass takes minutes
    }
  }
}

// B37: parsers share nothing. (With the thread sanitizer this also shows the absence of hidden shared state.)
TEST(OutputParser, InterleavedStreams) {
  constexpr int kStreams = 64;
  std::vector<std::thread> threads;
  std::vector<std::string> seen(kStreams), expected(kStreams);
  const auto text_of = [](int i) {
    return fmt::format("think {}</think>answer {}" BLOCK INVOKE("f{}") JSON("n", "{}") INVOKE_END BLOCK_END EOS, i, i,
                       i, i);
  };
  for (int i = 0; i < kStreams; ++i) {
    expected[i] = fmt::format("R[think {}]C[answer {}] call f{}{{\"n\": {}}}", i, i, i, i);
    threads.emplace_back([&, i] {
      std::mt19937 random(i);
      const std::string text = text_of(i);
      OutputParser parser(InReasoning());
      std::vector<OutputEvent> events;
      for (size_t at = 0; at < text.size();) {
        const size_t size = 1 + random() % 9;
        for (OutputEvent& event : parser.Push(std::string_view(text).substr(at, size))) events.push_back(event);
        at += size;
      }
      for (OutputEvent& event : parser.Finish(EndCause::kStop)) events.push_back(event);
      seen[i] = Seen(events);
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(seen, expected);
}

}  // namespace
}  // namespace hadal::text
