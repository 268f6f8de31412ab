#include "text/json_text.h"

#include <charconv>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"

namespace hadal::text {
namespace {

// Marks binary values that hold the spelling of a number.
constexpr uint64_t kRawNumberSubtype = 0x6e756d;

// The parser's number type: long double reaches 1e4932, so that nlohmann's "number out of range" only meets absurd
// spellings. The handler below never uses its value, only the source text beside it.
using WideFloat = long double;  // NOLINT(google-runtime-float): its width may differ
using WideJson = nlohmann::basic_json<nlohmann::ordered_map, std::vector, std::string, bool, int64_t, uint64_t,
                                      WideFloat, std::allocator, nlohmann::adl_serializer, std::vector<uint8_t>>;

// Objects up to this size find a repeated key by looking through the keys, larger ones through a hash map.
constexpr size_t kLinearKeys = 16;

Json MakeRawNumber(std::string_view spelling) {
  return Json::binary(std::vector<uint8_t>(spelling.begin(), spelling.end()), kRawNumberSubtype);
}

Json MakeFloat(const std::string& spelling) {
  double value = 0;
  const char* end = spelling.data() + spelling.size();
  const auto [ptr, error] = std::from_chars(spelling.data(), end, value);
  if (error == std::errc() && ptr == end) return Json(value);
  if (error == std::errc::result_out_of_range) {
    // Too small is zero of the sign written, as everywhere; too large has no double at all.
    value = std::strtod(spelling.c_str(), nullptr);
    if (!std::isinf(value)) return Json(value);
  }
  return MakeRawNumber(spelling);
}

// Builds a Json from the parser's calls, and keeps the first error.
class Builder {
 public:
  explicit Builder(int max_depth) : max_depth_(max_depth) {}

  const std::string& error() const { return error_; }
  Json Take() { return std::move(root_); }

  bool parse_error(size_t position, const std::string& /*last_token*/, const nlohmann::detail::exception& e) {
    // It quotes the input, whatever bytes that has.
    if (error_.empty()) {
      error_ = fmt::format("byte {}: {}", position, e.what());
      for (char& c : error_) c = static_cast<unsigned char>(c) < 0x80 ? c : '?';
    }
    return false;
  }
  bool null() { return Add(Json(nullptr)); }
  bool boolean(bool v) { return Add(Json(v)); }
  bool number_integer(int64_t v) { return Add(Json(v)); }
  bool number_unsigned(uint64_t v) { return Add(Json(v)); }
  bool number_float(WideFloat, const std::string& spelling) {
    // An integer too long for 64 bits arrives here too.
    if (spelling.find_first_of(".eE") == std::string::npos) return Add(MakeRawNumber(spelling));
    return Add(MakeFloat(spelling));
  }
  bool string(std::string& v) { return Add(Json(std::move(v))); }
  bool binary(WideJson::binary_t&) { return false; }
  bool start_object(size_t) { return Open(Json::object()); }
  bool end_object() { return Close(); }
  bool start_array(size_t) { return Open(Json::array()); }
  bool end_array() { return Close(); }
  bool key(std::string& v) {
    Frame& frame = frames_.back();
    auto& members = frame.value.get_ref<Json::object_t&>();
    frame.slot = FindKey(frame, members, v);
    if (frame.slot == members.size()) {
      if (members.size() >= kLinearKeys) frame.index.emplace(v, members.size());
      // emplace_back of the underlying vector: the map's own insertion looks through all keys each time.
      members.emplace_back(std::move(v), Json());
    }
    return true;
  }

 private:
  struct Frame {
    Json value;
    size_t slot = 0;                                 // member that the next value goes to
    absl::flat_hash_map<std::string, size_t> index;  // filled once the object has kLinearKeys members
  };

  static size_t FindKey(Frame& frame, const Json::object_t& members, const std::string& key) {
    if (members.size() < kLinearKeys) {
      for (size_t i = 0; i < members.size(); ++i) {
        if ((members.begin() + i)->first == key) return i;
      }
      return members.size();
    }
    if (frame.index.empty()) {
      for (size_t i = 0; i < members.size(); ++i) frame.index.emplace((members.begin() + i)->first, i);
    }
    const auto it = frame.index.find(key);
    return it == frame.index.end() ? members.size() : it->second;
  }

  bool Add(Json&& value) {
    if (frames_.empty()) {
      root_ = std::move(value);
      return true;
    }
    Frame& frame = frames_.back();
    if (frame.value.is_array()) {
      frame.value.get_ref<Json::array_t&>().push_back(std::move(value));
    } else {
      (frame.value.get_ref<Json::object_t&>().begin() + frame.slot)->second = std::move(value);
    }
    return true;
  }

  bool Open(Json&& value) {
    if (frames_.size() >= max_depth_) {
      error_ = fmt::format("more than {} levels of nesting", max_depth_);
      return false;
    }
    frames_.push_back(Frame{std::move(value), 0, {}});
    return true;
  }

  bool Close() {
    Json done = std::move(frames_.back().value);
    frames_.pop_back();
    return Add(std::move(done));
  }

