// One HTTP request and where its answer goes, without a socket in sight.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace hadal::serving {

using HttpHeaders = std::vector<std::pair<std::string, std::string>>;

struct HttpRequest {
  std::string method;
  std::string target;  // as it was sent
  HttpHeaders headers;
  std::string body;
  std::shared_ptr<void> budget;  // what the body counts for in the server's limit; goes with it

  // Values of a header, whatever the case of its name.
  std::vector<std::string_view> Header(std::string_view name) const;
};

struct HttpReply {
  int status = 200;
  std::string content_type = "application/json";
  std::string body;
  HttpHeaders headers;
};

// Methods are for the server's thread alone (HttpServer::Post).
class Exchange {
 public:
  virtual ~Exchange() = default;

  // A whole answer.
  virtual void Send(HttpReply reply) = 0;
  // Or a stream: its head, pieces, and the end. `keep_alive` is sent whenever nothing was for a while.
  virtual void BeginStream(HttpReply head, std::string keep_alive) = 0;
  virtual void Write(std::string_view piece) = 0;
  virtual void EndStream() = 0;
  // Called once if the answer cannot be delivered any more: the client has gone, or does not read. What is given to
  // the other methods afterwards is dropped. Called at once if that is so already.
  virtual void OnGone(std::function<void()> gone) = 0;
};

class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  // Called when a request's headers are there, before its body is read. A reply ends it; the connection is closed if a
  // body is on its way.
  virtual std::optional<HttpReply> Refuse(const HttpRequest& head) = 0;
  // The request is complete. Answers through `exchange`, now or later.
  virtual void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) = 0;
  // The reply to what is no request that the server could hand over (malformed, too large, too slow).
  virtual HttpReply Fault(int status, std::string_view message) = 0;
};

}  // namespace hadal::serving
