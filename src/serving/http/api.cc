#include "serving/http/api.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <future>
#include <utility>

#include "base/status.h"
#include "serving/http/generation.h"
#include "serving/openai/fields.h"
#include "serving/responses/responses.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr size_t kMaxRequestId = 128;
constexpr double kMostStepSeconds = 300;  // of one step; a service that takes longer is taken for dead

std::string RequestIdOf(const HttpRequest& request) {
  const std::vector<std::string_view> given = request.Header("x-request-id");
  const auto printable = [](char c) { return c > 0x20 && c < 0x7f; };
  if (given.size() == 1 && !given[0].empty() && given[0].size() <= kMaxRequestId &&
      std::all_of(given[0].begin(), given[0].end(), printable)) {
    return std::string(given[0]);
  }
  return RandomId("req_");
}

// "application/json; charset=utf-8" and the like.
bool IsJson(std::string_view type) {
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ') || type.ends_with('\t')) type.remove_suffix(1);
  std::string lower(type);
  std::transform(lower.begin(), lower.end(), lower.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; });
  return lower == "application/json";
}

// Names of headers and commas, as a browser asks for them; anything else is not given back.
bool IsHeaderList(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_' ||
           c == ',' || c == ' ';
  });
}

// What the name in a body must be, if it is there; the parser says what else is wrong with it.
absl::Status CheckModel(const Json& body, const std::vector<std::string>& names) {
  if (!body.is_object() || !body.contains("model") || !body["model"].is_string()) return absl::OkStatus();
  const auto& name = body["model"].get_ref<const std::string&>();
  if (std::find(names.begin(), names.end(), name) != names.end()) return absl::OkStatus();
  absl::Status status = NotFound("The model `{}` does not exist.", name);
  status.SetPayload(kParamPayload, absl::Cord("model"));
  return status;
}

std::unique_ptr<ResponseStore> MakeStore(size_t bytes) {
  if (bytes == 0) return nullptr;
  ResponseStore::Options options;
  options.max_bytes = bytes;
  return std::make_unique<ResponseStore>(std::move(options));
}

}  // namespace

struct Api::Call {
  HttpRequest request;
  const Endpoint& endpoint;
  std::shared_ptr<Exchange> exchange;
  RequestRecord record;
  std::atomic<bool> gone = false;
};

Api::Api(ApiOptions options, HttpServer* server)
    : options_(std::move(options)), store_(MakeStore(options_.response_store_bytes)), server_(server) {
  parse_options_.model = options_.model_names.front();
  parse_options_.store = store_.get();
  // Where keys are asked for, clients are strangers to each other: nobody goes before the others by a number.
  if (!options_.keys.empty()) parse_options_.best_priority = 0;
}

void Api::Start(const runtime::Engine* engine, runtime::Service* service, Metrics* metrics) {
  server_->Post([this, engine, service, metrics] {
    engine_ = engine;
    service_ = service;
    metrics_ = metrics;
    created_ =
        std::chrono::duration_cast<std::chrono::seconds>(std::chrono::system_clock::now().time_since_epoch()).count();
  });
}

void Api::Drain() {
  std::promise<void> done;
  server_->Post([this, &done] {
    draining_ = true;
    done.set_value();
  });
  done.get_future().wait();
}

bool Api::Healthy() const {
  if (!Ready()) return false;
  const runtime::ServiceStats stats = service_->stats();
  return stats.step_seconds < kMostStepSeconds && stats.executor.failed_steps == 0;
}

HttpReply Api::ErrorReply(const Endpoint* endpoint, int status, const absl::Status& error) const {
  HttpReply reply;
  reply.status = status;
  reply.body = text::DumpJson(endpoint != nullptr ? endpoint->error(status, error) : ErrorBody(status, error));
  if (status == 429 || status == 503) reply.headers.emplace_back("Retry-After", "1");
  if (status == 401) reply.headers.emplace_back("WWW-Authenticate", "Bearer");
  return reply;
}

HttpReply Api::ErrorReply(const Endpoint* endpoint, const absl::Status& error) const {
  const int status = endpoint != nullptr ? endpoint->status(error) : HttpStatus(error);
  return ErrorReply(endpoint, status == 429 && draining_ ? 503 : status, error);
}

HttpReply Api::Fault(int status, std::string_view message) {
  return ErrorReply(nullptr, status, absl::InvalidArgumentError({message.data(), message.size()}));
}

