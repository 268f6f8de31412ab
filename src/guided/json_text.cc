#include "guided/json_text.h"

#include "base/status.h"

namespace hadal::guided {

absl::StatusOr<Json> ParseJsonText(std::string_view what, std::string_view text, int max_depth) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      if (++depth > max_depth) {
        return InvalidArgument("{}: more than {} values inside one another at byte {}", what, max_depth, i);
      }
    } else if (!in_string && (c == ']' || c == '}')) {
      --depth;
    }
  }
  try {
    return Json::parse(text);
  } catch (const Json::parse_error& error) {
    return InvalidArgument("{}: not JSON, at byte {}", what, error.byte == 0 ? 0 : error.byte - 1);
  } catch (const Json::exception&) {
    return InvalidArgument("{}: holds a number that is out of range", what);
  }
}

}  // namespace hadal::guided
