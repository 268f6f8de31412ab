// Paths, routes and keys.
#include "serving/http/router.h"

#include <gtest/gtest.h>

#include "serving/http/auth.h"
#include "serving/http/metrics.h"

namespace hadal::serving {
namespace {

TEST(PathOf, Normalizes) {
  const std::pair<const char*, const char*> good[] = {
      {"/", "/"},
      {"/health", "/health"},
      {"/health/", "/health"},
      {"/health?a=b/../c", "/health"},
      {"/%68ealth", "/health"},
      {"http://host:1/v1/models", "/v1/models"},
      {"https://host", "/"},
      {"/v1/models/a%2Fb", "/v1/models/a/b"},
      {"/v1/models/..a", "/v1/models/..a"},
      {"*", "*"},
  };
  for (const auto& [target, path] : good) EXPECT_EQ(PathOf(target), path) << target;
  for (const char* bad : {"", "health", "//health", "/a//b", "/a/../b", "/..", "/a/.", "/%2e%2e/a", "/a%2F..%2Fb", "/%",
                          "/%4", "/%zz", "/a%00", "/a%0d%0a", "ftp://host/a", "http:/a", "/a%7f", "/a/b//"}) {
    EXPECT_EQ(PathOf(bad), std::nullopt) << bad;
  }
}

TEST(QueryOf, IsWhatFollowsThePath) {
  EXPECT_EQ(QueryOf("/a?b=c&d=%20#e?f"), "b=c&d=%20");
  EXPECT_EQ(QueryOf("/a?b?c"), "b?c");
  for (const char* none : {"", "/a", "/a?", "/a#b?c"}) EXPECT_EQ(QueryOf(none), "") << none;
}

TEST(FindRoute, KnowsWhatThereIs) {
  EXPECT_EQ(FindRoute("/v1/models/org/name")->name, "org/name");
  EXPECT_EQ(FindRoute("/v1/models")->kind, Route::Kind::kModels);
  const std::optional<Route> response = FindRoute("/v1/responses/resp_1");
  EXPECT_EQ(response->kind, Route::Kind::kResponse);
  EXPECT_EQ(response->name, "resp_1");
  EXPECT_TRUE(response->Takes("GET") && response->Takes("HEAD") && response->Takes("DELETE"));
  EXPECT_FALSE(response->Takes("POST"));
  EXPECT_EQ(response->methods(), "GET, HEAD, DELETE, OPTIONS");
  const std::optional<Route> items = FindRoute("/v1/responses/resp_1/input_items");
  EXPECT_EQ(items->kind, Route::Kind::kResponseItems);
  EXPECT_EQ(items->name, "resp_1");
  EXPECT_FALSE(items->Takes("DELETE"));
  for (const char* none :
       {"/v1/responses/", "/v1/responses//input_items", "/v1/responses/a/b", "/v1/responses/a/b/input_items"}) {
    EXPECT_FALSE(FindRoute(none).has_value()) << none;
  }
  for (const Endpoint& endpoint : Endpoints()) {
    const std::optional<Route> route = FindRoute(endpoint.path);
    ASSERT_TRUE(route.has_value());
    EXPECT_EQ(route->endpoint, &endpoint);
    EXPECT_TRUE(route->Takes("POST"));
    EXPECT_FALSE(route->Takes("GET"));
    EXPECT_NE(endpoint.error, nullptr);
    EXPECT_NE(endpoint.answer != nullptr, endpoint.parse != nullptr);
    EXPECT_EQ(endpoint.parse != nullptr, endpoint.build != nullptr && endpoint.encode != nullptr);
  }
  // The page and what it loads.
  for (const char* path : {"/", "/app.js", "/markdown.js", "/style.css", "/icon.svg"}) {
    const std::optional<Route> route = FindRoute(path);
    ASSERT_TRUE(route.has_value()) << path;
    ASSERT_NE(route->file, nullptr);
    EXPECT_GT(route->file->body.size(), 100);
    EXPECT_TRUE(route->Takes("GET"));
    EXPECT_FALSE(route->Takes("POST"));
  }
  for (const char* path : {"*", "/v1", "/Health", "/v1/embeddings", "/index.html", "/app.mjs"}) {
    EXPECT_FALSE(FindRoute(path).has_value()) << path;
  }
}

TEST(ApiKeys, WhoMay) {
  ApiKeys keys;
  EXPECT_TRUE(keys.Admits({}, false)) << "nobody asks for a key";
  keys.Add("secret");
  const auto admits = [&](HttpHeaders headers, bool x_api_key = false) {
    HttpRequest request;
    request.headers = std::move(headers);
    return keys.Admits(request, x_api_key);
  };
  EXPECT_TRUE(admits({{"Authorization", "Bearer secret"}}));
  EXPECT_TRUE(admits({{"AUTHORIZATION", "BEARER   secret"}}));
  EXPECT_TRUE(admits({{"x-api-key", "secret"}}, true));
  EXPECT_FALSE(admits({{"x-api-key", "secret"}}, false));
  EXPECT_FALSE(admits({{"Authorization", "Bearer wrong"}, {"x-api-key", "secret"}}, true));
  EXPECT_FALSE(admits({{"x-api-key", "secret"}, {"x-api-key", "secret"}}, true));
  EXPECT_FALSE(admits({{"Authorization", "Bearersecret"}}));
  EXPECT_FALSE(admits({}));
}

TEST(ApiKeys, KnowWhoseARequestIs) {
  const auto with = [](std::string_view key) {
    HttpRequest request;
    request.headers = {{"Authorization", fmt::format("Bearer {}", key)}};
    return request;
  };
  ApiKeys keys;
  EXPECT_EQ(keys.OwnerOf(with("ann")), "") << "without keys all are one";
  keys.Add("ann");
  keys.Add("bob");
  EXPECT_EQ(keys.OwnerOf(with("ann")).size(), 64u);
  EXPECT_EQ(keys.OwnerOf(with("  ann")), keys.OwnerOf(with("ann")));
  EXPECT_NE(keys.OwnerOf(with("bob")), keys.OwnerOf(with("ann")));
}

TEST(Metrics, StepsOfSeveralTokensAreDividedAmongThem) {
  Metrics metrics({.model_name = "a\"b\\c\nd", .max_model_len = 100, .cache_dtype = "auto"});
  const auto begin = RequestMetrics::Clock::now();
  const auto at = [&](int seconds) { return begin + std::chrono::seconds(seconds); };
  RequestMetrics request(&metrics, 7, 0);
  request.OnToken(at(1));
  for (int i = 0; i < 3; ++i) request.OnToken(at(4));  // three tokens in three seconds
  request.OnToken(at(6));
  runtime::GenerateResult result;
  result.token_ids.resize(5);
  result.finish_reason = runtime::FinishReason::kLength;
  request.OnDone(result);
  RequestMetrics(&metrics, 1, 5).OnDone(absl::InternalError("broken"));

  const std::string text = metrics.Text({});
  const auto has = [&](const std::string& line) {
    EXPECT_NE(text.find("vllm:" + line), text.npos) << line << "\n" << text;
  };
  const std::string labels = R"(model_name="a\"b\\c\nd",engine="0")";
  has("inter_token_latency_seconds_sum{" + labels + "} 5\n");
  has("inter_token_latency_seconds_count{" + labels + "} 4\n");
  has("inter_token_latency_seconds_bucket{" + labels + ",le=\"1\"} 3\n");
  has("inter_token_latency_seconds_bucket{" + labels + ",le=\"2.5\"} 4\n");
  has("inter_token_latency_seconds_bucket{" + labels + ",le=\"+Inf\"} 4\n");
  has("prompt_tokens_total{" + labels + "} 7\n");
  has("generation_tokens_total{" + labels + "} 5\n");
  has("request_success_total{" + labels + ",finished_reason=\"length\"} 1\n");
  has("request_success_total{" + labels + ",finished_reason=\"error\"} 1\n");
  has("corrupted_requests_total{" + labels + "} 1\n");
}

}  // namespace
}  // namespace hadal::serving
