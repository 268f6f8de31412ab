// Requests to V3.2 models get the same tokens and the same log-probabilities to the bit, however the runtime serves
// them. The models: a small one of random weights, made here, and where HADAL_VECTORS has it models/tiny-v32, which is
// trained and whose drafts hold.
#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "checkpoint/synth.h"
#include "invariance/serve.h"
#include "support/paths.h"
#include "support/test_device.h"

namespace hadal::test {
namespace {

namespace fs = std::filesystem;
using checkpoint::ActivationScales;
using runtime::Engine;
using runtime::EngineOptions;
using runtime::GenerateRequest;

constexpr int64_t kContext = 1152;

// Dense and MoE layers, an MTP block; prompts are longer than the choice of the indexer, 64 rows, so that it matters.
// `sparse` false: a V3 model, whose attention sees all rows; V3 models are published with any scales of activations.
std::string MakeModel(bool sparse, checkpoint::ActivationScales scales) {
  std::string name = (fs::temp_directory_path() / "hadal-v32-XXXXXX").string();
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("no temporary directory");
  checkpoint::ConfigOverrides small;
  small.num_hidden_layers = 3;
  small.num_mtp_layers = 1;
  small.hidden_size = 256;
  small.num_attention_heads = 4;
  small.q_lora_rank = 128;
  small.moe_intermediate_size = 128;
  small.n_routed_experts = 16;
  small.num_experts_per_tok = 4;
  small.vocab_size = 1536;
  small.index_topk = 64;
  small.intermediate_size = 512;
  small.first_k_dense_replace = 1;
  checkpoint::ModelConfig config = Value(checkpoint::ApplyOverrides(Value(checkpoint::PresetConfig("v3.2")), small));
  if (!sparse) {
    config.family = checkpoint::ModelFamily::kV3;
    config.architecture = "DeepseekV3ForCausalLM";
    config.index_topk = config.index_n_heads = config.index_head_dim = 0;
    config.activation_scales = scales;
  }
  Value(checkpoint::WriteSyntheticCheckpoint(config, name, {}));
  return name;
}
// Removed at the end of the program.
struct Directory {
  explicit Directory(std::string path) : name(std::move(path)) {}
  ~Directory() { fs::remove_all(name); }
  const std::string name;
};
std::string SyntheticV32() {
  static const Directory dir(MakeModel(true, ActivationScales::kPowersOfTwo));
  return dir.name;
}
std::string SyntheticV3() {
  static const Directory dir(MakeModel(false, ActivationScales::kAny));
  return dir.name;
}
std::string SyntheticV3PowersOfTwo() {
  static const Directory dir(MakeModel(false, ActivationScales::kPowersOfTwo));
  return dir.name;
}

struct ModelParam {
  std::string name;
  std::string (*dir)();
};
void PrintTo(const ModelParam& p, std::ostream* os) { *os << p.name; }

std::vector<ModelParam> Models() {
  std::vector<ModelParam> models = {{"synthetic_v32", SyntheticV32}, {"synthetic_v3", SyntheticV3}};
  const auto trained = [] { return FullVectors("../models/tiny-v32").value_or(""); };
  if (fs::exists(trained())) models.push_back({"tiny_v32", trained});
  return models;
}

class RequestsV32 : public testing::TestWithParam<ModelParam> {
 protected:
  void SetUp() override {
    EngineOptions options;
    options.executor.kv.prefix_cache = false;
    const auto engine = Load(options);
    requests_ = Requests(engine->end_tokens());
    for (size_t i = 0; i < requests_.size(); ++i) want_.push_back(Serve(engine.get(), {i})[i]);
  }

  std::unique_ptr<Engine> Load(EngineOptions options, int threads = 1) {
    options.max_model_len = kContext;
    options.model.threads = threads;
    options.model.deterministic = true;
    options.check_logits = false;
    options.tokenizer = BundledModel();
    return Value(Engine::Load(GetParam().dir(), std::move(options)));
  }

