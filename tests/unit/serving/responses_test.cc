// The Responses API: requests against the chats that they are, answers, streams and errors (spec serving-runtime 6.10).
#include "serving/responses/responses.h"

#include <algorithm>

#include "canned_answer.h"
#include "serving/protocol.h"

namespace hadal::serving {
namespace {

using testing::HasSubstr;
using testing::MatchesRegex;
using testing::StartsWith;
using text::Json;

constexpr const char* kImage =
    "data:image/png;base64,"
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR42mNoAAAAggCB2kUIOwAAAABJRU5ErkJggg==";

// A body with this input, and fields beside it.
std::string With(std::string_view input, std::string_view fields = "") {
  return fmt::format(R"({{"model": "m", "input": {}{}{}}})", input, fields.empty() ? "" : ", ", fields);
}
std::string Asks(std::string_view fields = "") { return With("\"What is 478 + 365?\"", fields); }

absl::StatusOr<Job> Read(std::string_view json, ResponseStore* store = nullptr, const std::string& owner = "") {
  ParseOptions options;
  options.store = store;
  options.owner = owner;
  return ParseResponses(Body(json), BundledEngine(), options);
}
Job Taken(std::string_view json, ResponseStore* store = nullptr, const std::string& owner = "") {
  absl::StatusOr<Job> job = Read(json, store, owner);
  EXPECT_TRUE(job.ok()) << json << ": " << job.status();
  return job.ok() ? *std::move(job) : Job();
}
// "400 MESSAGE", or "accepted".
std::string Refused(std::string_view json, ResponseStore* store = nullptr, const std::string& owner = "") {
  const absl::StatusOr<Job> job = Read(json, store, owner);
  if (job.ok()) return "accepted";
  const Json error = ResponsesErrorBody(job.status())["error"];
  const int status = ResponsesHttpStatus(job.status());
  EXPECT_TRUE(error["code"] == status || error["code"] == "context_length_exceeded") << text::DumpJson(error);
  return fmt::format("{} {}", status, error["message"].get<std::string>());
}
std::string TextOf(const Job& job) { return BundledEngine().tokenizer()->Decode(job.prompts[0].ids); }

constexpr const char* kTools = R"("tools": [
    {"type": "function", "name": "run", "description": "Runs.", "strict": true,
      "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}},
    {"type": "function", "name": "add", "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}])";
constexpr const char* kChatTools = R"("tools": [
    {"type": "function", "function": {"name": "run", "description": "Runs.",
      "parameters": {"type": "object", "properties": {"cmd": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "add",
      "parameters": {"type": "object", "properties": {"a": {"type": "string"}}}}}])";

void ExpectSamePrompt(const Job& job, const Job& chat) {
  EXPECT_EQ(job.prompts[0].ids, chat.prompts[0].ids) << TextOf(job) << "\n--- not\n" << TextOf(chat);
  EXPECT_EQ(job.requests[0].parser->starts_in_reasoning, chat.requests[0].parser->starts_in_reasoning);
  EXPECT_EQ(job.requests[0].parser->tools_allowed, chat.requests[0].parser->tools_allowed);
}

TEST(ParseResponses, PromptsAreThoseOfTheChat) {
  const std::vector<std::pair<std::string, std::string>> pairs = {
      {Asks(), Chat("")},
      {With(R"([{"role": "user", "content": "What is 478 + 365?"}])"), Chat("")},
      {With(
           R"([{"type": "message", "role": "user", "content": [{"type": "input_text", "text": "What is 478 + 365?"}]}])"),
       Chat("")},
      {Asks("\"instructions\": \"Be brief.\""),
       Messages(R"([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "What is 478 + 365?"}])")},
      {Asks("\"tools\": [], \"tool_choice\": \"auto\""), Chat("")},
      {Asks("\"reasoning\": {\"effort\": \"none\", \"summary\": \"auto\"}"), Chat("\"reasoning_effort\": \"none\"")},
      {Asks("\"reasoning\": {\"effort\": \"max\"}"), Chat("\"reasoning_effort\": \"max\"")},
      {Asks("\"reasoning\": {\"effort\": null}"), Chat("")},
      {Asks(kTools), Chat(kChatTools)},
      {Asks(fmt::format("{}, \"tool_choice\": \"none\"", kTools)), Chat("")},
      {With(R"([
          {"role": "developer", "content": "Be kind."},
          {"role": "user", "content": [{"type": "input_text", "text": "a"}, {"type": "input_text", "text": "b"}]},
          {"type": "reasoning", "id": "rs_1", "summary": [], "content": [{"type": "reasoning_text", "text": "Why?"}]},
          {"type": "message", "id": "msg_1", "role": "assistant", "status": "completed",
            "content": [{"type": "output_text", "text": "So.", "annotations": []}]},
          {"type": "function_call", "id": "fc_1", "call_id": "t1", "name": "run", "arguments": "{\"cmd\": \"ls\"}"},
          {"type": "function_call", "call_id": "t2", "name": "add", "arguments": "{}"},
          {"type": "function_call_output", "call_id": "t2", "output": "2"},
          {"type": "function_call_output", "call_id": "t1", "output": [{"type": "input_text", "text": "x"}]},
          {"role": "user", "content": "Go on."}])",
            kTools),
       fmt::format(R"({{{}, "messages": [
          {{"role": "developer", "content": "Be kind."}},
          {{"role": "user", "content": [{{"type": "text", "text": "a"}}, {{"type": "text", "text": "b"}}]}},
          {{"role": "assistant", "reasoning_content": "Why?", "content": "So.", "tool_calls": [
            {{"id": "t1", "type": "function", "function": {{"name": "run", "arguments": "{{\"cmd\": \"ls\"}}"}}}},
            {{"id": "t2", "type": "function", "function": {{"name": "add", "arguments": "{{}}"}}}}]}},
          {{"role": "tool", "tool_call_id": "t2", "content": "2"}},
          {{"role": "tool", "tool_call_id": "t1", "content": "x"}},
          {{"role": "user", "content": "Go on."}}]}})",
                   kChatTools)},
      // Texts that follow one another are two messages; reasoning opens a new one.
      {With(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                {"role": "assistant", "content": [{"type": "refusal", "refusal": "c"}]},
                {"type": "reasoning", "summary": []}, {"role": "user", "content": "d"}])"),
       Messages(R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"},
                    {"role": "assistant", "content": "c"}, {"role": "assistant", "content": ""},
                    {"role": "user", "content": "d"}])")},
  };
  for (const auto& [body, chat] : pairs) ExpectSamePrompt(Taken(body), Accepted(chat));
}

