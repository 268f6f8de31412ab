// A server whose handler answers at the test's word.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "serving/http/server.h"

namespace hadal::test {

using serving::Exchange;
using serving::HttpHandler;
using serving::HttpReply;
using serving::HttpRequest;
using serving::HttpServer;
using serving::HttpServerOptions;

inline constexpr const char* kComment = ": still here\n\n";

// Echoes bodies. /hold: keeps the exchange and the request for the test; /stream: the same, with its stream begun;
// /large: an answer of 64 MiB; /words: a stream of the words of its body, from a worker; /throw: fails as a handler
// without memory would.
class Echo : public HttpHandler {
 public:
  std::optional<HttpReply> Refuse(const HttpRequest& head) override {
    if (head.target == "/refuse") return HttpReply{.status = 403, .content_type = {}, .body = {}, .headers = {}};
    return std::nullopt;
  }

  void Handle(HttpRequest request, std::shared_ptr<Exchange> exchange) override {
    exchange->OnGone([this] { ++gone; });
    if (request.target == "/throw") throw std::bad_alloc();
    if (request.target == "/large") return exchange->Send(Text(std::string(size_t{64} << 20, 'a')));
    if (request.target == "/words") return Words(std::move(request), std::move(exchange));
    if (request.target == "/hold" || request.target == "/stream") {
      if (request.target == "/stream") exchange->BeginStream({}, kComment);
      kept = std::move(request);
      held.set_value(std::move(exchange));
      return;
    }
    exchange->Send(Text(request.body));
  }

  HttpReply Fault(int status, std::string_view message) override {
    HttpReply reply = Text(std::string(message));
    reply.status = status;
    return reply;
  }

  static HttpReply Text(std::string body) {
    return {.status = 200, .content_type = "text/plain", .body = std::move(body), .headers = {}};
  }

  void Words(HttpRequest request, std::shared_ptr<Exchange> exchange) {
    exchange->BeginStream({}, kComment);
    server->Work([this, body = std::move(request.body), exchange] {
      for (size_t at = 0; at < body.size();) {
        const size_t end = std::min(body.find(' ', at), body.size() - 1) + 1;
        server->Post([exchange, word = body.substr(at, end - at)] { exchange->Write(word); });
        at = end;
      }
      server->Post([exchange] { exchange->EndStream(); });
    });
  }

  HttpServer* server = nullptr;
  std::promise<std::shared_ptr<Exchange>> held;
  HttpRequest kept;  // of the server's thread
  std::atomic<int> gone = 0;
};

class Served {
 public:
  explicit Served(HttpServerOptions options = {}) {
    auto listening = HttpServer::Listen(options);
    EXPECT_TRUE(listening.ok()) << listening.status();
    server_ = *std::move(listening);
    handler.server = server_.get();
    thread_ = std::thread([this] { server_->Run(&handler); });
  }
  ~Served() {
    server_->Stop(std::chrono::milliseconds(0));
    if (thread_.joinable()) thread_.join();
  }
  Served(const Served&) = delete;
  Served& operator=(const Served&) = delete;

  HttpServer& server() { return *server_; }
  int port() const { return server_->port(); }
  void Join() { thread_.join(); }

  Echo handler;

 private:
  std::unique_ptr<HttpServer> server_;
  std::thread thread_;
};

}  // namespace hadal::test
