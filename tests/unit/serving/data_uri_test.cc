#include "serving/openai/data_uri.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "base/status.h"

namespace hadal::serving {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(DecodeBase64, TakesTheStandardFormOnly) {
  EXPECT_THAT(*DecodeBase64("AQID"), ElementsAre(1, 2, 3));
  EXPECT_THAT(*DecodeBase64("AQI="), ElementsAre(1, 2));
  EXPECT_THAT(*DecodeBase64("AQ=="), ElementsAre(1));
  EXPECT_THAT(*DecodeBase64("+/+/"), ElementsAre(0xFB, 0xFF, 0xBF));
  EXPECT_THAT(*DecodeBase64(""), ElementsAre());
  for (const char* bad : {"AQI", "AQ", "A", "AQ=", "AQID=", "AQID====", "A===", "====", "=", "AQ=D", "AQ I", "AQI\n",
                          " AQID", "AQ\tD", "-_-_", "AQ%3D", "AQé="}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DecodeBase64(bad).status())) << bad;
  }
  EXPECT_FALSE(DecodeBase64(std::string("AQ\0D", 4)).ok());
}

TEST(DecodeImageUri, Table) {
  const auto said = [](std::string_view uri) {
    const auto bytes = DecodeImageUri(uri, 6);
    return bytes.ok() ? std::string("accepted") : std::string(Message(bytes.status()));
  };
  for (const char* good : {"data:image/png;base64,AQID", "data:image/jpeg;base64,AQID", "data:image/jpg;base64,AQID",
                           "data:image/webp;base64,AQID", "DATA:Image/PNG;BASE64,AQIDAQID"}) {
    EXPECT_EQ(said(good), "accepted") << good;
  }
  EXPECT_THAT(said("data:image/png,AQID"), HasSubstr("without base64"));
  EXPECT_THAT(said("data:image/png;charset=utf-8;base64,AQID"), HasSubstr("without base64"));
  EXPECT_THAT(said("data:text/html;base64,AQID"), HasSubstr("text/html"));
  EXPECT_THAT(said("data:image/svg+xml;base64,AQID"), HasSubstr("image/svg+xml"));
  EXPECT_THAT(said("data:image/gif;base64,AQID"), HasSubstr("image/gif"));
  EXPECT_THAT(said("data:;base64,AQID"), HasSubstr("media type \"\""));
  EXPECT_THAT(said("data:image/png;base64"), HasSubstr("no comma"));
  EXPECT_THAT(said("data:image/png;base64,"), HasSubstr("without data"));
  EXPECT_THAT(said("data:image/png;base64, AQID"), HasSubstr("character 0"));
  EXPECT_THAT(said("data:image/png;base64,AQI"), HasSubstr("multiple of 4"));
  EXPECT_THAT(said("data:image/png;base64,AQIDAQIDAQID"), HasSubstr("at most 6 bytes, found 9"));
  EXPECT_THAT(said("https://127.0.0.1/a.png"), HasSubstr("not fetched"));
  EXPECT_THAT(said("HTTP://169.254.169.254/"), HasSubstr("not fetched"));
  EXPECT_THAT(said("file:///etc/passwd"), HasSubstr("not read"));
  EXPECT_THAT(said("ftp://a/b.png"), HasSubstr("ftp"));
  EXPECT_THAT(said("AQID"), HasSubstr("data: URI"));
  EXPECT_THAT(said(""), HasSubstr("data: URI"));
}

}  // namespace
}  // namespace hadal::serving
