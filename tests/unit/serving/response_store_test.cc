#include "serving/responses/response_store.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace hadal::serving {
namespace {

StoredResponse Of(size_t bytes) { return {std::string(bytes, 'r'), ""}; }

TEST(ResponseStore, BelongsToItsOwner) {
  ResponseStore store({});
  EXPECT_TRUE(store.Put("ann", "1", {"response", "items"}));
  ASSERT_NE(store.Get("ann", "1"), nullptr);
  EXPECT_EQ(store.Get("ann", "1")->response, "response");
  EXPECT_EQ(store.Get("ann", "1")->items, "items");
  EXPECT_EQ(store.Get("bob", "1"), nullptr);
  EXPECT_EQ(store.Get("", "1"), nullptr);
  EXPECT_EQ(store.Get("ann", "2"), nullptr);
  EXPECT_FALSE(store.Delete("bob", "1"));
  EXPECT_EQ(store.bytes(), 13u);
  EXPECT_TRUE(store.Delete("ann", "1"));
  EXPECT_FALSE(store.Delete("ann", "1"));
  EXPECT_EQ(store.size(), 0u);
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, TheLongestUnusedGo) {
  ResponseStore store({.max_responses = 2});
  store.Put("", "1", Of(1));
  store.Put("", "2", Of(1));
  EXPECT_NE(store.Get("", "1"), nullptr);
  store.Put("", "3", Of(1));
  EXPECT_NE(store.Get("", "1"), nullptr);
  EXPECT_EQ(store.Get("", "2"), nullptr);
  EXPECT_NE(store.Get("", "3"), nullptr);
  EXPECT_EQ(store.size(), 2u);
}

TEST(ResponseStore, BytesAreBounded) {
  ResponseStore store({.max_bytes = 100});
  EXPECT_FALSE(store.Put("", "big", Of(101)));
  EXPECT_TRUE(store.Put("", "1", Of(60)));
  EXPECT_TRUE(store.Put("", "1", Of(50)));  // in its place
  EXPECT_EQ(store.bytes(), 50u);
  EXPECT_TRUE(store.Put("", "2", Of(50)));
  EXPECT_EQ(store.size(), 2u);
  EXPECT_TRUE(store.Put("", "3", Of(51)));
  EXPECT_EQ(store.size(), 1u);
  EXPECT_EQ(store.bytes(), 51u);
  ResponseStore none({.max_responses = 0});
  EXPECT_FALSE(none.Put("", "1", Of(1)));
}

TEST(ResponseStore, WhatIsOldIsGone) {
  ResponseStore::Clock::time_point now;
  ResponseStore store({.ttl = std::chrono::seconds(10), .now = [&now] { return now; }});
  store.Put("", "1", Of(1));
  now += std::chrono::seconds(10);
  EXPECT_NE(store.Get("", "1"), nullptr);
  now += std::chrono::seconds(1);
  EXPECT_EQ(store.Get("", "1"), nullptr);
  EXPECT_EQ(store.size(), 0u);
  store.Put("", "2", Of(1));
  now += std::chrono::seconds(11);
  store.Put("", "3", Of(1));
  EXPECT_EQ(store.size(), 1u);
}

TEST(ResponseStore, ManyThreads) {
  ResponseStore store({.max_responses = 16, .max_bytes = 1000});
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&store, t] {
      const std::string owner(1, static_cast<char>('a' + t));
      for (int i = 0; i < 2000; ++i) {
        const std::string id = owner + std::to_string(i % 20);
        store.Put(owner, id, Of(static_cast<size_t>(i % 100)));
        const auto got = store.Get(owner, id);
        EXPECT_TRUE(got == nullptr || got->items.empty());
        if (i % 7 == 0) store.Delete(owner, id);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(store.size(), 16u);
  EXPECT_LE(store.bytes(), 1000u);
}

}  // namespace
}  // namespace hadal::serving
