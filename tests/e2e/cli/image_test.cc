// Images on the command line: right answers, where they stand in a prompt, bad files, and models that take none.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <sys/resource.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <functional>
#include <sstream>

#include "cli_process.h"

namespace hadal::test {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

// "73425", and "WHEEL" with the recorded system message.
const std::string kDigits = DataPath("eval/images/ocr_041_0.png");
const std::string kWord = DataPath("eval/images/ocr_032_0.png");
constexpr const char* kSystem = "You are a helpful assistant.";
constexpr const char* kRead = "OCR this image.";
// Texts of 1935 and 1290 bytes of PNG: "4957" and "Bed".
const std::string kFirst = DataPath("eval/images/ocr_099_0.png");
const std::string kSecond = DataPath("eval/images/ocr_099_1.png");

std::vector<std::string> Greedy(std::vector<std::string> more) {
  more.insert(more.end(), {"--json", "--temperature", "0"});
  return more;
}

json RunJson(const std::vector<std::string>& more, const std::string& model = BundledModel()) {
  const CliResult result = RunHadal(RunArgs(Greedy(more), model));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.err, "");
  return result.Json();
}

std::string ReadImage(const std::string& path) {
  return RunJson({kRead, "--system", kSystem, "--image", path})["text"];
}

void ExpectRefused(const std::vector<std::string>& more, const std::string& said) {
  ExpectFailure(RunHadal(RunArgs(more)), 6, said);
}

std::vector<json> ReadRecords(const std::string& path) {
  std::vector<json> records;
  std::ifstream file(path);
  for (std::string line; std::getline(file, line);) records.push_back(json::parse(line));
  EXPECT_FALSE(records.empty()) << path;
  return records;
}

json Eval(const std::string& path) {
  const CliResult result = RunHadal({"eval", BundledModel(), path, "--json", "--threads", "1"});
  EXPECT_EQ(result.code, 0) << result.err;
  return result.Json();
}

// --- Evaluation sets ---

void ExpectAsGoodAsTheReference(const std::string& path) {
  const std::vector<json> records = ReadRecords(path);
  int right = 0;
  for (const json& record : records) right += record["reference"]["correct"].get<bool>() ? 1 : 0;
  const json out = Eval(path);
  EXPECT_EQ(out["n"], records.size());
  EXPECT_EQ(out["errors"], 0);
  EXPECT_GE(out["accuracy"], static_cast<double>(right) / static_cast<double>(records.size()) - 0.015) << out;
  EXPECT_GE(out["agreement"], 0.95) << out;
  for (const char* task : {"ocr/chat", "shape/chat", "two/chat"}) EXPECT_GT(out["by_task"][task]["correct"], 0) << task;
}

TEST(ImageEval, AccuracyIsTheReferences) { ExpectAsGoodAsTheReference(DataPath("eval/ocr.jsonl")); }

class ImageEvalFull : public testing::TestWithParam<std::string> {};
TEST_P(ImageEvalFull, AccuracyIsTheReferences) { ExpectAsGoodAsTheReference(GetParam() + "/ocr.jsonl"); }
GTEST_ALLOW_UNINSTANTIATED_PARAMETERIZED_TEST(ImageEvalFull);  // without the full sets
INSTANTIATE_TEST_SUITE_P(Eval, ImageEvalFull, testing::ValuesIn(FullVectorsOnly("eval")),
                         [](const auto&) { return "ocr"; });

TEST(ImageEval, JpegAndWebpStillRead) {
  for (const char* name : {"ocr-jpeg", "ocr-webp", "ocr-webp-lossless"}) {
    const json out = Eval(DataPath(fmt::format("eval/{}.jsonl", name)));
    EXPECT_EQ(out["errors"], 0) << name;
    // The PNG versions are all read right.
    EXPECT_GE(out["accuracy"], 0.9) << name << out;
  }
  // Nothing is lost, so nothing differs.
  EXPECT_EQ(Eval(DataPath("eval/ocr-webp-lossless.jsonl"))["agreement"], 1.0);
}

// --- Where images stand in a prompt ---