TEST(ParseResponses, Images) {
  const std::string image = fmt::format(R"({{"type": "input_image", "image_url": "{}", "detail": "auto"}})", kImage);
  const Job job = Taken(With(fmt::format(R"([{{"role": "user", "content": [{}]}}])", image)));
  EXPECT_EQ(job.requests[0].images.size(), 1u);
  const Job output = Taken(With(fmt::format(R"([{{"role": "user", "content": "x"}},
      {{"type": "function_call", "call_id": "1", "name": "a", "arguments": "{{}}"}},
      {{"type": "function_call", "call_id": "2", "name": "b", "arguments": "{{}}"}},
      {{"type": "function_call_output", "call_id": "1", "output": [{}]}},
      {{"type": "function_call_output", "call_id": "2", "output": "y"}}])",
                                            image)));
  EXPECT_EQ(output.requests[0].images.size(), 1u);
  EXPECT_THAT(TextOf(output), HasSubstr("<tool_result></tool_result>\n\n<tool_result>y</tool_result>\n\n"));
  const auto bad = [](const char* url) {
    return Refused(With(fmt::format(R"([{{"role": "user", "content": [{{"type": "input_text", "text": "x"}},
                                        {{"type": "input_image", "image_url": {}}}]}}])",
                                    url)));
  };
  const std::string at = "400 input[0].content[1].image_url: ";
  for (const char* url : {"null", "5", "{}", "\"data:image/png;base64,A\"", "\"data:image/png;base64,AAAA\"",
                          "\"data:text/html;base64,AAAA\"", "\"http://127.0.0.1/\"", "\"\""}) {
    EXPECT_THAT(bad(url), StartsWith(at)) << url;
  }
  EXPECT_THAT(Refused(With(fmt::format(R"([{{"role": "system", "content": [{}]}}, {{"role": "user", "content": "x"}}])",
                                       image))),
              StartsWith("400 input[0].content[0]: expected images in messages of the user only"));
}

