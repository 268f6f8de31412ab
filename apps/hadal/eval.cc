// hadal eval: greedy answers to an evaluation set, compared with the right ones and with a reference model's.
#include <filesystem>
#include <fstream>
#include <map>
#include <memory>

#include "answer.h"
#include "base/status.h"
#include "cli.h"
#include "engine_flags.h"
#include "images.h"
#include "text/json_text.h"

namespace hadal::cli {
namespace {

using text::Json;

constexpr const char* kFormat =
    "FILE holds a JSON object a line: \"prompt\" (complete text, control tokens written out), \"expected\" (the "
    "answer\n"
    "behind </think>), and optionally \"id\", \"task\", \"mode\" (chat or thinking), \"tools\", \"expected_calls\" "
    "(then "
    "the\nparsed calls are compared instead), \"images\" and \"reference\": {\"ids\": [...]}.\n"
    "accuracy: answers that are right. agreement: answers with the reference's token ids. With "
    "drafts:\nthe share of them that held.";

struct EvalFlags {
  EngineFlags engine;
  std::vector<std::string> files;
  int64_t limit = 0;
  int64_t max_tokens = 1024;
  bool skip_images = false;
  bool show_failures = false;
  bool json = false;
};

struct Record {
  std::string id, task, mode, prompt, expected;
  Json expected_calls;  // null: none
  std::vector<text::ToolSpec> tools;
  std::vector<int32_t> reference_ids;
  bool has_reference = false;
  std::vector<std::string> images;  // paths

  bool thinking() const { return mode == "thinking"; }
};

absl::StatusOr<std::string> StringField(const Json& object, const char* name, std::optional<std::string> fallback) {
  const auto it = object.find(name);
  if (it == object.end() && fallback.has_value()) return *std::move(fallback);
  if (it == object.end() || !it->is_string()) return InvalidArgument("{}: expected a string", name);
  return it->get<std::string>();
}

absl::Status ReadReference(const Json& object, Record* record) {
  const auto it = object.find("reference");
  if (it == object.end()) return absl::OkStatus();
  if (!it->is_object() || !it->contains("ids") || !(*it)["ids"].is_array()) {
    return InvalidArgument("reference: expected an object with an array \"ids\"");
  }
  for (const Json& id : (*it)["ids"]) {
    if (!id.is_number_integer()) return InvalidArgument("reference.ids: expected integers");
    record->reference_ids.push_back(id.get<int32_t>());
  }
  record->has_reference = true;
  return absl::OkStatus();
}

// Paths of images are relative to `directory`.
absl::StatusOr<Record> ReadRecord(const std::string& line, const std::filesystem::path& directory) {
  HADAL_ASSIGN_OR_RETURN(const Json object, text::ParseJson(line));
  if (!object.is_object()) return InvalidArgument("expected an object");
  Record record;
  HADAL_ASSIGN_OR_RETURN(record.id, StringField(object, "id", ""));
  HADAL_ASSIGN_OR_RETURN(record.task, StringField(object, "task", "all"));
  HADAL_ASSIGN_OR_RETURN(record.mode, StringField(object, "mode", "chat"));
  HADAL_ASSIGN_OR_RETURN(record.prompt, StringField(object, "prompt", std::nullopt));
  HADAL_ASSIGN_OR_RETURN(record.expected, StringField(object, "expected", std::nullopt));
  if (record.mode != "chat" && record.mode != "thinking") {
    return InvalidArgument("mode: expected chat or thinking, found {}", record.mode);
  }
  if (object.contains("expected_calls")) {
    record.expected_calls = object["expected_calls"];
    if (!record.expected_calls.is_array()) return InvalidArgument("expected_calls: expected an array");
  }
  if (object.contains("tools")) {
    HADAL_ASSIGN_OR_RETURN(record.tools, text::ReadToolSpecs(object["tools"]));
  }
  if (object.contains("images")) {
    if (!object["images"].is_array()) return InvalidArgument("images: expected an array");
    for (const Json& image : object["images"]) {
      if (!image.is_string()) return InvalidArgument("images: expected paths");
      record.images.push_back((directory / image.get<std::string>()).string());
    }
  }
  HADAL_RETURN_IF_ERROR(ReadReference(object, &record));
  return record;
}

absl::Status ReadFile(const std::string& path, std::vector<Record>* records) {
  std::ifstream file(path);
  if (!file) return InvalidArgument("{}: cannot be read", path);
  int64_t number = 0;
  for (std::string line; std::getline(file, line);) {
    ++number;
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    absl::StatusOr<Record> record = ReadRecord(line, std::filesystem::path(path).parent_path());
    if (!record.ok()) return InvalidArgument("{} line {}: {}", path, number, Message(record.status()));
    if (record->id.empty()) record->id = fmt::format("{}:{}", path, number);
    records->push_back(*std::move(record));
  }
  return absl::OkStatus();
}

// Numbers compare by value, objects whatever the order of their keys; true is not 1.
bool SameCalls(const std::vector<text::ToolCall>& calls, const Json& expected) {
  if (calls.size() != expected.size()) return false;
  for (size_t i = 0; i < calls.size(); ++i) {
    const Json& want = expected[i];
    if (!want.is_object() || !want.contains("name") || want["name"] != calls[i].name) return false;
    const nlohmann::json arguments = nlohmann::json::parse(calls[i].arguments, nullptr, false);
    const nlohmann::json wanted =
        nlohmann::json::parse(text::DumpJson(want.value("arguments", Json::object())), nullptr, false);
    if (arguments.is_discarded() || arguments != wanted) return false;
  }
  return true;
}

bool IsRight(const Record& record, text::CallMarkup markup, const std::string& output) {
  if (!record.expected_calls.is_null()) {
    text::ParserOptions options;
    options.markup = markup;
    options.starts_in_reasoning = record.thinking();
    options.tools = record.tools;
    return SameCalls(text::ParseRobust(output, options).message.tool_calls, record.expected_calls);
  }
  if (!record.thinking()) return output == record.expected;
  const size_t end = output.find(text::kThinkEndText);
  return end != std::string::npos &&
         std::string_view(output).substr(end + text::kThinkEndText.size()) == record.expected;
}

struct Tally {
  int64_t n = 0, right = 0, with_reference = 0, agreed = 0, errors = 0;

