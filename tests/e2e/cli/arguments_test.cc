// Help, version, and what is said about a wrong command line.
#include <gmock/gmock.h>

#include "cli_process.h"

namespace hadal::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Arguments, HelpListsSubcommandsExamplesAndExitCodes) {
  const CliResult help = RunHadal({"--help"});
  EXPECT_EQ(help.code, 0);
  EXPECT_EQ(help.err, "");
  EXPECT_THAT(help.out, AllOf(HasSubstr("run"), HasSubstr("inspect"), HasSubstr("eval"), HasSubstr("tokenize"),
                              HasSubstr("synth"), HasSubstr("Examples"), HasSubstr("Exit codes")));
}

TEST(Arguments, EverySubcommandHasHelp) {
  for (const char* name : {"run", "inspect", "eval", "tokenize", "synth"}) {
    const CliResult help = RunHadal({name, "--help"});
    EXPECT_EQ(help.code, 0) << name;
    EXPECT_EQ(help.err, "");
    EXPECT_THAT(help.out, HasSubstr("--help")) << name;
  }
  EXPECT_THAT(RunHadal({"run", "--help"}).out,
              AllOf(HasSubstr("Sampling"), HasSubstr("Engine"), HasSubstr("--temperature"), HasSubstr("--threads"),
                    HasSubstr("Examples")));
}

TEST(Arguments, VersionSaysWhatWouldRunHere) {
  const CliResult version = RunHadal({"--version"});
  EXPECT_EQ(version.code, 0);
  EXPECT_THAT(version.out, AllOf(HasSubstr("hadal 0."), HasSubstr("platforms: cpu"), HasSubstr("threads")));
}

TEST(Arguments, WrongOnesAreUsageErrors) {
  const std::string model = BundledModel();
  const std::vector<std::pair<std::vector<std::string>, std::string>> cases = {
      {{}, "subcommand"},
      {{"nonsense"}, "nonsense"},
      {{"run"}, "MODEL"},
      {{"run", model, "hi", "--nonsense"}, "--nonsense"},
      {{"run", model, "hi", "--prompt", "ho"}, "--prompt"},
      {{"run", model, "hi", "--temperature", "warm"}, "--temperature"},
      {{"run", model, "hi", "--temperature", "5"}, "temperature"},
      {{"run", model, "hi", "--temperature", "nan"}, "temperature"},
      {{"run", model, "hi", "--top-p", "0"}, "top_p"},
      {{"run", model, "hi", "--top-k", "-5"}, "top_k"},
      {{"run", model, "hi", "--min-p", "2"}, "min_p"},
      {{"run", model, "hi", "--presence-penalty", "9"}, "presence_penalty"},
      {{"run", model, "hi", "--max-tokens", "0"}, "--max-tokens"},
      {{"run", model, "hi", "--max-tokens", "-1"}, "--max-tokens"},
      {{"run", model, "hi", "--seed", "99999999999999999999"}, "--seed"},
      {{"run", model, "hi", "--threads", "0"}, "--threads"},
      {{"run", model, "hi", "--stop", ""}, "stop"},
      {{"run", model, "hi", "--device", "tpu"}, "tpu"},
      {{"run", model, "hi", "--cpu-isa", "neon"}, "neon"},
      {{"run", model, "hi", "--numerics", "fp64"}, "fp64"},
      {{"run", model, "hi", "--load-format", "pickle"}, "pickle"},
      {{"run", model, "hi", "--max-model-len", "99999999"}, "max_position_embeddings"},
      {{"run", model, "hi", "--max-num-batched-tokens", "100000000"}, "max_num_batched_tokens"},
      {{"run", model, "hi", "--effort", "enormous"}, "enormous"},
      {{"run", model, "hi", "--model-class-overrides", "DeepseekV4ForCausalLM=Nothing"}, "Nothing"},
      {{"run", model, "hi", "--model-class-overrides", "x"}, "Architecture=Class"},
      {{"run", model, "hi", "--interactive"}, "--interactive"},
      {{"run", model, "hi", "--raw", "--thinking"}, "--raw"},
      {{"eval", model}, "FILE"},
      {{"tokenize"}, "--tokenizer"},
      {{"synth", "/tmp"}, "empty directory"},
      {{"synth", "out", "--preset", "v9"}, "v9"},
      {{"synth", "out", "--layers", "many"}, "--layers"},
      {{"synth", "out", "--seed", "-1"}, "--seed"},
  };
  for (const auto& [args, said] : cases) {
    SCOPED_TRACE(testing::PrintToString(args));
    ExpectFailure(RunHadal(args), 2, said);
  }
}

TEST(Arguments, PlatformsThatAreNotThere) {
  for (const char* device : {"xpu", "cuda", "hip"}) {
    ExpectFailure(RunHadal(RunArgs({"hi", "--device", device})), 4, "available platforms: cpu");
  }
}

}  // namespace
}  // namespace hadal::test
