// Stored responses: read, listed, continued and deleted by whoever asked for them.
#include <fmt/format.h>

#include "server_process.h"

namespace hadal::test {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;

json Ask(const json& input, const json& more = json::object()) {
  json body = {{"input", input}, {"temperature", 0}, {"reasoning", {{"effort", "none"}}}};
  body.update(more);
  return body;
}

Headers Key(const std::string& key) { return key.empty() ? Headers{} : Headers{{"Authorization", "Bearer " + key}}; }

class Store {
 public:
  explicit Store(int port, std::string key = "") : client_(port), key_(std::move(key)) {}

  json Create(const json& body, int status = 200) {
    const Answer answer = client_.Post("/v1/responses", body.dump(), Key(key_));
    EXPECT_EQ(answer.status, status) << answer.body;
    return json::parse(answer.body);
  }
  Answer Send(const std::string& method, const std::string& target) {
    client_.Send(RequestText(method, target, "", Key(key_)));
    return client_.Read(method == "HEAD");
  }
  json Get(const std::string& target, int status = 200) {
    const Answer answer = Send("GET", target);
    EXPECT_EQ(answer.status, status) << answer.body;
    EXPECT_EQ(answer.headers.at("content-type"), "application/json");
    return json::parse(answer.body);
  }

 private:
  Client client_;
  const std::string key_;
};

std::string PathTo(const json& response) { return "/v1/responses/" + response["id"].get<std::string>(); }
std::string TextOf(const json& response) { return response["output"][0]["content"][0]["text"]; }

TEST(ServeStored, AnswersAreKeptAndContinued) {
  Store store(Shared().port());
  const json first =
      store.Create(Ask("What is 478 + 365?", {{"metadata", {{"a", "b"}}}, {"instructions", "Be brief."}}));
  EXPECT_EQ(first["store"], true);
  EXPECT_EQ(TextOf(first), "478 + 365 = 843");
  EXPECT_EQ(store.Get(PathTo(first)), first);

  // The continuation is the conversation that the client could have sent itself, without the instructions.
  const json second = store.Create(Ask("What is 12 + 7?", {{"previous_response_id", first["id"]}}));
  EXPECT_EQ(second["previous_response_id"], first["id"]);
  const json whole = store.Create(Ask({{{"role", "user"}, {"content", "What is 478 + 365?"}},
                                       {{"role", "assistant"}, {"content", "478 + 365 = 843"}},
                                       {{"role", "user"}, {"content", "What is 12 + 7?"}}}));
  EXPECT_EQ(TextOf(second), TextOf(whole));
  EXPECT_EQ(second["usage"]["input_tokens"], whole["usage"]["input_tokens"]);
  EXPECT_EQ(store.Get(PathTo(second)), second);

  // Its input is all of that, the last first.
  const json list = store.Get(PathTo(second) + "/input_items");
  EXPECT_EQ(list["object"], "list");
  EXPECT_EQ(list["has_more"], false);
  ASSERT_EQ(list["data"].size(), 3u);
  EXPECT_EQ(list["first_id"], list["data"][0]["id"]);
  EXPECT_EQ(list["last_id"], list["data"][2]["id"]);
  EXPECT_EQ(list["data"][0]["role"], "user");
  EXPECT_EQ(list["data"][0]["type"], "message");
  EXPECT_EQ(list["data"][0]["content"], json({{{"type", "input_text"}, {"text", "What is 12 + 7?"}}}));
  EXPECT_EQ(list["data"][1]["id"], first["output"][0]["id"]);
  EXPECT_EQ(list["data"][1]["content"][0]["text"], "478 + 365 = 843");
  EXPECT_THAT(list["data"][2]["id"].get<std::string>(), MatchesRegex("msg_[0-9a-f]{32}"));
  // In pages.
  json items = json::array();
  std::string after;
  for (int page = 0; page < 3; ++page) {
    const json part = store.Get(PathTo(second) + "/input_items?order=asc&limit=1" + after);
    ASSERT_EQ(part["data"].size(), 1u);
    EXPECT_EQ(part["has_more"], page < 2);
    items.push_back(part["data"][0]);
    after = "&after=" + part["last_id"].get<std::string>();
  }
  EXPECT_EQ(items, json({list["data"][2], list["data"][1], list["data"][0]}));
  EXPECT_EQ(store.Get(PathTo(second) + "/input_items?order=asc" + after)["data"], json::array());
  for (const char* wrong : {"limit=0", "limit=101", "limit=x", "limit=", "order=up", "after=msg_none"}) {
    const json error = store.Get(PathTo(second) + "/input_items?" + wrong, 400)["error"];
    EXPECT_EQ(error["param"], std::string(wrong).substr(0, std::string(wrong).find('='))) << error;
  }
}

TEST(ServeStored, StreamsAreKeptToo) {
  Store store(Shared().port());
  const Answer stream =
      Client(Shared().port()).Post("/v1/responses", Ask("What is 478 + 365?", {{"stream", true}}).dump());
  EXPECT_EQ(stream.status, 200);
  const std::string last = stream.body.substr(stream.body.rfind("data: ") + 6);
  const json response = json::parse(last)["response"];
  EXPECT_EQ(response["store"], true);
  EXPECT_EQ(store.Get(PathTo(response)), response);
  // A tool's result, behind a call that is not sent again.
  const json number = {{"type", "integer"}};
  const json tools = {
      {{"type", "function"},
       {"name", "add"},
       {"parameters", {{"type", "object"}, {"properties", {{"a", number}, {"b", number}}}, {"required", {"a", "b"}}}}}};
  const json call = store.Create(
      Ask("What is 478 + 365?", {{"tools", tools}, {"tool_choice", "required"}, {"parallel_tool_calls", false}}));
  ASSERT_EQ(call["output"][0]["type"], "function_call") << call;
  const json result = {{"type", "function_call_output"}, {"call_id", call["output"][0]["call_id"]}, {"output", "843"}};
  const json answer =
      store.Create(Ask(json::array({result}), {{"tools", tools}, {"previous_response_id", call["id"]}}));
  const json list = store.Get(PathTo(answer) + "/input_items?order=asc");
  ASSERT_EQ(list["data"].size(), 3u);
  EXPECT_EQ(list["data"][1]["arguments"], call["output"][0]["arguments"]);
  EXPECT_EQ(list["data"][2]["output"], "843");
  EXPECT_THAT(list["data"][2]["id"].get<std::string>(), MatchesRegex("fco_[0-9a-f]{32}"));
}

TEST(ServeStored, DeletedAnswersAreGone) {
  Store store(Shared().port());
  const json response = store.Create(Ask("What is 1 + 2?"));
  const Answer head = store.Send("HEAD", PathTo(response));
  EXPECT_EQ(head.status, 200);
  EXPECT_EQ(head.body, "");
  const Answer deleted = store.Send("DELETE", PathTo(response));
  EXPECT_EQ(deleted.status, 200);
  EXPECT_EQ(json::parse(deleted.body), json({{"id", response["id"]}, {"object", "response"}, {"deleted", true}}));
  EXPECT_EQ(store.Send("DELETE", PathTo(response)).status, 404);
  const json error = store.Get(PathTo(response), 404)["error"];
  EXPECT_EQ(error["type"], "NotFoundError");
  EXPECT_EQ(store.Get(PathTo(response) + "/input_items", 404)["error"]["code"], 404);
  EXPECT_EQ(store.Create(Ask("x", {{"previous_response_id", response["id"]}}), 404)["error"]["param"],
            "previous_response_id");
  // What was not to be kept never was there.
  const json unkept = store.Create(Ask("What is 1 + 2?", {{"store", false}}));
  EXPECT_EQ(unkept["store"], false);
  store.Get(PathTo(unkept), 404);
  // What there is not.
  for (const char* target :
       {"/v1/responses/", "/v1/responses/a/b", "/v1/responses/a/cancel", "/v1/responses//input_items"}) {
    const int status = store.Send("GET", target).status;
    EXPECT_TRUE(status == 404 || status == 405) << target << " " << status;
  }
  const Answer wrong = store.Send("DELETE", PathTo(response) + "/input_items");
  EXPECT_EQ(wrong.status, 405);
  EXPECT_EQ(wrong.headers.at("allow"), "GET, HEAD, OPTIONS");
  EXPECT_EQ(store.Send("PUT", PathTo(response)).headers.at("allow"), "GET, HEAD, DELETE, OPTIONS");
  for (const json& more : {json{{"background", true}}, json{{"prompt", {{"id", "p"}}}}, json{{"conversation", "c"}}}) {
    EXPECT_EQ(store.Create(Ask("x", more), 501)["error"]["code"], 501) << more;
  }
}

TEST(ServeStored, AnswersBelongToTheirKey) {
  const ServerProcess server({"--api-key", "ann", "--api-key", "bob"});
  Store ann(server.port(), "ann"), bob(server.port(), "bob"), nobody(server.port());
  const json response = ann.Create(Ask("What is 1 + 2?"));
  EXPECT_EQ(ann.Get(PathTo(response)), response);
  // As if it were not there.
  const json unknown = bob.Get("/v1/responses/resp_none", 404);
  json hidden = bob.Get(PathTo(response), 404);
  EXPECT_THAT(hidden["error"]["message"].get<std::string>(), HasSubstr(response["id"].get<std::string>()));
  hidden["error"].erase("message");
  json plain = unknown;
  plain["error"].erase("message");
  EXPECT_EQ(hidden, plain);
  bob.Get(PathTo(response) + "/input_items", 404);
  EXPECT_EQ(bob.Send("DELETE", PathTo(response)).status, 404);
  bob.Create(Ask("x", {{"previous_response_id", response["id"]}}), 404);
  nobody.Get(PathTo(response), 401);
  EXPECT_EQ(nobody.Send("DELETE", PathTo(response)).status, 401);
  EXPECT_EQ(ann.Get(PathTo(response)), response);
  EXPECT_EQ(ann.Send("DELETE", PathTo(response)).status, 200);
}

TEST(ServeStored, MemoryIsBounded) {
  const ServerProcess server({"--response-store-size", "16KiB"});
  Store store(server.port());
  std::vector<json> responses;
  for (int i = 0; i < 20; ++i) {
    responses.push_back(store.Create(Ask(fmt::format("What is {} + 2?", i))));
    // The first is used all the time, and stays.
    store.Get(PathTo(responses[0]));
  }
  store.Get(PathTo(responses[0]));
  store.Get(PathTo(responses[19]));
  store.Get(PathTo(responses[1]), 404);
  // What does not fit at all is answered nonetheless.
  const json large = store.Create(Ask(
      "What is 1 + 2?", {{"metadata", {{"a", std::string(500, 'b')}}},
                         {"tools", {{{"type", "function"}, {"name", "f"}, {"description", std::string(1200, 'x')}}}},
                         {"user", std::string(20000, 'u')}}));
  EXPECT_EQ(large["status"], "completed");
  store.Get(PathTo(large), 404);
}

TEST(ServeStored, MayBeOff) {
  const ServerProcess server({"--response-store-size", "0"});
  Store store(server.port());
  const json response = store.Create(Ask("What is 1 + 2?"));
  EXPECT_EQ(response["store"], false);
  EXPECT_THAT(store.Get(PathTo(response), 404)["error"]["message"].get<std::string>(),
              HasSubstr("storing them is off"));
  EXPECT_EQ(store.Send("DELETE", PathTo(response)).status, 404);
  EXPECT_THAT(
      store.Create(Ask("x", {{"previous_response_id", response["id"]}}), 404)["error"]["message"].get<std::string>(),
      HasSubstr("storing them is off"));
}

}  // namespace
}  // namespace hadal::test
