// hadal eval: accuracy and agreement on small sets written here, and on the full ones where they are at hand.
#include <gmock/gmock.h>

#include <filesystem>
#include <fstream>

#include "cli_process.h"

namespace hadal::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;

json Record(const std::string& user, const std::string& expected) {
  return {{"id", user},
          {"task", "arith"},
          {"mode", "chat"},
          {"prompt", "<｜begin▁of▁sentence｜><｜User｜>" + user + "<｜Assistant｜></think>"},
          {"expected", expected}};
}

class EvalTest : public testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(path_); }

  CliResult Eval(const std::vector<json>& records, std::vector<std::string> more = {}) {
    std::ofstream file(path_);
    for (const json& record : records) file << record.dump() << "\n";
    file.close();
    std::vector<std::string> args = {"eval", BundledModel(), path_, "--max-model-len", "2048", "--threads", "1"};
    args.insert(args.end(), more.begin(), more.end());
    return RunHadal(args);
  }

  const std::string path_ = testing::TempDir() + "hadal-eval-" + std::to_string(getpid()) + ".jsonl";
};

TEST_F(EvalTest, AccuracyAndAgreement) {
  json right = Record("Calculate 17 + 86.", "17 + 86 = 103");
  right["reference"] = {{"ids", {19, 25, 340, 223, 26, 24, 334, 223, 19, 18, 21, 1}}};
  json wrong = Record("Calculate 17 + 86.", "17 + 86 = 104");
  wrong["reference"] = {{"ids", {1}}};
  const CliResult result = Eval({right, wrong, right, right}, {"--json"});
  EXPECT_EQ(result.code, 0) << result.err;
  const json out = result.Json();
  EXPECT_EQ(out["n"], 4);
  EXPECT_EQ(out["accuracy"], 0.75);
  EXPECT_EQ(out["agreement"], 0.75);
  EXPECT_EQ(out["by_task"]["arith/chat"]["correct"], 3);
  EXPECT_EQ(Eval({right, wrong}, {"--json", "--limit", "1"}).Json()["accuracy"], 1.0);
  const CliResult table = Eval({right, wrong}, {"--show-failures"});
  EXPECT_THAT(table.out, HasSubstr("50.0 %"));
  EXPECT_THAT(table.err, HasSubstr("17 + 86 = 104"));
}

TEST_F(EvalTest, ThinkingAnswersAreReadBehindTheReasoning) {
  json record = Record("79 + 5 = ?", "79 + 5 = 84");
  record["prompt"] = "<｜begin▁of▁sentence｜><｜User｜>79 + 5 = ?<｜Assistant｜><think>";
  record["mode"] = "thinking";
  EXPECT_EQ(Eval({record}, {"--json"}).Json()["accuracy"], 1.0);
}

TEST_F(EvalTest, ImagesCountAsErrorsUnlessSkipped) {
  json image = Record("What is this?", "A circle.");
  image["images"] = {"a.png"};
  const json plain = Record("Calculate 17 + 86.", "17 + 86 = 103");
  const CliResult result = Eval({image, plain}, {"--json"});
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, HasSubstr("images"));
  EXPECT_EQ(result.Json()["errors"], 1);
  EXPECT_EQ(result.Json()["accuracy"], 0.5);
  const CliResult skipped = Eval({image, plain}, {"--json", "--skip-images"});
  EXPECT_EQ(skipped.code, 0);
  EXPECT_EQ(skipped.Json()["n"], 1);
  EXPECT_EQ(skipped.Json()["accuracy"], 1.0);
}

TEST_F(EvalTest, BadRecordsAreRefusedBeforeLoading) {
  ExpectFailure(Eval({Record("a", "b"), {{"prompt", "x"}}}), 6, "line 2");
  ExpectFailure(Eval({{{"prompt", 5}, {"expected", "x"}}}), 6, "prompt");
  ExpectFailure(Eval({}), 6, "no records");
  ExpectFailure(RunHadal({"eval", BundledModel(), "/nonexistent.jsonl"}), 6, "/nonexistent.jsonl");
}

// The bundled model is as good as its reference: within 1.5 points (vectors/README.md).
class EvalSets : public testing::TestWithParam<std::string> {};
TEST_P(EvalSets, AccuracyIsTheReferences) {
  const std::pair<const char*, double> sets[] = {{"arith", 0.995}, {"tools", 1.0}, {"text", 1.0}};
  for (const auto& [name, reference] : sets) {
    const CliResult result =
        RunHadal({"eval", BundledModel(), GetParam() + "/" + name + ".jsonl", "--json", "--threads", "1"});
    ASSERT_EQ(result.code, 0) << result.err;
    const json out = result.Json();
    EXPECT_EQ(out["n"], 200);
    EXPECT_GE(out["accuracy"], reference - 0.015) << name;
    EXPECT_GE(out["agreement"], 0.95) << name;
  }
}
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(EvalSets);  // without the full sets
INSTANTIATE_TEST_SUITE_P(Eval, EvalSets, testing::ValuesIn(FullVectorsOnly("eval")),
                         [](const auto&) { return "text"; });

}  // namespace
}  // namespace hadal::test