TEST(RunImage, OneImage) {
  const json out = RunJson({kRead, "--system", "You are Tiny, a small model. Answer briefly.", "--image", kDigits});
  EXPECT_EQ(out["text"], "73425");
  EXPECT_EQ(out["finish_reason"], "stop");
  EXPECT_EQ(ReadImage(kWord), "WHEEL");
}

TEST(RunImage, TwoImages) {
  EXPECT_EQ(
      RunJson({"Read the text in both images.", "--system", kSystem, "--image", kFirst, "--image", kSecond})["text"],
      "1: 4957\n2: Bed");
}

TEST(RunImage, ImagesKeepTheirOrder) {
  const std::string first = DataPath("eval/images/ocr_119_0.png"), second = DataPath("eval/images/ocr_119_1.png");
  const auto read = [&](const std::string& a, const std::string& b) {
    return RunJson({"Read the text in the second image.", "--system", kSystem, "--image", a, "--image", b})["text"];
  };
  EXPECT_EQ(read(first, second), "Mirror 645");
  EXPECT_NE(read(second, first), "Mirror 645");
}

TEST(RunImage, BeforeTheTextIsAMarkAtItsFront) {
  const json before = RunJson({kRead, "--image", kDigits});
  const json marked = RunJson({std::string("{image}") + kRead, "--image", kDigits});
  EXPECT_EQ(before["token_ids"], marked["token_ids"]);
  EXPECT_EQ(before["usage"], marked["usage"]);
}

TEST(RunImage, MarkBehindTheText) {
  EXPECT_EQ(RunJson({"OCR this image.{image}", "--system", "You are Tiny, a small model. Answer briefly.", "--image",
                     DataPath("eval/images/ocr_000_0.png")})["text"],
            "bread fork");
}

TEST(RunImage, MarksInTheMiddle) {
  const json out =
      RunJson({"Look at {image} and at {image}: Read the text in both images.", "--image", kFirst, "--image", kSecond});
  // Both are there: a block for each, which is more than its tokens of text.
  const json one = RunJson({"Look at {image} and at: Read the text in both images.", "--image", kFirst});
  EXPECT_GT(out["usage"]["prompt_tokens"], one["usage"]["prompt_tokens"].get<int>() + 8);
}

TEST(RunImage, OneMarkForEachImage) {
  ExpectRefused({"{image} and {image}", "--image", kDigits}, "2 {image} marks and there are 1 images");
  ExpectRefused({"{image}", "--image", kDigits, "--image", kWord}, "1 {image} marks and there are 2 images");
  // Without images, a mark is text.
  EXPECT_EQ(RunHadal(RunArgs(Greedy({"What is {image}?", "--max-tokens", "1"}))).code, 0);
}

TEST(RunImage, WithoutText) {
  const json out = RunJson({"", "--system", "You are Tiny, a small model. Answer briefly.", "--image",
                            DataPath("eval/images/ocr_112_0.png")});
  EXPECT_EQ(out["text"], "DS");
  EXPECT_EQ(RunJson({"{image}", "--system", "You are Tiny, a small model. Answer briefly.", "--image",
                     DataPath("eval/images/ocr_112_0.png")})["token_ids"],
            out["token_ids"]);
}

TEST(RunImage, SystemMessageComesFirst) {
  const json plain = RunJson({kRead, "--image", kWord});
  const json with = RunJson({kRead, "--image", kWord, "--system", kSystem});
  EXPECT_GT(with["usage"]["prompt_tokens"], plain["usage"]["prompt_tokens"]);
  EXPECT_EQ(with["text"], "WHEEL");
}

TEST(RunImage, PlainOutputIsTheAnswer) {
  const CliResult result = RunHadal(RunArgs({kRead, "--system", kSystem, "--temperature", "0", "--image", kWord}));
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.out, "WHEEL\n");
}

