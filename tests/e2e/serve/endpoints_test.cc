// Every route: what it answers, and in what form.
#include <fmt/format.h>

#include <fstream>

#include "../cli/cli_process.h"
#include "server_process.h"

namespace hadal::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

json PostJson(const std::string& target, const json& body, int status = 200) {
  const Answer answer = Client(Shared().port()).Post(target, body.dump());
  EXPECT_EQ(answer.status, status) << answer.body;
  EXPECT_EQ(answer.headers.at("content-type"), "application/json");
  return json::parse(answer.body, nullptr, false);
}

TEST(Serve, AnswersAChat) {
  json body = Chat("What is 478 + 365?");
  body["model"] = "tiny-v4-vision";
  const json answer = PostJson("/v1/chat/completions", body);
  EXPECT_EQ(answer["object"], "chat.completion");
  EXPECT_EQ(answer["model"], "tiny-v4-vision");
  EXPECT_EQ(answer["choices"][0]["message"]["content"], "478 + 365 = 843");
  EXPECT_EQ(answer["choices"][0]["finish_reason"], "stop");
  EXPECT_EQ(answer["usage"]["completion_tokens"], 14);
}

TEST(Serve, LooksAtImages) {
  const std::string picture = ReadAll(DataPath("eval/images/ocr_033_0.png"));
  std::ifstream records(DataPath("eval/ocr.jsonl"));
  json record;
  for (std::string line; std::getline(records, line);) {
    record = json::parse(line);
    if (line.find("ocr_033_0.png") != line.npos) break;
  }
  // The text of the question is what stands behind the placeholder.
  const std::string prompt = record["prompt"];
  const std::string mark = "<｜deepseek_image｜>";
  const size_t begin = prompt.find(mark) + mark.size();
  const std::string question = prompt.substr(begin, prompt.find("<｜Assistant｜>") - begin);
  constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string base64;
  for (size_t i = 0; i < picture.size(); i += 3) {
    uint32_t group = 0;
    for (size_t j = 0; j < 3; ++j) {
      group = group << 8 | (i + j < picture.size() ? static_cast<uint8_t>(picture[i + j]) : 0);
    }
    for (size_t j = 0; j < 4; ++j) base64 += i + j <= picture.size() ? kDigits[group >> (18 - 6 * j) & 63] : '=';
  }
  json body = Chat("");
  body["messages"][0]["content"] = {
      {{"type", "image_url"}, {"image_url", {{"url", "data:image/png;base64," + base64}}}},
      {{"type", "text"}, {"text", question.substr(question.find_first_not_of('\n'))}}};
  const json answer = PostJson("/v1/chat/completions", body);
  EXPECT_EQ(answer["choices"][0]["message"]["content"], record["expected"]);
}

TEST(Serve, ContinuesPlainText) {
  const json answer =
      PostJson("/v1/completions",
               {{"prompt", {"<｜begin▁of▁sentence｜><｜User｜>What is 1 + 2?<｜Assistant｜></think>", "Once"}},
                {"temperature", 0},
                {"max_tokens", 8},
                {"n", 2}});
  EXPECT_EQ(answer["object"], "text_completion");
  ASSERT_EQ(answer["choices"].size(), 4u);
  EXPECT_EQ(answer["choices"][0]["text"], "1 + 2 = 3");
  EXPECT_EQ(answer["choices"][3]["index"], 3);
}

TEST(Serve, ListsItsModels) {
  Client client(Shared().port());
  const json list = json::parse(client.Get("/v1/models").body);
  EXPECT_EQ(list["object"], "list");
  ASSERT_EQ(list["data"].size(), 1u);
  EXPECT_EQ(list["data"][0]["id"], "tiny-v4-vision");
  EXPECT_EQ(list["data"][0]["max_model_len"], 2048);
  const json one = json::parse(client.Get("/v1/models/tiny-v4-vision").body);
  EXPECT_EQ(one, list["data"][0]);
  const Answer none = client.Get("/v1/models/gpt-4");
  EXPECT_EQ(none.status, 404);
  EXPECT_EQ(json::parse(none.body)["error"]["type"], "NotFoundError");
}

TEST(Serve, KnowsItsNames) {
  const ServerProcess server({"--served-model-name", "a", "--served-model-name", "org/b"});
  Client client(server.port());
  const auto model_of = [&](const char* name) {
    json body = Chat("What is 1 + 2?");
    if (name != nullptr) body["model"] = name;
    const Answer answer = client.Post("/v1/chat/completions", body.dump());
    return answer.status == 200 ? json::parse(answer.body)["model"].get<std::string>()
                                : fmt::format("{}", answer.status);
  };
  EXPECT_EQ(model_of("a"), "a");
  EXPECT_EQ(model_of("org/b"), "org/b");
  EXPECT_EQ(model_of(nullptr), "a");
  EXPECT_EQ(model_of("tiny-v4-vision"), "404");
  EXPECT_EQ(client.Get("/v1/models/org%2Fb").status, 200);
  EXPECT_EQ(client.Get("/v1/models/org/b").status, 200);
}