HttpReply Api::Finished(HttpReply reply, const HttpRequest& request, const std::string& id) const {
  reply.headers.emplace_back("X-Request-Id", id);
  reply.headers.emplace_back("Request-Id", id);  // where Anthropic's clients look
  if (options_.cors_origins.empty()) return reply;
  const std::vector<std::string>& allowed = options_.cors_origins;
  const bool all = std::find(allowed.begin(), allowed.end(), "*") != allowed.end();
  const std::vector<std::string_view> origin = request.Header("origin");
  if (!all) reply.headers.emplace_back("Vary", "Origin");
  if (origin.size() != 1) return reply;
  if (!all && std::find(allowed.begin(), allowed.end(), origin[0]) == allowed.end()) return reply;
  reply.headers.emplace_back("Access-Control-Allow-Origin", all ? "*" : std::string(origin[0]));
  reply.headers.emplace_back("Access-Control-Expose-Headers", "X-Request-Id, Request-Id, Retry-After");
  return reply;
}

HttpReply Api::Preflight(const HttpRequest& request, const Route& route) const {
  HttpReply reply;
  reply.status = 204;
  reply.content_type.clear();
  reply.headers.emplace_back("Allow", route.methods());
  if (options_.cors_origins.empty()) return reply;
  reply.headers.emplace_back("Access-Control-Allow-Methods", route.methods());
  const std::vector<std::string_view> wanted = request.Header("access-control-request-headers");
  if (wanted.size() == 1 && IsHeaderList(wanted[0])) {
    reply.headers.emplace_back("Access-Control-Allow-Headers", wanted[0]);
  }
  reply.headers.emplace_back("Access-Control-Max-Age", "600");
  return reply;
}

std::optional<HttpReply> Api::Refuse(const HttpRequest& head) {
  const std::optional<std::string> path = PathOf(head.target);
  const std::optional<Route> route = path.has_value() ? FindRoute(*path) : std::nullopt;
  const Endpoint* endpoint = route.has_value() ? route->endpoint : nullptr;
  std::optional<HttpReply> reply;
  // The page is no secret: it asks for the key itself.
  if (route.has_value() && (route->kind == Route::Kind::kHealth || route->kind == Route::Kind::kWeb)) {
    if (!route->Takes(head.method) && head.method != "OPTIONS") {
      reply = ErrorReply(nullptr, 405, InvalidArgument("expected GET, found {}", head.method));
      reply->headers.emplace_back("Allow", route->methods());
    }
  } else if (head.method != "OPTIONS" &&
             !options_.keys.Admits(head, endpoint != nullptr && endpoint->takes_x_api_key)) {
    reply =
        ErrorReply(endpoint, 401, absl::UnauthenticatedError("expected a valid API key: Authorization: Bearer KEY"));
  } else if (!route.has_value()) {
    reply = ErrorReply(nullptr, 404, absl::NotFoundError("there is no such path"));
  } else if (!route->Takes(head.method) && head.method != "OPTIONS") {
    reply = ErrorReply(endpoint, 405, InvalidArgument("expected one of {}, found {}", route->methods(), head.method));
    reply->headers.emplace_back("Allow", route->methods());
  } else if (endpoint != nullptr && head.method == "POST") {
    reply = CheckPost(head, *endpoint);
  }
  if (!reply.has_value()) return reply;
  RequestRecord record;
  record.id = RequestIdOf(head);
  record.method = head.method;
  record.route = route.has_value() ? *path : "none";
  record.status = reply->status;
  Log(record);
  return Finished(*std::move(reply), head, record.id);
}

// What can be said before the body is read.
std::optional<HttpReply> Api::CheckPost(const HttpRequest& head, const Endpoint& endpoint) const {
  if (!Ready()) {
    return ErrorReply(&endpoint, 503,
                      absl::UnavailableError(draining_ ? "the server is stopping" : "the model is being loaded"));
  }
  const std::vector<std::string_view> type = head.Header("content-type");
  if (type.size() != 1 || !IsJson(type[0])) {
    return ErrorReply(
        &endpoint, 415,
        InvalidArgument("expected Content-Type: application/json, found {}",
                        type.size() == 1 ? Json(type[0]).dump(-1, ' ', true, Json::error_handler_t::replace) : "none"));
  }
  const std::vector<std::string_view> coding = head.Header("content-encoding");
  if (!coding.empty() && coding[0] != "identity") {
    return ErrorReply(&endpoint, 415, InvalidArgument("expected no Content-Encoding: bodies are taken as they are"));
  }
  if (endpoint.parse != nullptr && service_->stats().waiting >= options_.max_waiting) {
    metrics_->CountRejection();
    return ErrorReply(&endpoint, 429, absl::UnavailableError("too many requests are waiting already: try again later"));
  }
  return std::nullopt;
}