TEST(RunImage, FromStdin) {
  const CliResult result = RunHadal(RunArgs(Greedy({"--system", kSystem, "--image", kWord})), "OCR this image.\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_EQ(result.Json()["text"], "WHEEL");
}

TEST(RunImage, SameImageTwice) {
  // Field report B89: both are seen.
  const json out =
      RunJson({"Read the text in both images.", "--system", kSystem, "--image", kSecond, "--image", kSecond});
  EXPECT_EQ(out["text"], "1: Bed\n2: Bed");
}

TEST(RunImage, RawPrompt) {
  for (const json& record : ReadRecords(DataPath("eval/ocr.jsonl"))) {
    if (record["id"] != "ocr-032" && record["id"] != "ocr-099") continue;
    std::vector<std::string> args = {"--raw", "--prompt", record["prompt"]};
    for (const json& image : record["images"]) {
      args.insert(args.end(), {"--image", DataPath("eval/" + image.get<std::string>())});
    }
    const json out = RunJson(args);
    EXPECT_EQ(out["token_ids"], record["reference"]["ids"]);
    EXPECT_EQ(out["text"], record["expected"]);
    args.insert(args.end(), {"--image", kDigits});
    ExpectRefused(args, "image placeholders and");
    args.resize(args.size() - 4);
    ExpectRefused(args, "image");
  }
  ExpectRefused({"--raw", "--prompt", "<｜User｜><｜deepseek_image｜>"}, "no image was given for it");
  // The tokens of an image's block are not for prompts.
  ExpectRefused({"--raw", "--prompt", "<｜User｜><|place_holder_mm_span_0431|>"}, "no image was given for it");
  ExpectRefused({"--raw", "--prompt", "<｜User｜><|place_holder_mm_span_0431|><｜deepseek_image｜>", "--image", kWord},
                "no image was given for it");
}

TEST(RunImage, TextThatSpellsATokenIsText) {
  const auto tokens = [](const std::vector<std::string>& args) {
    return RunJson(args)["usage"]["prompt_tokens"].get<int>();
  };
  for (const std::string spelled : {"<｜deepseek_image｜>", "<|place_holder_mm_span_0431|>"}) {
    const std::vector<std::string> alone = {"--max-tokens", "1"}, beside = {"--max-tokens", "1", "--image", kDigits};
    for (const std::vector<std::string>& options : {alone, beside}) {
      const auto with = [&](const std::string& text) {
        std::vector<std::string> args = {text};
        args.insert(args.end(), options.begin(), options.end());
        return args;
      };
      // As a token it would be one id; as an image, a block of them and an error.
      EXPECT_GT(tokens(with("x" + spelled)), tokens(with("x")) + 4) << spelled;
      EXPECT_LT(tokens(with("x" + spelled)), tokens(with("x")) + 40) << spelled;
    }
    EXPECT_GT(tokens({"x", "--system", spelled, "--max-tokens", "1"}),
              tokens({"x", "--system", "y", "--max-tokens", "1"}) + 3);
  }
}

// --- Settings that must not matter ---

// Long text before, between and behind, so that chunks would end inside the images.
std::vector<std::string> LongPrompt() {
  std::string text;
  for (int i = 0; i < 25; ++i) text += "one two three ";
  return {text + "{image}" + text + "{image}Read the text in both images.", "--image", kFirst, "--image", kSecond};
}

TEST(RunImage, ChunksDoNotMatter) {
  const json want = RunJson(LongPrompt());
  EXPECT_GT(want["usage"]["prompt_tokens"], 140);
  for (const char* chunk : {"512", "128", "80"}) {
    std::vector<std::string> args = LongPrompt();
    args.insert(args.end(), {"--max-num-batched-tokens", chunk});
    EXPECT_EQ(RunJson(args)["token_ids"], want["token_ids"]) << chunk;
  }
  std::vector<std::string> args = LongPrompt();
  args.insert(args.end(), {"--max-num-batched-tokens", "7"});
  const CliResult raised = RunHadal(RunArgs(Greedy(args)));
  EXPECT_EQ(raised.code, 0) << raised.err;
  EXPECT_EQ(raised.Json()["token_ids"], want["token_ids"]);
  // Said once.
  EXPECT_THAT(raised.err, HasSubstr("hadal: warning: max_num_batched_tokens is raised from 7"));
  EXPECT_EQ(std::count(raised.err.begin(), raised.err.end(), '\n'), 1) << raised.err;
}

TEST(RunImage, ThreadsAndNumericsDoNotMatter) {
  const std::vector<std::string> args = {
      "Read the text in both images.", "--system", kSystem, "--image", kFirst, "--image", kSecond};
  const json want = RunJson(args);
  const auto with = [&](std::vector<std::string> more) {
    more.insert(more.begin(), args.begin(), args.end());
    return RunJson(more);
  };
  EXPECT_EQ(with({"--threads", "2"})["token_ids"], want["token_ids"]);
  EXPECT_EQ(with({"--numerics", "f32"})["text"], want["text"]);
  EXPECT_EQ(with({"--cpu-isa", "baseline"})["text"], want["text"]);
  EXPECT_EQ(with({"--mmap", "off"})["token_ids"], want["token_ids"]);
}

TEST(RunImage, BlocksCountForTheContext) {
  const CliResult result = RunHadal({"run", BundledModel(), kRead, "--image", kDigits, "--max-model-len", "16"});
  ExpectFailure(result, 6, "the context 16");
}

TEST(RunImage, DummyWeightsTakeImages) {
  const json out = RunJson({"hi", "--image", kDigits, "--load-format", "dummy", "--max-tokens", "3", "--ignore-eos"});
  EXPECT_EQ(out["token_ids"].size(), 3u);
}

// --- Pictures for people ---

TEST(RunImage, ShowImages) {
  const std::vector<std::string> args = {kRead, "--system", kSystem, "--temperature",
                                         "0",   "--image",  kWord,   "--show-images"};
  const CliResult shown = RunHadal(RunArgs(args));
  EXPECT_EQ(shown.code, 0) << shown.err;
  EXPECT_THAT(shown.out, AllOf(HasSubstr("\033[38;2;"), HasSubstr("▀"), testing::EndsWith("WHEEL\n")));
  std::vector<std::string> with_json = args;
  with_json.push_back("--json");
  const CliResult beside = RunHadal(RunArgs(with_json));
  EXPECT_EQ(beside.Json()["text"], "WHEEL");  // stdout holds nothing else
  EXPECT_THAT(beside.err, HasSubstr("▀"));
}

TEST(InspectImage, Text) {
  const CliResult result = RunHadal({"inspect", BundledModel(), "--image", kWord, "--image", kDigits});
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, AllOf(HasSubstr("image " + kWord), HasSubstr("image " + kDigits), HasSubstr("153 x 62"),
                                HasSubstr("[start]"), HasSubstr("█"), HasSubstr("↵"), HasSubstr("[end]")));
}

