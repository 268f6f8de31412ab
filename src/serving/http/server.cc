#include "serving/http/server.h"

#include <fmt/chrono.h>

#include <algorithm>
#include <atomic>
#include <boost/asio/awaitable.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/experimental/awaitable_operators.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/status.hpp>
#include <csignal>
#include <ctime>
#include <exception>
#include <future>
#include <optional>
#include <type_traits>
#include <utility>

#if HADAL_TLS
#include <boost/asio/ssl/context.hpp>
#include <boost/asio/ssl/stream.hpp>
#endif

#include "base/log.h"
#include "base/status.h"

namespace hadal::serving {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::awaitable;
using asio::redirect_error;
using asio::use_awaitable;
using asio::ip::tcp;
using boost::system::error_code;
using namespace asio::experimental::awaitable_operators;  // NOLINT(google-build-using-namespace): its only use
using Clock = std::chrono::steady_clock;

constexpr size_t kReadPiece = 16 << 10;
constexpr size_t kWritePiece = 256 << 10;           // so that the timeout of a write is one of no progress
constexpr size_t kMostPipelined = 64 << 10;         // of later requests, read while one is answered
constexpr size_t kMostDiscarded = size_t{4} << 20;  // of a body whose request was refused
constexpr std::chrono::seconds kDiscardTime{2};
constexpr std::chrono::seconds kPatience{1};  // with a reader that has max_unsent_bytes to read
constexpr int kSendBuffer = 256 << 10;        // a client that does not read shows before megabytes lie in the kernel

// What all connections share.
struct Shared {
  const HttpServerOptions& options;
  HttpHandler* handler = nullptr;
  size_t connections = 0;
  // Held; who let go of them may outlive the server.
  std::shared_ptr<std::atomic<size_t>> body_bytes = std::make_shared<std::atomic<size_t>>(0);
  bool stopping = false;
  std::function<void()> on_idle = {};  // while stopping: the last connection is gone
};

// What a body counts for while it is held.
class BodyBudget {
 public:
  explicit BodyBudget(const Shared& shared) : all_(shared.body_bytes), most_(shared.options.max_bodies_bytes) {}
  ~BodyBudget() { *all_ -= taken_; }
  BodyBudget(const BodyBudget&) = delete;
  BodyBudget& operator=(const BodyBudget&) = delete;
  bool Take(size_t bytes) {
    if (*all_ + bytes > most_) return false;
    *all_ += bytes;
    taken_ += bytes;
    return true;
  }

 private:
  const std::shared_ptr<std::atomic<size_t>> all_;
  const size_t most_;
  size_t taken_ = 0;
};

std::string_view Reason(int status) {
  const boost::beast::string_view reason = http::obsolete_reason(http::int_to_status(static_cast<unsigned>(status)));
  return {reason.data(), reason.size()};
}

// The status line and headers up to the empty line. Values come from code of ours or were checked by it.
std::string HeadText(const HttpReply& reply, bool close) {
  std::string text = fmt::format("HTTP/1.1 {} {}\r\n", reply.status, Reason(reply.status));
  text += fmt::format("Date: {:%a, %d %b %Y %H:%M:%S} GMT\r\n", fmt::gmtime(std::time(nullptr)));
  for (const auto& [name, value] : reply.headers) text += fmt::format("{}: {}\r\n", name, value);
  if (!reply.content_type.empty()) text += fmt::format("Content-Type: {}\r\n", reply.content_type);
  if (close) text += "Connection: close\r\n";
  return text;
}

// The answer to one request, as bytes that wait to be written.
class QueuedExchange final : public Exchange {
 public:
  QueuedExchange(const asio::any_io_executor& executor, size_t most_unsent, bool head_only, bool chunked, bool close)
      : changed_(executor), most_unsent_(most_unsent), head_only_(head_only), chunked_(chunked), close_(close) {
    changed_.expires_at(Clock::time_point::max());
  }

  void Send(HttpReply reply) override {
    if (gone_ || begun_) return;
    begun_ = ended_ = true;
    unsent_ += HeadText(reply, close_);
    if (reply.status != 204) unsent_ += fmt::format("Content-Length: {}\r\n", reply.body.size());
    unsent_ += "\r\n";
    if (!head_only_) unsent_ += reply.body;
    changed_.cancel();
  }

