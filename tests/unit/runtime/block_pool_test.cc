#include "runtime/kv/block_pool.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <set>
#include <vector>

namespace hadal::runtime {
namespace {

TEST(BlockPool, GivesEverySlabOnceAndTakesItBack) {
  BlockPool pool(3, [](int64_t) { FAIL(); });
  const std::set<int32_t> slabs = {pool.Allocate(), pool.Allocate(), pool.Allocate()};
  EXPECT_EQ(slabs, (std::set<int32_t>{0, 1, 2}));
  EXPECT_EQ(pool.available(), 0);
  pool.Hold(1);
  pool.LetGo(1);
  EXPECT_EQ(pool.available(), 0) << "held twice, let go once";
  pool.LetGo(1);
  EXPECT_EQ(pool.available(), 1);
  EXPECT_EQ(pool.Allocate(), 1);
  EXPECT_TRUE(pool.Consistent());
}

TEST(BlockPool, GivesUpWhatWasLetGoFirst) {
  std::vector<int64_t> evicted;
  BlockPool pool(4, [&](int64_t tag) { evicted.push_back(tag); });
  std::vector<int32_t> slabs;
  for (int i = 0; i < 4; ++i) slabs.push_back(pool.Allocate());
  pool.Keep(std::span(slabs).subspan(0, 2), 100);
  pool.Keep(std::span(slabs).subspan(2, 1), 200);
  for (const int i : {2, 0, 1, 3}) pool.LetGo(slabs[i]);
  EXPECT_EQ(pool.available(), 4);
  EXPECT_EQ(pool.Allocate(), slabs[3]) << "free ones go first";
  EXPECT_EQ(pool.Allocate(), slabs[2]);
  EXPECT_EQ(evicted, (std::vector<int64_t>{200}));
  // Held again in between, 100 cannot be given up.
  pool.Hold(slabs[0]);
  EXPECT_EQ(pool.available(), 0);
  pool.LetGo(slabs[0]);
  pool.Allocate();
  EXPECT_EQ(evicted, (std::vector<int64_t>{200, 100}));
  EXPECT_EQ(pool.available(), 1) << "its other slab is free now";
  EXPECT_TRUE(pool.Consistent());
}

// A million operations against a plain account of who holds what.
TEST(BlockPool, RandomOperationsLoseAndDoubleNothing) {
  constexpr int64_t kSlabs = 64;
  std::mt19937 random(7);
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  std::map<int64_t, std::vector<int32_t>> kept;  // by tag
  std::map<int64_t, BlockPool::ObjectId> ids;
  std::vector<int> holders(kSlabs, 0);
  std::vector<int32_t> held;  // once for each hold
  std::set<int32_t> in_object;
  const auto forget = [&](int64_t tag) {
    for (const int32_t slab : kept.at(tag)) in_object.erase(slab);
    kept.erase(tag);
    ids.erase(tag);
  };
  BlockPool pool(kSlabs, [&](int64_t tag) {
    for (const int32_t slab : kept.at(tag)) ASSERT_EQ(holders[slab], 0) << "gave up a slab that is held";
    forget(tag);
  });
  int64_t next_tag = 0;
  for (int step = 0; step < 1'000'000; ++step) {
    const size_t what = below(10);
    if (what < 4) {
      if (pool.available() == 0) continue;
      const int32_t slab = pool.Allocate();
      ASSERT_EQ(holders[slab], 0);
      ASSERT_FALSE(in_object.contains(slab));
      holders[slab] = 1;
      held.push_back(slab);
    } else if (what < 8) {
      if (held.empty()) continue;
      std::swap(held[below(held.size())], held.back());
      --holders[held.back()];
      pool.LetGo(held.back());
      held.pop_back();
    } else if (what == 8) {
      std::set<int32_t> some;
      for (size_t i = 0; i < 1 + below(4) && !held.empty(); ++i) {
        const int32_t slab = held[below(held.size())];
        if (!in_object.contains(slab)) some.insert(slab);
      }
      if (some.empty()) continue;
      const std::vector<int32_t> slabs(some.begin(), some.end());
      kept[next_tag] = slabs;
      in_object.insert(slabs.begin(), slabs.end());
      ids[next_tag] = pool.Keep(slabs, next_tag);
      ++next_tag;
    } else if (!ids.empty()) {
      const auto object = std::next(ids.begin(), static_cast<std::ptrdiff_t>(below(ids.size())));
      if (below(4) == 0) {
        pool.Drop(object->second);
        forget(object->first);
      } else {
        for (const int32_t slab : kept.at(object->first)) {
          pool.Hold(slab);
          ++holders[slab];
          held.push_back(slab);
        }
      }
    }
    if (held.size() > 200) {
      for (const int32_t slab : held) {
        --holders[slab];
        pool.LetGo(slab);
      }
      held.clear();
    }
    if (step % 1000 == 0) {
      ASSERT_TRUE(pool.Consistent()) << step;
    }
  }
  for (const int32_t slab : held) pool.LetGo(slab);
  EXPECT_EQ(pool.available(), kSlabs);
  EXPECT_TRUE(pool.Consistent());
}

}  // namespace
}  // namespace hadal::runtime
