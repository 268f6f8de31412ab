#include "guided/json_formats.h"

#include <utility>

namespace hadal::guided {
namespace {

// Days per month; 29 February in leap years of the Gregorian calendar.
#define HADAL_DATE                                                                                         \
  R"((?:\d{4}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12]\d|3[01])|(?:0[469]|11)-(?:0[1-9]|[12]\d|30))"           \
  R"(|02-(?:0[1-9]|1\d|2[0-8]))|(?:(?:[02468][048]|[13579][26])00|\d\d(?:0[48]|[2468][048]|[13579][26])))" \
  R"(-02-29))"
// RFC 3339, without leap seconds.
#define HADAL_TIME R"((?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?(?:Z|[+-](?:[01]\d|2[0-3]):[0-5]\d))"
#define HADAL_LABEL R"([A-Za-z0-9](?:[A-Za-z0-9-]{0,61}[A-Za-z0-9])?)"
#define HADAL_OCTET R"((?:25[0-5]|2[0-4]\d|1\d\d|[1-9]?\d))"

constexpr std::pair<std::string_view, std::string_view> kFormats[] = {
    {"date", HADAL_DATE},
    {"date-time", HADAL_DATE "T" HADAL_TIME},
    {"time", HADAL_TIME},
    {"duration",
     R"(P(?:\d{1,9}W|(?:\d{1,9}Y(?:\d{1,9}M(?:\d{1,9}D)?)?|\d{1,9}M(?:\d{1,9}D)?|\d{1,9}D)(?:T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S))?)"
     R"(|T(?:\d{1,9}H(?:\d{1,9}M(?:\d{1,9}S)?)?|\d{1,9}M(?:\d{1,9}S)?|\d{1,9}S)))"},
    {"email", R"([A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+(?:\.[A-Za-z0-9!#$%&'*+/=?^_`{|}~-]+)*@)" HADAL_LABEL
              R"((?:\.)" HADAL_LABEL R"()+)"},
    {"hostname", HADAL_LABEL R"((?:\.)" HADAL_LABEL R"()*)"},
    {"ipv4", HADAL_OCTET R"((?:\.)" HADAL_OCTET R"(){3})"},
    {"uri",
     R"([A-Za-z][A-Za-z0-9+.-]*:(?://)?(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})+(?:#(?:[A-Za-z0-9._~:/?@!$&'()*+,;=-]|%[0-9A-Fa-f]{2})*)?)"},
    {"uuid", "[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}"},
};

}  // namespace

std::optional<std::string_view> FormatRegex(std::string_view format) {
  for (const auto& [name, regex] : kFormats) {
    if (name == format) return regex;
  }
  return std::nullopt;
}

std::string_view FormatNames() { return "date, date-time, time, duration, email, hostname, ipv4, uri, uuid"; }

}  // namespace hadal::guided
