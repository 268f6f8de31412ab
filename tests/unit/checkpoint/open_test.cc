// Checkpoint::Open: the bundled model, its re-saves, and directories with something wrong.
#include <map>

#include "checkpoint/checkpoint.h"
#include "checkpoint/shard_index.h"
#include "checkpoint/synth.h"
#include "support/paths.h"
#include "test_util.h"

namespace hadal::checkpoint {
namespace {

using nlohmann::json;
constexpr auto kInvalid = absl::StatusCode::kInvalidArgument;

using Tensors = std::map<std::string, OwnedTensor>;

// The raw tensors of a directory, as its files hold them.
Tensors LoadRaw(const std::string& dir) {
  Tensors tensors;
  const auto set = OpenShards(dir);
  EXPECT_TRUE(set.ok()) << Message(set.status());
  for (const auto& file : set->files) {
    for (const TensorEntry& e : file->entries()) {
      tensors[e.name] = {e.name, e.dtype, e.shape, std::string(reinterpret_cast<const char*>(e.data), e.bytes)};
    }
  }
  return tensors;
}

// A small text model with two hash layers, all three ratios and an MTP block; made once.
class OpenTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    source_ = new TempDir();
    ConfigOverrides small;
    small.num_hidden_layers = 4;
    small.num_hash_layers = 2;
    small.hidden_size = 128;
    small.num_attention_heads = 2;
    small.q_lora_rank = 128;
    small.o_groups = 2;
    small.o_lora_rank = 64;
    small.moe_intermediate_size = 128;
    small.n_routed_experts = 4;
    small.num_experts_per_tok = 2;
    small.vocab_size = 256;
    small.index_topk = 8;
    small.compress_ratios = {{0, 4, 128, 4}};
    const auto config = ApplyOverrides(*PresetConfig("v4-flash"), small);
    ASSERT_TRUE(config.ok()) << Message(config.status());
    config_ = new ModelConfig(*config);
    const auto report = WriteSyntheticCheckpoint(*config, source_->path(), {.max_shard_bytes = 400000});
    ASSERT_TRUE(report.ok()) << Message(report.status());
    ASSERT_GT(report->shards, 1);
    raw_ = new Tensors(LoadRaw(source_->path()));
  }
  static void TearDownTestSuite() {
    delete source_;
    delete config_;
    delete raw_;
  }

  // Writes `tensors` as one file without an index, with this config.json.
  void Write(const Tensors& tensors, const std::string& config) {
    std::vector<OwnedTensor> list;
    for (const auto& [name, tensor] : tensors) {
      list.push_back(tensor);
      list.back().name = name;
    }
    WriteTensors(dir_ / "model.safetensors", list);
    WriteFile(dir_ / "config.json", config);
  }
  void Write(const Tensors& tensors) { Write(tensors, ModelConfigToJson(*config_)); }

  absl::StatusOr<std::unique_ptr<Checkpoint>> Open() { return Checkpoint::Open(dir_.path()); }

  // A copy of the sharded directory.
  void CopySource() {
    for (const auto& item : std::filesystem::directory_iterator(source_->path())) {
      std::filesystem::copy_file(item.path(), dir_ / item.path().filename().string());
    }
  }

  static TempDir* source_;
  static ModelConfig* config_;
  static Tensors* raw_;
  TempDir dir_;
};
TempDir* OpenTest::source_ = nullptr;
ModelConfig* OpenTest::config_ = nullptr;
Tensors* OpenTest::raw_ = nullptr;

// Same names, dtypes, shapes and bytes.
void ExpectSame(const Checkpoint& a, const Checkpoint& b) {
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (size_t i = 0; i < a.tensors().size(); ++i) {
    const TensorEntry &x = a.tensors()[i], &y = b.tensors()[i];
    ASSERT_EQ(x.name, y.name);
    EXPECT_EQ(x.dtype, y.dtype) << x.name;
    EXPECT_EQ(x.shape, y.shape) << x.name;
    ASSERT_EQ(x.bytes, y.bytes) << x.name;
    EXPECT_EQ(std::memcmp(x.data, y.data, x.bytes), 0) << x.name;
  }
  EXPECT_EQ(a.config(), b.config());
}