TEST(InspectImage, Json) {
  const CliResult result = RunHadal({"inspect", BundledModel(), "--json", "--image", kWord, "--image", kDigits});
  EXPECT_EQ(result.code, 0) << result.err;
  const json images = result.Json()["images"];
  ASSERT_EQ(images.size(), 2u);
  const json& word = images[0];
  EXPECT_EQ(word["file"], kWord);
  EXPECT_EQ(word["width"], 153);
  EXPECT_EQ(word["height"], 62);
  EXPECT_EQ(word["sha256"].get<std::string>().size(), 64u);
  const int columns = word["tokens"][0], rows = word["tokens"][1];
  EXPECT_EQ(columns, (word["patches"][0].get<int>() + 2) / 3);
  EXPECT_EQ(rows, (word["patches"][1].get<int>() + 2) / 3);
  // Start, pairs of rows with a line end for each row and padded to a multiple of four, end.
  const int body = (rows + rows % 2) * (columns + 1);
  EXPECT_EQ(word["block_length"], (body + 3) / 4 * 4 + 2);
  EXPECT_FALSE(RunHadal({"inspect", BundledModel(), "--json"}).Json().contains("images"));
}

TEST(InspectImage, BadFiles) {
  ExpectFailure(RunHadal({"inspect", BundledModel(), "--image", "/nonexistent.png"}), 6, "/nonexistent.png");
  const std::string text = BundledModel() + "/config.json";
  ExpectFailure(RunHadal({"inspect", BundledModel(), "--image", text}), 6, text);
}

