#include "runtime/kv/kv_cache.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <string>

#include "paged_fake_model.h"

namespace hadal::runtime {
namespace {

using test::PagedFakeModel;

models::ModelLimits Limits(int64_t slabs, int64_t seqs = 4) {
  models::ModelLimits limits;
  limits.max_seqs = seqs;
  limits.max_context = 1024;
  limits.max_batch_tokens = 64;
  limits.cache_slabs = slabs;
  return limits;
}

std::vector<int32_t> Tokens(int64_t count, int32_t first = 3) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class KvCacheTest : public testing::Test {
 protected:
  void Make(int64_t slabs, KvCacheOptions options = {}) {
    model_ = std::make_unique<PagedFakeModel>(2000, Limits(slabs));
    cache_ = std::make_unique<KvCache>(model_.get(), options);
  }
  // Computes tokens [from, to) of a sequence in one go.
  void Compute(int32_t slot, const std::vector<int32_t>& tokens, int64_t to) {
    ASSERT_TRUE(cache_->Reserve(slot, to));
    cache_->Commit(slot, tokens, to);
  }
  // A whole sequence, begun and ended; returns what it found.
  int64_t Serve(const std::vector<int32_t>& tokens, std::vector<KvImage> images = {}, const std::string& salt = "") {
    const int64_t found = cache_->Begin(0, {.prompt = tokens, .images = std::move(images), .salt = salt});
    for (int64_t at = found; at < static_cast<int64_t>(tokens.size());) {
      at = std::min<int64_t>(at + 48, static_cast<int64_t>(tokens.size()));
      Compute(0, tokens, at);
    }
    cache_->End(0);
    EXPECT_TRUE(cache_->Consistent());
    return found;
  }

  std::unique_ptr<PagedFakeModel> model_;
  std::unique_ptr<KvCache> cache_;
};

TEST_F(KvCacheTest, APromptIsFoundUpToTheLastBoundaryBeforeItsEnd) {
  // At least one token is computed: 32 tokens give 16, 33 give 32.
  for (const auto& [size, want] : std::vector<std::pair<int64_t, int64_t>>{
           {1, 0}, {15, 0}, {16, 0}, {17, 16}, {31, 16}, {32, 16}, {33, 32}, {48, 32}, {49, 48}, {200, 192}}) {
    Make(400);
    EXPECT_EQ(Serve(Tokens(size)), 0);
    EXPECT_EQ(Serve(Tokens(size)), want) << size;
    EXPECT_EQ(cache_->stats().hit_tokens, want);
    EXPECT_EQ(cache_->stats().query_tokens, 2 * size);
  }
}

TEST_F(KvCacheTest, ALongerPromptGoesOnWhereTheShorterOneEnded) {
  Make(400);
  Serve(Tokens(100));
  EXPECT_EQ(cache_->CachedTokens({.prompt = Tokens(300)}), 96);
  EXPECT_EQ(Serve(Tokens(300)), 96);
}

TEST_F(KvCacheTest, WherePromptsPartATailIsKeptTheSecondTime) {
  Make(400);
  std::vector<int32_t> one = Tokens(200), two = Tokens(200), three = Tokens(200);
  for (size_t i = 100; i < 200; ++i) {
    two[i] += 500;
    three[i] += 900;
  }
  Serve(one);
  EXPECT_EQ(Serve(two), 0) << "the first one's tail is at 192 only";
  EXPECT_EQ(Serve(three), 96) << "the second one left a tail where the two parted";
}

TEST_F(KvCacheTest, AnAnswerIsFoundByTheNextTurn) {
  Make(400);
  const std::vector<int32_t> all = Tokens(150);
  std::vector<int32_t> prompt(all.begin(), all.begin() + 40);
  cache_->Begin(0, {.prompt = prompt});
  Compute(0, all, 40);
  for (int64_t at = 41; at <= 149; ++at) Compute(0, all, at);
  cache_->End(0);
  std::vector<int32_t> next = all;
  next.push_back(7);
  EXPECT_EQ(Serve(next), 144);
}

TEST_F(KvCacheTest, OtherSaltsAndImagesShareNothing) {
  Make(600);
  const std::vector<int32_t> tokens = Tokens(100);
  KvImage image = {.offset = 20, .length = 9};
  image.content[0] = 1;
  KvImage other = image;
  other.content[0] = 2;
  EXPECT_EQ(Serve(tokens, {image}), 0);
  EXPECT_EQ(Serve(tokens, {image}), 96);
  EXPECT_EQ(Serve(tokens, {other}), 0) << "up to the image the blocks are the same, but no tail is there";
  EXPECT_EQ(Serve(tokens, {}), 16) << "the second image left one where the prompts part";
  EXPECT_EQ(Serve(tokens, {image}, "someone"), 0);
  EXPECT_EQ(Serve(tokens, {image}, "someone"), 96);
  EXPECT_EQ(Serve(tokens, {image}), 96);
}

TEST_F(KvCacheTest, ABoundaryInsideAnImageIsNone) {
  // Boundaries at 16, 32, 48: the image covers 30 to 52, so 32 and 48 are inside.
  for (const auto& [offset, length, want] : std::vector<std::tuple<int64_t, int64_t, int64_t>>{{30, 22, 16},
                                                                                               {32, 16, 48},
                                                                                               {31, 17, 48},
                                                                                               {33, 20, 32},
                                                                                               {16, 32, 48},
                                                                                               {16, 33, 16},
                                                                                               {47, 2, 32},
                                                                                               {48, 1, 48}}) {
    Make(400, {.retention_interval = 16});
    const std::vector<int32_t> tokens = Tokens(60);
    const std::vector<KvImage> images = {{.offset = offset, .length = length}};
    Serve(tokens, images);
    EXPECT_EQ(Serve(tokens, images), want) << offset << " " << length;
  }
}

TEST_F(KvCacheTest, RegularTailsServeAnyCommonPrefix) {
  Make(2000, {.retention_interval = 32});
  Serve(Tokens(300));
  std::vector<int32_t> other = Tokens(300);
  for (size_t i = 230; i < other.size(); ++i) other[i] += 500;
  EXPECT_EQ(Serve(other), 224);
}

TEST_F(KvCacheTest, SwitchedOffItFindsNothingAndKeepsNothing) {
  Make(400, {.prefix_cache = false});
  Serve(Tokens(100));
  EXPECT_EQ(Serve(Tokens(100)), 0);
  EXPECT_EQ(cache_->available(), 400);
  EXPECT_EQ(cache_->stats().query_tokens, 0);
}

TEST_F(KvCacheTest, ARequestThatMayNotReadStillLeavesItsBlocks) {
  Make(400);
  const std::vector<int32_t> tokens = Tokens(100);
  EXPECT_EQ(cache_->Begin(0, {.prompt = tokens, .read_prefix = false}), 0);
  Compute(0, tokens, 48);
  Compute(0, tokens, 100);
  EXPECT_EQ(cache_->Begin(1, {.prompt = tokens, .read_prefix = false}), 0);
  cache_->End(0);
  cache_->End(1);
  EXPECT_EQ(Serve(tokens), 96);
}

TEST_F(KvCacheTest, ReserveTakesAllOrNothing) {
  Make(20);
  const std::vector<int32_t> tokens = Tokens(400);
  cache_->Begin(0, {.prompt = tokens});
  const int64_t before = cache_->available();
  EXPECT_FALSE(cache_->Reserve(0, 64)) << "32 blocks of two rows are more than there are";
  EXPECT_EQ(cache_->available(), before);
  EXPECT_TRUE(cache_->Reserve(0, 8));
  cache_->End(0);
  EXPECT_EQ(cache_->available(), 20);
}

TEST_F(KvCacheTest, AWindowTakesNoMoreHoweverLongTheSequence) {
  Make(200, {.prefix_cache = false});
  const std::vector<int32_t> tokens = Tokens(1000);
  cache_->Begin(0, {.prompt = tokens});
  int64_t most = 0;
  for (int64_t at = 1; at <= 1000; ++at) {
    Compute(0, tokens, at);
    most = std::max(most, cache_->slabs() - cache_->available() - (at + 15) / 16);
  }
  // Window: 8 rows touch 3 blocks of 4. States: 8 rows touch 4 of 2, and a period of 16 rows 4 of 4.
  EXPECT_LE(most, 3 + 4 + 4);
}

TEST_F(KvCacheTest, OldPrefixesMakeRoomAndAreForgottenWhole) {
  Make(60);
  for (int32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(Serve(Tokens(100, 3 + 17 * i)), 0);
    EXPECT_EQ(cache_->available(), 60);
  }
  EXPECT_GT(cache_->stats().evicted, 0);
  EXPECT_EQ(Serve(Tokens(100, 3 + 17 * 49)), 96) << "the last one is still there";
  cache_->ResetPrefixCache();
  EXPECT_EQ(Serve(Tokens(100, 3 + 17 * 49)), 0);
}

TEST_F(KvCacheTest, ATailThatIsGoneMakesTheHitShorterOrNone) {
  // Room for one sequence of 100 and little else: the second prompt takes the first one's oldest blocks.
  for (int64_t slabs = 70; slabs < 130; ++slabs) {
    Make(slabs, {.retention_interval = 16});
    Serve(Tokens(100));
    Serve(Tokens(40, 900));
    const int64_t found = Serve(Tokens(100));
    EXPECT_EQ(found % 16, 0);
    EXPECT_LE(found, 96);
    EXPECT_EQ(cache_->available(), slabs);
  }
}

// Notes as text: "+3<2" is block 3 behind block 2.
class Notes : public KvEvents {
 public:
  void Stored(const Sha256Digest& hash, const Sha256Digest* parent, std::span<const int32_t> tokens) override {
    known_[hash] = tokens[0];
    list.push_back("+" + std::to_string(tokens[0]) +
                   (parent != nullptr ? "<" + std::to_string(known_.at(*parent)) : ""));
    EXPECT_EQ(tokens.size(), 16u);
    EXPECT_EQ(tokens[15], tokens[0] + 15);
  }
  void Removed(const Sha256Digest& hash) override { list.push_back("-" + std::to_string(known_.at(hash))); }
  void Cleared() override { list.emplace_back("0"); }

