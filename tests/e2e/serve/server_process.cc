#include "server_process.h"

#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "../cli/cli_process.h"

namespace hadal::test {

ServerProcess::ServerProcess(const std::vector<std::string>& args) {
  std::signal(SIGPIPE, SIG_IGN);
  std::vector<std::string> all = {"serve", BundledModel(), "--port", "0"};
  for (const auto& [flag, value] :
       {std::pair("--threads", "1"), {"--max-num-seqs", "4"}, {"--max-model-len", "2048"}}) {
    if (std::find(args.begin(), args.end(), flag) == args.end()) all.insert(all.end(), {flag, value});
  }
  all.insert(all.end(), args.begin(), args.end());
  int in[2], out[2];
  EXPECT_EQ(pipe(in) | pipe(out), 0);
  static int number = 0;
  err_path_ = testing::TempDir() + fmt::format("serve_{}_{}.err", getpid(), number++);
  const int err = open(err_path_.c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
  pid_ = SpawnHadal(all, in[0], out[1], err);
  close(in[0]);
  close(in[1]);
  close(out[1]);
  close(err);
  out_ = out[0];
  std::string line;
  char c = 0;
  while (read(out_, &c, 1) == 1 && c != '\n') line += c;
  const std::string wanted = "listening on http://127.0.0.1:";
  EXPECT_EQ(line.substr(0, wanted.size()), wanted) << Said();
  if (line.size() > wanted.size()) port_ = std::stoi(line.substr(wanted.size()));
}

ServerProcess::~ServerProcess() {
  if (pid_ > 0) {
    kill(pid_, SIGKILL);
    Wait();
  }
  close(out_);
  std::filesystem::remove(err_path_);
}

void ServerProcess::Signal(int number) const { kill(pid_, number); }

int ServerProcess::Wait() {
  const int code = ExitCodeOf(pid_);
  pid_ = -1;
  return code;
}

std::string ServerProcess::Said() const { return ReadAll(err_path_); }

double ServerProcess::Metric(const std::string& name, const Headers& headers) const {
  const Answer answer = Client(port_).Get("/metrics", headers);
  EXPECT_EQ(answer.status, 200);
  std::istringstream lines(answer.body);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name)) return std::stod(line.substr(line.rfind(' ')));
  }
  ADD_FAILURE() << "no metric " << name;
  return -1;
}

bool ServerProcess::WaitForMetric(const std::string& name, double value) const {
  for (int i = 0; i < 1200; ++i) {
    if (Metric(name) == value) return true;
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  return false;
}

ServerProcess& Shared() {
  static ServerProcess server;
  return server;
}

json Chat(const std::string& question) {
  return {{"messages", {{{"role", "user"}, {"content", question}}}},
          {"temperature", 0},
          {"thinking", {{"type", "disabled"}}}};
}

std::vector<json> EventsOf(const std::string& body) {
  std::vector<json> events;
  bool done = false;
  size_t at = 0;
  while (at < body.size()) {
    const size_t end = body.find("\n\n", at);
    if (end == body.npos) {
      ADD_FAILURE() << "an event without an end: " << body.substr(at);
      break;
    }
    const std::string event = body.substr(at, end - at);
    at = end + 2;
    if (event.starts_with(":")) continue;  // a comment
    EXPECT_FALSE(done) << "something behind [DONE]: " << event;
    EXPECT_TRUE(event.starts_with("data: ")) << event;
    EXPECT_EQ(event.find('\n'), event.npos) << event;
    const std::string data = event.substr(std::min<size_t>(6, event.size()));
    if (data == "[DONE]") {
      done = true;
      continue;
    }
    events.push_back(json::parse(data, nullptr, false));
    EXPECT_TRUE(events.back().is_object()) << data;
  }
  EXPECT_TRUE(done) << body;
  return events;
}

namespace {

void AppendText(const json& from, const char* name, json* to) {
  if (!from.contains(name) || from[name].is_null()) return;
  const std::string before = to->contains(name) && (*to)[name].is_string() ? (*to)[name].get<std::string>() : "";
  (*to)[name] = before + from[name].get<std::string>();
}

void AppendLists(const json& from, json* to) {
  if (from.is_null()) return;
  if (to->is_null()) *to = json::object();
  for (const auto& [name, list] : from.items()) {
    for (const json& value : list) (*to)[name].push_back(value);
  }
}

void AppendCalls(const json& delta, json* message) {
  if (!delta.contains("tool_calls")) return;
  for (const json& call : delta["tool_calls"]) {
    json& calls = (*message)["tool_calls"];
    const size_t index = call["index"];
    if (call.contains("id")) {
      EXPECT_EQ(calls.size(), index);
      calls.push_back({{"type", call["type"]}, {"function", call["function"]}});
    } else {
      AppendText(call["function"], "arguments", &calls[index]["function"]);
    }
  }
}

}  // namespace

json Reassembled(const std::vector<json>& events) {
  json answer = {{"choices", json::array()}};
  for (const json& event : events) {
    if (event.contains("usage") && !event["usage"].is_null()) answer["usage"] = event["usage"];
    for (const json& chunk : event["choices"]) {
      const size_t index = chunk["index"];
      while (answer["choices"].size() <= index) {
        answer["choices"].push_back({{"index", answer["choices"].size()}, {"logprobs", nullptr}});
      }
      json& choice = answer["choices"][index];
      AppendText(chunk, "text", &choice);
      if (chunk.contains("delta")) {
        for (const char* name : {"role", "content", "reasoning_content", "reasoning"}) {
          AppendText(chunk["delta"], name, &choice["message"]);
        }
        AppendCalls(chunk["delta"], &choice["message"]);
      }
      AppendLists(chunk["logprobs"], &choice["logprobs"]);
      if (chunk.contains("token_ids")) {
        for (const json& id : chunk["token_ids"]) choice["token_ids"].push_back(id);
      }
      if (!chunk["finish_reason"].is_null()) {
        choice["finish_reason"] = chunk["finish_reason"];
        choice["stop_reason"] = chunk["stop_reason"];
      }
    }
  }
  return answer;
}

}  // namespace hadal::test
