// Keys, and pages of other origins.
#include <fstream>

#include "server_process.h"

namespace hadal::test {
namespace {

TEST(ServeAuth, AsksForAKey) {
  const std::string path = testing::TempDir() + "serve_keys.txt";
  std::ofstream(path) << "# of the tests\nfile-key\r\n\nanother\n";
  const ServerProcess server({"--api-key", "secret", "--api-key-file", path});
  const auto status = [&](const Headers& headers, const char* target = "/v1/models") {
    return Client(server.port()).Get(target, headers).status;
  };
  for (const char* key : {"secret", "file-key", "another"}) {
    EXPECT_EQ(status({{"Authorization", std::string("Bearer ") + key}}), 200) << key;
  }
  EXPECT_EQ(status({{"authorization", "bearer secret"}}), 200);
  const Headers wrong[] = {{},
                           {{"Authorization", "Bearer "}},
                           {{"Authorization", "Bearer secre"}},
                           {{"Authorization", "Bearer secret2"}},
                           {{"Authorization", "Basic secret"}},
                           {{"Authorization", "secret"}},
                           {{"x-api-key", "secret"}},
                           {{"Authorization", "Bearer secret"}, {"Authorization", "Bearer secret"}},
                           {{"Authorization", "Bearer " + std::string(60000, 'a')}},
                           {{"Authorization", "Bearer # of the tests"}}};
  for (const Headers& headers : wrong) EXPECT_EQ(status(headers), 401);
  for (const char* target : {"/metrics", "/nothing", "/version", "//v1/models", "/v1/%2e%2e/v1/models"}) {
    EXPECT_EQ(status({}, target), 401) << target;
  }
  EXPECT_EQ(status({}, "/health"), 200);
  Client client(server.port());
  const Answer answer = client.Post("/v1/chat/completions", Chat("hi").dump());
  EXPECT_EQ(answer.status, 401);
  EXPECT_EQ(answer.headers.at("www-authenticate"), "Bearer");
  EXPECT_EQ(json::parse(answer.body)["error"]["type"], "AuthenticationError");
}

TEST(ServeAuth, TellsBrowsersWhoMay) {
  const ServerProcess server({"--cors-origin", "https://a.example", "--api-key", "k"});
  const auto headers = [&](const std::string& origin) {
    Client client(server.port());
    client.Send(RequestText("OPTIONS", "/v1/chat/completions", "",
                            {{"Origin", origin},
                             {"Access-Control-Request-Method", "POST"},
                             {"Access-Control-Request-Headers", "authorization, content-type, x-stainless-os"}}));
    Answer answer = client.Read();
    EXPECT_EQ(answer.status, 204);
    return answer.headers;
  };
  const auto good = headers("https://a.example");
  EXPECT_EQ(good.at("access-control-allow-origin"), "https://a.example");
  EXPECT_EQ(good.at("access-control-allow-headers"), "authorization, content-type, x-stainless-os");
  EXPECT_EQ(good.at("access-control-allow-methods"), "POST, OPTIONS");
  EXPECT_EQ(good.at("vary"), "Origin");
  EXPECT_EQ(headers("https://b.example").count("access-control-allow-origin"), 0u);
  const Answer get = Client(server.port()).Get("/health", {{"Origin", "https://a.example"}});
  EXPECT_EQ(get.headers.at("access-control-allow-origin"), "https://a.example");
  // Where nothing is allowed nothing is said.
  EXPECT_EQ(Client(Shared().port())
                .Get("/health", {{"Origin", "https://a.example"}})
                .headers.count("access-control-allow-origin"),
            0u);
}

}  // namespace
}  // namespace hadal::test