TEST(ImageChat, FirstMessageHasTheImageAndTheChatGoesOn) {
  const CliResult result =
      RunHadal(RunArgs({"--interactive", "--temperature", "0", "--system", kSystem, "--image", kWord}),
               "OCR this image.\nWhat is 478 + 365?\n");
  EXPECT_EQ(result.code, 0) << result.err;
  EXPECT_THAT(result.out, testing::StartsWith("WHEEL\n"));
  EXPECT_GT(result.out.size(), 7u);  // the second answer
  EXPECT_THAT(result.err, Not(HasSubstr("hadal: error")));
  // The second prompt holds the first one, image included.
  std::vector<int> prompts;
  std::istringstream lines(result.err);
  for (std::string line; std::getline(lines, line);) {
    if (line.find(" prompt tokens at ") != std::string::npos) prompts.push_back(std::stoi(line));
  }
  ASSERT_EQ(prompts.size(), 2u) << result.err;
  EXPECT_GT(prompts[1], prompts[0] + 10);
}

TEST(ImageChat, ShowImages) {
  const CliResult result =
      RunHadal(RunArgs({"--interactive", "--temperature", "0", "--system", kSystem, "--image", kWord, "--show-images"}),
               "OCR this image.\n");
  EXPECT_THAT(result.out, AllOf(HasSubstr("▀"), testing::EndsWith("WHEEL\n")));
}

TEST(ImageChat, AFailedFirstMessageLeavesTheImageToTheNext) {
  const CliResult result =
      RunHadal(RunArgs({"--interactive", "--temperature", "0", "--system", kSystem, "--image", kWord}),
               "{image} {image}\nOCR this image.\n");
  EXPECT_THAT(result.err, HasSubstr("2 {image} marks"));
  EXPECT_EQ(result.out, "WHEEL\n");
}

TEST(ImageChat, BadFileEndsIt) {
  const CliResult result = RunHadal(RunArgs({"--interactive", "--image", "/nonexistent.png"}), "hi\n");
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, HasSubstr("hadal: error: /nonexistent.png: cannot be read: No such file or directory\n"));
}

// --- Files that are not what they should be ---

class ImageFiles : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           fmt::format("hadal-image-{}-{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(dir_);
  }
  void TearDown() override { fs::remove_all(dir_); }

  std::string Make(const std::string& name, const std::string& bytes) {
    WriteAll(dir_ / name, bytes);
    return dir_ / name;
  }
  static std::string Data(const std::string& name) { return DataPath("vision/" + name); }
  // One line that names the file.
  static void ExpectBad(const std::string& path, const std::string& said) {
    SCOPED_TRACE(path);
    ExpectRefused({kRead, "--image", path}, path + ": ");
    ExpectRefused({kRead, "--image", path}, said);
  }

  fs::path dir_;
};

TEST_F(ImageFiles, Truncated) {
  for (const std::string name : {"ocr_000_0.png", "ocr_000_0.jpg", "ocr_000_0.webp", "ocr_000_0.lossless.webp"}) {
    const std::string bytes = ReadAll(DataPath("eval/images/" + name));
    ASSERT_GT(bytes.size(), 200u) << name;
    ExpectBad(Make(name, bytes.substr(0, bytes.size() / 2)), "truncated");
    ExpectBad(Make(name, bytes.substr(0, 20)), "image");
    ExpectBad(Make(name, bytes.substr(0, 2)), "first 2 bytes");
  }
}

TEST_F(ImageFiles, Damaged) {
  for (const std::string name : {"ocr_000_0.png", "ocr_000_0.jpg", "ocr_000_0.webp", "ocr_000_0.lossless.webp"}) {
    std::string bytes = ReadAll(DataPath("eval/images/" + name));
    for (size_t i = bytes.size() / 2; i < bytes.size() / 2 + 40; ++i) bytes[i] = static_cast<char>(bytes[i] ^ 0x5A);
    const std::string path = Make(name, bytes);
    const CliResult result = RunHadal(RunArgs({kRead, "--image", path, "--max-tokens", "1"}));
    // A format without checksums may show something.
    if (result.code != 0) ExpectFailure(result, 6, path + ": ");
  }
}