bool HasWarning(const Checkpoint& ckpt, std::initializer_list<const char*> parts) {
  for (const std::string& warning : ckpt.warnings()) {
    bool all = true;
    for (const char* part : parts) all = all && warning.find(part) != std::string::npos;
    if (all) return true;
  }
  return false;
}

TEST(BundledModel, OpensWithoutWarnings) {
  const auto ckpt = Checkpoint::Open(test::BundledModel());
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_THAT((*ckpt)->warnings(), ::testing::IsEmpty());
  EXPECT_EQ((*ckpt)->tensors().size(), 839u);
  EXPECT_EQ((*ckpt)->draft(), DraftKind::kMtp);
  EXPECT_EQ((*ckpt)->config().expert_dtype, ExpertDType::kFp4);
  EXPECT_EQ((*ckpt)->generation_config().temperature, 1.0);
  const TensorEntry* expert = (*ckpt)->Find("layers.0.ffn.experts.0.w1.weight");
  ASSERT_NE(expert, nullptr);
  EXPECT_EQ(expert->dtype, DType::kF4E2M1);
  EXPECT_EQ(expert->shape, (std::vector<int64_t>{128, 256}));
  EXPECT_EQ((*ckpt)->Find("model.norm.weight"), (*ckpt)->Find("norm.weight"));
  EXPECT_EQ((*ckpt)->Find("nothing"), nullptr);
  ExpectError((*ckpt)->Get("nothing"), absl::StatusCode::kNotFound, {"\"nothing\""});
  for (const TensorEntry& entry : (*ckpt)->tensors()) {
    const uintptr_t size = std::max(DTypeBits(entry.dtype) / 8, 1);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(entry.data) % size, 0u) << entry.name;
    Prefetch(entry);
    DropPages(entry);
  }
  ASSERT_OK((*ckpt)->CheckValues());
}

TEST(BundledModel, CopyToMemoryKeepsEveryByte) {
  const auto mapped = Checkpoint::Open(test::BundledModel());
  const auto copied = Checkpoint::Open(test::BundledModel());
  ASSERT_TRUE(mapped.ok() && copied.ok());
  int64_t done = 0;
  ASSERT_OK((*copied)->CopyToMemory(2, true, true, [&](int64_t bytes) {
    EXPECT_GE(bytes, done);
    done = bytes;
  }));
  EXPECT_EQ(done, (*copied)->tensor_bytes());
  for (size_t i = 0; i < (*mapped)->tensors().size(); ++i) {
    const TensorEntry& want = (*mapped)->tensors()[i];
    const TensorEntry& got = (*copied)->tensors()[i];
    EXPECT_NE(got.data, want.data);
    EXPECT_FALSE(got.droppable);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.data) % 64, 0u);
    ASSERT_EQ(got.bytes, want.bytes);
    EXPECT_EQ(std::memcmp(got.data, want.data, want.bytes), 0) << want.name;
  }
  ASSERT_OK((*copied)->CheckValues());
}

TEST(BundledModel, CopyToMemoryLeavesWhatIsNotUsed) {
  const auto ckpt = Checkpoint::Open(test::BundledModel());
  ASSERT_TRUE(ckpt.ok());
  std::map<std::string, const std::byte*> before;
  for (const TensorEntry& entry : (*ckpt)->tensors()) before[entry.name] = entry.data;
  ASSERT_OK((*ckpt)->CopyToMemory(1, false, false, [](int64_t) {}));
  for (const TensorEntry& entry : (*ckpt)->tensors()) {
    const bool unused = entry.name.starts_with("mtp.") || entry.name.starts_with("vision.") ||
                        entry.name.starts_with("aligner.") || entry.name.starts_with("image_");
    EXPECT_EQ(entry.data == before[entry.name], unused) << entry.name;
  }
  ASSERT_OK((*ckpt)->CheckValues());
}

// KiB of file pages that this process has mapped in.
int64_t ResidentFileKib() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("RssFile:")) return std::stoll(line.substr(8));
  }
  return -1;
}