TEST(ParseResponses, ValuesArrive) {
  const Job job = Taken(Asks(R"("temperature": 0.5, "top_p": 0.25, "max_output_tokens": 7, "stream": true,
      "user": "u", "metadata": {"a": "b"}, "parallel_tool_calls": false, "truncation": "disabled",
      "include": ["reasoning.encrypted_content"], "text": {"verbosity": "low", "format": {"type": "text"}},
      "instructions": "I.", "reasoning": {"effort": "high"}, "cache_salt": "s", "n": 3, "service_tier": "auto",
      "background": false, "stream_options": {"include_obfuscation": false}, "stop": ["x"])"));
  EXPECT_EQ(job.kind, Job::Kind::kResponses);
  EXPECT_THAT(job.id, MatchesRegex("resp_[0-9a-f]{32}"));
  ASSERT_EQ(job.requests.size(), 1u);
  const runtime::GenerateRequest& r = job.requests[0];
  EXPECT_EQ(r.sampling.temperature, 0.5);
  EXPECT_EQ(r.sampling.top_p, 0.25);
  EXPECT_EQ(r.max_tokens, 7);
  EXPECT_EQ(r.cache_salt, "s");
  EXPECT_TRUE(r.stop.empty());  // no field of this API
  EXPECT_TRUE(job.stream && !job.parallel_tool_calls);
  EXPECT_EQ(job.user, "u");
  EXPECT_EQ(job.responses.store, nullptr);
  const Json want = {{"background", false},
                     {"instructions", "I."},
                     {"max_output_tokens", 7},
                     {"metadata", {{"a", "b"}}},
                     {"parallel_tool_calls", false},
                     {"previous_response_id", nullptr},
                     {"reasoning", {{"effort", "high"}, {"summary", nullptr}}},
                     {"store", false},
                     {"temperature", 0.5},
                     {"text", {{"format", {{"type", "text"}}}}},
                     {"tool_choice", "auto"},
                     {"tools", Json::array()},
                     {"top_p", 0.25},
                     {"truncation", "disabled"},
                     {"user", "u"}};
  EXPECT_EQ(job.responses.repeated, want) << text::DumpJson(job.responses.repeated);
  EXPECT_NE(Taken(Asks(R"("text": {"format": {"type": "json_object"}})")).requests[0].grammar, nullptr);
  EXPECT_NE(Taken(Asks(R"("text": {"format": {"type": "json_schema", "name": "n", "strict": true,
                        "schema": {"type": "object"}}})"))
                .requests[0]
                .grammar,
            nullptr);
}

