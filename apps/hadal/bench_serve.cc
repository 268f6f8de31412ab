// hadal bench serve: load on a running server, which need not be hadal's: open loop, so that a slow server meets as
// many requests as a fast one (spec serving-runtime 6.12).
#include <fmt/format.h>

#include <algorithm>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <chrono>
#include <fstream>
#include <functional>
#include <memory>
#include <random>

#include "base/status.h"
#include "bench_report.h"
#include "cli.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace): its only use
using text::Json;
using Clock = std::chrono::steady_clock;

constexpr const char* kExamples =
    "Examples:\n"
    "  hadal bench serve --num-prompts 200 --request-rate 4 --input-len 1000 --output-len 200\n"
    "  hadal bench serve --base-url http://10.0.0.5:8000 --dataset chats.jsonl --goodput ttft:0.5 --goodput tpot:0.05\n"
    "A line of a dataset is the body of a request: {\"messages\": ...} or {\"prompt\": ...}. Without one prompts are\n"
    "random token ids, and answers go on behind end tokens. Times are seconds, from when a request was due to arrive.";

// What random prompts are made of: the tokens that the server makes of this.
constexpr const char* kText =
    "A server that is asked more than it can answer has to choose who waits. Some were here before, others pay for not "
    "waiting; the rest stand in a queue whose end they cannot see. Numbers such as 17, 256 or 4096 tell how long it "
    "is, "
    "but nobody at the window reads them out. People guess: by the light in the hall, by how often a door opens, by "
    "the "
    "faces of those who come back. Most guesses are wrong in the morning and right in the evening, when it is too late "
    "to use them. What helps is a clock, a slip of paper with a name on it, and somebody who calls each name once.";

constexpr std::chrono::milliseconds kInterruptPoll{50};

struct ServeBenchFlags {
  std::string base_url = "http://127.0.0.1:8000";
  std::string model, api_key, dataset;
  std::vector<std::string> goodput;
  int64_t num_prompts = 100;
  int64_t input_len = 256;
  int64_t output_len = 128;
  int64_t max_concurrency = 0;  // 0: no limit
  double request_rate = 0;      // 0: all at once
  double temperature = 0;
  double timeout = 600;
  uint64_t seed = 0;
  bool json = false;
};

struct Url {
  std::string host, port, path;
};

