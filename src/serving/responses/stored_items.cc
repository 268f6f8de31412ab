// The input of a stored response, as a list (spec serving-runtime 6.10, "Storage").
#include <algorithm>
#include <charconv>
#include <utility>

#include "base/status.h"
#include "serving/responses/responses.h"

namespace hadal::serving {
namespace {

using text::Json;

constexpr int64_t kMaxItems = 100;

// An item as lists have it, whatever short form the client sent.
Json Listed(Json item) {
  const bool is_message = item.contains("role");
  if (is_message) item["type"] = "message";
  if (!item.contains("status")) item["status"] = "completed";
  if (is_message && item["content"].is_string()) {
    const bool said = item["role"] == "assistant";
    Json part = {{"type", said ? "output_text" : "input_text"}, {"text", item["content"]}};
    if (said) part["annotations"] = Json::array();
    item["content"] = Json::array({std::move(part)});
  }
  return item;
}

}  // namespace

absl::StatusOr<ItemPage> ParseItemPage(std::string_view query) {
  ItemPage page;
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    const std::string_view name = pair.substr(0, equals), value = pair.substr(std::min(equals + 1, pair.size()));
    if (name == "limit") {
      const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), page.limit);
      if (error != std::errc() || end != value.data() + value.size() || page.limit < 1 || page.limit > kMaxItems) {
        return InvalidArgument("limit: expected an integer from 1 to {}", kMaxItems);
      }
    } else if (name == "order") {
      if (value != "asc" && value != "desc") return InvalidArgument("order: expected asc or desc");
      page.ascending = value == "asc";
    } else if (name == "after") {
      page.after = value;
    }
  }
  return page;
}

absl::StatusOr<Json> ListInputItems(const StoredResponse& stored, const ItemPage& page) {
  HADAL_ASSIGN_OR_RETURN(Json items, text::ParseJson(stored.items));
  HADAL_ASSIGN_OR_RETURN(const Json response, text::ParseJson(stored.response));
  // What was answered stands at the end.
  items.erase(items.end() - static_cast<std::ptrdiff_t>(std::min(response["output"].size(), items.size())),
              items.end());
  if (!page.ascending) std::reverse(items.begin(), items.end());
  size_t begin = 0;
  if (!page.after.empty()) {
    const auto found =
        std::find_if(items.begin(), items.end(), [&](const Json& item) { return item["id"] == page.after; });
    if (found == items.end()) return InvalidArgument("after: expected the id of one of the items");
    begin = static_cast<size_t>(found - items.begin()) + 1;
  }
  const size_t end = std::min(items.size(), begin + static_cast<size_t>(page.limit));
  Json data = Json::array();
  for (size_t i = begin; i < end; ++i) data.push_back(Listed(std::move(items[i])));
  const bool more = end < items.size();
  Json first, last;
  if (!data.empty()) {
    first = data.front()["id"];
    last = data.back()["id"];
  }
  return Json{{"object", "list"},
              {"data", std::move(data)},
              {"first_id", std::move(first)},
              {"last_id", std::move(last)},
              {"has_more", more}};
}

}  // namespace hadal::serving
