// Installs the build into a directory of its own and builds the example programs against that, as a user would.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <string>

#include "support/paths.h"

namespace hadal::test {
namespace {

struct ShellResult {
  int code = -1;
  std::string out;
};

ShellResult Shell(const std::string& command) {
  ShellResult result;
  FILE* pipe = popen(command.c_str(), "r");
  if (pipe == nullptr) return result;
  char buffer[4096];
  for (size_t n = fread(buffer, 1, sizeof(buffer), pipe); n > 0; n = fread(buffer, 1, sizeof(buffer), pipe)) {
    result.out.append(buffer, n);
  }
  const int status = pclose(pipe);
  result.code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

class Install : public testing::Test {
 protected:
  static void SetUpTestSuite() {
    std::string name = (std::filesystem::temp_directory_path() / "hadal-install-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    root_ = new std::filesystem::path(name);
    const ShellResult install =
        Shell(std::string(HADAL_CMAKE) + " --install " + HADAL_BINARY_DIR + " --prefix " + Prefix() + " 2>&1");
    ASSERT_EQ(install.code, 0) << install.out;
    const ShellResult build =
        Shell("cd " + root_->string() + " && " + HADAL_CMAKE + " -S " + HADAL_SOURCE_DIR +
              "/examples/library -B example -DCMAKE_PREFIX_PATH=" + Prefix() +
              " -DCMAKE_CXX_FLAGS='-Wall -Wextra -Werror' -DCMAKE_C_FLAGS='-Wall -Wextra -Werror -std=c99 -pedantic' "
              "2>&1 && " +
              HADAL_CMAKE + " --build example 2>&1");
    ASSERT_EQ(build.code, 0) << build.out;
  }
  static void TearDownTestSuite() {
    if (root_ != nullptr) std::filesystem::remove_all(*root_);
    delete root_;
  }

  static std::string Prefix() { return (*root_ / "prefix").string(); }
  static std::string Example(const std::string& name) { return (*root_ / "example" / name).string(); }

  static std::filesystem::path* root_;
};
std::filesystem::path* Install::root_ = nullptr;

TEST_F(Install, TheCppExampleAnswers) {
  const ShellResult text = Shell(Example("chat") + " " + BundledModel() + " 'What is 17 + 25?' 2>/dev/null");
  EXPECT_EQ(text.code, 0);
  EXPECT_EQ(text.out, "17 + 25 = 42\n");
  const ShellResult image = Shell(Example("chat") + " " + BundledModel() + " 'OCR this image.' " + HADAL_SOURCE_DIR +
                                  "/examples/sign.png 2>/dev/null");
  EXPECT_EQ(image.code, 0);
  EXPECT_EQ(image.out, "TIGER 42\n");
  const ShellResult missing = Shell(Example("chat") + " /no/such/model hi 2>&1");
  EXPECT_EQ(missing.code, 1);
  EXPECT_THAT(missing.out, testing::HasSubstr("/no/such/model"));
}

TEST_F(Install, TheCExampleAnswers) {
  const ShellResult text = Shell(
      Example("chat_c") + " " + BundledModel() +
      R"( '{"messages": [{"role": "user", "content": "What is 17 + 25?"}], "temperature": 0, "thinking": false}')");
  EXPECT_EQ(text.code, 0);
  EXPECT_THAT(text.out, testing::StartsWith("17 + 25 = 42\n{\"id\":"));
  const ShellResult bad = Shell(Example("chat_c") + " " + BundledModel() + " '{}' 2>&1");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT(bad.out, testing::HasSubstr("messages"));
}

TEST_F(Install, TheBinaryRunsFromThere) {
  const ShellResult version = Shell(Prefix() + "/bin/hadal --version");
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, testing::StartsWith("hadal "));
}

TEST_F(Install, OnlyTheApiIsVisible) {
  const ShellResult names =
      Shell("nm -DC --defined-only " + Prefix() + "/lib/*/libhadal.so 2>/dev/null || nm -DC --defined-only " +
            Prefix() + "/lib/libhadal.so");
  ASSERT_EQ(names.code, 0);
  EXPECT_THAT(names.out, testing::HasSubstr("hadal_chat_completion"));
  EXPECT_THAT(names.out, testing::HasSubstr("hadal::Engine::Load"));
  for (const char* internal : {"hadal::runtime::", "hadal::models::", "hadal::text::", "hadal::guided::"}) {
    EXPECT_THAT(names.out, testing::Not(testing::HasSubstr(internal)));
  }
}

TEST_F(Install, PkgConfigKnowsIt) {
  const ShellResult flags =
      Shell("PKG_CONFIG_PATH=$(dirname $(find " + Prefix() + " -name hadal.pc)) pkg-config --cflags --libs hadal");
  EXPECT_EQ(flags.code, 0);
  EXPECT_THAT(flags.out, testing::HasSubstr("-lhadal"));
}

}  // namespace
}  // namespace hadal::test