  const int max_depth_;
  std::string error_;
  Json root_;
  std::vector<Frame> frames_;
};

void AppendScalar(const Json& value, std::string* out) {
  switch (value.type()) {
    case Json::value_t::boolean:
      *out += value.get<bool>() ? "true" : "false";
      return;
    case Json::value_t::number_integer:
      *out += std::to_string(value.get<int64_t>());
      return;
    case Json::value_t::number_unsigned:
      *out += std::to_string(value.get<uint64_t>());
      return;
    case Json::value_t::number_float: {
      const double v = value.get<double>();
      *out += std::isfinite(v) ? PythonFloat(v) : "null";
      return;
    }
    case Json::value_t::string:
      *out += '"';
      AppendJsonEscaped(value.get_ref<const std::string&>(), out);
      *out += '"';
      return;
    case Json::value_t::binary: {
      const std::string_view raw = RawNumber(value);
      *out += raw.empty() ? "null" : raw;
      return;
    }
    default:
      *out += "null";
  }
}

}  // namespace

absl::StatusOr<Json> ParseJson(std::string_view text, int max_depth) {
  // nlohmann takes a zero byte for the end of the input, and so would accept anything behind it.
  if (const size_t zero = text.find('\0'); zero != text.npos) {
    return InvalidArgument("not valid JSON: byte {}: a zero byte", zero);
  }
  Builder builder(max_depth);
  if (!WideJson::sax_parse(text.begin(), text.end(), &builder)) {
    return InvalidArgument("not valid JSON: {}", builder.error());
  }
  return builder.Take();
}

bool IsRawNumber(const Json& value) { return value.is_binary() && value.get_binary().subtype() == kRawNumberSubtype; }

std::string_view RawNumber(const Json& value) {
  if (!IsRawNumber(value)) return {};
  const auto& bytes = value.get_binary();
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

std::string DumpJson(const Json& value) {
  struct Frame {
    const Json* value;
    size_t next;
  };
  std::string out;
  std::vector<Frame> frames;
  const auto open = [&](const Json& v) {
    if (!v.is_structured()) {
      AppendScalar(v, &out);
      return;
    }
    out += v.is_array() ? '[' : '{';
    frames.push_back({&v, 0});
  };
  open(value);
  while (!frames.empty()) {
    Frame& frame = frames.back();
    const Json& v = *frame.value;
    if (frame.next == v.size()) {
      out += v.is_array() ? ']' : '}';
      frames.pop_back();
      continue;
    }
    const size_t i = frame.next++;
    if (i > 0) out += ", ";
    if (v.is_array()) {
      open(*(v.get_ref<const Json::array_t&>().begin() + i));
    } else {
      const auto member = v.get_ref<const Json::object_t&>().begin() + i;
      out += '"';
      AppendJsonEscaped(member->first, &out);
      out += "\": ";
      open(member->second);
    }
  }
  return out;
}

void AppendJsonEscaped(std::string_view utf8, std::string* out) {
  constexpr char kHex[] = "0123456789abcdef";
  for (const char c : utf8) {
    switch (c) {
      case '"':
        *out += "\\\"";
        break;
      case '\\':
        *out += "\\\\";
        break;
      case '\b':
        *out += "\\b";
        break;
      case '\f':
        *out += "\\f";
        break;
      case '\n':
        *out += "\\n";
        break;
      case '\r':
        *out += "\\r";
        break;
      case '\t':
        *out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          *out += "\\u00";
          *out += kHex[c >> 4];
          *out += kHex[c & 15];
        } else {
          *out += c;
        }
    }
  }
}

std::string JsonQuoted(std::string_view utf8) {
  std::string out = "\"";
  AppendJsonEscaped(utf8, &out);
  out += '"';
  return out;
}

std::string PythonFloat(double value) {
  // Shortest digits from to_chars ("d.ddde-NN"), laid out as float_repr_style "short" does: an exponent only when
  // exp10 < -4 or >= 16.
  char buffer[64];
  const auto result = std::to_chars(buffer, buffer + sizeof(buffer), value, std::chars_format::scientific);
  const std::string_view text(buffer, result.ptr - buffer);
  const bool negative = text[0] == '-';
  const size_t e = text.find('e');
  int exponent = 0;
  const char* exponent_begin = text.data() + e + 1;
  if (*exponent_begin == '+') ++exponent_begin;
  std::from_chars(exponent_begin, text.data() + text.size(), exponent);
  std::string digits;
  for (const char c : text.substr(0, e)) {
    if (c >= '0' && c <= '9') digits += c;
  }
  const std::string_view sign = negative ? "-" : "";
  const std::string_view d = digits;
  if (exponent < -4 || exponent >= 16) {
    return fmt::format("{}{}{}{}e{:+03d}", sign, d[0], d.size() > 1 ? "." : "", d.substr(1), exponent);
  }
  if (exponent < 0) return fmt::format("{}0.{:0>{}}{}", sign, "", -exponent - 1, d);
  const size_t whole = exponent + 1;
  if (d.size() <= whole) return fmt::format("{}{:0<{}}.0", sign, d, whole);
  return fmt::format("{}{}.{}", sign, d.substr(0, whole), d.substr(whole));
}

}  // namespace hadal::text