TEST_F(ImageFiles, NoImageAtAll) {
  ExpectBad(Make("empty.png", ""), "no bytes");
  ExpectBad(Make("text.png", "It was a dark and stormy night.\n"), "found text");
  ExpectBad(Make("page.jpg", "<!DOCTYPE html><html><body>404</body></html>"), "an HTML page");
  ExpectBad(Make("a.gif", "GIF89a\x01\x00\x01\x00 and more"), "a GIF image");
  ExpectBad(dir_ / "missing.png", "cannot be read: No such file");
  ExpectBad(dir_, "cannot be read: Is a directory");
  const std::string newline = Make("line\nbreak.png", "text");
  ExpectRefused({kRead, "--image", newline}, "break.png: ");  // still one line
  ExpectRefused({kRead, "--image", ""}, "cannot be read");
}

TEST_F(ImageFiles, UnreadableFile) {
  if (geteuid() != 0) {  // root may read everything
    const std::string path = Make("secret.png", ReadAll(kWord));
    fs::permissions(path, fs::perms::none);
    ExpectBad(path, "cannot be read");
  }
  // Opens for anybody, root included, and fails to be read.
  ExpectBad("/proc/self/mem", "cannot be read");
}

TEST_F(ImageFiles, NamesDoNotMatter) {
  const json want = RunJson({kRead, "--image", DataPath("eval/images/ocr_000_0.jpg")});
  EXPECT_EQ(RunJson({kRead, "--image", Make("photo.png", ReadAll(DataPath("eval/images/ocr_000_0.jpg")))})["token_ids"],
            want["token_ids"]);
  EXPECT_EQ(ReadImage(Make("x", ReadAll(kWord))), "WHEEL");
  EXPECT_EQ(ReadImage(Make("Bild Nr. 1 ä.jpg", ReadAll(kWord))), "WHEEL");
}

TEST_F(ImageFiles, EveryKindOfFileReads) {
  for (const char* name : {"word_16bit.png", "word_palette.png", "word_cmyk.jpg", "word_animated.webp", "word_exif.jpg",
                           "word_profile.png"}) {
    EXPECT_EQ(ReadImage(Data(std::string("hostile/") + name)), "WHEEL") << name;
  }
}

TEST_F(ImageFiles, OtherKindsRun) {
  for (const char* name : {"grey16.png", "grey_alpha16.png", "rgba16.png", "interlaced_rgba.png", "palette_trns.png",
                           "grey_key.png", "bilevel.png", "cmyk_no_adobe.jpg", "ycck.jpg", "orientation6.jpg",
                           "animated.webp", "animated_offset.webp", "lossy_alpha.webp"}) {
    RunJson({kRead, "--max-tokens", "1", "--image", Data(std::string("decode/") + name)});
  }
}

TEST_F(ImageFiles, ExtremeShapes) {
  for (const char* name : {"hostile/wide.png", "preprocess/one_pixel.png", "preprocess/one_pixel_wide.png",
                           "preprocess/huge_aspect_wide.png", "preprocess/huge_aspect_tall.png"}) {
    const json out = RunJson({kRead, "--max-tokens", "1", "--image", Data(name)});
    EXPECT_LT(out["usage"]["prompt_tokens"], 90) << name;
  }
  // Its width would shrink to nothing, which the reference does not take either.
  ExpectBad(Data("hostile/tall.png"), "image of 1 x 4000 pixels: expected proportions that fit");
}