  void BeginStream(HttpReply head, std::string keep_alive) override {
    if (gone_ || begun_) return;
    begun_ = streams_ = true;
    keep_alive_ = std::move(keep_alive);
    if (!chunked_) close_ = true;  // the end of the connection is the end of the answer
    unsent_ += HeadText(head, close_) + (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n");
    changed_.cancel();
  }

  void Write(std::string_view piece) override {
    if (gone_ || ended_ || piece.empty()) return;
    if (pieces_.empty()) progress_ = Clock::now();
    pieces_ += piece;
    changed_.cancel();
    // One piece may be large; what counts is that nothing of them is taken.
    if (pieces_.size() > most_unsent_ && Clock::now() - progress_ > kPatience && cut_) cut_();
  }

  void EndStream() override {
    ended_ = true;
    changed_.cancel();
  }

  void OnGone(std::function<void()> gone) override {
    if (gone_) {
      gone();
    } else {
      on_gone_ = std::move(gone);
    }
  }

  // Of the connection, which `cut` ends.
  void Attach(std::function<void()> cut) { cut_ = std::move(cut); }
  void NoteProgress() { progress_ = Clock::now(); }
  void Detach() {
    cut_ = nullptr;
    if (done()) on_gone_ = nullptr;
  }
  void Gone() {
    gone_ = true;
    if (const auto gone = std::exchange(on_gone_, {})) gone();
  }
  // Has the answer's reader been told that the connection ends?
  bool closes() const { return close_; }
  bool done() const { return ended_ && unsent_.empty() && pieces_.empty() && last_chunk_taken_; }
  asio::steady_timer& changed() { return changed_; }

  // The next bytes for the socket; empty if there are none now.
  std::string Take() {
    std::string bytes = std::exchange(unsent_, {});
    if (!pieces_.empty()) {
      bytes += chunked_ ? fmt::format("{:x}\r\n{}\r\n", pieces_.size(), pieces_) : pieces_;
      pieces_.clear();
    }
    if (ended_ && !last_chunk_taken_) {
      if (streams_ && chunked_) bytes += "0\r\n\r\n";
      last_chunk_taken_ = true;
    }
    return bytes;
  }
  void TakeKeepAlive() {
    if (streams_ && !ended_) pieces_ += keep_alive_;
  }
  // Sends something that has no meaning to the client. False if its protocol has no such thing.
  bool Probe() {
    if (!chunked_) return false;
    if (streams_) {
      TakeKeepAlive();
    } else if (!begun_) {
      unsent_ += "HTTP/1.1 100 Continue\r\n\r\n";
    }
    close_ = true;
    changed_.cancel();
    return true;
  }

 private:
  asio::steady_timer changed_;
  const size_t most_unsent_;
  const bool head_only_;
  const bool chunked_;
  bool close_;
  bool begun_ = false, streams_ = false, ended_ = false, gone_ = false, last_chunk_taken_ = false;
  std::string unsent_, pieces_;
  std::string keep_alive_;
  Clock::time_point progress_;  // when bytes were taken, or the first came that were not
  std::function<void()> on_gone_, cut_;
};

#if HADAL_TLS
using TlsStream = asio::ssl::stream<tcp::socket>;
#endif

// What the server must know of one.
class AnyConnection {
 public:
  virtual ~AnyConnection() = default;
  // The server stops: a connection without a request ends.
  virtual void Stop() = 0;
};

// Stream: tcp::socket or TlsStream.
template <typename Stream>
class Connection final : public AnyConnection {
  static constexpr bool kTls = !std::is_same_v<Stream, tcp::socket>;

 public:
  Connection(Stream stream, Shared* shared)
      : stream_(std::move(stream)), timer_(stream_.get_executor()), shared_(*shared) {
    ++shared_.connections;
  }
  ~Connection() override {
    --shared_.connections;
    if (shared_.stopping && shared_.connections == 0 && shared_.on_idle) shared_.on_idle();
  }
  Connection(const Connection&) = delete;
  Connection& operator=(const Connection&) = delete;

  awaitable<void> Run() {
    error_code ignored;
    socket().set_option(tcp::no_delay(true), ignored);
    socket().set_option(asio::socket_base::send_buffer_size(kSendBuffer), ignored);
    buffer_.max_size(shared_.options.max_header_bytes + kMostPipelined);
    if (co_await Greet()) {
      while (co_await ServeOne()) {
      }
      co_await TakeLeave();
    }
    socket().shutdown(tcp::socket::shutdown_both, ignored);
    socket().close(ignored);
  }

