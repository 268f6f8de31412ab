// Blocks on disk: what is kept, what a damaged file does, and that a cache that was restored serves the same rows.
#include "runtime/kv/kv_store.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <numeric>

#include "paged_fake_model.h"
#include "runtime/kv/kv_cache.h"

namespace hadal::runtime {
namespace {

namespace fs = std::filesystem;
using Part = KvStore::Part;
using test::PagedFakeModel;

constexpr int64_t kMiB = int64_t{1} << 20;

Sha256Digest HashOf(int number) {
  Sha256 hash;
  hash.Update({reinterpret_cast<const uint8_t*>(&number), sizeof(number)});
  return hash.Finish();
}
std::vector<std::byte> BytesOf(int number, size_t size = 1000) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) bytes[i] = static_cast<std::byte>(static_cast<size_t>(number) * 31 + i);
  return bytes;
}
std::vector<int32_t> Tokens(int64_t count, int32_t first = 3) {
  std::vector<int32_t> tokens(static_cast<size_t>(count));
  std::iota(tokens.begin(), tokens.end(), first);
  return tokens;
}

class KvStoreTest : public testing::Test {
 protected:
  void SetUp() override {
    std::string name = (fs::temp_directory_path() / "hadal-kv-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    dir_ = name;
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::shared_ptr<KvStore> Open(int64_t bytes = 64 * kMiB) {
    absl::StatusOr<std::shared_ptr<KvStore>> store = KvStore::Open({dir_, bytes});
    EXPECT_TRUE(store.ok()) << store.status();
    return store.ok() ? *store : nullptr;
  }
  std::vector<fs::path> Files() const {
    std::vector<fs::path> files;
    for (const auto& entry : fs::recursive_directory_iterator(dir_)) {
      if (entry.path().extension() == ".block" || entry.path().extension() == ".tail") files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
    return files;
  }
  static bool Reads(KvStore& store, int number, Part part = Part::kBlock, size_t size = 1000) {
    std::vector<std::byte> got(size);
    if (!store.Read(HashOf(number), part, got)) return false;
    EXPECT_EQ(got, BytesOf(number, size));
    return true;
  }

  std::string dir_;
};

TEST_F(KvStoreTest, AnotherProcessReadsWhatOneWrote) {
  {
    const auto store = Open();
    for (int i = 0; i < 20; ++i) store->Write(HashOf(i), i % 2 == 0 ? Part::kBlock : Part::kTail, BytesOf(i));
    // The end of the store writes what still waits.
  }
  const auto store = Open();
  EXPECT_EQ(store->stats().objects, 20);
  for (int i = 0; i < 20; ++i) {
    EXPECT_TRUE(Reads(*store, i, i % 2 == 0 ? Part::kBlock : Part::kTail));
    EXPECT_FALSE(store->Has(HashOf(i), i % 2 == 0 ? Part::kTail : Part::kBlock));
  }
  EXPECT_FALSE(Reads(*store, 20));
  EXPECT_EQ(store->stats().damaged, 0);
}

TEST_F(KvStoreTest, TheSeedStaysAndIdentitiesAreApart) {
  const std::string seed = Open()->HashSeed("model a");
  EXPECT_EQ(Open()->HashSeed("model a"), seed);
  EXPECT_NE(Open()->HashSeed("model b"), seed);
  EXPECT_GE(seed.size(), 32U);
}

TEST_F(KvStoreTest, ADirectoryHasOneProcess) {
  const auto store = Open();
  const auto second = KvStore::Open({dir_, kMiB});
  EXPECT_TRUE(absl::IsFailedPrecondition(second.status()));
  EXPECT_NE(second.status().message().find("in use by another process"), std::string::npos) << second.status();
  EXPECT_NE(second.status().message().find(dir_), std::string::npos);
}

TEST_F(KvStoreTest, WhatCannotBeUsedIsSaid) {
  EXPECT_TRUE(absl::IsOutOfRange(KvStore::Open({dir_, kMiB - 1}).status()));
  const std::string file = dir_ + "/file";
  std::ofstream(file) << "no directory";
  const absl::Status status = KvStore::Open({file + "/below", kMiB}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status)) << status;
  EXPECT_NE(status.message().find(file), std::string::npos);
}

// Every way in which a file can be wrong: it is thrown away, once, and what is beside it stays.
TEST_F(KvStoreTest, DamagedFilesAreThrownAway) {
  using Damage = std::function<void(const fs::path&)>;
  const auto flip = [](int64_t at) {
    return [at](const fs::path& path) {
      std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
      file.seekg(at, at < 0 ? std::ios::end : std::ios::beg);
      const char old = static_cast<char>(file.peek());
      file.seekp(at, at < 0 ? std::ios::end : std::ios::beg);
      file.put(static_cast<char>(old ^ 0x10));
    };
  };
  const std::vector<std::pair<std::string, Damage>> damages = {
      {"empty", [](const fs::path& p) { fs::resize_file(p, 0); }},
      {"half a header", [](const fs::path& p) { fs::resize_file(p, 30); }},
      {"header alone", [](const fs::path& p) { fs::resize_file(p, 64); }},
      {"cut", [](const fs::path& p) { fs::resize_file(p, 1063); }},
      {"longer", [](const fs::path& p) { fs::resize_file(p, 1065); }},
      {"magic", flip(0)},
      {"size", flip(8)},
      {"hash", flip(20)},
      {"header's checksum", flip(60)},
      {"first byte", flip(64)},
      {"last byte", flip(-1)},
      {"gone", [](const fs::path& p) { fs::remove(p); }},
  };
  for (const auto& [name, damage] : damages) {
    SCOPED_TRACE(name);
    {
      const auto store = Open();
      store->Write(HashOf(1), Part::kBlock, BytesOf(1));
      store->Write(HashOf(2), Part::kBlock, BytesOf(2));
      store->Flush();
    }
    const auto store = Open();
    ASSERT_EQ(Files().size(), 2U);
    const fs::path victim = dir_ + "/" + HexDigest(HashOf(1)).substr(0, 2) + "/" + HexDigest(HashOf(1)) + ".block";
    damage(victim);
    EXPECT_FALSE(Reads(*store, 1));
    EXPECT_FALSE(store->Has(HashOf(1), Part::kBlock));
    EXPECT_FALSE(fs::exists(victim));
    EXPECT_EQ(store->stats().damaged, 1);
    EXPECT_TRUE(Reads(*store, 2));
    store->Write(HashOf(1), Part::kBlock, BytesOf(1));  // it can be kept again
    store->Flush();
    EXPECT_TRUE(Reads(*store, 1));
  }
}

TEST_F(KvStoreTest, AnotherObjectsFileIsNotTaken) {
  const auto store = Open();
  store->Write(HashOf(1), Part::kBlock, BytesOf(1));
  store->Write(HashOf(2), Part::kBlock, BytesOf(2));
  store->Flush();
  const auto path = [&](int i) {
    return dir_ + "/" + HexDigest(HashOf(i)).substr(0, 2) + "/" + HexDigest(HashOf(i)) + ".block";
  };
  fs::copy_file(path(1), path(2), fs::copy_options::overwrite_existing);
  EXPECT_FALSE(Reads(*store, 2));
}

TEST_F(KvStoreTest, WhatWasUsedLongestAgoMakesRoom) {
  constexpr size_t kSize = 300 * 1024;  // three fit into a MiB
  const auto store = Open(kMiB);
  for (int i = 0; i < 3; ++i) store->Write(HashOf(i), Part::kBlock, BytesOf(i, kSize));
  store->Flush();
  EXPECT_TRUE(Reads(*store, 0, Part::kBlock, kSize));
  store->Write(HashOf(3), Part::kBlock, BytesOf(3, kSize));
  store->Flush();
  EXPECT_FALSE(store->Has(HashOf(1), Part::kBlock));
  for (const int i : {0, 2, 3}) EXPECT_TRUE(Reads(*store, i, Part::kBlock, kSize)) << i;
  EXPECT_LE(store->stats().bytes, kMiB);
  EXPECT_EQ(Files().size(), 3U);
}

TEST_F(KvStoreTest, ASmallerBoundHoldsAtTheNextStart) {
  constexpr size_t kSize = 300 * 1024;
  {
    const auto store = Open(8 * kMiB);
    for (int i = 0; i < 10; ++i) store->Write(HashOf(i), Part::kBlock, BytesOf(i, kSize));
  }
  const auto store = Open(kMiB);
  EXPECT_EQ(store->stats().objects, 3);
  EXPECT_EQ(Files().size(), 3U);
}

TEST_F(KvStoreTest, HalfWrittenFilesOfADeadProcessGo) {
  { Open()->Write(HashOf(1), Part::kBlock, BytesOf(1)); }
  const fs::path left = dir_ + "/ab/" + HexDigest(HashOf(7)) + ".block.new";
  fs::create_directories(left.parent_path());
  std::ofstream(left) << "half";
  const auto store = Open();
  EXPECT_FALSE(fs::exists(left));
  EXPECT_TRUE(Reads(*store, 1));
}

// A full or read-only disk costs the blocks, nothing else.
TEST_F(KvStoreTest, WritesThatFailAreCounted) {
  const auto store = Open();
  std::ofstream(dir_ + "/" + HexDigest(HashOf(1)).substr(0, 2)) << "in the way of the directory";
  store->Write(HashOf(1), Part::kBlock, BytesOf(1));
  store->Flush();
  EXPECT_EQ(store->stats().dropped, 1);
  EXPECT_FALSE(store->Has(HashOf(1), Part::kBlock));
}

// ---- With a cache above.

models::ModelLimits Limits(int64_t slabs) {
  models::ModelLimits limits;
  limits.max_seqs = 2;
  limits.max_context = 1024;
  limits.max_batch_tokens = 48;
  limits.cache_slabs = slabs;
  limits.max_logit_rows = 1;
  return limits;
}

// A process: a model, its cache and the store.
class Process {
 public:
  Process(std::shared_ptr<KvStore> store, int64_t slabs, std::string_view identity = "model")
      : store_(std::move(store)),
        model_(2000, Limits(slabs)),
        cache_(&model_, {.hash_seed = store_->HashSeed(identity), .store = store_}) {}

  // Serves a prompt; returns what was found. The logits of its last row have to be those of an empty cache.
  int64_t Serve(const std::vector<int32_t>& tokens, const std::string& salt = "") {
    const int64_t found = cache_.Begin(0, {.prompt = tokens, .salt = salt});
    std::vector<float> logits(2000), want(2000);
    const auto size = static_cast<int64_t>(tokens.size());
    for (int64_t at = found; at < size;) {
      const int64_t end = std::min<int64_t>(at + 48, size);
      EXPECT_TRUE(cache_.Reserve(0, end));
      const auto rows = static_cast<size_t>(end - at);
      std::vector<int32_t> positions(rows), seqs(rows, 0), last = {static_cast<int32_t>(rows - 1)};
      std::iota(positions.begin(), positions.end(), static_cast<int32_t>(at));
      EXPECT_TRUE(model_
                      .Forward({.ids = std::span(tokens).subspan(static_cast<size_t>(at), rows),
                                .positions = positions,
                                .seqs = seqs,
                                .logit_rows = last,
                                .logits = logits.data()})
                      .ok());
      cache_.Commit(0, tokens, end);
      at = end;
    }
    std::vector<uint64_t> values;
    PagedFakeModel::FillLogits(PagedFakeModel::PlainValue(tokens, &values), 2000, want.data());
    EXPECT_EQ(logits, want);
    cache_.End(0);
    store_->Flush();
    EXPECT_TRUE(cache_.Consistent());
    return found;
  }
  KvCache& cache() { return cache_; }

 private:
  std::shared_ptr<KvStore> store_;
  PagedFakeModel model_;
  KvCache cache_;
};

TEST_F(KvStoreTest, APromptIsFoundAfterARestart) {
  const std::vector<int32_t> tokens = Tokens(200);
  { EXPECT_EQ(Process(Open(), 400).Serve(tokens), 0); }
  Process next(Open(), 400);
  EXPECT_EQ(next.Serve(tokens), 192);
  EXPECT_GT(next.cache().stats().restored, 0);
  const int64_t restored = next.cache().stats().restored;
  EXPECT_EQ(next.Serve(tokens), 192);  // from memory now
  EXPECT_EQ(next.cache().stats().restored, restored);
  EXPECT_EQ(next.Serve(Tokens(500)), 192);
}

TEST_F(KvStoreTest, OtherSaltsAndModelsFindNothing) {
  const std::vector<int32_t> tokens = Tokens(200);
  { EXPECT_EQ(Process(Open(), 400).Serve(tokens, "a"), 0); }
  EXPECT_EQ(Process(Open(), 400).Serve(tokens, "b"), 0);
  EXPECT_EQ(Process(Open(), 400, "another model").Serve(tokens, "a"), 0);
  EXPECT_EQ(Process(Open(), 400).Serve(tokens, "a"), 192);
}

TEST_F(KvStoreTest, WhatMemoryGaveUpComesBack) {
  // Room for one sequence: each makes the other go.
  Process process(Open(), 90);
  const std::vector<int32_t> one = Tokens(300), two = Tokens(300, 1000);
  EXPECT_EQ(process.Serve(one), 0);
  EXPECT_EQ(process.Serve(two), 0);
  for (int i = 0; i < 3; ++i) {
    EXPECT_EQ(process.Serve(one), 288);
    EXPECT_EQ(process.Serve(two), 288);
  }
}

// Any one file may be damaged, any number of them missing: what is found shrinks, rows stay right.
TEST_F(KvStoreTest, DamageShortensWhatIsFound) {
  const std::vector<int32_t> tokens = Tokens(200);
  { EXPECT_EQ(Process(Open(), 400).Serve(tokens), 0); }
  const size_t files = Files().size();
  ASSERT_GT(files, 10U);
  for (size_t i = 0; i < files; ++i) {
    const std::vector<fs::path> now = Files();
    ASSERT_EQ(now.size(), files);  // what was lost was written again
    fs::resize_file(now[i], fs::file_size(now[i]) - 1);
    const int64_t found = Process(Open(), 400).Serve(tokens);
    EXPECT_LE(found, 192);
    EXPECT_EQ(found % 16, 0);
  }
}

TEST_F(KvStoreTest, TooLittleMemoryForAllThatIsThere) {
  const std::vector<int32_t> tokens = Tokens(600);
  { EXPECT_EQ(Process(Open(), 400).Serve(tokens), 0); }
  // Fewer slabs than the prefix has blocks: as much as fits, then the rest cannot be reserved.
  Process small(Open(), 30);
  const int64_t found = small.cache().Begin(0, {.prompt = tokens});
  EXPECT_LT(found, 592);
  small.cache().End(0);
  EXPECT_TRUE(small.cache().Consistent());
}

}  // namespace
}  // namespace hadal::runtime
