// What the server answers: routes, keys, errors, and the state of the engine behind it (spec serving-runtime 6).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine.h"
#include "runtime/service.h"
#include "serving/http/auth.h"
#include "serving/http/exchange.h"
#include "serving/http/metrics.h"
#include "serving/http/request_log.h"
#include "serving/http/router.h"
#include "serving/http/server.h"
#include "serving/responses/response_store.h"

namespace hadal::serving {

struct ApiOptions {
  std::string version;
  std::vector<std::string> model_names;  // at least one; the first is what answers say where a request gives none
  ApiKeys keys;
  std::vector<std::string> cors_origins;  // "*" among them: all
  int64_t max_waiting = 4096;
  size_t response_store_bytes = size_t{256} << 20;  // of answers of /v1/responses that are kept; 0: none
  bool log_requests = false;
  bool log_content = false;
};

class Api : public HttpHandler {
 public:
  Api(ApiOptions options, HttpServer* server);

  // The engine is there: requests are taken from now on. Both outlive the server's Run. From any thread, as Drain.
  void Start(const runtime::Engine* engine, runtime::Service* service, Metrics* metrics);
  // New requests are turned away from the return on.
  void Drain();

  std::optional<HttpReply> Refuse(const HttpRequest& head) override;
  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override;
  HttpReply Fault(int status, std::string_view message) override;

 private:
  struct Call;

  bool Ready() const { return service_ != nullptr && !draining_; }
  bool Healthy() const;
  // Status, protocol's shape, and for those who may try again when.
  HttpReply ErrorReply(const Endpoint* endpoint, int status, const absl::Status& error) const;
  HttpReply ErrorReply(const Endpoint* endpoint, const absl::Status& error) const;
  std::optional<HttpReply> CheckPost(const HttpRequest& head, const Endpoint& endpoint) const;
  HttpReply Finished(HttpReply reply, const HttpRequest& request, const std::string& id) const;
  HttpReply Preflight(const HttpRequest& request, const Route& route) const;
  HttpReply Get(const Route& route) const;
  // A stored response or its input; the former is deleted by DELETE.
  HttpReply Stored(const HttpRequest& request, const Route& route) const;
  text::Json ModelJson(const std::string& name) const;
  void Post(HttpRequest request, const Endpoint& endpoint, std::shared_ptr<Exchange> exchange, RequestRecord record);
  // On a worker.
  void Parse(const std::shared_ptr<Call>& call) const;
  void Generate(const std::shared_ptr<Call>& call, Job job) const;
  void Reply(const std::shared_ptr<Call>& call, HttpReply reply) const;
  void Log(const RequestRecord& record) const;

  const ApiOptions options_;
  const std::unique_ptr<ResponseStore> store_;  // null: nothing is stored
  HttpServer* server_;
  ParseOptions parse_options_;
  // Of the server's thread.
  const runtime::Engine* engine_ = nullptr;
  runtime::Service* service_ = nullptr;
  Metrics* metrics_ = nullptr;
  int64_t created_ = 0;  // when the engine was there, seconds since 1970
  bool draining_ = false;
};

}  // namespace hadal::serving