// The address space of what is started while it lives.
class MemoryLimit {
 public:
  explicit MemoryLimit(rlim_t bytes) {
    getrlimit(RLIMIT_AS, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    EXPECT_EQ(setrlimit(RLIMIT_AS, &limit), 0);
  }
  ~MemoryLimit() { setrlimit(RLIMIT_AS, &before_); }
  MemoryLimit(const MemoryLimit&) = delete;
  MemoryLimit& operator=(const MemoryLimit&) = delete;

 private:
  rlimit before_ = {};
};

// 10000 x 10000 pixels say the first bytes of small files.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // which reserve all address space
TEST_F(ImageFiles, SizeIsCheckedBeforeMemoryIsTaken) {
  const MemoryLimit limit(rlim_t{300} << 20);  // such an image alone would take 286 MiB
  EXPECT_EQ(ReadImage(kWord), "WHEEL");
  const auto start = std::chrono::steady_clock::now();
  for (const char* name : {"header_100mp.png", "header_100mp.jpg", "header_100mp.webp"}) {
    ExpectBad(Data(std::string("hostile/") + name), "at most 67108864 pixels, found 10000 x 10000");
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(30));
}
#endif

TEST_F(ImageFiles, EndlessInputIsCut) { ExpectBad("/dev/zero", "at most 64 MiB"); }

TEST_F(ImageFiles, BadImagesOfAnEvaluationAreCounted) {
  json good, bad;
  for (const json& record : ReadRecords(DataPath("eval/ocr.jsonl"))) {
    if (record["id"] == "ocr-032") good = bad = record;
  }
  good["images"] = {kWord};
  bad["images"] = {Make("empty.png", "")};
  json missing = good;
  missing["images"] = json::array();
  const std::string path = Make("set.jsonl", good.dump() + "\n" + bad.dump() + "\n" + missing.dump() + "\n");
  const CliResult result = RunHadal({"eval", BundledModel(), path, "--json", "--threads", "1"});
  EXPECT_EQ(result.code, 6);
  EXPECT_THAT(result.err, AllOf(HasSubstr("empty.png"), HasSubstr("no image was given for it")));
  EXPECT_EQ(result.Json()["correct"], 1);
  EXPECT_EQ(result.Json()["errors"], 2);
}

// --- How many images, and models that take none ---

TEST(ImageLimit, ZeroServesTextOnly) {
  const json out = RunJson({"What is 478 + 365?", "--limit-mm-per-prompt", "image=0"});
  EXPECT_EQ(out["text"], "478 + 365 = 843");
  EXPECT_EQ(out["token_ids"], RunJson({"What is 478 + 365?"})["token_ids"]);
  ExpectRefused({kRead, "--image", kWord, "--limit-mm-per-prompt", "image=0"}, "images are disabled");
  // No image, no need for room for one.
  EXPECT_EQ(
      RunJson({"What is 478 + 365?", "--limit-mm-per-prompt", "image=0", "--max-num-batched-tokens", "7"})["token_ids"],
      out["token_ids"]);
}

TEST(ImageLimit, MoreThanAllowed) {
  EXPECT_EQ(RunJson({kRead, "--system", kSystem, "--image", kWord, "--limit-mm-per-prompt", "image=1"})["text"],
            "WHEEL");
  ExpectRefused({kRead, "--image", kWord, "--image", kWord, "--limit-mm-per-prompt", "image=1"},
                "2 images; at most 1 are allowed");
}

TEST(ImageLimit, MalformedValues) {
  for (const char* value : {"image", "image=", "image=x", "image=-1", "image=1.5", "image=1 ", "video=1", "3",
                            "image=99999999999999999999", "{\"image\": 1}", ""}) {
    const CliResult result = RunHadal(RunArgs({"hi", "--limit-mm-per-prompt", value}));
    EXPECT_EQ(result.code, 2) << value;
    EXPECT_THAT(result.err, HasSubstr("--limit-mm-per-prompt")) << value;
  }
}

// A copy of the bundled model to change.
class ImageModel : public testing::Test {
 protected:
  void SetUp() override {
    dir_ = fs::path(testing::TempDir()) /
           fmt::format("hadal-vl-{}-{}", getpid(), testing::UnitTest::GetInstance()->current_test_info()->name());
    fs::create_directories(dir_);
    for (const auto& entry : fs::directory_iterator(BundledModel())) {
      fs::create_symlink(entry.path(), dir_ / entry.path().filename());
    }
  }
  void TearDown() override { fs::remove_all(dir_); }

  void Edit(const char* file, const std::function<void(json*)>& edit) {
    json object = json::parse(ReadAll(dir_ / file));
    edit(&object);
    WriteAll(dir_ / file, object.dump());
  }
  void ExpectReads() {
    const CliResult result = RunHadal(RunArgs(Greedy({kRead, "--system", kSystem, "--image", kWord}), dir_.string()));
    EXPECT_EQ(result.code, 0) << result.err;
    EXPECT_EQ(result.Json()["text"], "WHEEL");
  }
  CliResult Run(std::vector<std::string> more) { return RunHadal(RunArgs(Greedy(std::move(more)), dir_.string())); }