  void Stop() override {
    if (idle_) Cut();
  }
  void Cut() {
    error_code ignored;
    socket().close(ignored);
    timer_.cancel();
  }

 private:
  using Parser = http::request_parser<http::buffer_body>;
  enum class Read { kDone, kFailed, kTimeout, kTooLarge, kNoRoom };

  tcp::socket& socket() {
    if constexpr (kTls) {
      return stream_.next_layer();
    } else {
      return stream_;
    }
  }

  // TLS's handshake. False if the connection is over.
  awaitable<bool> Greet() {
    if constexpr (kTls) {
      error_code error;
      idle_ = true;
      const bool in_time = co_await Timed(stream_.async_handshake(Stream::server, redirect_error(use_awaitable, error)),
                                          Clock::now() + shared_.options.header_timeout);
      idle_ = false;
      co_return in_time && !error;
    }
    co_return true;
  }

  // TLS's word that the answer ends here because it is complete.
  awaitable<void> TakeLeave() {
    if constexpr (kTls) {
      error_code ignored;
      if (!socket().is_open()) co_return;
      co_await Timed(stream_.async_shutdown(redirect_error(use_awaitable, ignored)), Clock::now() + kDiscardTime);
    }
    co_return;
  }

  // One request and its answer. False if the connection is over.
  awaitable<bool> ServeOne() {
    if (shared_.stopping) co_return false;
    if (buffer_.size() == 0 && !co_await WaitForRequest()) co_return false;
    Parser parser;
    parser.header_limit(static_cast<uint32_t>(shared_.options.max_header_bytes));
    parser.body_limit(boost::none);  // looked at here, where the reply is made
    error_code error;
    if (!co_await Timed(http::async_read_header(stream_, buffer_, parser, redirect_error(use_awaitable, error)),
                        Clock::now() + shared_.options.header_timeout)) {
      co_return co_await Fail(408, "the header of the request took too long");
    }
    if (error) co_return co_await FailParse(error);

    HttpRequest request = HeadOf(parser.get());
    const bool old = parser.get().version() < 11;
    keep_open_ = parser.keep_alive();
    head_only_ = request.method == "HEAD";
    if (parser.get().version() > 11) co_return co_await Fail(505, "expected HTTP/1.1 or HTTP/1.0");
    if (std::optional<HttpReply> refusal = shared_.handler->Refuse(request)) {
      co_return co_await Refuse(*std::move(refusal), !parser.is_done());
    }
    if (!parser.is_done()) {
      auto budget = std::make_shared<BodyBudget>(shared_);
      const Read read = co_await ReadBody(&parser, budget.get(), &request, &error);
      if (read != Read::kDone) {
        budget.reset();  // others need the room while the client takes its time
        request.body = {};
        co_return co_await FailBody(read, error);
      }
      request.budget = std::move(budget);
    }
    co_return co_await Answer(std::move(request), !old);
  }

  static HttpRequest HeadOf(const http::request_header<>& header) {
    HttpRequest request;
    request.method = std::string(header.method_string());
    request.target = std::string(header.target());
    for (const auto& field : header) {
      request.headers.emplace_back(std::string(field.name_string()), std::string(field.value()));
    }
    return request;
  }

  // Waits for an operation until `deadline`; false if that came first, and the operation was cancelled.
  template <typename Awaitable>
  awaitable<bool> Timed(Awaitable operation, Clock::time_point deadline) {
    timer_.expires_at(deadline);
    error_code ignored;
    const auto first = co_await (std::move(operation) || timer_.async_wait(redirect_error(use_awaitable, ignored)));
    co_return first.index() == 0;
  }

  // The first byte of a request.
  awaitable<bool> WaitForRequest() {
    error_code error;
    idle_ = true;
    const bool in_time = co_await Timed(ReadSome(&error), Clock::now() + shared_.options.idle_timeout);
    idle_ = false;
    co_return in_time && !error;
  }

  awaitable<void> ReadSome(error_code* error) {
    const size_t n =
        co_await stream_.async_read_some(buffer_.prepare(kReadPiece), redirect_error(use_awaitable, *error));
    buffer_.commit(n);
  }