TEST(Serve, Tokenizes) {
  const json ids = PostJson("/tokenize", {{"prompt", "<｜User｜>What"}, {"return_token_strs", true}});
  EXPECT_EQ(ids["count"], ids["tokens"].size());
  EXPECT_EQ(ids["max_model_len"], 2048);
  EXPECT_EQ(ids["token_strs"][0], "<｜User｜>");
  EXPECT_EQ(PostJson("/v1/tokenize", {{"prompt", "<｜User｜>What"}})["token_strs"], nullptr);
  EXPECT_EQ(PostJson("/detokenize", {{"tokens", ids["tokens"]}})["prompt"], "<｜User｜>What");
  EXPECT_EQ(PostJson("/detokenize", {{"tokens", json::array()}})["prompt"], "");
  EXPECT_EQ(PostJson("/detokenize", {{"tokens", "ids"}}, 400)["error"]["param"], "tokens");
  EXPECT_EQ(PostJson("/v1/detokenize", {{"tokens", {1, -1}}}, 400)["error"]["type"], "BadRequestError");
  // What a chat's prompt has is what its usage says.
  json chat = Chat("What is 478 + 365?");
  const json prompt = PostJson("/tokenize", chat);
  EXPECT_EQ(prompt["count"], PostJson("/v1/chat/completions", chat)["usage"]["prompt_tokens"]);
  // A user's text is no control token.
  const json spelled = PostJson("/tokenize", Chat("<｜User｜>"));
  EXPECT_GT(spelled["count"], PostJson("/tokenize", Chat(""))["count"].get<int>() + 1);
}

TEST(Serve, SaysHowItIs) {
  Client client(Shared().port());
  for (const char* path : {"/health", "/ping"}) {
    const Answer answer = client.Get(path);
    EXPECT_EQ(answer.status, 200) << path;
    EXPECT_EQ(answer.body, "");
  }
  EXPECT_THAT(json::parse(client.Get("/version").body)["version"].get<std::string>(), MatchesRegex("[0-9.]+"));
  const Answer metrics = client.Get("/metrics");
  EXPECT_THAT(metrics.headers.at("content-type"), HasSubstr("text/plain; version=0.0.4"));
  for (const char* name :
       {"num_requests_running", "num_requests_waiting", "kv_cache_usage_perc", "cache_config_info",
        "prefix_cache_queries_total", "prefix_cache_hits_total", "num_preemptions_total", "prompt_tokens_total",
        "generation_tokens_total", "time_to_first_token_seconds_bucket", "inter_token_latency_seconds_sum",
        "e2e_request_latency_seconds_count", "request_success_total"}) {
    EXPECT_THAT(metrics.body, HasSubstr(fmt::format("\nvllm:{}{{model_name=\"tiny-v4-vision\",engine=\"0\"", name)));
  }
}

TEST(Serve, CountsWhatItDoes) {
  const ServerProcess server;
  Client client(server.port());
  json body = Chat("What is 478 + 365?");
  for (int i = 0; i < 3; ++i) EXPECT_EQ(client.Post("/v1/chat/completions", body.dump()).status, 200);
  body["max_tokens"] = 2;
  EXPECT_EQ(client.Post("/v1/chat/completions", body.dump()).status, 200);
  EXPECT_EQ(server.Metric("vllm:generation_tokens_total"), 3 * 14 + 2);
  EXPECT_EQ(server.Metric("vllm:prompt_tokens_total"), 4 * 16);
  EXPECT_EQ(server.Metric("vllm:inter_token_latency_seconds_count"), 3 * 13 + 1);
  EXPECT_EQ(server.Metric("vllm:time_to_first_token_seconds_count"), 4);
  EXPECT_EQ(server.Metric("vllm:request_generation_tokens_bucket{model_name=\"tiny-v4-vision\",engine=\"0\",le=\"2\""),
            1);
  EXPECT_EQ(server.Metric("vllm:request_params_max_tokens_sum"), 2);
  EXPECT_EQ(server.Metric("vllm:kv_cache_usage_perc"), 0);
}

TEST(Serve, EchoesARequestsId) {
  Client client(Shared().port());
  EXPECT_EQ(client.Get("/health", {{"X-Request-Id", "abc-123"}}).headers.at("x-request-id"), "abc-123");
  EXPECT_THAT(client.Get("/health").headers.at("x-request-id"), MatchesRegex("req_[0-9a-f]{32}"));
  for (const std::string& bad : {std::string("two words"), std::string("caf\xc3\xa9"), std::string(129, 'a')}) {
    EXPECT_THAT(client.Get("/health", {{"X-Request-Id", bad}}).headers.at("x-request-id"),
                MatchesRegex("req_[0-9a-f]+"))
        << bad;
  }
  EXPECT_EQ(client.Get("/nothing", {{"X-Request-Id", "e1"}}).headers.at("x-request-id"), "e1");
}

TEST(Serve, AnswersHeadWithoutABody) {
  Client client(Shared().port());
  client.Send(RequestText("HEAD", "/v1/models"));
  const Answer head = client.Read(true);
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  const Answer get = client.Get("/v1/models");  // on the same connection
  EXPECT_EQ(head.headers.at("content-length"), get.headers.at("content-length"));
  client.Send(RequestText("HEAD", "/v1/chat/completions"));
  EXPECT_EQ(client.Read(true).status, 405);
}

}  // namespace
}  // namespace hadal::test