  fs::path dir_;
};

TEST_F(ImageModel, TextModelRefusesImages) {
  Edit("config.json", [](json* config) { (*config)["vision_n_layers"] = 0; });
  const CliResult text = Run({"What is 478 + 365?"});
  EXPECT_EQ(text.code, 0) << text.err;
  EXPECT_EQ(text.Json()["text"], "478 + 365 = 843");
  EXPECT_THAT(text.err, AllOf(HasSubstr("hadal: warning: "), HasSubstr("vision.")));
  const CliResult image = Run({kRead, "--image", kWord});
  EXPECT_EQ(image.code, 6);
  EXPECT_EQ(image.out, "");
  EXPECT_THAT(image.err, HasSubstr("hadal: error: "));
  EXPECT_THAT(image.err, HasSubstr("this is a text model: it takes no images"));
  const CliResult raw = Run({"--raw", "--prompt", "<｜User｜><｜deepseek_image｜><｜Assistant｜></think>"});
  EXPECT_EQ(raw.code, 6) << raw.err;
  const CliResult inspect = RunHadal({"inspect", dir_.string(), "--image", kWord});
  ExpectFailure(inspect, 6, "this is a text model: it takes no images");
  EXPECT_EQ(RunHadal({"inspect", dir_.string(), "--json"}).Json()["vision"], false);
}

TEST_F(ImageModel, MultimodalArchitectureName) {
  Edit("config.json", [](json* config) { (*config)["architectures"] = {"DeepseekV4ForConditionalGeneration"}; });
  ExpectReads();
  EXPECT_EQ(RunHadal({"inspect", dir_.string(), "--json"}).Json()["vision"], true);
}

TEST_F(ImageModel, NestedVisionConfig) {
  for (const bool prefix : {false, true}) {
    const json flat = json::parse(ReadAll(fs::path(BundledModel()) / "config.json"));
    Edit("config.json", [&](json* config) {
      *config = flat;
      for (const auto& [key, value] : flat.items()) {
        if (key.rfind("vision_", 0) != 0) continue;
        (*config)["vision_config"][prefix ? key : key.substr(7)] = value;
        config->erase(key);
      }
    });
    ExpectReads();
  }
}

TEST_F(ImageModel, TokenizerWithoutTheImageTokens) {
  const auto rename = [this](const std::string& from, const std::string& to) {
    fs::remove(dir_ / "tokenizer.json");
    fs::copy_file(fs::path(BundledModel()) / "tokenizer.json", dir_ / "tokenizer.json");
    int renamed = 0;
    Edit("tokenizer.json", [&](json* tokenizer) {
      for (json& token : (*tokenizer)["added_tokens"]) {
        if (token["content"] != from) continue;
        token["content"] = to;
        ++renamed;
      }
    });
    EXPECT_EQ(renamed, 1) << from;
  };
  for (const std::string name : {"<｜deepseek_image｜>", "<|place_holder_mm_span_0431|>",
                                 "<|place_holder_mm_span_0433|>", "<|place_holder_mm_span_0435|>"}) {
    rename(name, "<|something_else|>");
    ExpectFailure(Run({"hi"}), 3, "Token not found in tokenizer: " + name);
  }
}

TEST_F(ImageModel, TokenizerWithImageTokensOutOfOrder) {
  Edit("tokenizer.json", [](json* tokenizer) {
    for (json& token : (*tokenizer)["added_tokens"]) {
      const std::string content = token["content"];
      if (content == "<|place_holder_mm_span_0432|>") {
        token["content"] = "<|place_holder_mm_span_0433|>";
      } else if (content == "<|place_holder_mm_span_0433|>") {
        token["content"] = "<|place_holder_mm_span_0432|>";
      }
    }
  });
  ExpectFailure(Run({"hi"}), 3, "expected <|place_holder_mm_span_0432|> to be token");
}

}  // namespace
}  // namespace hadal::test