TEST(ParseResponses, Refusals) {
  const std::vector<std::pair<std::string, const char*>> rows = {
      {"[1]", "400 expected an object"},
      {"{}", "400 input: expected a string or an array of at least one item, found null"},
      {With("[]"), "400 input: "},
      {With("{}"), "400 input: "},
      {With("5"), "400 input: "},
      {With("[5]"), "400 input[0]: "},
      {With("[{}]"), "400 input[0].role: "},
      {With(R"([{"role": "tool", "content": "x"}])"), "400 input[0].role: "},
      {With(R"([{"role": "user"}])"), "400 input[0].content: "},
      {With(R"([{"role": "user", "content": 5}])"), "400 input[0].content: "},
      {With(R"([{"role": "user", "content": []}])"), "400 input[0].content: "},
      {With(R"([{"role": "user", "content": ["x"]}])"), "400 input[0].content[0]: "},
      {With(R"([{"role": "user", "content": [{"type": "input_file"}]}])"), "400 input[0].content[0].type: "},
      {With(R"([{"role": "user", "content": [{"type": "input_text"}]}])"), "400 input[0].content[0].text: "},
      {With(R"([{"type": "web_search_call"}])"), "400 input[0].type: "},
      {With(R"([{"type": "item_reference", "id": "x"}])"), "400 input[0].type: "},
      {With(R"([{"role": "user", "content": "x"}, {"type": "function_call", "name": "a", "arguments": {}},
                {"role": "user", "content": "x"}])"),
       "400 input[1].arguments: "},
      {With(R"([{"role": "user", "content": "x"}, {"type": "function_call", "name": "a", "arguments": "[1]"},
                {"role": "user", "content": "x"}])"),
       "400 input[1].arguments: "},
      {With(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"},
                {"type": "function_call", "arguments": "{}"}, {"role": "user", "content": "x"}])"),
       "400 input[2].name: "},
      {With(R"([{"role": "user", "content": "x"}, {"type": "function_call", "name": "a", "call_id": 5},
                {"role": "user", "content": "x"}])"),
       "400 input[1].call_id: "},
      {With(R"([{"type": "function_call_output", "call_id": "1"}])"), "400 input[0].output: "},
      {With(R"([{"type": "function_call_output", "call_id": 1, "output": "x"}])"), "400 input[0].call_id: "},
      {With(R"([{"type": "function_call_output", "output": [5]}])"), "400 input[0].output[0]: "},
      {With(R"([{"type": "function_call_output", "output": [{"type": "x"}]}])"), "400 input[0].output[0].type: "},
      {With(R"([{"type": "reasoning", "content": 5}])"), "400 input[0].content: "},
      {With(R"([{"type": "reasoning", "content": [{"type": "x"}]}])"), "400 input[0].content[0].type: "},
      {With(R"([{"type": "reasoning", "content": [{"type": "reasoning_text"}]}])"), "400 input[0].content[0].text: "},
      {With(R"([{"role": "user", "content": "x"}, {"role": "assistant", "content": "y"}])"), "400 input[1].role: "},
      {Asks("\"instructions\": 5"), "400 instructions: "},
      {Asks("\"tools\": {}"), "400 tools: "},
      {Asks("\"tools\": [5]"), "400 tools[0]: "},
      {Asks("\"tools\": [{\"type\": \"web_search\"}]"), "400 tools[0].type: "},
      {Asks("\"tools\": [{\"type\": \"function\", \"name\": \"a\\nb\"}]"), "400 tools[0].name: "},
      {Asks("\"tools\": [{\"type\": \"function\", \"name\": \"a\", \"parameters\": 5}]"), "400 tools[0].parameters: "},
      {Asks("\"tool_choice\": \"some\""), "400 tool_choice: "},
      {Asks("\"tool_choice\": 5"), "400 tool_choice: "},
      {Asks("\"tool_choice\": {\"type\": \"file_search\"}"), "400 tool_choice.type: "},
      {Asks(fmt::format("{}, \"tool_choice\": {{\"type\": \"function\", \"name\": \"sub\"}}", kTools)),
       "400 tool_choice.name: "},
      {Asks("\"reasoning\": 5"), "400 reasoning: "},
      {Asks("\"reasoning\": {\"effort\": \"huge\"}"), "400 reasoning.effort: "},
      {Asks("\"reasoning\": {\"summary\": 5}"), "400 reasoning.summary: "},
      {Asks("\"text\": 5"), "400 text: "},
      {Asks("\"text\": {\"format\": 5}"), "400 text.format: "},
      {Asks("\"text\": {\"format\": {\"type\": \"yaml\"}}"), "400 text.format.type: "},
      {Asks("\"text\": {\"format\": {\"type\": \"json_schema\", \"name\": \"a\"}}"), "400 text.format.schema: "},
      {Asks("\"text\": {\"format\": {\"type\": \"json_schema\"}}"), "400 text.format.name: "},
      {Asks("\"text\": {\"verbosity\": 5}"), "400 text.verbosity: "},
      {Asks("\"max_output_tokens\": 0"), "400 max_output_tokens: "},
      {Asks("\"temperature\": \"hot\""), "400 temperature: "},
      {Asks("\"metadata\": 5"), "400 metadata: "},
      {Asks("\"metadata\": {\"a\": 5}"), "400 metadata: "},
      {Asks("\"truncation\": \"middle\""), "400 truncation: "},
      {Asks("\"truncation\": 5"), "400 truncation: "},
      {Asks("\"include\": \"x\""), "400 include: "},
      {Asks("\"include\": [\"message.output_text.logprobs\"]"), "400 include: "},
      {Asks("\"top_logprobs\": 2"), "400 top_logprobs: "},
      {Asks("\"store\": 1"), "400 store: "},
      {Asks("\"stream\": \"yes\""), "400 stream: "},
      {Asks("\"parallel_tool_calls\": 0"), "400 parallel_tool_calls: "},
      {Asks("\"previous_response_id\": 5"), "400 previous_response_id: "},
      {Asks("\"previous_response_id\": \"resp_1\""),
       "404 previous_response_id: no response \"resp_1\" is stored: storing"},
      {Asks("\"background\": true"), "501 background: "},
      {Asks("\"prompt\": {\"id\": \"x\"}"), "501 prompt: "},
      {Asks("\"conversation\": \"c\""), "501 conversation: "},
  };
  for (const auto& [body, said] : rows) EXPECT_THAT(Refused(body), StartsWith(said)) << body;
  const Json error = ResponsesErrorBody(Read(Asks("\"background\": true")).status())["error"];
  EXPECT_EQ(error["type"], "NotImplementedError");
  EXPECT_EQ(error["param"], "background");
}