// Field report B121: weights that were copied elsewhere do not stay in memory.
TEST(BundledModel, DroppedPagesLeaveTheProcess) {
  const auto ckpt = Checkpoint::Open(test::BundledModel());
  ASSERT_TRUE(ckpt.ok());
  const TensorEntry* embed = (*ckpt)->Find("embed.weight");  // 640 KiB
  DropPages(*embed);
  const int64_t before = ResidentFileKib();
  uint64_t sum = 0;
  for (int64_t i = 0; i < embed->bytes; ++i) sum += static_cast<uint8_t>(embed->data[i]);
  const int64_t read = ResidentFileKib();
  DropPages(*embed);
  EXPECT_GE(read - before, 500);
  EXPECT_LE(ResidentFileKib() - before, 100);
  uint64_t again = 0;
  for (int64_t i = 0; i < embed->bytes; ++i) again += static_cast<uint8_t>(embed->data[i]);
  EXPECT_EQ(again, sum);
}

std::vector<std::string> SmallModelDirs() {
  std::vector<std::string> dirs = {test::DataPath("models/random-v4")};
  for (const std::string& full : test::FullVectorsOnly("../models/tiny-v32")) {
    if (std::filesystem::exists(full)) dirs.push_back(full);
  }
  return dirs;
}

// The other small models that are at hand.
TEST(SmallModels, Open) {
  for (const std::string& dir : SmallModelDirs()) {
    const auto ckpt = Checkpoint::Open(dir);
    ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
    EXPECT_THAT((*ckpt)->warnings(), ::testing::IsEmpty()) << dir;
    EXPECT_EQ((*ckpt)->draft(), DraftKind::kMtp) << dir;
    ASSERT_OK((*ckpt)->CheckValues());
  }
}

// Scale bytes arrive as bytes (trap 25 of the vision spec, B73).
TEST(BundledModel, ScaleBytesEqualFileBytes) {
  const auto ckpt = Checkpoint::Open(test::BundledModel());
  ASSERT_TRUE(ckpt.ok());
  const Tensors raw = LoadRaw(test::BundledModel());
  for (const TensorEntry& entry : (*ckpt)->tensors()) {
    const OwnedTensor& file = raw.at(entry.name);
    EXPECT_EQ(std::string_view(reinterpret_cast<const char*>(entry.data), entry.bytes), file.bytes) << entry.name;
  }
}

// Field report B133: nothing is written beside a checkpoint; and it may be read-only.
TEST_F(OpenTest, WritesNothing) {
  CopySource();
  std::map<std::string, std::filesystem::file_time_type> before, after;
  for (const auto& item : std::filesystem::directory_iterator(dir_.path()))
    before[item.path()] = item.last_write_time();
  EXPECT_TRUE(Open().ok());
  for (const auto& item : std::filesystem::directory_iterator(dir_.path())) after[item.path()] = item.last_write_time();
  EXPECT_EQ(before, after);
}

std::string Replace(std::string text, const std::string& from, const std::string& to) {
  const size_t at = text.find(from);
  return at == std::string::npos ? text : text.replace(at, from.size(), to);
}

