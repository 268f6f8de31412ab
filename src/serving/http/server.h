// The HTTP/1.1 server: connections, limits and timeouts. One thread does all socket work; whatever takes time goes to
// workers. Boost.Beast is included by server.cc alone, because its headers compile slowly.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "serving/http/exchange.h"

namespace hadal::serving {

struct HttpServerOptions {
  std::string host = "127.0.0.1";
  int port = 0;  // 0: any that is free
  // PEM files of the certificate, with those that vouch for it behind, and of its key; without them there is no TLS.
  std::string tls_cert_file = {}, tls_key_file = {};

  size_t max_header_bytes = size_t{64} << 10;
  size_t max_body_bytes = size_t{64} << 20;
  // Bodies that are held at one time, of all connections; beyond that a request is told to come again.
  size_t max_bodies_bytes = size_t{1} << 30;
  size_t max_connections = 4096;
  size_t max_unsent_bytes = size_t{1} << 20;  // of a stream of which nothing is read; then it is given up

  std::chrono::milliseconds idle_timeout{120'000};   // between requests
  std::chrono::milliseconds header_timeout{30'000};  // from a request's first byte to the end of its header
  // For a body, and one second more for every 64 KiB that have come.
  std::chrono::milliseconds body_timeout{30'000};
  std::chrono::milliseconds write_timeout{30'000};  // in which nothing could be written
  std::chrono::milliseconds keep_alive{5'000};      // of streams

  int workers = 8;  // a grammar takes up to ten seconds to compile, and others are not to wait for it
};

class HttpServer {
 public:
  // Binds and listens. InvalidArgument for a host that is no address and for files that are no certificate and key,
  // Unavailable for an address that cannot be had, Unimplemented for TLS in a build without it.
  static absl::StatusOr<std::unique_ptr<HttpServer>> Listen(const HttpServerOptions& options);
  virtual ~HttpServer() = default;

  virtual int port() const = 0;
  // Serves until Stop. On the calling thread, which is the server's thread from then on.
  virtual void Run(HttpHandler* handler) = 0;
  // From any thread: runs it on the server's thread, or on one of the workers.
  virtual void Post(std::function<void()> function) = 0;
  virtual void Work(std::function<void()> function) = 0;
  // From any other thread, while it runs: each signal of SIGINT and SIGTERM from the return on, on the server's thread.
  virtual void OnSignal(std::function<void()> function) = 0;
  // From any thread: connections end behind the answer that they are at, and no new ones are taken. Run returns when
  // all have ended, or at the deadline.
  virtual void Stop(std::chrono::milliseconds most) = 0;
};

}  // namespace hadal::serving