  static std::vector<GenerateRequest> Requests(const std::vector<int32_t>& ends) {
    std::vector<GenerateRequest> requests;
    std::mt19937 random(23);
    std::vector<int32_t> text(kContext);
    for (int32_t& id : text) id = static_cast<int32_t>(3 + random() % 1200);
    for (const size_t length : {1, 2, 5, 63, 64, 65, 66, 127, 128, 129, 191, 255, 256, 257, 300, 511, 513, 640, 1000}) {
      GenerateRequest request;
      const auto number = static_cast<int>(requests.size());
      // Half of them share a prefix.
      const auto from = static_cast<std::ptrdiff_t>(number % 2 == 0 ? 0 : number);
      request.prompt.assign(text.begin() + from, text.begin() + from + static_cast<std::ptrdiff_t>(length));
      request.end_tokens = ends;
      request.max_tokens = 20;
      request.sampling.logprobs = 2;
      request.sampling.seed = static_cast<uint64_t>(number);
      request.sampling.temperature = number % 3 == 0 ? 0.0 : 0.9;
      if (number % 4 == 1) request.sampling.top_p = 0.8;
      if (number % 5 == 2) request.sampling.frequency_penalty = 0.7;
      requests.push_back(std::move(request));
    }
    return requests;
  }

  std::vector<Answer> Serve(Engine* engine, const std::vector<size_t>& order, int64_t* cached = nullptr) {
    return test::Serve(engine, requests_, order, cached);
  }

  std::vector<size_t> All() const { return test::All(requests_.size()); }
  void ExpectSame(const std::vector<Answer>& got, const std::vector<size_t>& order, const std::string& what) {
    test::ExpectSame(got, want_, order, what);
  }

