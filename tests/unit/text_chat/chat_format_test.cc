// Templates told apart by what they mention. Those here are cut-down look-alikes of the published ones.
#include "text/chat_format.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "support/chat_templates.h"

namespace hadal::text {
namespace {

using testing::HasSubstr;
using testing::Optional;

TEST(ChatTemplates, PublishedOnesAreKnown) {
  EXPECT_THAT(RecogniseChatTemplate(test::kTemplateV31), Optional(ChatFormat::kV31));
  EXPECT_THAT(RecogniseChatTemplate(test::kTemplateTerminus), Optional(ChatFormat::kV31Terminus));
  EXPECT_THAT(RecogniseChatTemplate(test::kTemplateV3), Optional(ChatFormat::kV3));
  EXPECT_THAT(RecogniseChatTemplate(test::kTemplateR1), Optional(ChatFormat::kR1));
  EXPECT_THAT(RecogniseChatTemplate(test::kTemplateR10528), Optional(ChatFormat::kR1));
}

TEST(ChatTemplates, OfLaterModelsInJinja) {
  const std::string frame = "{{'<｜User｜>'+m['content']+'<｜Assistant｜>'}}{{m['tool_calls']}}{{'<｜DSML｜'+'";
  EXPECT_THAT(RecogniseChatTemplate(frame + "function_calls>'}}"), Optional(ChatFormat::kV32));
  EXPECT_THAT(RecogniseChatTemplate(frame + "tool_calls>'}}"), Optional(ChatFormat::kV4));
  EXPECT_EQ(RecogniseChatTemplate(frame + "calls>'}}"), std::nullopt);
  EXPECT_EQ(RecogniseChatTemplate(frame + "tool_calls>function_calls>'}}"), std::nullopt);
}

// Without any one of its control tokens a template is another one.
TEST(ChatTemplates, OthersAreNot) {
  for (const char* text :
       {"", "{{ messages }}", "<|im_start|>{{ role }}", "<｜User｜><｜Assistant｜></think><think>thinking"}) {
    EXPECT_EQ(RecogniseChatTemplate(text), std::nullopt) << text;
  }
  for (const std::string_view known : {test::kTemplateV31, test::kTemplateV3}) {
    for (const std::string_view token : {kUserText, kAssistantText, kCallsBeginText, kCallBeginText, kCallSepText,
                                         kCallEndText, kCallsEndText, kOutputBeginText, kOutputEndText}) {
      std::string text(known);
      for (size_t at = text.find(token); at != text.npos; at = text.find(token)) text.erase(at, token.size());
      EXPECT_EQ(RecogniseChatTemplate(text), std::nullopt) << token;
    }
  }
  // Calls of one form with results of the other.
  EXPECT_EQ(RecogniseChatTemplate(std::string(test::kTemplateV31) + "```json"), std::nullopt);
  EXPECT_EQ(RecogniseChatTemplate(std::string(test::kTemplateV3) + "<think>"), std::nullopt);
  // An R1 that was taught to skip its reasoning.
  EXPECT_EQ(RecogniseChatTemplate(std::string(test::kTemplateR10528) + "{{'<think>\\n\\n</think>\\n\\n'}}"),
            std::nullopt);
  EXPECT_EQ(RecogniseChatTemplate(std::string(test::kTemplateR10528) + "{{'<｜Assistant｜><think>\\n</think>\\n'}}"),
            std::nullopt);
}

TEST(ChatTemplates, InTokenizerConfig) {
  const auto found = [](std::string_view json) {
    const auto text = ChatTemplateOfConfig(json);
    return text.ok() ? text->value_or("none") : std::string(Message(text.status()));
  };
  EXPECT_EQ(found(R"({"chat_template": "a\nb"})"), "a\nb");
  EXPECT_EQ(found(R"({"chat_template": null})"), "none");
  EXPECT_EQ(found("{}"), "none");
  EXPECT_EQ(
      found(R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d"}]})"),
      "d");
  EXPECT_EQ(found(R"({"chat_template": [{"name": "tool_use", "template": "t"}]})"), "none");
  EXPECT_EQ(found(R"({"chat_template": [3]})"), "none");
  EXPECT_THAT(found(R"({"chat_template": [{"name": 3}]})"), HasSubstr("chat_template[0].name"));
  EXPECT_THAT(found(R"({"chat_template": 3})"),
              HasSubstr("chat_template: expected a string or an array, found number"));
  EXPECT_THAT(found("[]"), HasSubstr("expected an object, found array"));
  EXPECT_THAT(found("{"), HasSubstr("JSON"));
}

TEST(ChatFormats, Properties) {
  EXPECT_TRUE(ThinksByDefault(ChatFormat::kV4));
  EXPECT_TRUE(ThinksByDefault(ChatFormat::kR1));
  for (const ChatFormat format : {ChatFormat::kV32, ChatFormat::kV31, ChatFormat::kV31Terminus, ChatFormat::kV3}) {
    EXPECT_FALSE(ThinksByDefault(format)) << ChatFormatName(format);
  }
  EXPECT_EQ(MarkupOf(ChatFormat::kV32), CallMarkup::kDsml);
  EXPECT_EQ(MarkupOf(ChatFormat::kV31), CallMarkup::kTokens);
  EXPECT_EQ(MarkupOf(ChatFormat::kR1), CallMarkup::kFencedTokens);
}

}  // namespace
}  // namespace hadal::text
