// Which encoding a directory's tokenizer_config.json or chat_template.jinja leads to.
#include "runtime/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "support/chat_templates.h"

namespace hadal::runtime {
namespace {

namespace fs = std::filesystem;
using checkpoint::ModelFamily;
using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using text::ChatFormat;

class ChatTemplateTest : public testing::Test {
 protected:
  ChatTemplateTest() {
    std::string name = (fs::temp_directory_path() / "hadal-template-XXXXXX").string();
    dir_ = mkdtemp(name.data());
  }
  ~ChatTemplateTest() override { fs::remove_all(dir_); }

  void Write(const char* name, std::string_view text) { std::ofstream(dir_ / name, std::ios::binary) << text; }
  void WriteConfig(std::string_view chat_template) {
    Write("tokenizer_config.json", nlohmann::json{{"chat_template", chat_template}, {"add_bos_token", true}}.dump());
  }
  ChatFormat Choose(ModelFamily family) {
    warnings_.clear();
    return ChooseChatFormat(dir_.string(), family, &warnings_);
  }

  fs::path dir_;
  std::vector<std::string> warnings_;
};

TEST_F(ChatTemplateTest, WithoutOne) {
  for (const bool config : {false, true}) {
    if (config) Write("tokenizer_config.json", R"({"add_bos_token": true})");
    EXPECT_EQ(Choose(ModelFamily::kV4), ChatFormat::kV4);
    EXPECT_THAT(warnings_, IsEmpty());
    EXPECT_EQ(Choose(ModelFamily::kV32), ChatFormat::kV32);
    EXPECT_THAT(warnings_, IsEmpty());
    EXPECT_EQ(Choose(ModelFamily::kV3), ChatFormat::kV3);
    EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("no chat template"), HasSubstr("encoded as V3's"))));
  }
}

TEST_F(ChatTemplateTest, PublishedOnesDecide) {
  const std::pair<std::string_view, ChatFormat> known[] = {{test::kTemplateV31, ChatFormat::kV31},
                                                           {test::kTemplateTerminus, ChatFormat::kV31Terminus},
                                                           {test::kTemplateV3, ChatFormat::kV3},
                                                           {test::kTemplateR1, ChatFormat::kR1},
                                                           {test::kTemplateR10528, ChatFormat::kR1}};
  for (const auto& [jinja, format] : known) {
    WriteConfig(jinja);
    for (const ModelFamily family : {ModelFamily::kV3, ModelFamily::kV32}) {
      EXPECT_EQ(Choose(family), format);
      EXPECT_THAT(warnings_, IsEmpty());
    }
    // A V4 model speaks none of them.
    EXPECT_EQ(Choose(ModelFamily::kV4), ChatFormat::kV4);
    EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("tokenizer_config.json: the chat template is that of"),
                                             HasSubstr(ChatFormatName(format)), HasSubstr("encoded as V4's"))));
  }
}

TEST_F(ChatTemplateTest, TheJinjaFileCountsFirst) {
  WriteConfig(test::kTemplateV3);
  Write("chat_template.jinja", test::kTemplateTerminus);
  EXPECT_EQ(Choose(ModelFamily::kV32), ChatFormat::kV31Terminus);
  Write("chat_template.jinja", "{{ messages }}");
  EXPECT_EQ(Choose(ModelFamily::kV32), ChatFormat::kV32);
  EXPECT_THAT(warnings_, ElementsAre(HasSubstr("chat_template.jinja: ")));
}

TEST_F(ChatTemplateTest, UnknownOnesAreReported) {
  WriteConfig("<|im_start|>{{ messages }}");
  const std::pair<ModelFamily, std::string_view> defaults[] = {{ModelFamily::kV4, "encoded as V4's"},
                                                               {ModelFamily::kV32, "encoded as V3.2's"},
                                                               {ModelFamily::kV3, "encoded as V3's"}};
  for (const auto& [family, said] : defaults) {
    EXPECT_EQ(Choose(family), DefaultChatFormat(family));
    EXPECT_THAT(warnings_, ElementsAre(AllOf(HasSubstr("none of those published"), HasSubstr(said))));
  }
}

TEST_F(ChatTemplateTest, BrokenFilesAreReported) {
  for (const char* text : {"", "{", "[]", R"({"chat_template": 3})", "\xFF\xFE"}) {
    Write("tokenizer_config.json", text);
    EXPECT_EQ(Choose(ModelFamily::kV32), ChatFormat::kV32);
    EXPECT_THAT(warnings_,
                ElementsAre(AllOf(HasSubstr("tokenizer_config.json: cannot read"), HasSubstr("encoded as V3.2's"))));
  }
  fs::remove(dir_ / "tokenizer_config.json");
  fs::create_directory(dir_ / "tokenizer_config.json");
  EXPECT_EQ(Choose(ModelFamily::kV32), ChatFormat::kV32);
  EXPECT_EQ(warnings_.size(), 1);
}

// --tokenizer may name the file.
TEST_F(ChatTemplateTest, BesideATokenizerFile) {
  WriteConfig(test::kTemplateV31);
  Write("tokenizer.json", "{}");
  EXPECT_EQ(ChooseChatFormat((dir_ / "tokenizer.json").string(), ModelFamily::kV3, &warnings_), ChatFormat::kV31);
  EXPECT_THAT(warnings_, IsEmpty());
}

}  // namespace
}  // namespace hadal::runtime
