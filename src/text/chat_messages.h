// The messages of a request as V3.2 and older encodings walk them: with what came before in one list, tool results in
// the order of the calls they answer. Internal to the library.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "text/chat_render.h"

namespace hadal::text {

struct ListedMessage {
  Role role;
  const Json* source;
  size_t index;  // in the list it came from
  std::string where;
  bool in_context;  // counts for every rule but is not rendered
};

// The messages of options.context, then `messages`, which must not be empty.
absl::StatusOr<std::vector<ListedMessage>> ListMessages(const Json& messages, const ChatOptions& options);

// Where a tool result stands; both are 0 for other messages.
struct ResultPlace {
  size_t number = 0;  // from 1, in its group
  size_t count = 0;   // calls that the group answers
};

// Brings the results of each group, a run of tool messages behind an assistant's message with calls, into the order of
// the calls: these encodings write no ids. Without any ids the order given is taken as right. Results may be missing
// only at the end of the conversation, and only the last ones. One place for each message.
absl::StatusOr<std::vector<ResultPlace>> OrderResults(std::vector<ListedMessage>* messages);

}  // namespace hadal::text