// A published name as a library saves it (spec deepseek-v4-text 2.5).
std::string Alias(std::string name) {
  if (name.find("vision.") == 0 || name.find("aligner.") == 0 || name.find("image_") == 0) return name;
  const bool block = name.find("layers.") == 0 || name.find("mtp.") == 0;
  if (block) {
    name = Replace(name, ".attn.indexer.compressor.wkv", ".self_attn.compressor.indexer.kv_proj");
    name = Replace(name, ".attn.indexer.compressor.wgate", ".self_attn.compressor.indexer.gate_proj");
    name = Replace(name, ".attn.indexer.compressor.norm", ".self_attn.compressor.indexer.kv_norm");
    name = Replace(name, ".attn.indexer.compressor.ape", ".self_attn.compressor.indexer.position_bias");
    name = Replace(name, ".attn.indexer.wq_b", ".self_attn.compressor.indexer.q_b_proj");
    name = Replace(name, ".attn.indexer.weights_proj", ".self_attn.compressor.indexer.scorer.weights_proj");
    name = Replace(name, ".compressor.wkv", ".compressor.kv_proj");
    name = Replace(name, ".compressor.wgate", ".compressor.gate_proj");
    name = Replace(name, ".compressor.norm", ".compressor.kv_norm");
    name = Replace(name, ".compressor.ape", ".compressor.position_bias");
    name = Replace(name, ".attn.wq_a", ".attn.q_a_proj");
    name = Replace(name, ".attn.q_norm", ".attn.q_a_norm");
    name = Replace(name, ".attn.wq_b", ".attn.q_b_proj");
    name = Replace(name, ".attn.wkv", ".attn.kv_proj");
    name = Replace(name, ".attn.wo_a", ".attn.o_a_proj");
    name = Replace(name, ".attn.wo_b", ".attn.o_b_proj");
    name = Replace(name, ".attn.attn_sink", ".attn.sinks");
    name = Replace(name, ".attn.", ".self_attn.");
    name = Replace(name, ".ffn.gate.bias", ".ffn.gate.e_score_correction_bias");
    name = Replace(name, "e_score_correction_bias_vl", "bias_vl");
    name = Replace(name, ".w1.", ".gate_proj.");
    name = Replace(name, ".w3.", ".up_proj.");
    name = Replace(name, ".w2.", ".down_proj.");
    name = Replace(name, ".ffn.", ".mlp.");
    name = Replace(name, ".attn_norm.", ".input_layernorm.");
    name = Replace(name, ".ffn_norm.", ".post_attention_layernorm.");
    for (const char* part : {"attn", "ffn"}) {
      name = Replace(name, fmt::format(".hc_{}_", part), fmt::format(".{}_hc.", part));
    }
    if (name.find("_hc.") == std::string::npos) name = Replace(name, ".scale", ".weight_scale_inv");
  }
  name = Replace(name, "hc_head_", "hc_head.hc_");
  if (name == "embed.weight") name = "embed_tokens.weight";
  if (name == "head.weight") return "lm_head.weight";
  return name.find("mtp.") == 0 ? name : "model." + name;
}

TEST_F(OpenTest, AliasResaveOfTheBundledModelEqualsTheOriginal) {
  Tensors aliased;
  for (const auto& [name, tensor] : LoadRaw(test::BundledModel())) aliased[Alias(name)] = tensor;
  ASSERT_EQ(aliased.size(), 839u);
  ASSERT_TRUE(aliased.contains("model.layers.1.self_attn.compressor.indexer.scorer.weights_proj.weight"));
  Write(aliased, ReadFile(test::BundledModel() + "/config.json"));
  const auto resaved = Open();
  ASSERT_TRUE(resaved.ok()) << Message(resaved.status());
  EXPECT_THAT((*resaved)->warnings(), ::testing::IsEmpty());
  ExpectSame(**resaved, **Checkpoint::Open(test::BundledModel()));
}