  std::vector<std::string> list;

 private:
  std::map<Sha256Digest, int32_t> known_;
};

TEST_F(KvCacheTest, TellsOfEveryBlockOnce) {
  const auto notes = std::make_shared<Notes>();
  KvCacheOptions options;
  options.events = notes;
  Make(400, options);
  Serve(Tokens(40, 100));
  EXPECT_EQ(notes->list, (std::vector<std::string>{"+100", "+116<100"}));
  Serve(Tokens(40, 100));
  Serve(Tokens(56, 100));
  EXPECT_EQ(notes->list, (std::vector<std::string>{"+100", "+116<100", "+132<116"}));
  cache_->ResetPrefixCache();
  EXPECT_EQ(notes->list.back(), "0");
  Serve(Tokens(40, 100));
  EXPECT_EQ(std::count(notes->list.begin(), notes->list.end(), "+100"), 2);
}

TEST_F(KvCacheTest, TellsOfBlocksThatAreGivenUp) {
  const auto notes = std::make_shared<Notes>();
  KvCacheOptions options;
  options.events = notes;
  Make(100, options);
  for (int32_t i = 0; i < 30; ++i) Serve(Tokens(40, 100 * (i + 1)));
  // Those that are there are those of which more was told than taken back.
  std::map<std::string, int> there;
  for (const std::string& note : notes->list) {
    const std::string block = note.substr(1, note.find('<') - 1);
    there[block] += note[0] == '+' ? 1 : -1;
    EXPECT_GE(there[block], 0) << note;
  }
  EXPECT_GT(cache_->stats().evicted, 0);
  for (int32_t i = 0; i < 30; ++i) {
    if (cache_->CachedTokens({.prompt = Tokens(40, 100 * (i + 1))}) == 0) continue;
    EXPECT_EQ(there[std::to_string(100 * (i + 1))], 1);
  }
  EXPECT_EQ(there["100"], 0);
}

}  // namespace
}  // namespace hadal::runtime