void Api::Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) {
  const std::optional<std::string> path = PathOf(request.target);
  const std::optional<Route> route = path.has_value() ? FindRoute(*path) : std::nullopt;
  HADAL_CHECK(route.has_value());  // Refuse let it through
  RequestRecord record;
  record.id = RequestIdOf(request);
  record.method = request.method;
  record.route = *path;
  if (route->kind == Route::Kind::kEndpoint && request.method == "POST") {
    Post(std::move(request), *route->endpoint, std::move(exchange), std::move(record));
    return;
  }
  const bool is_stored = route->kind == Route::Kind::kResponse || route->kind == Route::Kind::kResponseItems;
  if (is_stored && request.method != "OPTIONS") {
    // It takes time to read what is large.
    auto shared = std::make_shared<HttpRequest>(std::move(request));
    server_->Work([this, shared, route = *route, exchange = std::move(exchange), record = std::move(record)]() mutable {
      HttpReply reply;
      try {
        reply = Stored(*shared, route);
      } catch (const std::exception& error) {
        reply = ErrorReply(nullptr, absl::InternalError(error.what()));
      }
      server_->Post([this, shared, exchange, record, reply = std::move(reply)]() mutable {
        record.status = reply.status;
        exchange->Send(Finished(std::move(reply), *shared, record.id));
        Log(record);
      });
    });
    return;
  }
  HttpReply reply = request.method == "OPTIONS" ? Preflight(request, *route) : Get(*route);
  record.status = reply.status;
  exchange->Send(Finished(std::move(reply), request, record.id));
  Log(record);
}

Json Api::ModelJson(const std::string& name) const {
  return {{"id", name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "hadal"},
          {"root", options_.model_names.front()},
          {"parent", nullptr},
          {"max_model_len", engine_ != nullptr ? Json(engine_->max_model_len()) : Json()},
          {"capabilities", {{"vision", engine_ != nullptr && engine_->takes_images()}}}};
}

HttpReply Api::Get(const Route& route) const {
  HttpReply reply;
  switch (route.kind) {
    case Route::Kind::kHealth:
    case Route::Kind::kPing:
      reply.content_type.clear();
      reply.status = Healthy() ? 200 : 503;
      return reply;
    case Route::Kind::kVersion:
      reply.body = text::DumpJson({{"version", options_.version}});
      return reply;
    case Route::Kind::kWeb:
      reply.content_type = route.file->media_type;
      reply.body = route.file->body;
      reply.headers.emplace_back("Content-Security-Policy", kWebContentSecurityPolicy);
      reply.headers.emplace_back("X-Content-Type-Options", "nosniff");
      reply.headers.emplace_back("Referrer-Policy", "no-referrer");
      reply.headers.emplace_back("Cache-Control", "no-cache");  // the next version may be another
      return reply;
    default:
      break;
  }
  if (service_ == nullptr) return ErrorReply(nullptr, 503, absl::UnavailableError("the model is being loaded"));
  if (route.kind == Route::Kind::kMetrics) {
    reply.content_type = "text/plain; version=0.0.4; charset=utf-8";
    reply.body = metrics_->Text(service_->stats());
    return reply;
  }
  if (route.kind == Route::Kind::kModels) {
    Json list = Json::array();
    for (const std::string& name : options_.model_names) list.push_back(ModelJson(name));
    reply.body = text::DumpJson({{"object", "list"}, {"data", std::move(list)}});
    return reply;
  }
  const absl::Status known = CheckModel({{"model", route.name}}, options_.model_names);
  if (!known.ok()) return ErrorReply(nullptr, known);
  reply.body = text::DumpJson(ModelJson(route.name));
  return reply;
}