// experts.gate_up_proj [E, 2F, d] with w1 rows first.
TEST_F(OpenTest, StackedExpertsEqualSingleOnes) {
  for (const char* scale_suffix : {"_scale_inv", "_scale", ".scale", ".weight_scale_inv", ".weight_scale"}) {
    SCOPED_TRACE(scale_suffix);
    Tensors stacked;
    for (const auto& [name, tensor] : *raw_) {
      const size_t at = name.find(".ffn.experts.");
      if (at == std::string::npos) stacked[name] = tensor;
    }
    const std::vector<std::string> blocks = {"layers.0", "layers.1", "layers.2", "layers.3", "mtp.0"};
    for (const std::string& block : blocks) {
      for (const char* part : {"weight", "scale"}) {
        OwnedTensor gate_up, down;
        for (int e = 0; e < 4; ++e) {
          const auto get = [&](const char* w) {
            return raw_->at(fmt::format("{}.ffn.experts.{}.{}.{}", block, e, w, part));
          };
          gate_up.bytes += get("w1").bytes + get("w3").bytes;
          down.bytes += get("w2").bytes;
          gate_up.dtype = down.dtype = get("w1").dtype;
          gate_up.shape = {4, 2 * get("w1").shape[0], get("w1").shape[1]};
          down.shape = {4, get("w2").shape[0], get("w2").shape[1]};
        }
        const std::string suffix = std::string(part) == "scale" ? scale_suffix : "";
        stacked[block + ".ffn.experts.gate_up_proj" + suffix] = gate_up;
        stacked[block + ".ffn.experts.down_proj" + suffix] = down;
      }
    }
    Write(stacked);
    const auto ckpt = Open();
    ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
    EXPECT_THAT((*ckpt)->warnings(), ::testing::IsEmpty());
    ExpectSame(**ckpt, **Checkpoint::Open(source_->path()));
  }
  Tensors odd = *raw_;
  odd["layers.0.ffn.experts.gate_up_proj"] = {"", DType::kI8, {4, 3, 2}, std::string(24, 'x')};
  Write(odd);
  ExpectError(Open(), kInvalid, {"layers.0.ffn.experts.gate_up_proj", "[E, 2F, in]", "[4, 3, 2]"});
}

// Trap 26: experts I8 or U8 or F4 with E8M0 (or its bytes as U8), and E4M3 with E8M0 or F32 scales.
TEST_F(OpenTest, ExpertAndScaleDTypes) {
  for (DType packed : {DType::kI8, DType::kU8, DType::kF4E2M1}) {
    Tensors tensors = *raw_;
    for (auto& [name, tensor] : tensors) {
      if (tensor.dtype == DType::kI8) {
        if (packed == DType::kF4E2M1) tensor.shape.back() *= 2;
        tensor.dtype = packed;
      } else if (packed == DType::kU8 && tensor.dtype == DType::kF8E8M0) {
        tensor.dtype = DType::kU8;
      } else if (tensor.dtype == DType::kI64) {
        continue;
      }
    }
    Write(tensors);
    const auto ckpt = Open();
    ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
    ExpectSame(**ckpt, **Checkpoint::Open(source_->path()));
  }
  ModelConfig config = *config_;
  config.expert_dtype = ExpertDType::kFp8;
  for (bool f32 : {false, true}) {
    for (bool says_nothing : {false, true}) {
      const TempDir dir;
      ASSERT_TRUE(WriteSyntheticCheckpoint(config, dir.path(), {.f32_scales = f32}).ok());
      json j = json::parse(ReadFile(dir / "config.json"));
      if (says_nothing) {
        j.erase("expert_dtype");
      } else {
        j["expert_dtype"] = "fp4";  // wrong, as the tensors show
      }
      WriteFile(dir / "config.json", j.dump());
      const auto ckpt = Checkpoint::Open(dir.path());
      ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
      EXPECT_EQ((*ckpt)->config().expert_dtype, ExpertDType::kFp8);
      EXPECT_EQ(HasWarning(**ckpt, {"expert_dtype", "the tensors are trusted"}), !says_nothing);
      EXPECT_EQ((*ckpt)->Find("layers.0.ffn.experts.0.w1.weight")->dtype, DType::kF8E4M3);
      EXPECT_EQ((*ckpt)->Find("layers.0.ffn.experts.0.w1.scale")->dtype, f32 ? DType::kF32 : DType::kF8E8M0);
      EXPECT_EQ((*ckpt)->Find("layers.0.attn.wq_a.scale")->dtype, f32 ? DType::kF32 : DType::kF8E8M0);
      ASSERT_OK((*ckpt)->CheckValues());
    }
  }
}

