// HTTPS: the same server behind a handshake.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/ssl.hpp>
#include <boost/asio/write.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <boost/beast/http/string_body.hpp>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <memory>

#include "../../e2e/serve/http_client.h"
#include "base/status.h"
#include "echo_server.h"

namespace hadal::test {
namespace {

namespace asio = boost::asio;
namespace http = boost::beast::http;
using asio::ip::tcp;
using boost::system::error_code;
using testing::HasSubstr;

struct Close {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Close>;

// A certificate for localhost that vouches for itself, and its key.
class TlsTest : public testing::Test {
 protected:
  void SetUp() override {
    const std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)> key(EVP_EC_gen("P-256"), EVP_PKEY_free);
    const std::unique_ptr<X509, decltype(&X509_free)> cert(X509_new(), X509_free);
    ASSERT_TRUE(key && cert);
    X509_set_version(cert.get(), 2);
    ASN1_INTEGER_set(X509_get_serialNumber(cert.get()), 1);
    X509_gmtime_adj(X509_getm_notBefore(cert.get()), -3600);
    X509_gmtime_adj(X509_getm_notAfter(cert.get()), 3600);
    X509_set_pubkey(cert.get(), key.get());
    X509_NAME* name = X509_get_subject_name(cert.get());
    X509_NAME_add_entry_by_txt(name, "CN", MBSTRING_ASC, reinterpret_cast<const unsigned char*>("localhost"), -1, -1,
                               0);
    X509_set_issuer_name(cert.get(), name);
    ASSERT_GT(X509_sign(cert.get(), key.get(), EVP_sha256()), 0);
    PEM_write_X509(File(std::fopen(cert_.c_str(), "w")).get(), cert.get());
    PEM_write_PrivateKey(File(std::fopen(key_.c_str(), "w")).get(), key.get(), nullptr, nullptr, 0, nullptr, nullptr);
    std::ofstream(other_) << "no PEM";
  }
  void TearDown() override {
    for (const std::string& path : {cert_, key_, other_}) std::filesystem::remove(path);
  }

  HttpServerOptions Options() const { return {.tls_cert_file = cert_, .tls_key_file = key_}; }

  const std::string stem_ = testing::TempDir() + fmt::format("tls_{}", getpid());
  const std::string cert_ = stem_ + ".crt", key_ = stem_ + ".key", other_ = stem_ + ".txt";
};

class TlsClient {
 public:
  TlsClient(int port, const std::string& trusted) {
    context_.load_verify_file(trusted);
    stream_.emplace(io_, context_);
    stream_->next_layer().connect(tcp::endpoint(asio::ip::address_v4::loopback(), static_cast<uint16_t>(port)));
    const timeval limit = {.tv_sec = 60, .tv_usec = 0};
    setsockopt(stream_->next_layer().native_handle(), SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof(limit));
    stream_->set_verify_mode(asio::ssl::verify_peer);
    stream_->handshake(asio::ssl::stream_base::client);
  }
  void Send(const std::string& bytes) { asio::write(*stream_, asio::buffer(bytes)); }
  std::string Post(const std::string& target, const std::string& body, const Headers& headers = {}) {
    Send(RequestText("POST", target, body, headers));
    http::response_parser<http::string_body> parser;
    parser.body_limit(boost::none);
    error_code error;
    http::read(*stream_, buffer_, parser, error);
    return error ? "error: " + error.message() : parser.get().body();
  }
  // What reading gives at the end: eof is a proper end, stream_truncated a cut.
  error_code ReadToEnd() {
    char byte = 0;
    error_code error;
    while (!error) stream_->read_some(asio::buffer(&byte, 1), error);
    return error;
  }

 private:
  asio::io_context io_;
  asio::ssl::context context_{asio::ssl::context::tls_client};
  std::optional<asio::ssl::stream<tcp::socket>> stream_;
  boost::beast::flat_buffer buffer_;
};

TEST_F(TlsTest, AnswersOneRequestBehindTheOther) {
  Served served(Options());
  TlsClient client(served.port(), cert_);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(client.Post("/echo", fmt::format("number {}", i)), fmt::format("number {}", i));
  std::string words;
  for (int i = 0; i < 3000; ++i) words += fmt::format("{} ", i);
  EXPECT_EQ(client.Post("/words", words), words);
  EXPECT_EQ(client.Post("/large", "").size(), size_t{64} << 20);
  EXPECT_EQ(client.Post("/echo", "last", {{"Connection", "close"}}), "last");
  EXPECT_EQ(client.ReadToEnd(), asio::error::eof);
  EXPECT_EQ(served.handler.gone, 0);
}

TEST_F(TlsTest, ManyAtOnce) {
  Served served(Options());
  std::vector<std::thread> threads;
  for (int t = 0; t < 16; ++t) {
    threads.emplace_back([&, t] {
      TlsClient client(served.port(), cert_);
      for (int i = 0; i < 10; ++i) {
        const std::string words = fmt::format("{} and {} and more", t, i);
        EXPECT_EQ(client.Post("/words", words), words);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(TlsTest, AClientThatLeavesIsNoticed) {
  Served served(Options());
  auto client = std::make_unique<TlsClient>(served.port(), cert_);
  client->Send(RequestText("POST", "/stream", "{}"));
  const std::shared_ptr<Exchange> exchange = served.handler.held.get_future().get();
  served.server().Post([exchange] { exchange->Write("piece"); });
  EXPECT_EQ(served.handler.gone, 0);
  client.reset();
  for (int i = 0; i < 6000 && served.handler.gone == 0; ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  EXPECT_EQ(served.handler.gone, 1);
}

TEST_F(TlsTest, WhatIsNoHandshakeEnds) {
  HttpServerOptions options = Options();
  options.header_timeout = std::chrono::milliseconds(150);
  Served served(options);
  Client plain(served.port()), silent(served.port());
  EXPECT_EQ(plain.Get("/echo").status, 0);
  EXPECT_TRUE(silent.Closed());
  EXPECT_EQ(TlsClient(served.port(), cert_).Post("/echo", "secret"), "secret");
}

TEST_F(TlsTest, FilesThatAreNone) {
  const auto error = [](const std::string& cert, const std::string& key) {
    const absl::Status status = HttpServer::Listen({.tls_cert_file = cert, .tls_key_file = key}).status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << status;
    return std::string(Message(status));
  };
  EXPECT_THAT(error(other_, key_), HasSubstr(other_ + ": expected a chain of certificates in PEM"));
  EXPECT_THAT(error(cert_, other_), HasSubstr(other_ + ": expected the certificate's private key in PEM"));
  EXPECT_THAT(error("/nonexistent", key_), HasSubstr("/nonexistent"));
}

}  // namespace
}  // namespace hadal::test