  void Add(const Tally& other) {
    n += other.n;
    right += other.right;
    with_reference += other.with_reference;
    agreed += other.agreed;
    errors += other.errors;
  }
  static double Share(int64_t part, int64_t whole) {
    return whole == 0 ? 0 : static_cast<double>(part) / static_cast<double>(whole);
  }
  double accuracy() const { return Share(right, n); }
  double agreement() const { return Share(agreed, with_reference); }
  Json ToJson() const {
    Json out = {{"accuracy", accuracy()}, {"agreement", nullptr}, {"n", n}, {"correct", right}, {"errors", errors}};
    if (with_reference > 0) out["agreement"] = agreement();
    return out;
  }
};

class Evaluation {
 public:
  Evaluation(const EvalFlags& flags, runtime::Engine* engine)
      : flags_(flags), engine_(engine), generator_(engine->MakeGenerator()) {}

  // Internal errors only: what concerns one record counts as its error.
  absl::Status Run(const std::vector<Record>& records) {
    ProgressLine progress;
    for (size_t i = 0; i < records.size(); ++i) {
      progress.ShowBar("evaluating", static_cast<int64_t>(i), static_cast<int64_t>(records.size()),
                       fmt::format("{} of {}, {} right", i, records.size(), total().right));
      const Record& record = records[i];
      Tally one{.n = 1};
      absl::Status status = RunRecord(record, &one);
      if (absl::IsCancelled(status) || absl::IsInternal(status)) return status;
      if (!status.ok()) {
        one.errors = 1;
        progress.Clear();
        if (errors_shown_++ < kErrorsShown) Warn(fmt::format("{}: {}", record.id, Message(status)));
      }
      tallies_[fmt::format("{}/{}", record.task, record.mode)].Add(one);
    }
    return absl::OkStatus();
  }

  Tally total() const {
    Tally sum;
    for (const auto& [task, tally] : tallies_) sum.Add(tally);
    return sum;
  }

  std::string Table() const {
    std::string out = fmt::format("{:<24} {:>6} {:>9} {:>10} {:>7}\n", "task", "n", "accuracy", "agreement", "errors");
    const auto row = [&](const std::string& name, const Tally& t) {
      const std::string agreement = t.with_reference > 0 ? fmt::format("{:.1f} %", 100 * t.agreement()) : "-";
      out += fmt::format("{:<24} {:>6} {:>7.1f} % {:>10} {:>7}\n", name, t.n, 100 * t.accuracy(), agreement, t.errors);
    };
    for (const auto& [task, tally] : tallies_) row(task, tally);
    row("total", total());
    if (drafted_ > 0) {
      out += fmt::format("drafts {}, {:.1f} % of them right\n", drafted_, 100 * Tally::Share(accepted_, drafted_));
    }
    return out;
  }