  awaitable<Read> ReadBody(Parser* parser, BodyBudget* budget, HttpRequest* request, error_code* error) {
    const HttpServerOptions& options = shared_.options;
    const auto length = parser->content_length();
    if (length && *length > options.max_body_bytes) co_return Read::kTooLarge;
    const std::vector<std::string_view> expect = request->Header("expect");
    if (!expect.empty() && buffer_.size() == 0 && parser->get().version() >= 11) {
      if (!co_await WriteAll("HTTP/1.1 100 Continue\r\n\r\n")) co_return Read::kFailed;
    }
    const Clock::time_point begin = Clock::now();
    char piece[kReadPiece];
    while (!parser->is_done()) {
      parser->get().body().data = piece;
      parser->get().body().size = sizeof(piece);
      const auto more = std::chrono::seconds(request->body.size() / (64 << 10));
      if (!co_await Timed(ReadPiece(parser, error), begin + options.body_timeout + more)) co_return Read::kTimeout;
      if (*error == http::error::need_buffer) *error = {};
      if (*error) co_return Read::kFailed;
      const size_t n = sizeof(piece) - parser->get().body().size;
      if (request->body.size() + n > options.max_body_bytes) co_return Read::kTooLarge;
      if (!budget->Take(n)) co_return Read::kNoRoom;
      request->body.append(piece, n);
    }
    co_return Read::kDone;
  }

  awaitable<void> ReadPiece(Parser* parser, error_code* error) {
    co_await http::async_read_some(stream_, buffer_, *parser, redirect_error(use_awaitable, *error));
  }

  awaitable<bool> Answer(HttpRequest request, bool chunked) {
    if (shared_.stopping) keep_open_ = false;
    auto exchange = std::make_shared<QueuedExchange>(stream_.get_executor(), shared_.options.max_unsent_bytes,
                                                     head_only_, chunked, !keep_open_);
    exchange->Attach([this] { Cut(); });
    const Detacher detacher(exchange.get());
    shared_.handler->Handle(std::move(request), exchange);
    bool delivered = false;
    co_await (Watch(exchange.get()) || Deliver(exchange.get(), &delivered));
    co_return delivered && !exchange->closes();
  }

  // The handler may keep an exchange for longer than there is a connection.
  class Detacher {
   public:
    explicit Detacher(QueuedExchange* exchange) : exchange_(exchange) {}
    ~Detacher() {
      exchange_->Detach();
      if (!exchange_->done()) exchange_->Gone();
    }
    Detacher(const Detacher&) = delete;
    Detacher& operator=(const Detacher&) = delete;

   private:
    QueuedExchange* exchange_;
  };

  // Returns when the client is gone. What it sends meanwhile belongs to its next requests.
  awaitable<void> Watch(QueuedExchange* exchange) {
    error_code error;
    while (buffer_.size() < kMostPipelined) {
      co_await ReadSome(&error);
      if (error) break;
    }
    if (error && !IsEnd(error)) co_return;
    // The client has closed its side, or all of it. A closed socket answers the probe with a reset.
    if (error && !exchange->Probe()) co_return;
    co_await socket().async_wait(tcp::socket::wait_error, redirect_error(use_awaitable, error));
  }

  static bool IsEnd(const error_code& error) {
#if HADAL_TLS
    if (kTls && error == asio::ssl::error::stream_truncated) return true;
#endif
    return error == asio::error::eof;
  }

  // Writes what the exchange has until the answer is complete, or cannot be delivered.
  awaitable<void> Deliver(QueuedExchange* exchange, bool* delivered) {
    while (true) {
      const std::string bytes = exchange->Take();
      if (!bytes.empty() && !co_await WriteAll(bytes, exchange)) co_return;
      if (exchange->done()) break;
      if (!bytes.empty()) continue;
      error_code error;
      exchange->changed().expires_after(shared_.options.keep_alive);
      co_await exchange->changed().async_wait(redirect_error(use_awaitable, error));
      if (!error) exchange->TakeKeepAlive();
    }
    *delivered = true;
  }

  awaitable<bool> WriteAll(std::string_view bytes, QueuedExchange* exchange = nullptr) {
    while (!bytes.empty()) {
      const std::string_view piece = bytes.substr(0, kWritePiece);
      error_code error;
      asio::steady_timer timer(stream_.get_executor(), shared_.options.write_timeout);
      error_code ignored;
      const auto first =
          co_await (asio::async_write(stream_, asio::buffer(piece), redirect_error(use_awaitable, error)) ||
                    timer.async_wait(redirect_error(use_awaitable, ignored)));
      if (first.index() != 0 || error) co_return false;
      bytes.remove_prefix(piece.size());
      if (exchange != nullptr) exchange->NoteProgress();
    }
    co_return true;
  }