TEST_F(OpenTest, MissingMisshapenAndUnexpectedTensorsAreNamed) {
  Tensors tensors = *raw_;
  tensors.erase("layers.1.attn.wq_a.scale");
  tensors.erase("norm.weight");
  Write(tensors);
  ExpectError(Open(), kInvalid, {dir_.path().c_str(), "2 of ", "missing: norm.weight, layers.1.attn.wq_a.scale"});

  tensors = *raw_;
  tensors["norm.weight"].shape = {2, 64};
  tensors["layers.0.attn.attn_sink"].dtype = DType::kI32;
  Write(tensors);
  ExpectError(Open(), kInvalid,
              {"2 tensors are not as expected", "\"norm.weight\": expected BF16 [128], found BF16 [2, 64] in ",
               "\"layers.0.attn.attn_sink\": expected F32 [2], found I32 [2]", "model.safetensors"});

  tensors = *raw_;
  tensors["layers.0.attn.bonus"] = tensors["norm.weight"];
  tensors["mtp.1.attn_norm.weight"] = tensors["norm.weight"];
  tensors["mtp.0.embed.weight"] = tensors["norm.weight"];  // ignored by rule
  Write(tensors);
  const auto ckpt = Open();
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_TRUE(HasWarning(**ckpt, {"1 unexpected", "layers.0.attn.bonus"}));
  EXPECT_TRUE(HasWarning(**ckpt, {"mtp.1 belong to a draft block that config.json does not have"}));
  EXPECT_EQ((*ckpt)->warnings().size(), 2u);

  tensors["layers.4.attn_norm.weight"] = tensors["norm.weight"];
  tensors["layers.5.attn_norm.weight"] = tensors["norm.weight"];
  Write(tensors);
  ExpectError(Open(), kInvalid,
              {"expected 4 layers (num_hidden_layers in config.json)", "found also layers.4, layers.5"});
}

TEST_F(OpenTest, TwoSpellingsOfOneTensorAreAnError) {
  Tensors tensors = *raw_;
  tensors["model.layers.0.self_attn.sinks"] = tensors["layers.0.attn.attn_sink"];
  Write(tensors);
  ExpectError(Open(), kInvalid, {"two tensors mean \"layers.0.attn.attn_sink\""});
}

TEST_F(OpenTest, I32TokenTableIsAccepted) {
  Tensors tensors = *raw_;
  OwnedTensor& table = tensors["layers.0.ffn.gate.tid2eid"];
  std::string narrow;
  for (size_t i = 0; i < table.bytes.size(); i += 8) narrow += table.bytes.substr(i, 4);
  table = {table.name, DType::kI32, table.shape, narrow};
  Write(tensors);
  const auto ckpt = Open();
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  ASSERT_OK((*ckpt)->CheckValues());
}

TEST_F(OpenTest, BadValuesAreNamed) {
  Tensors tensors = *raw_;
  tensors["layers.1.attn.wq_a.scale"].bytes[0] = '\xff';
  Write(tensors);
  ExpectError((*Open())->CheckValues(), kInvalid, {"layers.1.attn.wq_a.scale", "element 0", "byte 255 (NaN)"});

  tensors = *raw_;
  const int64_t id = 4;
  std::memcpy(tensors["layers.1.ffn.gate.tid2eid"].bytes.data() + 8 * 7, &id, 8);
  Write(tensors);
  ExpectError((*Open())->CheckValues(), kInvalid, {"layers.1.ffn.gate.tid2eid", "row 3 holds expert 4", "[0, 4)"});
}

TEST(CheckScale, F32AndE8M0) {
  std::vector<float> values(6, 0.5f);
  TensorEntry entry{.name = "s", .dtype = DType::kF32, .shape = {2, 3}};
  entry.data = reinterpret_cast<const std::byte*>(values.data());
  entry.bytes = 24;
  ASSERT_OK(CheckScale(entry));
  for (float bad : {NAN, INFINITY, 0.0f, -1.0f}) {
    values[4] = bad;
    ExpectError(CheckScale(entry), kInvalid, {"\"s\"", "element 4", "[2, 3]", "positive finite"});
  }
  // B73: every byte but 255 is a number.
  std::string bytes;
  for (int b = 0; b < 255; ++b) bytes += static_cast<char>(b);
  entry = {.name = "e", .dtype = DType::kF8E8M0, .shape = {255}};
  entry.data = reinterpret_cast<const std::byte*>(bytes.data());
  entry.bytes = 255;
  ASSERT_OK(CheckScale(entry));
  entry.dtype = DType::kI64;
  ExpectError(CheckScale(entry), kInvalid, {"expected a scale of F8_E8M0 or F32, found I64"});
}