TEST(ParseResponses, HostileBodies) {
  Json many = Body(Asks());
  for (int i = 0; i < 10000; ++i) many["tools"].push_back({{"type", "function"}, {"name", fmt::format("tool{}", i)}});
  EXPECT_THAT(Refused(text::DumpJson(many)), StartsWith("400 input: the prompt has "));
  Json items = Body(With("[]"));
  for (int i = 0; i < 10000; ++i) items["input"].push_back({{"type", "function_call"}, {"name", "a"}});
  items["input"].push_back({{"role", "user"}, {"content", 5}});
  EXPECT_THAT(Refused(text::DumpJson(items)), StartsWith("400 input[10000].content: "));
  Json metadata = Body(Asks());
  for (int i = 0; i < 17; ++i) metadata["metadata"][std::to_string(i)] = "x";
  EXPECT_THAT(Refused(text::DumpJson(metadata)), StartsWith("400 metadata: expected at most 16"));
  const std::string megabytes(4 << 20, 'x');
  EXPECT_THAT(Refused(With("\"" + megabytes + "\"")), StartsWith("400 input: the prompt has "));
  EXPECT_THAT(Refused(With(fmt::format(R"([{{"type": "{}"}}])", megabytes))), StartsWith("400 input[0].type: "));
  std::string nested = "1";
  for (int i = 0; i < 120; ++i) nested = "[" + nested + "]";
  EXPECT_THAT(Refused(With(nested)), StartsWith("400 input[0]: "));
}

TEST(ParseResponses, TruncationLeavesOutTheOldestTurns) {
  Json body = Body(With("[]", "\"truncation\": \"auto\", \"instructions\": \"Be brief.\""));
  const std::string words(400, 'x');
  for (int i = 0; i < 12; ++i) {
    body["input"].push_back({{"role", "user"}, {"content", fmt::format("{} {}", i, words)}});
    body["input"].push_back({{"role", "assistant"}, {"content", "ok"}});
  }
  body["input"].push_back({{"role", "user"}, {"content", "last"}});
  const Job job = Taken(text::DumpJson(body));
  const std::string text = TextOf(job);
  EXPECT_THAT(text, HasSubstr("Be brief.<｜User｜>"));
  EXPECT_THAT(text, HasSubstr("11 xxx"));
  EXPECT_THAT(text, testing::Not(HasSubstr("<｜User｜>0 xxx")));
  EXPECT_THAT(text, HasSubstr("last<｜Assistant｜>"));
  body["truncation"] = "disabled";
  EXPECT_THAT(Refused(text::DumpJson(body)), HasSubstr("the context 1024"));
  body["truncation"] = "auto";
  body["input"].back()["content"] = std::string(5000, 'x');
  EXPECT_THAT(Refused(text::DumpJson(body)), HasSubstr("the context 1024"));
}

// A response of which random parts are replaced.
Json Stable(Json response) {
  for (Json& item : response["output"]) {
    EXPECT_THAT(item["id"].get<std::string>(), MatchesRegex("(rs|msg|fc)_[0-9a-f]{32}"));
    item["id"] = "id";
    if (!item.contains("call_id")) continue;
    EXPECT_THAT(item["call_id"].get<std::string>(), MatchesRegex("call_[0-9a-f]{32}"));
    item["call_id"] = "call";
  }
  return response;
}

// What a client makes of a stream, by the deltas alone, with the rules of the protocol checked on the way. The last
// event must say the same.
Json Accumulate(const std::vector<StreamFrame>& frames) {
  Json response, part;
  int64_t sequence = 0;
  bool done = false;
  for (const StreamFrame& frame : frames) {
    const Json data = Data(frame);
    const std::string& type = frame.event;
    EXPECT_FALSE(done);
    EXPECT_EQ(data["sequence_number"], sequence++);
    EXPECT_EQ(response.is_null(), type == "response.created");
    if (type == "response.created" || type == "response.in_progress") {
      response = data["response"];
      EXPECT_EQ(response["status"], "in_progress");
      continue;
    }
    if (type == "response.completed" || type == "response.incomplete" || type == "response.failed") {
      done = true;
      EXPECT_EQ(data["response"]["output"], response["output"]);
      response = data["response"];
      EXPECT_EQ("response." + response["status"].get<std::string>(), type);
      continue;
    }
    Json& output = response["output"];
    if (type == "response.output_item.added") {
      EXPECT_EQ(data["output_index"], output.size());
      EXPECT_EQ(data["item"]["status"], "in_progress");
      output.push_back(data["item"]);
      continue;
    }
    EXPECT_EQ(data["output_index"], output.size() - 1);
    Json& item = output.back();
    if (type == "response.output_item.done") {
      item["status"] = data["item"]["status"];
      EXPECT_EQ(item, data["item"]);
      continue;
    }
    EXPECT_EQ(data["item_id"], item["id"]);
    if (type == "response.function_call_arguments.delta") {
      item["arguments"] = item["arguments"].get<std::string>() + data["delta"].get<std::string>();
    } else if (type == "response.function_call_arguments.done") {
      EXPECT_EQ(item["arguments"], data["arguments"]);
      EXPECT_EQ(item["name"], data["name"]);
    } else {
      EXPECT_EQ(data["content_index"], 0);
      if (type == "response.content_part.added") {
        EXPECT_TRUE(item["content"].empty());
        item["content"].push_back(data["part"]);
      } else if (type == "response.content_part.done") {
        EXPECT_EQ(item["content"], Json::array({data["part"]}));
      } else {
        Json& text = item["content"][0]["text"];
        const bool delta = data.contains("delta");
        if (delta) text = text.get<std::string>() + data["delta"].get<std::string>();
        EXPECT_EQ(text, delta ? text : data["text"]);
        const std::string stem = item["type"] == "message" ? "response.output_text." : "response.reasoning_text.";
        EXPECT_EQ(type, stem + (delta ? "delta" : "done"));
      }
    }
  }
  EXPECT_TRUE(done);
  return response;
}

