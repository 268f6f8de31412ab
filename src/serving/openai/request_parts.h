// The pieces that parsing a request is made of. Internal to the library.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "guided/tool_calls.h"
#include "serving/openai/fields.h"
#include "serving/openai/job.h"
#include "text/chat.h"
#include "text/chat_format.h"

namespace hadal::serving {

// What both kinds of request say.
struct Common {
  runtime::GenerateRequest request;  // without a prompt
  int64_t n = 1;
  int64_t truncate_prompt = 0;  // last tokens of the prompt that are kept; 0: all
};
// Reads it, and the job's own settings. logprobs is read by the caller: the two kinds mean different things by it.
absl::StatusOr<Common> ReadCommon(const Fields& body, const runtime::Engine& engine, const ParseOptions& options,
                                  Job* job);

// Adds a prompt to the job, with a request for each of n answers; greedy ones are drawn once. `path` is the prompt's
// field. InvalidArgument, with the code context_length_exceeded, if no answer has room behind it.
absl::Status AddPrompt(const Common& common, runtime::EncodedPrompt prompt, const std::string& path,
                       const runtime::Engine& engine, const ParseOptions& options, Job* job);

// A request's messages, reduced to the fields that clients may set: the encoder knows some that they may not.
struct Conversation {
  text::Json messages;
  runtime::ImageList images;
  std::string continued;  // content of the message that the answer continues
};
absl::StatusOr<Conversation> ReadMessages(const Fields& body, const runtime::Engine& engine,
                                          const ParseOptions& options);

// What tools and tool_choice say.
struct ToolUse {
  text::Json offered = {};   // that the prompt shows; null if there are none or tool_choice is "none"
  text::Json callable = {};  // those of them that may be called
  bool required = false;     // the answer is calls and nothing else
  bool one_call = false;     // and one of them
};
absl::StatusOr<ToolUse> ReadTools(const Fields& body);
// How a model writes its calls: byte for byte as the encoders of text/chat.h give them back to it.
guided::CallForm CallFormOf(text::ChatFormat format);
// The calls that a required use of tools comes to; `one_call`: not more than one, whatever `use` says. InvalidArgument,
// beginning with tool_choice, where a tool's schema is not supported, naming the tool.
absl::StatusOr<std::shared_ptr<const guided::Grammar>> ReadCallGrammar(const ToolUse& use, bool one_call,
                                                                       const runtime::Engine& engine);

// The prompt that a chat's messages, tools and thinking controls make.
struct ChatPrompt {
  runtime::EncodedPrompt prompt;
  ToolUse tools;
  std::string continued;  // content of the message that the answer continues
};
absl::StatusOr<ChatPrompt> ReadChatPrompt(const Fields& body, const runtime::Engine& engine,
                                          const ParseOptions& options);

// The form that response_format or structured_outputs demands; null if none.
absl::StatusOr<std::shared_ptr<const guided::Grammar>> ReadGrammar(const Fields& body, const runtime::Engine& engine);

absl::StatusOr<text::ThinkingChoice> ReadThinking(const Fields& body, const runtime::Engine& engine);

// Of a wall clock.
int64_t UnixSeconds();

}  // namespace hadal::serving
