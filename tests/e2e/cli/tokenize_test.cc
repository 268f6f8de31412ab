// hadal tokenize: the JSON-lines contract.
#include <gmock/gmock.h>

#include <sstream>

#include "cli_process.h"

namespace hadal::test {
namespace {

using nlohmann::json;

std::vector<std::string> Args(std::vector<std::string> more) {
  std::vector<std::string> args = {"tokenize", "--tokenizer", BundledModel()};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

std::vector<json> Lines(const CliResult& result) {
  EXPECT_EQ(result.code, 0) << result.err;
  std::vector<json> lines;
  std::istringstream in(result.out);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line, nullptr, false));
  return lines;
}

TEST(Tokenize, LinesInLinesOut) {
  const std::vector<std::string> texts = {"What is 478 + 365?", "", "a\nb", "👋🏽 社区", "<｜User｜>hi"};
  std::string input;
  for (const std::string& text : texts) input += json{{"text", text}}.dump() + "\n";
  const std::vector<json> ids = Lines(RunHadal(Args({"--jsonl"}), input));
  ASSERT_EQ(ids.size(), texts.size());
  EXPECT_EQ(ids[1]["ids"], json::array());
  std::string back;
  for (const json& line : ids) back += line.dump() + "\n";
  const std::vector<json> decoded = Lines(RunHadal(Args({"--jsonl", "--decode"}), back));
  ASSERT_EQ(decoded.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) EXPECT_EQ(decoded[i]["text"], texts[i]);
}

TEST(Tokenize, SpecialMatchesControlTokens) {
  const std::string input = "{\"text\": \"<｜User｜>hi\"}\n";
  const json plain = Lines(RunHadal(Args({"--jsonl"}), input))[0]["ids"];
  const json special = Lines(RunHadal(Args({"--jsonl", "--special"}), input))[0]["ids"];
  EXPECT_LT(special.size(), plain.size());
  EXPECT_GT(plain.size(), 5u);
}

TEST(Tokenize, PlainTextInNumbersOut) {
  const CliResult ids = RunHadal(Args({}), "What is 478 + 365?");
  EXPECT_EQ(ids.code, 0);
  EXPECT_EQ(RunHadal(Args({"--decode"}), ids.out).out, "What is 478 + 365?");
}

TEST(Tokenize, BadInputNamesTheLine) {
  const auto expect = [](const std::vector<std::string>& flags, const std::string& input, const std::string& said) {
    const CliResult result = RunHadal(Args(flags), input);
    EXPECT_EQ(result.code, 6);
    EXPECT_NE(result.err.find(said), std::string::npos) << result.err;
  };
  expect({"--jsonl"}, "{\"text\": \"a\"}\n{\"text\": ", "line 2");
  expect({"--jsonl"}, "{\"txt\": \"a\"}\n", "\"text\"");
  expect({"--jsonl"}, "{\"text\": 5}\n", "expected a string");
  expect({"--jsonl"}, "[1]\n", "line 1");
  expect({"--jsonl"}, std::string(100000, '[') + "\n", "line 1");
  expect({"--jsonl", "--decode"}, "{\"ids\": [-1]}\n", "-1");
  expect({"--jsonl", "--decode"}, "{\"ids\": [1.5]}\n", "1.5");
  expect({"--decode"}, "5 x", "x");
  ExpectFailure(RunHadal({"tokenize", "--tokenizer", "/nonexistent"}), 3, "/nonexistent");
}

}  // namespace
}  // namespace hadal::test