// Field report B97.
TEST_F(OpenTest, MtpBlockDSparkDrafterOrNeither) {
  EXPECT_EQ((*Checkpoint::Open(source_->path()))->draft(), DraftKind::kMtp);

  Tensors neither = *raw_;
  std::erase_if(neither, [](const auto& item) { return item.first.starts_with("mtp."); });
  Write(neither);
  auto ckpt = Open();
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_EQ((*ckpt)->draft(), DraftKind::kNone);
  EXPECT_EQ((*ckpt)->config().num_mtp_layers, 0);
  EXPECT_EQ((*ckpt)->config().compress_ratios.size(), 4u);
  EXPECT_TRUE(HasWarning(**ckpt, {"MTP speculative decoding layer 0 weights missing from checkpoint"}));

  Tensors half = *raw_;
  half.erase("mtp.0.enorm.weight");
  Write(half);
  ExpectError(Open(), kInvalid, {"missing: mtp.0.enorm.weight"});

  ModelConfig dspark = *config_;
  dspark.num_mtp_layers = 0;
  dspark.compress_ratios.resize(4);
  dspark.dspark =
      DSparkConfig{.block_size = 5, .noise_token_id = 7, .markov_rank = 8, .target_layer_ids = {1, 2}, .stages = 3};
  const TempDir dir;
  ASSERT_TRUE(WriteSyntheticCheckpoint(dspark, dir.path(), {}).ok());
  ckpt = Checkpoint::Open(dir.path());
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_EQ((*ckpt)->draft(), DraftKind::kDSpark);
  EXPECT_THAT((*ckpt)->warnings(), ::testing::IsEmpty());
  EXPECT_EQ((*ckpt)->config().num_mtp_layers, 0);
  EXPECT_NE((*ckpt)->Find("mtp.2.markov_head.markov_w1.weight"), nullptr);

  // The same files under a config that knows nothing of DSpark.
  WriteFile(dir / "config.json", ModelConfigToJson(*config_));
  ckpt = Checkpoint::Open(dir.path());
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_EQ((*ckpt)->draft(), DraftKind::kDSpark);
  EXPECT_EQ((*ckpt)->config().num_mtp_layers, 0);
  EXPECT_TRUE(HasWarning(**ckpt, {"DSpark drafter, but config.json has no dspark_*"}));

  // Without the fields that give its shapes the drafter is left alone.
  json vague = json::parse(ModelConfigToJson(dspark));
  vague.erase("dspark_markov_rank");
  WriteFile(dir / "config.json", vague.dump());
  ckpt = Checkpoint::Open(dir.path());
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_EQ((*ckpt)->draft(), DraftKind::kDSpark);
  EXPECT_THAT((*ckpt)->warnings(), ::testing::IsEmpty());

  // An incomplete drafter does not keep the model from running.
  Tensors broken = LoadRaw(dir.path());
  broken.erase("mtp.1.attn_norm.weight");
  Write(broken, ModelConfigToJson(dspark));
  ckpt = Open();
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_TRUE(HasWarning(**ckpt, {"incomplete", "mtp.1.attn_norm.weight"}));
}

