// hadal tokenize: text to token ids and back, for scripts that compare tokenizers.
#include <iostream>
#include <memory>
#include <sstream>

#include "base/status.h"
#include "cli.h"
#include "text/json_text.h"
#include "text/tokenizer.h"

namespace hadal::cli {
namespace {

using text::Json;
using text::Tokenizer;

constexpr const char* kExamples =
    "Examples:\n"
    "  echo \"What is 478 + 365?\" | hadal tokenize --tokenizer models/tiny-v4-vision\n"
    "  hadal tokenize --tokenizer MODEL --jsonl --special < texts.jsonl      {\"text\": ...} to {\"ids\": [...]}\n"
    "  hadal tokenize --tokenizer MODEL --jsonl --decode < ids.jsonl         {\"ids\": [...]} to {\"text\": ...}";

struct TokenizeFlags {
  std::string tokenizer;
  bool jsonl = false;
  bool special = false;
  bool decode = false;
};

absl::StatusOr<std::vector<int32_t>> IdsFrom(const Json& values) {
  std::vector<int32_t> ids;
  ids.reserve(values.size());
  for (const Json& value : values) {
    if (!value.is_number_integer() || value < 0 || value > INT32_MAX) {
      return InvalidArgument("expected token ids from 0 to {}, found {}", INT32_MAX, text::DumpJson(value));
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

// One line of the output for one line of the input.
absl::StatusOr<std::string> ConvertLine(const Tokenizer& tokenizer, const TokenizeFlags& flags,
                                        const std::string& line) {
  HADAL_ASSIGN_OR_RETURN(const Json record, text::ParseJson(line));
  const char* const field = flags.decode ? "ids" : "text";
  if (!record.is_object() || !record.contains(field)) return InvalidArgument("expected an object with \"{}\"", field);
  const Json& value = record[field];
  if (flags.decode) {
    if (!value.is_array()) return InvalidArgument("ids: expected an array, found {}", value.type_name());
    HADAL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, IdsFrom(value));
    return "{\"text\": " + text::JsonQuoted(tokenizer.Decode(ids)) + "}\n";
  }
  if (!value.is_string()) return InvalidArgument("text: expected a string, found {}", value.type_name());
  const auto special = flags.special ? Tokenizer::Special::kMatch : Tokenizer::Special::kPlain;
  return fmt::format("{{\"ids\": [{}]}}\n",
                     fmt::join(tokenizer.Encode(value.get_ref<const std::string&>(), special), ", "));
}

int ConvertLines(const Tokenizer& tokenizer, const TokenizeFlags& flags) {
  int64_t number = 0;
  for (std::string line; std::getline(std::cin, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    const absl::StatusOr<std::string> out = ConvertLine(tokenizer, flags, line);
    if (!out.ok()) return Fail(kBadRequest, fmt::format("stdin line {}: {}", number, Message(out.status())));
    // Flushed line by line: a script may feed us one text at a time and wait for the answer.
    if (!WriteOut(*out)) break;
  }
  return OutputResult();
}

// All of stdin as one text, or as ids between whitespace.
int ConvertAll(const Tokenizer& tokenizer, const TokenizeFlags& flags) {
  const absl::StatusOr<std::string> input = ReadStdin();
  if (!input.ok()) return FailRequest(input.status());
  if (!flags.decode) {
    const auto special = flags.special ? Tokenizer::Special::kMatch : Tokenizer::Special::kPlain;
    WriteOut(fmt::format("{}\n", fmt::join(tokenizer.Encode(*input, special), " ")));
    return OutputResult();
  }
  std::istringstream words(*input);
  Json values = Json::array();
  for (std::string word; words >> word;) {
    const absl::StatusOr<Json> value = text::ParseJson(word);
    values.push_back(value.ok() ? *value : Json(word));
  }
  const absl::StatusOr<std::vector<int32_t>> ids = IdsFrom(values);
  if (!ids.ok()) return FailRequest(ids.status());
  WriteOut(tokenizer.Decode(*ids));
  return OutputResult();
}

int Tokenize(const TokenizeFlags& flags) {
  const absl::StatusOr<std::shared_ptr<const Tokenizer>> tokenizer = Tokenizer::Load(flags.tokenizer);
  if (!tokenizer.ok()) return FailLoading(tokenizer.status());
  return flags.jsonl ? ConvertLines(**tokenizer, flags) : ConvertAll(**tokenizer, flags);
}

}  // namespace

void AddTokenize(CLI::App* app, int* result) {
  auto flags = std::make_shared<TokenizeFlags>();
  CLI::App* tokenize = app->add_subcommand("tokenize", "Turn text on stdin into token ids, or back");
  tokenize->add_option("--tokenizer", flags->tokenizer, "tokenizer.json or its directory")->required();
  tokenize->add_flag("--jsonl", flags->jsonl, "A JSON object a line, in and out, instead of one text");
  tokenize->add_flag("--special", flags->special, "Match control tokens such as <｜User｜> in the text");
  tokenize->add_flag("--decode", flags->decode, "From ids to text");
  tokenize->footer(kExamples);
  tokenize->callback([=] { *result = Tokenize(*flags); });
}

}  // namespace hadal::cli
