#include "text/output_parser_args.h"

#include <optional>

namespace hadal::text {
namespace {

// JSON Schema types as a set; 0 means that the schema does not say.
enum : unsigned {
  kString = 1,
  kNumber = 2,
  kInteger = 4,
  kBoolean = 8,
  kObject = 16,
  kArray = 32,
  kNullType = 64,
};

unsigned TypeBit(const Json& name) {
  if (!name.is_string()) return 0;
  const std::string& s = name.get_ref<const std::string&>();
  if (s == "string") return kString;
  if (s == "number") return kNumber;
  if (s == "integer") return kInteger;
  if (s == "boolean") return kBoolean;
  if (s == "object") return kObject;
  if (s == "array") return kArray;
  if (s == "null") return kNullType;
  return 0;
}

const Json* Member(const Json* object, const char* key) {
  if (object == nullptr || !object->is_object()) return nullptr;
  const auto it = object->find(key);
  return it == object->end() ? nullptr : &*it;
}

unsigned DeclaredTypes(const Json* property) {
  const Json* type = Member(property, "type");
  if (type == nullptr) return 0;
  const Json* nullable = Member(property, "nullable");
  unsigned types = nullable != nullptr && *nullable == Json(true) ? kNullType : 0U;
  if (!type->is_array()) {
    const unsigned bit = TypeBit(*type);
    return bit == 0 ? 0 : types | bit;
  }
  for (const Json& name : *type) {
    const unsigned bit = TypeBit(name);
    if (bit == 0) return 0;
    types |= bit;
  }
  return types;
}

unsigned TypesOf(const Json& value) {
  if (value.is_string()) return kString;
  if (value.is_boolean()) return kBoolean;
  if (value.is_object()) return kObject;
  if (value.is_array()) return kArray;
  if (value.is_null()) return kNullType;
  if (value.is_number_integer()) return kInteger | kNumber;
  if (IsRawNumber(value) && RawNumber(value).find_first_of(".eE") == std::string_view::npos) return kInteger | kNumber;
  return kNumber;
}

std::string_view Trim(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r\n";
  const size_t begin = text.find_first_not_of(kSpace);
  if (begin == text.npos) return {};
  return text.substr(begin, text.find_last_not_of(kSpace) + 1 - begin);
}

// One level is left for the object of arguments around the value.
std::optional<Json> ParseValue(std::string_view text) {
  absl::StatusOr<Json> parsed = ParseJson(text, kMaxJsonDepth - 1);
  if (!parsed.ok()) return std::nullopt;
  return *std::move(parsed);
}

// JSON text for a value that was read whole: JSON stays as the model spelled it, coerced to the declared type where
// that is a matter of quotes; anything else becomes a string.
std::string ValueText(std::string_view text, ArgumentWriter::Claim claim, unsigned types) {
  const std::string_view trimmed = Trim(text);
  const bool string_ok = types == 0 || (types & kString) != 0;
  if (claim != ArgumentWriter::Claim::kJson && types != 0 && string_ok) return JsonQuoted(text);
  const std::optional<Json> value = ParseValue(trimmed);
  if (!value.has_value()) return JsonQuoted(text);
  if (types == 0 || (TypesOf(*value) & types) != 0) return std::string(trimmed);
  if (value->is_string()) {
    // "5" in quotes for a number.
    const std::string& inner = value->get_ref<const std::string&>();
    const std::optional<Json> parsed = ParseValue(Trim(inner));
    if (parsed.has_value() && (TypesOf(*parsed) & types) != 0) return std::string(Trim(inner));
    return std::string(trimmed);
  }
  if (string_ok || claim == ArgumentWriter::Claim::kString) return JsonQuoted(text);
  return std::string(trimmed);
}

}  // namespace

const Json* ArgumentWriter::Properties() const {
  const Json* properties = Member(schema_, "properties");
  return properties != nullptr && properties->is_object() ? properties : nullptr;
}

void ArgumentWriter::OpenKey(std::string_view key, std::string* out) {
  *out += open_ ? ", \"" : "{\"";
  open_ = true;
  AppendJsonEscaped(key, out);
  *out += "\": ";
}

void ArgumentWriter::BeginParameter(std::string_view key, Claim claim, std::string* out) {
  FlushWrapper(out);
  buffer_.clear();
  claim_ = claim;
  const std::string name(key);
  if (!keys_.insert(name).second) {
    mode_ = Mode::kDiscard;
    return;
  }
  const Json* properties = Properties();
  const Json* property = Member(properties, name.c_str());
  types_ = DeclaredTypes(property);
  if (keys_.size() == 1 && (name == "arguments" || name == "input") && properties != nullptr && property == nullptr) {
    mode_ = Mode::kWrapper;
    wrapper_key_ = name;
    return;
  }
  OpenKey(name, out);
  const bool stream = claim == Claim::kString && (types_ == 0 || (types_ & kString) != 0);
  mode_ = stream ? Mode::kStream : Mode::kBuffer;
  if (stream) *out += '"';
}

void ArgumentWriter::Value(std::string_view text, std::string* out) {
  if (mode_ == Mode::kStream) {
    AppendJsonEscaped(text, out);
  } else if (mode_ != Mode::kDiscard) {
    buffer_ += text;
  }
}

void ArgumentWriter::EndParameter(std::string* out) {
  if (mode_ == Mode::kStream) {
    *out += '"';
  } else if (mode_ == Mode::kBuffer) {
    *out += ValueText(buffer_, claim_, types_);
  }
}

void ArgumentWriter::FlushWrapper(std::string* out) {
  if (wrapper_key_.empty()) return;
  OpenKey(wrapper_key_, out);
  wrapper_key_.clear();
  *out += ValueText(buffer_, claim_, 0);
}

// A tool with one property, given a bare value: the value is that property.
bool ArgumentWriter::SingleProperty(std::string_view text, Claim claim, std::string* out) const {
  const Json* properties = Properties();
  if (properties == nullptr || properties->size() != 1) return false;
  const unsigned types = DeclaredTypes(&*properties->begin());
  const std::optional<Json> value = ParseValue(Trim(text));
  const bool string_ok = types == 0 || (types & kString) != 0;
  std::string json;
  if (value.has_value() && (value->is_structured() || value->is_null())) return false;
  const bool value_ok = value.has_value() && (types == 0 || (TypesOf(*value) & types) != 0);
  if (string_ok && (claim == Claim::kString || !value_ok)) {
    json = JsonQuoted(text);
  } else if (value_ok) {
    json = Trim(text);
  } else {
    return false;
  }
  *out += "{\"";
  AppendJsonEscaped(properties->begin().key(), out);
  *out += "\": ";
  *out += json;
  *out += '}';
  return true;
}

// The object inside a wrapper, if it fits the tool.
bool ArgumentWriter::Unwrap(std::string_view text, Claim claim, std::string* out) const {
  const std::string_view trimmed = Trim(text);
  std::optional<Json> value = ParseValue(trimmed);
  std::string object_text(trimmed);
  if (value.has_value() && value->is_string()) {  // JSON in a JSON string
    object_text = Trim(value->get_ref<const std::string&>());
    const std::optional<Json> inner = ParseValue(object_text);
    if (inner.has_value() && inner->is_object()) value = inner;
  }
  if (!value.has_value() || !value->is_object()) return SingleProperty(text, claim, out);
  const Json* properties = Properties();
  if (properties == nullptr) return false;
  for (const auto& member : value->get_ref<const Json::object_t&>()) {
    if (!properties->contains(member.first)) return false;
  }
  *out += object_text;
  return true;
}

bool ArgumentWriter::Finish(std::string* out) {
  if (!wrapper_key_.empty()) {
    if (Unwrap(buffer_, claim_, out)) return true;
    FlushWrapper(out);
  }
  if (open_) {
    *out += '}';
    return true;
  }
  const std::string_view body = Trim(body_);
  if (body.empty()) {
    *out += "{}";
    return true;
  }
  const std::optional<Json> value = ParseValue(body);
  if (value.has_value() && value->is_object()) {
    // The body may be wrapped too.
    const Json* properties = Properties();
    if (properties != nullptr && value->size() == 1) {
      const auto member = value->begin();
      const std::string& key = member.key();
      if ((key == "arguments" || key == "input") && !properties->contains(key) &&
          Unwrap(DumpJson(*member), Claim::kJson, out)) {
        return true;
      }
    }
    *out += body;
    return true;
  }
  return SingleProperty(body, Claim::kNone, out);
}

void ObjectStream::Push(std::string_view text, std::string* out) {
  for (const char c : text) {
    if (closed()) return;
    started_ = true;
    if (in_string_) {
      if (static_cast<unsigned char>(c) < ' ') {
        AppendJsonEscaped(std::string_view(&c, 1), out);
        continue;
      }
      in_string_ = escaped_ || c != '"';
      escaped_ = !escaped_ && c == '\\';
    } else {
      in_string_ = c == '"';
      if (c == '{' || c == '[') ++depth_;
      if (c == '}' || c == ']') --depth_;
    }
    *out += c;
  }
}

bool IsJsonObject(std::string_view text) {
  const std::optional<Json> value = ParseValue(text);
  return value.has_value() && value->is_object();
}

}  // namespace hadal::text