TEST(ResponsesStream, EveryCutGivesTheWholeResponse) {
  const Job job = Taken(Asks(kTools));
  for (const Output& output : Outputs()) {
    const Json want = Stable(BuildResponse(job, Answer(job, {output.text}, output.cause).result));
    for (const auto& pieces : Splits(output.text)) {
      const auto encoder = MakeResponsesStream(job);
      ASSERT_EQ(Stable(Accumulate(Stream(encoder.get(), Answer(job, pieces, output.cause)))), want)
          << output.what << " after " << pieces[0];
    }
  }
}

TEST(BuildResponse, EveryField) {
  const Job job = Taken(Asks(kTools));
  const auto prompt = static_cast<int64_t>(job.prompts[0].ids.size());
  const Json response =
      Stable(BuildResponse(job, Answer(job, {"Hm.</think>Let me see." + Calls(Call("run", "cmd", "ls"))}).result));
  Json want = {{"id", job.id},
               {"object", "response"},
               {"created_at", job.created},
               {"status", "completed"},
               {"error", nullptr},
               {"incomplete_details", nullptr},
               {"model", "m"},
               {"output",
                {{{"id", "id"},
                  {"type", "reasoning"},
                  {"summary", Json::array()},
                  {"content", Json::array({{{"type", "reasoning_text"}, {"text", "Hm."}}})},
                  {"status", "completed"}},
                 {{"id", "id"},
                  {"type", "message"},
                  {"status", "completed"},
                  {"role", "assistant"},
                  {"content", Json::array({{{"type", "output_text"},
                                            {"text", "Let me see."},
                                            {"annotations", Json::array()},
                                            {"logprobs", Json::array()}}})}},
                 {{"id", "id"},
                  {"type", "function_call"},
                  {"status", "completed"},
                  {"call_id", "call"},
                  {"name", "run"},
                  {"arguments", "{\"cmd\": \"ls\"}"}}}},
               {"usage",
                {{"input_tokens", prompt},
                 {"input_tokens_details", {{"cached_tokens", 3}}},
                 {"output_tokens", 9},
                 {"output_tokens_details", {{"reasoning_tokens", 4}}},
                 {"total_tokens", prompt + 9}}}};
  want.update(job.responses.repeated);
  EXPECT_EQ(response, want) << text::DumpJson(response);
}

TEST(BuildResponse, StatusOfAnAnswerThatWasCut) {
  const Job job = Taken(Asks());
  const auto cut = [&](const char* text) {
    return BuildResponse(job, Answer(job, {text}, text::EndCause::kLength).result);
  };
  Json response = cut("a</think>b");
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["incomplete_details"], Json({{"reason", "max_output_tokens"}}));
  EXPECT_EQ(response["output"][0]["status"], "completed");
  EXPECT_EQ(response["output"][1]["status"], "incomplete");
  response = cut("a");
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["type"], "reasoning");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  CannedAnswer cancelled = Answer(job, {"a"});
  cancelled.result.finish_reason = runtime::FinishReason::kCancelled;
  EXPECT_EQ(BuildResponse(job, cancelled.result)["status"], "failed");
  EXPECT_EQ(Accumulate(Stream(MakeResponsesStream(job).get(), cancelled))["error"]["code"], "server_error");
}

TEST(BuildResponse, WhatTheRequestLeavesOut) {
  const Job job = Taken(Asks(fmt::format("{}, \"parallel_tool_calls\": false, \"include_reasoning\": false", kTools)));
  const CannedAnswer answer = Answer(job, {"Hm.</think>" + Calls(Call("run", "cmd", "ls") + Call("add", "a", "1"))});
  const Json response = Stable(BuildResponse(job, answer.result));
  ASSERT_EQ(response["output"].size(), 1u);
  EXPECT_EQ(response["output"][0]["name"], "run");
  EXPECT_EQ(Stable(Accumulate(Stream(MakeResponsesStream(job).get(), answer))), response);
}

