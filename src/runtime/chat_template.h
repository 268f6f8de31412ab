// Which chat encoding a model directory asks for. Internal to the runtime.
#pragma once

#include <string>
#include <vector>

#include "checkpoint/model_config.h"
#include "text/chat_format.h"

namespace hadal::runtime {

// The encoding of a family's models without a template: V3 for V3, whose later checkpoints all have one.
text::ChatFormat DefaultChatFormat(checkpoint::ModelFamily family);

// Reads chat_template.jinja, or else chat_template of tokenizer_config.json, in `dir` (or beside it, if it is a file).
// V4 was published without templates and is always encoded as V4. For the others a template that text/chat_format.h
// knows decides. Where there is one that cannot be read or is not known, or none where models differ, `warnings` says
// so and the family's default is taken.
text::ChatFormat ChooseChatFormat(const std::string& dir, checkpoint::ModelFamily family,
                                  std::vector<std::string>* warnings);

}  // namespace hadal::runtime