  std::vector<GenerateRequest> requests_;
  std::vector<Answer> want_;
};
INSTANTIATE_TEST_SUITE_P(Models, RequestsV32, testing::ValuesIn(Models()), [](const auto& p) { return p.param.name; });

// Up to as many rows as the indexer keeps, its choice is all of them: the bits of dense attention.
class ShortContexts : public RequestsV32 {};
INSTANTIATE_TEST_SUITE_P(Models, ShortContexts, testing::Values(ModelParam{"synthetic_v3", SyntheticV3PowersOfTwo}),
                         [](const auto& p) { return p.param.name; });
TEST_P(ShortContexts, AreDense) {
  EngineOptions options;
  options.max_model_len = kContext;
  options.model.threads = 1;
  options.check_logits = false;
  options.tokenizer = BundledModel();
  const auto sparse = Value(Engine::Load(SyntheticV32(), options));
  const std::vector<Answer> answers = Serve(sparse.get(), All());
  size_t equal = 0, different = 0;
  for (size_t i = 0; i < requests_.size(); ++i) {
    if (requests_[i].prompt.size() + 20 <= 64) {
      EXPECT_TRUE(answers[i] == want_[i]) << i;
      ++equal;
    } else if (requests_[i].prompt.size() > 128) {
      different += answers[i] == want_[i] ? 0 : 1;
    }
  }
  EXPECT_EQ(equal, 3u);
  EXPECT_GT(different, 5u);
}

TEST_P(RequestsV32, InBatches) {
  for (const int64_t seqs : {2, 5, 16}) {
    EngineOptions options;
    options.max_seqs = seqs;
    options.executor.kv.prefix_cache = false;
    const auto engine = Load(options);
    std::vector<size_t> order = All();
    std::shuffle(order.begin(), order.end(), std::mt19937(static_cast<uint32_t>(seqs)));
    ExpectSame(Serve(engine.get(), order), order, fmt::format("{} at once", seqs));
  }
}

TEST_P(RequestsV32, InChunks) {
  for (const int64_t chunk : {1, 7, 64, 128}) {
    EngineOptions options;
    options.max_seqs = 8;
    options.max_batch_tokens = chunk;
    options.executor.kv.prefix_cache = false;
    const auto engine = Load(options);
    std::vector<size_t> order;
    for (const size_t i : All()) {
      if (chunk >= 64 || requests_[i].prompt.size() <= 300) order.push_back(i);
    }
    ExpectSame(Serve(engine.get(), order), order, fmt::format("chunks of {}", chunk));
  }
}

TEST_P(RequestsV32, ByTwoThreads) {
  EngineOptions options;
  options.max_seqs = 8;
  const auto engine = Load(options, 2);
  ExpectSame(Serve(engine.get(), All()), All(), "two threads");
}

TEST_P(RequestsV32, BehindACachedPrefix) {
  for (const int64_t block : {16, 64, 256}) {
    if (block % 64 != 0 && TestDevice() == "cuda") continue;  // its kernels page through 64 positions
    EngineOptions options;
    options.max_seqs = 4;
    options.block_size = block;
    const auto engine = Load(options);
    ExpectSame(Serve(engine.get(), All()), All(), "cold");
    int64_t cached = 0;
    ExpectSame(Serve(engine.get(), All(), &cached), All(), "warm");
    EXPECT_GT(cached, 2000);
  }
}

TEST_P(RequestsV32, Preempted) {
  for (const bool prefix : {true, false}) {
    EngineOptions options;
    options.max_seqs = 8;
    options.executor.kv.prefix_cache = prefix;
    const auto engine = Load(options);
    PreemptAtRandom(engine.get(), 17, 20);
    ExpectSame(Serve(engine.get(), All()), All(), "preempted");
    EXPECT_GT(engine->executor().stats().preemptions, 5);
  }
}

TEST_P(RequestsV32, WithDrafts) {
  for (int64_t k = 1; k <= 4; ++k) {
    EngineOptions options;
    options.max_seqs = 8;
    options.num_speculative_tokens = k;
    const auto engine = Load(options);
    ExpectSame(Serve(engine.get(), All()), All(), fmt::format("{} drafts", k));
    ExpectSame(Serve(engine.get(), All()), All(), fmt::format("{} drafts, warm", k));
    EXPECT_GT(engine->executor().stats().draft_tokens, 100);
    if (GetParam().name == "tiny_v32") {
      EXPECT_GT(engine->executor().stats().accepted_tokens, 50);
    }
  }
}

TEST_P(RequestsV32, WithUselessDrafts) {
  EngineOptions options;
  options.max_seqs = 8;
  options.num_speculative_tokens = 3;
  const auto engine = Load(options);
  std::mt19937 random(5);
  engine->executor().SetDraftSource([&](std::span<const int32_t> /*tokens*/, int64_t count) {
    std::vector<int32_t> drafts(static_cast<size_t>(random() % (count + 1)));
    for (int32_t& id : drafts) id = static_cast<int32_t>(random() % 1536);
    return drafts;
  });
  ExpectSame(Serve(engine.get(), All()), All(), "useless drafts");
}

// Rows of 656 bytes have answers of their own, which are the same however they are served.
TEST_P(RequestsV32, PackedRowsAllOfItTogether) {
  EngineOptions alone;
  alone.kv_cache_dtype = "fp8";
  alone.executor.kv.prefix_cache = false;
  const auto engine = Load(alone);
  for (size_t i = 0; i < requests_.size(); ++i) want_[i] = Serve(engine.get(), {i})[i];
  EngineOptions options = alone;
  options.max_seqs = 6;
  options.max_batch_tokens = 96;
  options.block_size = 64;
  options.num_speculative_tokens = 2;
  options.executor.kv.prefix_cache = true;
  const auto together = Load(options, 2);
  PreemptAtRandom(together.get(), 3, 30);
  for (int round = 0; round < 2; ++round) ExpectSame(Serve(together.get(), All()), All(), "all of it");
}

}  // namespace
}  // namespace hadal::test
