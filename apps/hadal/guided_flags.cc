#include "guided_flags.h"

#include <fstream>
#include <iterator>
#include <optional>

#include "base/status.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

constexpr size_t kMostBytes = 1 << 20;

// "@FILE" stands for the file's text.
absl::StatusOr<std::string> TextOrFile(const std::string& text) {
  if (!text.starts_with('@')) return text;
  std::ifstream file(text.substr(1), std::ios::binary);
  std::string read((std::istreambuf_iterator<char>(file)), {});
  if (!file) return InvalidArgument("{}: cannot be read", text.substr(1));
  if (read.size() > kMostBytes) {
    return InvalidArgument("{}: {} bytes; at most {} are read", text.substr(1), read.size(), kMostBytes);
  }
  return read;
}

}  // namespace

void GuidedFlags::Register(CLI::App* app) {
  const std::string group = "Form of the answer";
  app->add_flag("--json-object", json_object_, "The answer is a JSON object")->group(group);
  app->add_option("--json-schema", json_schema_, "The answer fits this JSON Schema (text, or @FILE)")->group(group);
  app->add_option("--regex", regex_, "The answer matches this regular expression (text, or @FILE)")->group(group);
  AddList(app, "--choice", &choices_, "The answer is one of these; to be repeated")->group(group);
  app->add_option("--grammar", grammar_, "The answer is a `root` of this EBNF grammar (text, or @FILE)")->group(group);
}

absl::StatusOr<std::shared_ptr<const guided::Grammar>> GuidedFlags::Compile(runtime::Engine* engine) const {
  using Kind = guided::GuidedSpec::Kind;
  std::vector<guided::GuidedSpec> specs;
  if (json_object_) specs.push_back({Kind::kJsonObject});
  for (const auto& [kind, given] : {std::pair<Kind, const std::string*>{Kind::kJsonSchema, &json_schema_},
                                    {Kind::kRegex, &regex_},
                                    {Kind::kGrammar, &grammar_}}) {
    if (given->empty()) continue;
    HADAL_ASSIGN_OR_RETURN(std::string text, TextOrFile(*given));
    specs.push_back({kind, std::move(text)});
  }
  if (!choices_.empty()) specs.push_back({Kind::kChoice, text::DumpJson(text::Json(choices_))});
  if (specs.empty()) return std::shared_ptr<const guided::Grammar>();
  if (specs.size() > 1) {
    return InvalidArgument("expected one of --json-object, --json-schema, --regex, --choice and --grammar, found {}",
                           specs.size());
  }
  return engine->CompileGrammar(specs[0]);
}

}  // namespace hadal::cli
