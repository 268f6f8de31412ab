// hadal run --batch: right answers, whatever happens to the process or the file in between.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <map>
#include <thread>

#include "cli_process.h"

namespace hadal::test {
namespace {

using nlohmann::json;
using testing::HasSubstr;
using testing::Not;

constexpr const char* kChat = "/v1/chat/completions";
constexpr const char* kCompletion = "/v1/completions";

std::string Base64(const std::string& bytes) {
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string out;
  for (size_t i = 0; i < bytes.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) group = group << 8 | (i + j < bytes.size() ? static_cast<uint8_t>(bytes[i + j]) : 0);
    for (size_t j = 0; j < 4; ++j) out += i + j <= bytes.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  return out;
}

json Body(const std::string& question) {
  return {{"model", "any"},
          {"messages", {{{"role", "user"}, {"content", question}}}},
          {"temperature", 0},
          {"thinking", {{"type", "disabled"}}}};
}

json Request(const std::string& id, json body, const std::string& url = kChat) {
  return {{"custom_id", id}, {"method", "POST"}, {"url", url}, {"body", std::move(body)}};
}

std::string Lines(const std::vector<json>& records) {
  std::string text;
  for (const json& record : records) text += record.dump() + "\n";
  return text;
}

// Sums whose answers are known.
std::vector<json> Sums(int count) {
  std::vector<json> requests;
  for (int i = 0; i < count; ++i) {
    requests.push_back(Request("sum-" + std::to_string(i), Body("What is " + std::to_string(100 + i) + " + 211?")));
  }
  return requests;
}
std::string Answer(int i) { return std::to_string(100 + i) + " + 211 = " + std::to_string(311 + i); }

class BatchTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directory(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  std::vector<std::string> Args(std::vector<std::string> more = {}) const {
    more.insert(more.end(), {"--batch", in_, "--output", out_});
    return RunArgs(more);
  }
  CliResult Run(const std::string& input, const std::vector<std::string>& more = {}) const {
    WriteAll(in_, input);
    return RunHadal(Args(more));
  }

  // The complete lines of the output by custom_id, or by "line N" for lines that were no requests; none twice.
  std::map<std::string, json> Results() const {
    std::map<std::string, json> results;
    std::istringstream file(ReadAll(out_));
    for (std::string line; std::getline(file, line);) {
      const json record = json::parse(line, nullptr, false);
      EXPECT_TRUE(record.is_object()) << line;
      if (!record.is_object()) continue;
      const std::string id =
          record["error"].is_null() ? record["custom_id"].get<std::string>() : "line " + record["error"]["line"].dump();
      EXPECT_FALSE(results.contains(id)) << id;
      results[id] = record;
    }
    return results;
  }
  static std::string Text(const json& record) {
    return record["response"]["body"]["choices"][0]["message"]["content"].get<std::string>();
  }
  void ExpectAllSums(int count) const {
    const auto results = Results();
    EXPECT_EQ(results.size(), static_cast<size_t>(count));
    for (int i = 0; i < count; ++i) {
      const auto it = results.find("sum-" + std::to_string(i));
      ASSERT_NE(it, results.end()) << i;
      EXPECT_EQ(it->second["response"]["status_code"], 200);
      EXPECT_EQ(Text(it->second), Answer(i));
    }
  }

  const std::string directory_ = testing::TempDir() + "hadal-batch-" + std::to_string(getpid());
  const std::string in_ = directory_ + "/in.jsonl", out_ = directory_ + "/out.jsonl";
};

TEST_F(BatchTest, AnswersHaveTheFormThatTheyAreHeldTo) {
  const json schema = {{"type", "object"},
                       {"properties", {{"a", {{"type", "integer"}}}, {"b", {{"enum", {"x", "y"}}}}}},
                       {"required", {"a", "b"}},
                       {"additionalProperties", false}};
  std::vector<json> requests;
  for (int i = 0; i < 4; ++i) {
    json body = Body("Give me a record.");
    body["temperature"] = 1;
    body["seed"] = i;
    body["response_format"] = {{"type", "json_schema"}, {"json_schema", {{"name", "record"}, {"schema", schema}}}};
    requests.push_back(Request("schema-" + std::to_string(i), body));
    body.erase("response_format");
    body["structured_outputs"] = {{"regex", "[a-f]{3}"}};
    requests.push_back(Request("regex-" + std::to_string(i), body));
  }
  json wrong = Body("x");
  wrong["structured_outputs"] = {{"regex", "(?=a)"}};
  requests.push_back(Request("wrong", wrong));
  Run(Lines(requests));
  const auto results = Results();
  ASSERT_EQ(results.size(), 9u);
  for (int i = 0; i < 4; ++i) {
    const json record = json::parse(Text(results.at("schema-" + std::to_string(i))));
    EXPECT_TRUE(record["a"].is_number_integer() && (record["b"] == "x" || record["b"] == "y")) << record;
    EXPECT_THAT(Text(results.at("regex-" + std::to_string(i))), testing::MatchesRegex("[a-f][a-f][a-f]"));
  }
  EXPECT_EQ(results.at("wrong")["response"]["status_code"], 400);
}

TEST_F(BatchTest, ToolsAreCalledThatHaveToBe) {
  const json number = {{"type", "integer"}};
  json required = Body("What is 478 + 365?");
  required["tools"] = {
      {{"type", "function"},
       {"function",
        {{"name", "add"},
         {"parameters",
          {{"type", "object"}, {"properties", {{"a", number}, {"b", number}}}, {"required", {"a", "b"}}}}}}},
      {{"type", "function"}, {"function", {{"name", "give_up"}}}}};
  json named = required;
  required.update({{"tool_choice", "required"}, {"parallel_tool_calls", false}});
  named["tool_choice"] = {{"type", "function"}, {"function", {{"name", "give_up"}}}};
  EXPECT_EQ(Run(Lines({Request("required", required), Request("named", named)})).code, 0);
  const auto results = Results();
  for (const auto& [id, name, arguments] :
       {std::tuple("required", "add", json{{"a", 478}, {"b", 365}}), std::tuple("named", "give_up", json::object())}) {
    const json& choice = results.at(id)["response"]["body"]["choices"][0];
    EXPECT_EQ(choice["finish_reason"], "tool_calls") << choice;
    EXPECT_EQ(choice["message"]["content"], nullptr) << choice;
    ASSERT_EQ(choice["message"]["tool_calls"].size(), 1u) << choice;
    const json& function = choice["message"]["tool_calls"][0]["function"];
    EXPECT_EQ(function["name"], name);
    EXPECT_EQ(json::parse(function["arguments"].get<std::string>()), arguments);
  }
}

TEST_F(BatchTest, AnswersAreRight) {
  const std::string picture = ReadAll(DataPath("eval/images/ocr_041_0.png"));
  json image = Body("");
  image["messages"] = {{{"role", "system"}, {"content", "You are a helpful assistant."}},
                       {{"role", "user"},
                        {"content",
                         {{{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64," + Base64(picture)}}}},
                          {{"type", "text"}, {"text", "OCR this image."}}}}}};
  json think = Body("79 + 5 = ?");
  think["thinking"] = {{"type", "enabled"}};
  const json raw = {{"prompt", "<｜begin▁of▁sentence｜><｜User｜>What is 478 + 365?<｜Assistant｜></think>"},
                    {"temperature", 0},
                    {"logprobs", 1}};
  std::vector<json> requests = Sums(3);
  requests.push_back(Request("image", image));
  requests.push_back(Request("think", think));
  requests.push_back(Request("raw", raw, kCompletion));
  const CliResult result = Run(Lines(requests));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "");
  EXPECT_THAT(result.err, HasSubstr("6 of 6 requests done, 0 failed"));
  const auto results = Results();
  ASSERT_EQ(results.size(), 6u);
  for (int i = 0; i < 3; ++i) EXPECT_EQ(Text(results.at("sum-" + std::to_string(i))), Answer(i));
  EXPECT_EQ(Text(results.at("image")), "73425");
  const json& thought = results.at("think")["response"]["body"]["choices"][0]["message"];
  EXPECT_EQ(thought["content"], "79 + 5 = 84");
  EXPECT_THAT(thought["reasoning_content"].get<std::string>(), HasSubstr("Ones: 9 + 5 = 14"));
  const json& body = results.at("raw")["response"]["body"];
  EXPECT_EQ(body["object"], "text_completion");
  EXPECT_EQ(body["choices"][0]["text"], "478 + 365 = 843");
  EXPECT_EQ(body["choices"][0]["logprobs"]["tokens"].size(), body["usage"]["completion_tokens"]);
  // The envelope.
  const json& one = results.at("sum-0");
  EXPECT_THAT(one["id"].get<std::string>(), testing::StartsWith("batch_req_"));
  EXPECT_THAT(one["response"]["request_id"].get<std::string>(), testing::StartsWith("req_"));
  EXPECT_EQ(one["response"]["body"]["model"], "any");
  EXPECT_EQ(one["response"]["body"]["choices"][0]["finish_reason"], "stop");
}

TEST_F(BatchTest, BadLinesAndRequestsStopNothing) {
  json hot = Body("x");
  hot["temperature"] = "hot";
  json streamed = Body("x");
  streamed["stream"] = true;
  json named = Request("wrong-url", Body("x"), "/v1/embeddings");
  std::string input = "not json\n\n[1]\n{\"custom_id\": 5}\n" + named.dump() + "\n" + Lines(Sums(2)) +
                      Request("sum-0", Body("again")).dump() + "\n" + Request("hot", hot).dump() + "\n" +
                      Request("streamed", streamed).dump() + "\n" + R"({"custom_id": "get", "method": "GET"})" + "\n" +
                      Request("last", Body("What is 478 + 365?")).dump();  // without a newline
  const CliResult result = Run(input);
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, HasSubstr("8 of 11 requests failed"));
  auto results = Results();
  ASSERT_EQ(results.size(), 11u);
  EXPECT_THAT(results["line 1"]["error"]["message"].get<std::string>(), HasSubstr("in.jsonl line 1: not valid JSON"));
  EXPECT_TRUE(results["line 1"]["custom_id"].is_null());
  EXPECT_TRUE(results["line 1"]["response"].is_null());
  EXPECT_THAT(results["line 3"]["error"]["message"].get<std::string>(), HasSubstr("line 3: expected an object"));
  EXPECT_THAT(results["line 4"]["error"]["message"].get<std::string>(), HasSubstr("custom_id"));
  EXPECT_THAT(results["line 5"]["error"]["message"].get<std::string>(), HasSubstr("url"));
  EXPECT_EQ(results["line 5"]["custom_id"], "wrong-url");
  EXPECT_THAT(results["line 8"]["error"]["message"].get<std::string>(), HasSubstr("an earlier line has the same"));
  EXPECT_EQ(Text(results["sum-0"]), Answer(0));
  EXPECT_EQ(results["hot"]["response"]["status_code"], 400);
  EXPECT_EQ(results["hot"]["response"]["body"]["error"]["param"], "temperature");
  EXPECT_EQ(results["streamed"]["response"]["body"]["error"]["param"], "stream");
  EXPECT_THAT(results["line 11"]["error"]["message"].get<std::string>(), HasSubstr("method"));
  EXPECT_EQ(Text(results["last"]), "478 + 365 = 843");
  // Once more: nothing is done twice, and what failed still counts.
  const std::string before = ReadAll(out_);
  EXPECT_EQ(RunHadal(Args()).code, 6);
  EXPECT_EQ(ReadAll(out_), before);
}

TEST_F(BatchTest, ContinuesAFileThatWasCutInsideALine) {
  ASSERT_EQ(Run(Lines(Sums(6))).code, 0);
  ExpectAllSums(6);
  const std::string whole = ReadAll(out_);
  // Inside the fourth line.
  size_t at = 0;
  for (int i = 0; i < 3; ++i) at = whole.find('\n', at) + 1;
  WriteAll(out_, whole.substr(0, at + 40));
  const CliResult result = RunHadal(Args());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("the last line was not written to its end: cut off"));
  EXPECT_THAT(result.err, HasSubstr("6 of 6 requests done (3 by an earlier run)"));
  EXPECT_EQ(ReadAll(out_).substr(0, at), whole.substr(0, at));
  ExpectAllSums(6);
  const CliResult again = RunHadal(Args());
  EXPECT_EQ(again.code, 0);
  EXPECT_THAT(again.err, Not(HasSubstr("warning")));
  ExpectAllSums(6);
}

TEST_F(BatchTest, EachResultOnceAfterAKill) {
  constexpr int kCount = 60;
  WriteAll(in_, Lines(Sums(kCount)));
  int killed = 0;
  for (const size_t enough : {1u, 15u}) {
    const int nothing = open("/dev/null", O_RDWR);
    const pid_t pid = SpawnHadal(Args({"--max-num-seqs", "4"}), nothing, nothing, nothing);
    close(nothing);
    const auto lines = [&] {
      const std::string text = ReadAll(out_);
      return static_cast<size_t>(std::count(text.begin(), text.end(), '\n'));
    };
    while (lines() < enough && waitpid(pid, nullptr, WNOHANG) == 0) {
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
    kill(pid, SIGKILL);
    killed += ExitCodeOf(pid) == 1000 + SIGKILL ? 1 : 0;
  }
  EXPECT_GT(killed, 0);
  const CliResult result = RunHadal(Args());
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.err, HasSubstr("by an earlier run"));
  ExpectAllSums(kCount);
}

TEST_F(BatchTest, InterruptKeepsWhatIsDone) {
  constexpr int kCount = 60;
  WriteAll(in_, Lines(Sums(kCount)));
  const int nothing = open("/dev/null", O_RDWR);
  const int err = open((directory_ + "/err").c_str(), O_CREAT | O_RDWR, 0600);
  const pid_t pid = SpawnHadal(Args({"--max-num-seqs", "2"}), nothing, nothing, err);
  close(nothing);
  close(err);
  while (ReadAll(out_).find('\n') == std::string::npos) std::this_thread::sleep_for(std::chrono::milliseconds(2));
  kill(pid, SIGINT);
  EXPECT_EQ(ExitCodeOf(pid), 130);
  EXPECT_THAT(ReadAll(directory_ + "/err"), HasSubstr("the same command again does the rest"));
  EXPECT_LT(Results().size(), static_cast<size_t>(kCount));
  EXPECT_EQ(RunHadal(Args()).code, 0);
  ExpectAllSums(kCount);
}

TEST_F(BatchTest, NeitherOrderNorCompanyChangesAnAnswer) {
  std::vector<json> requests;
  for (int i = 0; i < 6; ++i) {
    json body = Body("Tell me a story.");
    body["temperature"] = 2;
    body["seed"] = i + 1;
    body["max_tokens"] = 20 + i;
    body["return_token_ids"] = true;
    requests.push_back(Request("story-" + std::to_string(i), body));
  }
  const auto ids = [&] {
    std::map<std::string, json> out;
    for (const auto& [id, record] : Results()) out[id] = record["response"]["body"]["choices"][0]["token_ids"];
    return out;
  };
  ASSERT_EQ(Run(Lines(requests)).code, 0);
  const auto want = ids();
  std::filesystem::remove(out_);
  std::reverse(requests.begin(), requests.end());
  ASSERT_EQ(Run(Lines(requests), {"--max-num-seqs", "2", "--max-num-batched-tokens", "40"}).code, 0);
  EXPECT_EQ(ids(), want);
  // Alone.
  for (int i = 0; i < 6; i += 5) {
    const CliResult single = RunHadal(RunArgs({"Tell me a story.", "--json", "--temperature", "2", "--seed",
                                               std::to_string(i + 1), "--max-tokens", std::to_string(20 + i)}));
    EXPECT_EQ(single.Json()["token_ids"], want.at("story-" + std::to_string(i)));
  }
  // n answers are those of the seeds behind each other.
  json several = requests[0]["body"];
  several["n"] = 3;
  several["seed"] = 1;
  std::filesystem::remove(out_);
  ASSERT_EQ(Run(Lines({Request("n", several)})).code, 0);
  const json choices = Results().at("n")["response"]["body"]["choices"];
  ASSERT_EQ(choices.size(), 3u);
  for (size_t i = 0; i < 3; ++i) {
    const json& alone = want.at("story-" + std::to_string(i));
    for (size_t t = 0; t < alone.size(); ++t) EXPECT_EQ(choices[i]["token_ids"][t], alone[t]);
  }
}

TEST_F(BatchTest, DefaultsComeFromTheCommandLine) {
  json body = Body("What is 478 + 365?");
  body.erase("temperature");
  body.erase("model");
  json longer = body;
  longer["max_tokens"] = 50;
  ASSERT_EQ(Run(Lines({Request("a", body), Request("b", longer)}), {"--temperature", "0", "--max-tokens", "3"}).code,
            0);
  const auto results = Results();
  EXPECT_EQ(results.at("a")["response"]["body"]["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(results.at("a")["response"]["body"]["model"], "tiny-v4-vision");
  EXPECT_EQ(Text(results.at("b")), "478 + 365 = 843");
}

TEST_F(BatchTest, ToStdout) {
  WriteAll(in_, Lines(Sums(2)));
  const CliResult result = RunHadal(RunArgs({"--batch", in_, "--output", "-"}));
  EXPECT_EQ(result.code, 0);
  EXPECT_EQ(std::count(result.out.begin(), result.out.end(), '\n'), 2);
  EXPECT_THAT(result.out, HasSubstr(Answer(1)));
}

TEST_F(BatchTest, RefusedBeforeAnythingIsLoaded) {
  WriteAll(in_, Lines(Sums(1)));
  ExpectFailure(RunHadal(RunArgs({"--batch", in_})), 2, "--output");
  ExpectFailure(RunHadal(RunArgs({"--output", out_, "x"})), 2, "--batch");
  ExpectFailure(RunHadal(Args({"hello"})), 2, "excludes a prompt");
  ExpectFailure(RunHadal(Args({"--json"})), 2, "excludes a prompt");
  ExpectFailure(RunHadal(RunArgs({"--batch", directory_ + "/absent", "--output", out_})), 6, "absent");
  ExpectFailure(RunHadal(RunArgs({"--batch", in_, "--output", directory_ + "/no/out"})), 6, "cannot be opened");
  const std::string other = "{\"a\": 1}\n";
  WriteAll(out_, other);
  ExpectFailure(RunHadal(Args()), 6, "line 1: expected a result of a batch");
  EXPECT_EQ(ReadAll(out_), other);
}

TEST_F(BatchTest, AnEmptyFileIsDoneAtOnce) {
  EXPECT_EQ(Run("\n").code, 0);
  EXPECT_EQ(ReadAll(out_), "");
}

}  // namespace
}  // namespace hadal::test
