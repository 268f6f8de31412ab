// The hadal command line. Flags are parsed here and in the subcommands; the work is the libraries'.
#include "base/log.h"
#include "base/status.h"
#include "checkpoint/synth.h"
#include "cli.h"
#include "models/registry/registry.h"

namespace hadal::cli {
namespace {

std::string VersionText() {
  std::string text = fmt::format("hadal {} ({})\nplatforms: {}\nmodel classes: {}", HADAL_VERSION, HADAL_BUILD_TYPE,
                                 models::AvailablePlatforms(), models::RegisteredClasses());
  const absl::StatusOr<checkpoint::ModelConfig> config = checkpoint::PresetConfig("v4-flash");
  if (config.ok()) {
    const absl::StatusOr<std::string> chosen = models::DescribeModel(*config, {});
    text += fmt::format("\nhere: {}", chosen.ok() ? std::string_view(*chosen) : Message(chosen.status()));
  }
  return text;
}

int Main(int argc, char** argv) {
  InstallSignalHandlers();
  InitLogging("warn");
  CLI::App app("Runs DeepSeek V3.2, V4 and V4 Vision from the checkpoints as they are published.", "hadal");
  app.set_version_flag("--version", VersionText, "Version, build type, platforms, and what would run here");
  app.require_subcommand(1);
  app.footer(
      fmt::format("Examples:\n"
                  "  hadal run models/tiny-v4-vision \"What is 478 + 365?\"\n"
                  "  hadal inspect /data/DeepSeek-V4-Flash\n"
                  "  hadal eval models/tiny-v4-vision questions.jsonl --json\n"
                  "`hadal SUBCOMMAND --help` explains each.\n\n{}",
                  kExitCodesHelp));
  int result = kOk;
  AddRun(&app, &result);
  AddServe(&app, &result);
  AddInspect(&app, &result);
  AddEval(&app, &result);
  AddBench(&app, &result);
  AddTokenize(&app, &result);
  AddSynth(&app, &result);
  try {
    app.parse(argc, argv);
  } catch (const CLI::Success& success) {
    app.exit(success);  // help and version
    return OutputResult();
  } catch (const CLI::ParseError& error) {
    std::string where = "hadal", what = error.what();
    for (const CLI::App* sub : app.get_subcommands()) where += " " + sub->get_name();
    if (app.get_subcommands().empty() && argc > 1) what = fmt::format("{}: expected a subcommand", argv[1]);
    return Fail(kUsage, fmt::format("{} (see {} --help)", what, where));
  }
  return result;
}

}  // namespace
}  // namespace hadal::cli

int main(int argc, char** argv) {
  try {
    return hadal::cli::Main(argc, argv);
  } catch (const std::exception& error) {
    return hadal::cli::Fail(hadal::cli::kInternal, error.what());
  }
}