HttpReply Api::Stored(const HttpRequest& request, const Route& route) const {
  HttpReply reply;
  const std::string owner = options_.keys.OwnerOf(request);
  const absl::Status none = NotFound("no response {} is stored{}", Describe(Json(route.name)),
                                     store_ == nullptr ? ": storing them is off" : "");
  if (store_ == nullptr) return ErrorReply(nullptr, none);
  if (request.method == "DELETE") {
    if (!store_->Delete(owner, route.name)) return ErrorReply(nullptr, none);
    reply.body = text::DumpJson({{"id", route.name}, {"object", "response"}, {"deleted", true}});
    return reply;
  }
  const std::shared_ptr<const StoredResponse> stored = store_->Get(owner, route.name);
  if (stored == nullptr) return ErrorReply(nullptr, none);
  if (route.kind == Route::Kind::kResponse) {
    reply.body = stored->response;
    return reply;
  }
  const absl::StatusOr<ItemPage> page = ParseItemPage(QueryOf(request.target));
  if (!page.ok()) return ErrorReply(nullptr, page.status());
  const absl::StatusOr<Json> list = ListInputItems(*stored, *page);
  if (!list.ok()) return ErrorReply(nullptr, list.status());
  reply.body = text::DumpJson(*list);
  return reply;
}

void Api::Post(HttpRequest request, const Endpoint& endpoint, std::shared_ptr<Exchange> exchange,
               RequestRecord record) {
  // NOLINTNEXTLINE(modernize-make-shared): it takes no aggregate in clang 14
  auto call = std::shared_ptr<Call>(new Call{std::move(request), endpoint, std::move(exchange), std::move(record)});
  if (options_.log_content) LogContent(call->record.id, "request", call->request.body);
  call->exchange->OnGone([call] { call->gone = true; });
  server_->Work([this, call] {
    try {
      Parse(call);
    } catch (const std::exception& error) {
      server_->Post([this, call, what = std::string(error.what())] {
        Reply(call, ErrorReply(&call->endpoint, absl::InternalError(what)));
      });
    }
  });
}

void Api::Parse(const std::shared_ptr<Call>& call) const {
  if (call->gone) return;
  const Endpoint& endpoint = call->endpoint;
  absl::StatusOr<Json> body = text::ParseJson(call->request.body);
  absl::Status status = body.status();
  if (status.ok()) status = CheckModel(*body, options_.model_names);
  call->request.body = {};
  call->request.budget.reset();
  HttpReply reply;
  if (status.ok() && endpoint.parse != nullptr) {
    ParseOptions options = parse_options_;
    options.owner = options_.keys.OwnerOf(call->request);
    absl::StatusOr<Job> job = endpoint.parse(*body, *engine_, options);
    if (job.ok()) {
      auto shared = std::make_shared<Job>(*std::move(job));
      server_->Post([this, call, shared] { Generate(call, std::move(*shared)); });
      return;
    }
    status = job.status();
  } else if (status.ok()) {
    const absl::StatusOr<Json> answer = endpoint.answer(*body, *engine_, parse_options_);
    status = answer.status();
    if (answer.ok()) reply.body = text::DumpJson(*answer);
  }
  server_->Post([this, call, status, reply = std::move(reply)]() mutable {
    Reply(call, status.ok() ? std::move(reply) : ErrorReply(&call->endpoint, status));
  });
}

void Api::Reply(const std::shared_ptr<Call>& call, HttpReply reply) const {
  call->record.status = reply.status;
  call->exchange->Send(Finished(std::move(reply), call->request, call->record.id));
  Log(call->record);
}

void Api::Generate(const std::shared_ptr<Call>& call, Job job) const {
  if (call->gone) return;
  if (draining_) {
    Reply(call, ErrorReply(&call->endpoint, 503, absl::UnavailableError("the server is stopping")));
    return;
  }
  const Generation::Place place = {&call->endpoint, service_, server_, metrics_, engine_->tokenizer()};
  Generation::Ends ends;
  ends.refuse = [this, call](const absl::Status& status) { return ErrorReply(&call->endpoint, status); };
  ends.finish = [this, call](HttpReply reply) { return Finished(std::move(reply), call->request, call->record.id); };
  ends.over = [this](const RequestRecord& record) { Log(record); };
  ends.log_content = options_.log_content;
  std::make_shared<Generation>(place, std::move(ends), std::move(job), call->exchange, call->record)->Start();
}

void Api::Log(const RequestRecord& record) const {
  if (options_.log_requests) LogRequest(record);
}

}  // namespace hadal::serving