  awaitable<bool> Refuse(HttpReply reply, bool body_follows) {
    const bool close = body_follows || !keep_open_ || shared_.stopping;
    QueuedExchange exchange(stream_.get_executor(), 0, head_only_, true, close);
    exchange.Send(std::move(reply));
    if (!co_await WriteAll(exchange.Take())) co_return false;
    if (body_follows) co_await Discard();
    co_return !close;
  }

  awaitable<bool> Fail(int status, std::string_view message) {
    co_return co_await Refuse(shared_.handler->Fault(status, message), true);
  }

  awaitable<bool> FailParse(const error_code& error) {
    const bool http_error = error.category() == http::make_error_code(http::error::bad_method).category();
    if (!http_error || error == http::error::end_of_stream || error == http::error::partial_message) {
      co_return false;  // the client has gone
    }
    if (error == http::error::header_limit || error == http::error::buffer_overflow) {
      co_return co_await Fail(
          431, fmt::format("expected a header of at most {} bytes, found more", shared_.options.max_header_bytes));
    }
    co_return co_await Fail(400, fmt::format("the request is not HTTP/1.1: {}", error.message()));
  }

  awaitable<bool> FailBody(Read read, const error_code& error) {
    switch (read) {
      case Read::kTimeout:
        co_return co_await Fail(408, "the body of the request took too long");
      case Read::kTooLarge:
        co_return co_await Fail(
            413, fmt::format("expected a body of at most {} bytes, found more", shared_.options.max_body_bytes));
      case Read::kNoRoom:
        co_return co_await Fail(503, "too many large requests at once: try again later");
      default:
        co_return co_await FailParse(error);
    }
  }

  // Reads what is still coming of a body, so that the client sees the reply and not a reset connection.
  awaitable<void> Discard() {
    error_code error;
    if constexpr (!kTls) socket().shutdown(tcp::socket::shutdown_send, error);
    const Clock::time_point deadline = Clock::now() + kDiscardTime;
    size_t read = 0;
    while (read < kMostDiscarded && !error) {
      buffer_.clear();
      if (!co_await Timed(ReadSome(&error), deadline)) co_return;
      read += buffer_.size();
    }
  }

  Stream stream_;
  asio::steady_timer timer_;
  Shared& shared_;
  boost::beast::flat_buffer buffer_;
  bool idle_ = false;
  bool keep_open_ = true;
  bool head_only_ = false;  // of the request at hand
};

class BeastServer final : public HttpServer {
 public:
  explicit BeastServer(const HttpServerOptions& options)
      : options_(options), acceptor_(io_), signals_(io_), stop_timer_(io_), workers_(options.workers) {}
  ~BeastServer() override {
    workers_.stop();
    workers_.join();
  }

  absl::Status Bind() {
    HADAL_RETURN_IF_ERROR(ReadCertificate());
    error_code error;
    const asio::ip::address address = asio::ip::make_address(options_.host, error);
    if (error) return InvalidArgument("--host: expected an IP address, found {}", options_.host);
    const tcp::endpoint endpoint(address, static_cast<uint16_t>(options_.port));
    acceptor_.open(endpoint.protocol(), error);
    if (!error) acceptor_.set_option(asio::socket_base::reuse_address(true), error);
    if (!error) acceptor_.bind(endpoint, error);
    if (!error) acceptor_.listen(asio::socket_base::max_listen_connections, error);
    if (error) {
      return absl::UnavailableError(
          fmt::format("cannot listen on {} port {}: {}", options_.host, options_.port, error.message()));
    }
    return absl::OkStatus();
  }

#if HADAL_TLS
  absl::Status ReadCertificate() {
    if (options_.tls_cert_file.empty()) return absl::OkStatus();
    tls_.emplace(asio::ssl::context::tls_server);
    SSL_CTX_set_min_proto_version(tls_->native_handle(), TLS1_2_VERSION);
    error_code error;
    tls_->use_certificate_chain_file(options_.tls_cert_file, error);
    if (error) {
      return InvalidArgument("{}: expected a chain of certificates in PEM: {}", options_.tls_cert_file,
                             error.message());
    }
    tls_->use_private_key_file(options_.tls_key_file, asio::ssl::context::pem, error);
    if (error) {
      return InvalidArgument("{}: expected the certificate's private key in PEM: {}", options_.tls_key_file,
                             error.message());
    }
    return absl::OkStatus();
  }
#else
  absl::Status ReadCertificate() const {
    if (options_.tls_cert_file.empty()) return absl::OkStatus();
    return absl::UnimplementedError("this build of hadal has no TLS (HADAL_TLS)");
  }
#endif