  std::string ToJson(double seconds) const {
    Json out = total().ToJson();
    out["seconds"] = seconds;
    out["generated_tokens"] = generated_;
    if (drafted_ > 0) {
      out["draft_tokens"] = drafted_;
      out["draft_acceptance"] = Tally::Share(accepted_, drafted_);
    }
    for (const auto& [task, tally] : tallies_) out["by_task"][task] = tally.ToJson();
    return text::DumpJson(out) + "\n";
  }

  double seconds() const { return seconds_; }

 private:
  static constexpr int kErrorsShown = 5;

  absl::Status RunRecord(const Record& record, Tally* tally) {
    HADAL_ASSIGN_OR_RETURN(const runtime::ImageList images, LoadImages(*engine_, record.images));
    HADAL_ASSIGN_OR_RETURN(const runtime::EncodedPrompt prompt, engine_->EncodeRaw(record.prompt, images));
    runtime::GenerateRequest request;
    request.prompt = prompt.ids;
    request.images = prompt.images;
    request.sampling.temperature = 0;
    request.max_tokens = flags_.max_tokens;
    request.end_tokens = engine_->end_tokens();
    HADAL_ASSIGN_OR_RETURN(const runtime::GenerateResult result, Answer(&generator_, request, Show::kNothing));
    if (result.finish_reason == runtime::FinishReason::kCancelled) return absl::CancelledError("interrupted");
    seconds_ += result.timings.prefill_seconds + result.timings.decode_seconds;
    generated_ += static_cast<int64_t>(result.token_ids.size());
    drafted_ += result.draft_tokens;
    accepted_ += result.accepted_tokens;
    if (IsRight(record, prompt.markup, result.content)) {
      tally->right = 1;
    } else if (flags_.show_failures) {
      std::fputs(fmt::format("{}: expected {}, found {}\n", record.id, text::JsonQuoted(record.expected),
                             text::JsonQuoted(result.content))
                     .c_str(),
                 stderr);
    }
    if (record.has_reference) {
      tally->with_reference = 1;
      tally->agreed = result.token_ids == record.reference_ids ? 1 : 0;
    }
    return absl::OkStatus();
  }

  const EvalFlags& flags_;
  runtime::Engine* engine_;
  runtime::Generator generator_;
  std::map<std::string, Tally> tallies_;  // by task and mode
  int errors_shown_ = 0;
  int64_t generated_ = 0;
  int64_t drafted_ = 0, accepted_ = 0;
  double seconds_ = 0;  // of generation
};

int Eval(const EvalFlags& flags) {
  std::vector<Record> records;
  for (const std::string& file : flags.files) {
    if (const absl::Status status = ReadFile(file, &records); !status.ok()) return FailRequest(status);
  }
  if (flags.limit > 0 && records.size() > static_cast<size_t>(flags.limit)) records.resize(flags.limit);
  if (flags.skip_images) std::erase_if(records, [](const Record& record) { return !record.images.empty(); });
  if (records.empty()) return Fail(kBadRequest, "no records to evaluate");

  int code = kOk;
  const std::unique_ptr<runtime::Engine> engine = flags.engine.Load(&code);
  if (engine == nullptr) return code;
  Evaluation evaluation(flags, engine.get());
  if (const absl::Status status = evaluation.Run(records); !status.ok()) {
    if (absl::IsCancelled(status)) return Fail(kInterrupted, "interrupted");
    return FailRequest(status);
  }
  WriteOut(flags.json ? evaluation.ToJson(evaluation.seconds()) : evaluation.Table());
  if (const int output = OutputResult(); output != kOk) return output;
  if (const int64_t errors = evaluation.total().errors; errors > 0) {
    return Fail(kBadRequest, fmt::format("{} of {} records could not be run (--skip-images leaves those with images "
                                         "out)",
                                         errors, records.size()));
  }
  return kOk;
}

}  // namespace

void AddEval(CLI::App* app, int* result) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* eval = app->add_subcommand("eval", "Measure a model on an evaluation set");
  flags->engine.Register(eval);
  eval->add_option("FILE", flags->files, "Evaluation sets, JSON lines")->required();
  eval->add_option("--limit", flags->limit, "Take this many records only")->check(CLI::PositiveNumber);
  eval->add_option("--max-tokens", flags->max_tokens, "Longest answer")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  eval->add_flag("--skip-images", flags->skip_images, "Leave out records with images");
  eval->add_flag("--show-failures", flags->show_failures, "Print wrong answers beside the right ones");
  eval->add_flag("--json", flags->json, "Print one JSON object: accuracy, agreement, n, by_task");
  eval->footer(kFormat);
  eval->callback([=] { *result = Eval(*flags); });
}

}  // namespace hadal::cli