// What was streamed of a call stands, as an incomplete item; the whole response does without it.
TEST(ResponsesStream, CutInACall) {
  const Job job = Taken(Asks(kTools));
  const std::string text =
      "</think>\n\n<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"run\">\n<｜DSML｜parameter name=\"cmd\" "
      "string=\"true\">l";
  const CannedAnswer answer = Answer(job, {text}, text::EndCause::kLength);
  const Json response = Accumulate(Stream(MakeResponsesStream(job).get(), answer));
  EXPECT_EQ(response["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["type"], "function_call");
  EXPECT_EQ(response["output"][0]["status"], "incomplete");
  EXPECT_EQ(response["output"][0]["arguments"], "{\"cmd\": \"l");
  EXPECT_EQ(BuildResponse(job, answer.result)["output"].size(), 1u);
}

TEST(ResponsesStream, Failure) {
  const Job job = Taken(Asks());
  const auto encoder = MakeResponsesStream(job);
  EXPECT_EQ(encoder->Begin().size(), 2u);
  EXPECT_TRUE(encoder->Add(0, {}).empty());
  const auto frames = encoder->Fail(absl::InternalError("logits"));
  ASSERT_EQ(frames.size(), 2u);
  EXPECT_EQ(Data(frames[0]), Json({{"type", "error"},
                                   {"sequence_number", 2},
                                   {"code", "server_error"},
                                   {"message", "logits"},
                                   {"param", nullptr}}));
  EXPECT_EQ(frames[1].event, "response.failed");
  EXPECT_EQ(Data(frames[1])["response"]["status"], "failed");
  EXPECT_EQ(Data(frames[1])["response"]["error"], Json({{"code", "server_error"}, {"message", "logits"}}));
}

TEST(Stored, AResponseIsContinuedByItsOwner) {
  ResponseStore store({});
  const Job first = Taken(Asks("\"instructions\": \"Be brief.\""), &store, "ann");
  EXPECT_EQ(first.responses.store, &store);
  const Json response = BuildResponse(first, Answer(first, {"Hm.</think>843."}).result);
  EXPECT_EQ(response["store"], true);
  KeepResponse(first, response);
  const auto stored = store.Get("ann", first.id);
  ASSERT_NE(stored, nullptr);
  EXPECT_EQ(Body(stored->response), response);

  const std::string next = With("\"And 1 more?\"", fmt::format("\"previous_response_id\": \"{}\"", first.id));
  const Job second = Taken(next, &store, "ann");
  // Instructions are those of the request alone.
  ExpectSamePrompt(second, Accepted(Messages(R"([{"role": "user", "content": "What is 478 + 365?"},
      {"role": "assistant", "reasoning_content": "Hm.", "content": "843."},
      {"role": "user", "content": "And 1 more?"}])")));
  EXPECT_THAT(Refused(next, &store, "bob"), StartsWith("404 previous_response_id: no response "));
  EXPECT_THAT(
      Refused(With("[{\"role\": 5}]", fmt::format("\"previous_response_id\": \"{}\"", first.id)), &store, "ann"),
      StartsWith("400 input[0].role: "));

  // A stream keeps its answer too, once it has come to its end.
  const auto encoder = MakeResponsesStream(second);
  Stream(encoder.get(), Answer(second, {"</think>844."}));
  const Job third = Taken(With("\"So?\"", fmt::format("\"previous_response_id\": \"{}\"", second.id)), &store, "ann");
  EXPECT_THAT(TextOf(third), HasSubstr("And 1 more?<｜Assistant｜></think>844."));

  const Job unkept = Taken(Asks("\"store\": false"), &store, "ann");
  KeepResponse(unkept, BuildResponse(unkept, Answer(unkept, {"x"}).result));
  EXPECT_EQ(store.size(), 2u);
}

TEST(Stored, InputsAreLists) {
  ResponseStore store({});
  std::string items = R"({"role": "user", "content": "0", "id": 5})";
  for (int i = 1; i < 30; ++i) {
    items +=
        fmt::format(R"(, {{"role": "{}", "content": "{}", "id": "i{}"}})", i % 2 == 1 ? "user" : "assistant", i, i);
  }
  const Job job = Taken(With(fmt::format("[{}]", items)), &store, "ann");
  KeepResponse(job, BuildResponse(job, Answer(job, {"Hm.</think>843."}).result));
  const auto stored = store.Get("ann", job.id);
  ASSERT_NE(stored, nullptr);
  const auto list = [&](std::string_view query) {
    const auto page = ParseItemPage(query);
    EXPECT_TRUE(page.ok()) << page.status();
    const auto listed = ListInputItems(*stored, *page);
    EXPECT_TRUE(listed.ok()) << listed.status();
    return listed.ok() ? *listed : Json();
  };
  const Json last = list("");
  ASSERT_EQ(last["data"].size(), 20u);
  EXPECT_EQ(last["has_more"], true);
  EXPECT_EQ(last["first_id"], "i29");
  EXPECT_EQ(last["last_id"], "i10");
  EXPECT_EQ(last["data"][0]["content"], Json::parse(R"([{"type": "input_text", "text": "29"}])"));
  EXPECT_EQ(last["data"][1]["content"], Json::parse(R"([{"type": "output_text", "text": "28", "annotations": []}])"));
  const Json rest = list("after=i10&limit=100");
  EXPECT_EQ(rest["data"].size(), 10u);
  EXPECT_EQ(rest["has_more"], false);
  EXPECT_THAT(rest["last_id"].get<std::string>(), MatchesRegex("msg_[0-9a-f]{32}"));
  EXPECT_EQ(list("order=asc&limit=1&&x=y&=&z")["data"][0]["content"][0]["text"], "0");
  EXPECT_EQ(list("order=asc&after=i29")["first_id"], nullptr);
  for (const char* bad :
       {"limit=0", "limit=101", "limit=-1", "limit=5x", "limit", "limit=99999999999999999999", "order=", "order=ASC"}) {
    const auto page = ParseItemPage(bad);
    ASSERT_FALSE(page.ok()) << bad;
    EXPECT_THAT(std::string(Message(page.status())), StartsWith(std::string(bad).substr(0, 5) + ": ")) << bad;
  }
  EXPECT_THAT(std::string(Message(ListInputItems(*stored, {.after = "i30"}).status())), StartsWith("after: "));
}

// Field report B39: one parser stands behind every protocol. Of the same output a client of each sees the call, once,
// and nothing of its markup.
TEST(Protocols, ShowACallOnceAndNoMarkup) {
  struct Protocol {
    const char* path;
    std::string body;
    const char* whole;   // stands once in an answer
    const char* event;   // the frame that opens a call has it
    const char* opened;  // and this in it
  };
  const std::vector<Protocol> protocols = {
      {"/v1/chat/completions", Chat(R"("stream": true, "tools": [{"type": "function", "function": {"name": "run"}}])"),
       "\"name\": \"run\"", "", "\"name\": \"run\""},
      {"/v1/messages",
       R"({"max_tokens": 50, "stream": true, "messages": [{"role": "user", "content": "x"}], "tools": [{"name": "run"}]})",
       "\"type\": \"tool_use\"", "content_block_start", "\"type\": \"tool_use\""},
      {"/v1/responses", R"({"input": "x", "stream": true, "tools": [{"type": "function", "name": "run"}]})",
       "\"type\": \"function_call\"", "response.output_item.added", "\"type\": \"function_call\""}};
  const std::string output = "Hm.</think>Let me see." + Calls(Call("run", "cmd", "ls 2>&1"));
  const auto count = [](const std::string& text, std::string_view part) {
    size_t found = 0;
    for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
    return found;
  };
  for (const Protocol& protocol : protocols) {
    SCOPED_TRACE(protocol.path);
    const auto endpoint = std::find_if(Endpoints().begin(), Endpoints().end(),
                                       [&](const Endpoint& e) { return e.path == protocol.path; });
    ASSERT_TRUE(endpoint != Endpoints().end());
    const absl::StatusOr<Job> job = endpoint->parse(Body(protocol.body), BundledEngine(), {});
    ASSERT_TRUE(job.ok()) << job.status();
    const std::string whole =
        text::DumpJson(endpoint->build(*job, {Answer(*job, {output}).result}, BundledEngine().tokenizer()));
    EXPECT_EQ(count(whole, protocol.whole), 1u) << whole;
    EXPECT_EQ(count(whole, "ls 2>&1"), 1u) << whole;
    EXPECT_EQ(count(whole, "｜") + count(whole, "DSML"), 0u) << whole;
    for (const auto& pieces : Splits(output)) {
      size_t calls = 0;
      const auto encoder = endpoint->encode(*job, BundledEngine().tokenizer());
      for (const StreamFrame& frame : Stream(encoder.get(), Answer(*job, pieces))) {
        ASSERT_EQ(count(frame.data, "｜") + count(frame.data, "DSML"), 0u) << frame.data;
        if (frame.event == protocol.event) calls += count(frame.data, protocol.opened);
      }
      ASSERT_EQ(calls, 1u) << "after " << pieces[0];
    }
  }
}

}  // namespace
}  // namespace hadal::serving