  int port() const override {
    error_code ignored;
    return acceptor_.local_endpoint(ignored).port();
  }

  void Run(HttpHandler* handler) override {
    shared_.handler = handler;
    asio::co_spawn(io_, Accept(), asio::detached);
    const auto guard = asio::make_work_guard(io_);
    while (!io_.stopped()) {
      try {
        io_.run();
      } catch (const std::exception& error) {
        spdlog::error("the server's thread: {}", error.what());  // out of memory: what it was at is lost, it goes on
      }
    }
  }

  void Post(std::function<void()> function) override { asio::post(io_, std::move(function)); }
  void Work(std::function<void()> function) override { asio::post(workers_, std::move(function)); }

  void OnSignal(std::function<void()> function) override {
    std::promise<void> added;
    Post([&] {
      error_code ignored;
      signals_.add(SIGINT, ignored);
      signals_.add(SIGTERM, ignored);
      asio::co_spawn(io_, Signals(function), asio::detached);
      added.set_value();
    });
    added.get_future().wait();
  }

  void Stop(std::chrono::milliseconds most) override {
    Post([this, most] {
      shared_.stopping = true;
      error_code ignored;
      acceptor_.close(ignored);
      if (shared_.connections == 0) {
        io_.stop();
        return;
      }
      shared_.on_idle = [this] { io_.stop(); };
      for (AnyConnection* connection : connections_) connection->Stop();
      stop_timer_.expires_after(most);
      stop_timer_.async_wait([this](const error_code&) { io_.stop(); });
    });
  }

 private:
  awaitable<void> Accept() {
    while (acceptor_.is_open()) {
      error_code error;
      tcp::socket socket = co_await acceptor_.async_accept(redirect_error(use_awaitable, error));
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) co_return;
      if (error) {
        // Out of file descriptors, most likely: some will be free soon.
        spdlog::warn("cannot accept a connection: {}", error.message());
        asio::steady_timer pause(io_, std::chrono::milliseconds(100));
        co_await pause.async_wait(redirect_error(use_awaitable, error));
        continue;
      }
      if (shared_.connections >= options_.max_connections) {
        TurnAway(&socket);
        continue;
      }
#if HADAL_TLS
      if (tls_) {
        asio::co_spawn(io_, Serve(TlsStream(std::move(socket), *tls_)), asio::detached);
        continue;
      }
#endif
      asio::co_spawn(io_, Serve(std::move(socket)), asio::detached);
    }
  }

  template <typename Stream>
  awaitable<void> Serve(Stream stream) {
    Connection<Stream> connection(std::move(stream), &shared_);
    connections_.push_back(&connection);
    try {
      co_await connection.Run();
    } catch (const std::exception& error) {
      // Out of memory, or a fault of ours: it ends this connection and no other.
      spdlog::error("a connection failed: {}", error.what());
    }
    std::erase(connections_, static_cast<AnyConnection*>(&connection));
  }

  // A reply that surely fits into the empty buffer of a new socket. With TLS there is none: it would take a handshake.
  void TurnAway(tcp::socket* socket) {
    if (!options_.tls_cert_file.empty()) return;
    HttpReply reply = shared_.handler->Fault(503, "too many connections: try again later");
    const std::string text =
        HeadText(reply, true) + fmt::format("Content-Length: {}\r\n\r\n{}", reply.body.size(), reply.body);
    error_code ignored;
    socket->non_blocking(true, ignored);
    socket->write_some(asio::buffer(text), ignored);
    socket->shutdown(tcp::socket::shutdown_send, ignored);
  }

  awaitable<void> Signals(std::function<void()> function) {
    while (true) {
      error_code error;
      co_await signals_.async_wait(redirect_error(use_awaitable, error));
      if (error) co_return;
      function();
    }
  }

  // Connections end with io_, and look at what stands before it.
  const HttpServerOptions options_;
  std::vector<AnyConnection*> connections_;
  Shared shared_{options_};
#if HADAL_TLS
  std::optional<asio::ssl::context> tls_;  // connections use it
#endif
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer stop_timer_;
  asio::thread_pool workers_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<HttpServer>> HttpServer::Listen(const HttpServerOptions& options) {
  auto server = std::make_unique<BeastServer>(options);
  HADAL_RETURN_IF_ERROR(server->Bind());
  return server;
}

}  // namespace hadal::serving
