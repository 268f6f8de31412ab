// What `hadal run` is asked to do, for run.cc and interactive.cc.
#pragma once

#include <string>
#include <vector>

#include "engine_flags.h"
#include "guided_flags.h"
#include "sampling_flags.h"
#include "text/chat.h"

namespace hadal::cli {

struct RunFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  GuidedFlags guided;
  std::string prompt;
  std::string system;
  bool raw = false;
  bool interactive = false;
  bool thinking = false;
  std::string effort;
  std::vector<std::string> images;
  bool show_images = false;
  bool json = false;
  std::string batch, output;  // files
};

// Turns of a chat on the terminal, until ^D. The images belong to the first message.
int RunInteractive(const RunFlags& flags, const text::ThinkingChoice& thinking, const runtime::ImageList& images,
                   const std::shared_ptr<const guided::Grammar>& grammar, runtime::Engine* engine);

// The parser settings for an answer to `prompt`.
text::ParserOptions ParserFor(const runtime::EncodedPrompt& prompt, bool tools_allowed);

}  // namespace hadal::cli
