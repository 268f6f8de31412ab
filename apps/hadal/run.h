// What `hadal run` is asked to do, for run.cc and interactive.cc.
#pragma once

#include <string>
#include <vector>

#include "engine_flags.h"
#include "sampling_flags.h"
#include "text/chat.h"

namespace hadal::cli {

struct RunFlags {
  EngineFlags engine;
  SamplingFlags sampling;
  std::string prompt;
  std::string system;
  bool raw = false;
  bool interactive = false;
  bool thinking = false;
  std::string effort;
  std::vector<std::string> images;
  bool show_images = false;
  bool json = false;
};

// Turns of a chat on the terminal, until ^D.
int RunInteractive(const RunFlags& flags, const text::ThinkingChoice& thinking, runtime::Engine* engine);

// Draws the images of the command line. For people: to stderr beside --json, which has stdout to itself.
int ShowImages(const RunFlags& flags);

// The parser settings for an answer to `prompt`.
text::ParserOptions ParserFor(const runtime::EncodedPrompt& prompt, bool tools_allowed);

}  // namespace hadal::cli