// Field report B129.
TEST_F(OpenTest, IndexAndShardsThatDiffer) {
  CopySource();
  WriteFile(dir_ / "optimizer.safetensors", "not one of ours");
  EXPECT_THAT((*Open())->warnings(), ::testing::IsEmpty());

  const json index = json::parse(ReadFile(dir_ / std::string(kIndexFile)));
  json changed = index;
  changed["weight_map"].erase("norm.weight");
  changed["weight_map"]["layers.9.ghost"] = index["weight_map"]["embed.weight"];
  changed["weight_map"]["layers.0.attn.attn_sink"] = index["weight_map"]["mtp.0.enorm.weight"];
  WriteFile(dir_ / std::string(kIndexFile), changed.dump());
  auto ckpt = Open();
  ASSERT_TRUE(ckpt.ok()) << Message(ckpt.status());
  EXPECT_TRUE(HasWarning(**ckpt, {"not in the index", "norm.weight"}));
  EXPECT_TRUE(HasWarning(**ckpt, {"in no shard", "layers.9.ghost"}));
  EXPECT_TRUE(HasWarning(**ckpt, {"another shard", "layers.0.attn.attn_sink"}));
  ExpectSame(**ckpt, **Checkpoint::Open(source_->path()));

  changed = index;
  changed["weight_map"]["x"] = "model-00099-of-00099.safetensors";
  WriteFile(dir_ / std::string(kIndexFile), changed.dump());
  ExpectError(Open(), absl::StatusCode::kNotFound, {"1 of ", "missing: model-00099-of-00099.safetensors"});

  changed = index;
  const std::string second = index["weight_map"]["mtp.0.enorm.weight"];
  WriteTensors(dir_ / "extra.safetensors", {{"norm.weight", DType::kBF16, {128}, std::string(256, 'x')}});
  changed["weight_map"]["y"] = "extra.safetensors";
  WriteFile(dir_ / std::string(kIndexFile), changed.dump());
  ExpectError(Open(), kInvalid, {"\"norm.weight\" is in two shards", "extra.safetensors"});
}

TEST_F(OpenTest, DirectoriesThatAreNoCheckpoint) {
  ExpectError(Checkpoint::Open(dir_ / "nowhere"), absl::StatusCode::kNotFound, {"expected a model directory"});
  ExpectError(Open(), absl::StatusCode::kNotFound, {"config.json: cannot open"});
  WriteFile(dir_ / "config.json", ModelConfigToJson(*config_));
  ExpectError(Open(), absl::StatusCode::kNotFound, {"model.safetensors.index.json", "found neither"});
  WriteFile(dir_ / "a.safetensors", RawFile("{}", 0));
  ExpectError(Open(), kInvalid, {"tensors are missing: embed.weight"});
  WriteFile(dir_ / "b.safetensors", RawFile("{}", 0));
  ExpectError(Open(), kInvalid, {"2 *.safetensors files", "a.safetensors, b.safetensors"});
  WriteFile(dir_ / "generation_config.json", "{");
  ExpectError(Open(), kInvalid, {"generation_config.json", "not valid JSON"});
}

TEST_F(OpenTest, TruncatedShard) {
  CopySource();
  const std::string shard = (*Checkpoint::Open(source_->path()))->files()[1];
  const std::string name = std::filesystem::path(shard).filename();
  const std::string bytes = ReadFile(shard);
  WriteFile(dir_ / name, bytes.substr(0, bytes.size() - 100));
  ExpectError(Open(), kInvalid, {name.c_str(), "truncated", fmt::format("has {} bytes", bytes.size() - 100).c_str()});
}

TEST(ParseIndex, NamesWhatIsWrong) {
  const auto bad = [](const char* text, const char* message) {
    ExpectError(ParseIndex(text, "index"), kInvalid, {"index: ", message});
  };
  bad("", "not valid JSON");
  bad("[]", "expected a JSON object");
  bad("{}", "\"weight_map\" is missing");
  bad(R"({"weight_map":[]})", "expected an object, found a list");
  bad(R"({"weight_map":3})", "expected an object");
  bad(R"({"weight_map":{"a":3}})", "\"a\": expected a file name");
  bad(R"({"weight_map":{"a":{}}})", "found an object");
  bad(R"({"weight_map":{"a":"x","a":"y"}})", "mapped to both x and y");
  bad(R"({"weight_map":{"a":"../x"}})", "file beside the index");
  bad(R"({"weight_map":{"a":""}})", "file beside the index");
  bad(R"({"weight_map":{"a":"/etc/passwd"}})", "file beside the index");
  const auto ok =
      ParseIndex(R"({"metadata":{"weight_map":{"z":1},"l":[[1,{}]]},"weight_map":{"a":"x"},"b":null})", "index");
  ASSERT_TRUE(ok.ok()) << Message(ok.status());
  EXPECT_EQ(ok->size(), 1u);
}

}  // namespace
}  // namespace hadal::checkpoint