absl::StatusOr<Url> ParseUrl(const std::string& text) {
  constexpr std::string_view kScheme = "http://";
  if (!text.starts_with(kScheme)) return InvalidArgument("--base-url: expected http://HOST[:PORT], found {}", text);
  Url url = {.host = text.substr(kScheme.size()), .port = "80", .path = {}};
  if (const size_t slash = url.host.find('/'); slash != url.host.npos) {
    url.path = url.host.substr(slash);
    url.host.resize(slash);
    while (url.path.ends_with('/')) url.path.pop_back();
  }
  const size_t bracket = url.host.find(']');  // of an IPv6 address
  const size_t colon = url.host.rfind(':');
  if (colon != url.host.npos && (bracket == url.host.npos || colon > bracket)) {
    url.port = url.host.substr(colon + 1);
    url.host.resize(colon);
  }
  if (bracket != url.host.npos) url.host = url.host.substr(1, bracket - 1);
  int port = 0;
  const bool digits = !url.port.empty() && url.port.size() <= 5 &&
                      std::all_of(url.port.begin(), url.port.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (digits) port = std::stoi(url.port);
  if (url.host.empty() || port < 1 || port > 65535) {
    return InvalidArgument("--base-url: expected http://HOST[:PORT], found {}", text);
  }
  return url;
}

struct Limits {
  double ttft = -1, tpot = -1, e2e = -1;  // negative: none
};

absl::StatusOr<Limits> ParseGoodput(const std::vector<std::string>& texts) {
  Limits limits;
  for (const std::string& text : texts) {
    const size_t colon = text.find(':');
    const std::string name = text.substr(0, colon);
    double* limit = name == "ttft"   ? &limits.ttft
                    : name == "tpot" ? &limits.tpot
                    : name == "e2e"  ? &limits.e2e
                                     : nullptr;
    char* end = nullptr;
    const double value = colon == text.npos ? -1 : std::strtod(text.c_str() + colon + 1, &end);
    if (limit == nullptr || !(value > 0) || end == nullptr || *end != '\0') {
      return InvalidArgument("--goodput: expected ttft:SECONDS, tpot:SECONDS or e2e:SECONDS, found {}", text);
    }
    *limit = value;
  }
  return limits;
}

struct Request {
  std::string path;
  Json body;
};

// What became of one.
struct Outcome {
  double arrival = 0;
  std::vector<double> times;    // of its events with tokens
  std::vector<int64_t> tokens;  // of the answer up to each of them
  int64_t prompt_tokens = 0, cached_tokens = 0;
  absl::Status status = absl::OkStatus();

  int64_t output_tokens() const { return tokens.empty() ? 0 : tokens.back(); }
  double ttft() const { return times.front() - arrival; }
  double e2e() const { return times.back() - arrival; }
  // Behind the first event.
  double tpot() const {
    const int64_t n = output_tokens() - tokens.front();
    return n > 0 ? (times.back() - times.front()) / static_cast<double>(n) : 0;
  }
};

double Now() { return std::chrono::duration<double>(Clock::now().time_since_epoch()).count(); }

// Takes events out of a stream as it comes.
class EventReader {
 public:
  explicit EventReader(Outcome* outcome) : outcome_(*outcome) {}

  void Add(std::string_view piece) {
    const double now = Now();
    text_ += piece;
    size_t begin = 0;
    for (size_t end = text_.find('\n'); end != text_.npos; end = text_.find('\n', begin)) {
      std::string_view line(text_.data() + begin, end - begin);
      if (line.ends_with('\r')) line.remove_suffix(1);
      if (line.starts_with("data:")) Take(line.substr(line.starts_with("data: ") ? 6 : 5), now);
      begin = end + 1;
    }
    text_.erase(0, begin);
  }
  bool done() const { return done_; }

 private:
  void Take(std::string_view data, double now) {
    if (data == "[DONE]") {
      done_ = true;
      return;
    }
    const absl::StatusOr<Json> event = text::ParseJson(data);
    if (!event.ok() || !event->is_object()) return Fail(fmt::format("an event is no JSON object: {}", data));
    if (event->contains("error")) return Fail(text::DumpJson((*event)["error"]));
    int64_t tokens = outcome_.output_tokens() + (HasText(*event) ? 1 : 0);
    if (const auto usage = event->find("usage"); usage != event->end() && usage->is_object()) {
      tokens = std::max(tokens, usage->value("completion_tokens", int64_t{0}));
      outcome_.prompt_tokens = usage->value("prompt_tokens", int64_t{0});
      if (const auto details = usage->find("prompt_tokens_details"); details != usage->end() && details->is_object()) {
        outcome_.cached_tokens = details->value("cached_tokens", int64_t{0});
      }
    }
    if (tokens == outcome_.output_tokens()) return;
    outcome_.times.push_back(now);
    outcome_.tokens.push_back(tokens);
  }

  // A text or a list that is not empty.
  static bool IsSome(const Json& value) {
    return value.is_string() ? !value.get_ref<const std::string&>().empty() : !value.empty();
  }

  static bool HasText(const Json& event) {
    const auto choices = event.find("choices");
    if (choices == event.end() || !choices->is_array() || choices->empty() || !(*choices)[0].is_object()) return false;
    const Json& choice = (*choices)[0];
    if (choice.contains("text")) return IsSome(choice["text"]);
    if (!choice.contains("delta") || !choice["delta"].is_object()) return false;
    for (const char* name : {"content", "reasoning_content", "reasoning", "tool_calls"}) {
      const auto field = choice["delta"].find(name);
      if (field != choice["delta"].end() && IsSome(*field)) return true;
    }
    return false;
  }

  void Fail(const std::string& what) {
    if (outcome_.status.ok()) outcome_.status = absl::InternalError(what);
  }

  Outcome& outcome_;
  std::string text_;
  bool done_ = false;
};

class ServeBench {
 public:
  ServeBench(const ServeBenchFlags& flags, Url url, Limits limits)
      : flags_(flags), url_(std::move(url)), limits_(limits), random_(static_cast<uint32_t>(flags.seed)) {}

  absl::Status Run() {
    HADAL_RETURN_IF_ERROR(FindModel());
    HADAL_RETURN_IF_ERROR(flags_.dataset.empty() ? MakePrompts() : ReadDataset());
    outcomes_.resize(requests_.size());
    const double begin = Now();
    asio::co_spawn(io_, Arrivals(begin), asio::detached);
    HADAL_RETURN_IF_ERROR(RunUntilDone());
    Report(Now() - begin);
    const auto completed =
        std::count_if(outcomes_.begin(), outcomes_.end(), [](const Outcome& o) { return o.status.ok(); });
    if (completed == 0) return outcomes_.front().status;
    return absl::OkStatus();
  }

  const Json& report() const { return report_; }

 private:
  absl::Status RunUntilDone() {
    io_.restart();
    while (io_.run_for(kInterruptPoll) > 0 || !io_.stopped()) {
      if (interrupt_.interrupted()) return absl::CancelledError("interrupted");
    }
    return absl::OkStatus();
  }

  std::string Text(const char* method, const std::string& path, const std::string& body) const {
    std::string text = fmt::format("{} {}{} HTTP/1.1\r\nHost: {}:{}\r\nConnection: close\r\nContent-Length: {}\r\n",
                                   method, url_.path, path, url_.host, url_.port, body.size());
    if (!body.empty()) text += "Content-Type: application/json\r\n";
    if (!flags_.api_key.empty()) text += fmt::format("Authorization: Bearer {}\r\n", flags_.api_key);
    return text + "\r\n" + body;
  }

  // Sends a request and hands on its answer as it comes.
  awaitable<absl::Status> Talk(std::string text, std::function<void(std::string_view)> take) {
    error_code error;
    tcp::resolver resolver(io_);
    const auto endpoints = co_await resolver.async_resolve(url_.host, url_.port, redirect_error(use_awaitable, error));
    tcp::socket socket(io_);
    for (const auto& entry : endpoints) {
      socket.close();
      socket = tcp::socket(io_);
      co_await socket.async_connect(entry.endpoint(), redirect_error(use_awaitable, error));
      if (!error) break;
    }
    if (error) {
      co_return absl::UnavailableError(
          fmt::format("cannot connect to {} port {}: {}", url_.host, url_.port, error.message()));
    }
    error_code ignored;
    socket.set_option(tcp::no_delay(true), ignored);
    co_await asio::async_write(socket, asio::buffer(text), redirect_error(use_awaitable, error));
    // A server may answer and close before it has read all.
    boost::beast::flat_buffer buffer;
    http::response_parser<http::buffer_body> parser;
    parser.body_limit(boost::none);
    co_await http::async_read_header(socket, buffer, parser, redirect_error(use_awaitable, error));
    if (error) co_return absl::UnavailableError("the server closed the connection: " + error.message());
    const unsigned status = parser.get().result_int();
    std::string refusal;
    char piece[16 << 10];
    while (!parser.is_done()) {
      parser.get().body().data = piece;
      parser.get().body().size = sizeof(piece);
      co_await http::async_read_some(socket, buffer, parser, redirect_error(use_awaitable, error));
      if (error == http::error::need_buffer) error = {};
      const std::string_view got(piece, sizeof(piece) - parser.get().body().size);
      if (status == 200) {
        take(got);
      } else if (refusal.size() < sizeof(piece)) {
        refusal += got;
      }
      if (error) co_return absl::UnavailableError("the answer was cut off: " + error.message());
    }
    if (status != 200) co_return absl::FailedPreconditionError(fmt::format("status {}: {}", status, refusal));
    co_return absl::OkStatus();
  }

  // Talk within the time that a request has.
  awaitable<absl::Status> TalkInTime(std::string text, std::function<void(std::string_view)> take) {
    asio::steady_timer timer(io_);
    timer.expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(flags_.timeout)));
    error_code ignored;
    const auto first =
        co_await (Talk(std::move(text), std::move(take)) || timer.async_wait(redirect_error(use_awaitable, ignored)));
    if (first.index() == 0) co_return std::get<0>(first);
    co_return absl::DeadlineExceededError(fmt::format("no answer within {} s", flags_.timeout));
  }

  absl::StatusOr<Json> Ask(const char* method, const std::string& path, const std::string& body) {
    std::string answer;
    absl::Status status;
    asio::co_spawn(
        io_,
        [&]() -> awaitable<void> {
          status = co_await TalkInTime(Text(method, path, body), [&](std::string_view piece) { answer += piece; });
        },
        asio::detached);
    HADAL_RETURN_IF_ERROR(RunUntilDone());
    if (!status.ok()) return absl::Status(status.code(), fmt::format("{} {}: {}", method, path, Message(status)));
    return text::ParseJson(answer);
  }

  absl::Status FindModel() {
    model_ = flags_.model;
    if (!model_.empty()) return absl::OkStatus();
    HADAL_ASSIGN_OR_RETURN(const Json models, Ask("GET", "/v1/models", ""));
    const Json id = models.value("/data/0/id"_json_pointer, Json());
    if (!id.is_string()) return absl::FailedPreconditionError("GET /v1/models: found no model; say --model");
    model_ = id;
    return absl::OkStatus();
  }

  absl::Status MakePrompts() {
    HADAL_ASSIGN_OR_RETURN(const Json answer,
                           Ask("POST", "/tokenize", text::DumpJson({{"model", model_}, {"prompt", kText}})));
    const auto tokens = answer.find("tokens");
    if (tokens == answer.end() || !tokens->is_array() || tokens->size() < 2) {
      return absl::FailedPreconditionError("POST /tokenize: expected tokens; a server without needs --dataset");
    }
    for (int64_t i = 0; i < flags_.num_prompts; ++i) {
      Json ids = Json::array();
      // Not the first, which may begin a text.
      while (ids.size() < static_cast<size_t>(flags_.input_len)) {
        ids.push_back((*tokens)[1 + random_() % (tokens->size() - 1)]);
      }
      AddRequest("/v1/completions",
                 {{"prompt", std::move(ids)}, {"max_tokens", flags_.output_len}, {"ignore_eos", true}});
    }
    return absl::OkStatus();
  }

  absl::Status ReadDataset() {
    std::ifstream file(flags_.dataset);
    if (!file) return InvalidArgument("--dataset {}: cannot be read", flags_.dataset);
    std::vector<Json> bodies;
    for (std::string line; std::getline(file, line);) {
      if (line.find_first_not_of(" \t\r") == line.npos) continue;
      absl::StatusOr<Json> body = text::ParseJson(line);
      if (!body.ok() || !body->is_object() || (!body->contains("messages") && !body->contains("prompt"))) {
        return InvalidArgument("{} line {}: expected an object with messages or prompt", flags_.dataset,
                               bodies.size() + 1);
      }
      bodies.push_back(*std::move(body));
    }
    if (bodies.empty()) return InvalidArgument("--dataset {}: expected a line, found none", flags_.dataset);
    for (int64_t i = 0; i < flags_.num_prompts; ++i) {
      Json body = bodies[static_cast<size_t>(i) % bodies.size()];
      if (!body.contains("max_tokens") && !body.contains("max_completion_tokens"))
        body["max_tokens"] = flags_.output_len;
      const bool chat = body.contains("messages");
      AddRequest(chat ? "/v1/chat/completions" : "/v1/completions", std::move(body));
    }
    return absl::OkStatus();
  }

  void AddRequest(const char* path, Json body) {
    body["model"] = model_;
    body["stream"] = true;
    body["stream_options"] = {{"include_usage", true}, {"continuous_usage_stats", true}};
    if (!body.contains("temperature")) body["temperature"] = flags_.temperature;
    if (!body.contains("seed")) body["seed"] = flags_.seed;
    requests_.push_back({path, std::move(body)});
  }

  // Starts each request when it is due.
  awaitable<void> Arrivals(double begin) {
    asio::steady_timer timer(io_);
    std::exponential_distribution<double> gap(flags_.request_rate > 0 ? flags_.request_rate : 1);
    double due = begin;
    for (size_t i = 0; i < requests_.size(); ++i) {
      error_code ignored;
      if (due > Now()) {
        timer.expires_after(std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(due - Now())));
        co_await timer.async_wait(redirect_error(use_awaitable, ignored));
      }
      // A bounded number at once closes the loop: time counts from when there is room.
      bool waited = false;
      while (flags_.max_concurrency > 0 && running_ >= flags_.max_concurrency) {
        waited = true;
        room_.expires_at(Clock::time_point::max());
        co_await room_.async_wait(redirect_error(use_awaitable, ignored));
      }
      outcomes_[i].arrival = waited ? Now() : due;
      most_running_ = std::max(most_running_, ++running_);
      asio::co_spawn(io_, One(i), asio::detached);
      if (flags_.request_rate > 0) due += gap(random_);
    }
  }

  awaitable<void> One(size_t i) {
    const Request& request = requests_[i];
    Outcome& outcome = outcomes_[i];
    EventReader reader(&outcome);
    const absl::Status status = co_await TalkInTime(Text("POST", request.path, text::DumpJson(request.body)),
                                                    [&](std::string_view piece) { reader.Add(piece); });
    if (!status.ok()) {
      outcome.status = status;
    } else if (outcome.status.ok() && !reader.done()) {
      outcome.status = absl::InternalError("the stream ended without [DONE]");
    } else if (outcome.status.ok() && outcome.times.empty()) {
      outcome.status = absl::InternalError("an answer without a token");
    }
    --running_;
    room_.cancel();
  }

  bool Good(const Outcome& o) const {
    return (limits_.ttft < 0 || o.ttft() <= limits_.ttft) && (limits_.tpot < 0 || o.tpot() <= limits_.tpot) &&
           (limits_.e2e < 0 || o.e2e() <= limits_.e2e);
  }

  void Report(double seconds) {
    std::vector<double> ttft, tpot, gaps, e2e;
    int64_t completed = 0, good = 0, input = 0, cached = 0, output = 0;
    std::string first_error;
    for (const Outcome& o : outcomes_) {
      if (!o.status.ok()) {
        if (first_error.empty()) first_error = Message(o.status);
        continue;
      }
      ++completed;
      good += Good(o) ? 1 : 0;
      input += o.prompt_tokens;
      cached += o.cached_tokens;
      output += o.output_tokens();
      ttft.push_back(o.ttft());
      e2e.push_back(o.e2e());
      if (o.output_tokens() > o.tokens.front()) tpot.push_back(o.tpot());
      // An event with several tokens counts as that many, of equal length.
      for (size_t k = 1; k < o.times.size(); ++k) {
        const int64_t n = o.tokens[k] - o.tokens[k - 1];
        gaps.insert(gaps.end(), static_cast<size_t>(n), (o.times[k] - o.times[k - 1]) / static_cast<double>(n));
      }
    }
    report_ = {{"mode", "serve"},
               {"base_url", flags_.base_url},
               {"model", model_},
               {"completed", completed},
               {"failed", static_cast<int64_t>(outcomes_.size()) - completed}};
    if (!first_error.empty()) report_["first_error"] = first_error;
    report_["seconds"] = seconds;
    report_["most_concurrent"] = most_running_;
    report_["input_tokens"] = input;
    report_["cached_tokens"] = cached;
    report_["output_tokens"] = output;
    report_["requests_per_second"] = static_cast<double>(completed) / seconds;
    if (!flags_.goodput.empty()) report_["good_requests_per_second"] = static_cast<double>(good) / seconds;
    report_["input_tokens_per_second"] = static_cast<double>(input) / seconds;
    report_["output_tokens_per_second"] = static_cast<double>(output) / seconds;
    AddDistribution("ttft", ttft, &report_);
    AddDistribution("tpot", tpot, &report_);
    AddDistribution("inter_token", gaps, &report_);
    AddDistribution("e2e", e2e, &report_);
  }

  const ServeBenchFlags& flags_;
  const Url url_;
  const Limits limits_;
  std::mt19937 random_;
  InterruptScope interrupt_;
  std::string model_;
  std::vector<Request> requests_;
  std::vector<Outcome> outcomes_;
  int64_t running_ = 0, most_running_ = 0;
  Json report_;
  asio::io_context io_{1};
  asio::steady_timer room_{io_};  // cancelled when a request has ended
};

