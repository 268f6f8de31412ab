#include "http_client.h"

#include <algorithm>
#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/buffer_body.hpp>
#include <boost/beast/http/parser.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <optional>

namespace hadal::test {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;

namespace {

template <typename Message>
void TakeHead(const Message& message, Answer* answer) {
  answer->status = static_cast<int>(message.result_int());
  answer->chunked = message.chunked();
  for (const auto& field : message) {
    std::string name(field.name_string());
    std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return std::tolower(c); });
    answer->headers[name] = std::string(field.value());
  }
}

}  // namespace

struct Client::Impl {
  asio::io_context io;
  tcp::socket socket{io};
  boost::beast::flat_buffer buffer;
  std::optional<http::response_parser<http::buffer_body>> parser;
};

Client::Client(int port, int receive_buffer) : impl_(std::make_unique<Impl>()) {
  impl_->socket.open(tcp::v4());
  if (receive_buffer > 0) impl_->socket.set_option(asio::socket_base::receive_buffer_size(receive_buffer));
  // A server that hangs fails the test instead of holding it up.
  const timeval limit = {.tv_sec = 60, .tv_usec = 0};
  setsockopt(impl_->socket.native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
  impl_->socket.connect(tcp::endpoint(asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)));
}

Client::~Client() = default;

bool Client::Send(std::string_view bytes) {
  error_code error;
  asio::write(impl_->socket, asio::buffer(bytes), error);
  return !error;
}

Answer Client::Read(bool to_head) {
  while (true) {
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    parser.skip(to_head);
    error_code error;
    http::read(impl_->socket, impl_->buffer, parser, error);
    Answer answer;
    if (error) return answer;
    TakeHead(parser.get(), &answer);
    if (answer.status == 100) continue;
    answer.body = parser.get().body();
    return answer;
  }
}

Answer Client::ReadHead() {
  Answer answer;
  do {
    impl_->parser.emplace();
    impl_->parser->body_limit(boost::none);
    error_code error;
    http::read_header(impl_->socket, impl_->buffer, *impl_->parser, error);
    if (error) return {};
    TakeHead(impl_->parser->get(), &answer);
  } while (answer.status == 100);
  return answer;
}

std::string Client::ReadSome() {
  char piece[4096];
  while (!impl_->parser->is_done()) {
    auto& body = impl_->parser->get().body();
    body.data = piece;
    body.size = sizeof(piece);
    error_code error;
    http::read_some(impl_->socket, impl_->buffer, *impl_->parser, error);
    if (error && error != http::error::need_buffer) return "";
    if (body.size < sizeof(piece)) return {piece, sizeof(piece) - body.size};
  }
  return "";
}

bool Client::Closed() {
  char byte = 0;
  error_code error;
  impl_->socket.read_some(asio::buffer(&byte, 1), error);
  return error == asio::error::eof || error == asio::error::connection_reset;
}

void Client::ShutdownSend() { impl_->socket.shutdown(tcp::socket::shutdown_send); }

void Client::Close() { impl_->socket.close(); }

Answer Client::Get(const std::string& target, const Headers& headers) {
  Send(RequestText("GET", target, "", headers));
  return Read();
}

Answer Client::Post(const std::string& target, const std::string& body, const Headers& headers) {
  Send(RequestText("POST", target, body, headers));
  return Read();
}

std::string RequestText(const std::string& method, const std::string& target, const std::string& body,
                        const Headers& headers) {
  std::string text = method + " " + target + " HTTP/1.1\r\nHost: localhost\r\n";
  bool typed = false;
  for (const auto& [name, value] : headers) {
    text += name + ": " + value + "\r\n";
    typed = typed || name == "Content-Type";
  }
  if (method == "POST") {
    if (!typed) text += "Content-Type: application/json\r\n";
    text += "Content-Length: " + std::to_string(body.size()) + "\r\n";
  }
  return text + "\r\n" + body;
}

}  // namespace hadal::test