int RunBenchServe(const ServeBenchFlags& flags) {
  absl::StatusOr<Url> url = ParseUrl(flags.base_url);
  if (!url.ok()) return Fail(kUsage, Message(url.status()));
  const absl::StatusOr<Limits> limits = ParseGoodput(flags.goodput);
  if (!limits.ok()) return Fail(kUsage, Message(limits.status()));
  ServeBench bench(flags, *std::move(url), *limits);
  const absl::Status status = bench.Run();
  if (absl::IsCancelled(status)) return Fail(kInterrupted, "interrupted");
  if (absl::IsInvalidArgument(status)) return FailRequest(status);
  if (!status.ok()) return Fail(kInternal, Message(status));
  return PrintReport(bench.report(), flags.json);
}

}  // namespace

void AddBenchServe(CLI::App* bench, int* result) {
  auto flags = std::make_shared<ServeBenchFlags>();
  CLI::App* serve = bench->add_subcommand("serve", "Load on a running server: what its users wait, what goes through");
  const std::string server = "Server", load = "Load";
  serve->add_option("--base-url", flags->base_url, "http://HOST[:PORT]")->capture_default_str()->group(server);
  serve->add_option("--model", flags->model, "Name of the model [the first that the server lists]")->group(server);
  serve->add_option("--api-key", flags->api_key, "Key to show [none]")->group(server);
  serve->add_option("--timeout", flags->timeout, "Seconds that a request may take")
      ->check(CLI::PositiveNumber)
      ->capture_default_str()
      ->group(server);
  serve->add_option("--dataset", flags->dataset, "JSONL file of bodies, used again when at its end [random prompts]")
      ->group(load);
  const auto count = [&](const char* name, int64_t* value, const char* what) {
    serve->add_option(name, *value, what)->check(CLI::PositiveNumber)->capture_default_str()->group(load);
  };
  count("--num-prompts", &flags->num_prompts, "Requests");
  count("--input-len", &flags->input_len, "Tokens of a random prompt");
  count("--output-len", &flags->output_len,
        "Tokens of an answer; with a dataset at most, where a body does not say it");
  serve->add_option("--request-rate", flags->request_rate, "Requests a second, with exponential gaps [all at once]")
      ->check(CLI::PositiveNumber)
      ->group(load);
  serve->add_option("--max-concurrency", flags->max_concurrency, "Requests at a time at most [any number]")
      ->check(CLI::PositiveNumber)
      ->group(load);
  AddList(serve, "--goodput", &flags->goodput,
          "Limit of ttft, tpot or e2e as NAME:SECONDS; may be repeated: also report the requests that keep all of them")
      ->group(load);
  serve->add_option("--temperature", flags->temperature, "0 to 2")
      ->check(CLI::Range(0.0, 2.0))
      ->capture_default_str()
      ->group(load);
  serve->add_option("--seed", flags->seed, "Of prompts, arrivals and answers")->capture_default_str()->group(load);
  serve->add_flag("--json", flags->json, "Print one JSON object")->group("Output");
  serve->footer(kExamples);
  serve->callback([=] { *result = RunBenchServe(*flags); });
}

}  // namespace hadal::cli
