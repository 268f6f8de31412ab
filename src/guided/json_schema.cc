#include "guided/json_schema.h"

#include <algorithm>
#include <cmath>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "guided/automaton.h"
#include "guided/item_sets.h"
#include "guided/json_formats.h"
#include "guided/json_numbers.h"
#include "guided/json_objects.h"
#include "guided/json_schema_flatten.h"
#include "guided/json_schema_keywords.h"
#include "guided/json_schema_merge.h"
#include "guided/json_syntax.h"
#include "guided/json_text.h"
#include "guided/regex.h"

namespace hadal::guided {
namespace {

constexpr int kMaxNestedSchemas = 128;
// Names are excluded character by character (JsonSyntax::StringExcept).
constexpr size_t kMaxNameBytes = 512;

uint32_t Count(const Json& schema, const char* key, uint32_t absent) {
  const auto found = schema.find(key);
  if (found == schema.end()) return absent;
  // No text under any limit is as long.
  return static_cast<uint32_t>(std::min<uint64_t>(found->get<uint64_t>(), kUnlimited - 1));
}

size_t CountChars(std::string_view utf8) {
  return static_cast<size_t>(std::count_if(utf8.begin(), utf8.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

class Compiler {
 public:
  Compiler(const Json& root, Expressions* expressions, Budget* budget)
      : root_(root), e_(*expressions), budget_(budget), flattener_(root, budget), syntax_(expressions) {}

  absl::StatusOr<Expr> Compile() {
    const Expr root = RuleFor("#", InRoot(root_), "#");
    HADAL_RETURN_IF_ERROR(CompilePending());
    return root;
  }

  // Objects that satisfy the schema, written as `form` says (null: as JSON).
  absl::StatusOr<Expr> CompileArguments(const ParameterForm* form) {
    HADAL_ASSIGN_OR_RETURN(const Json flat, flattener_.Flatten(root_, "#"));
    HADAL_ASSIGN_OR_RETURN(const Expr arguments, ObjectsOf(flat, "#", 0, form));
    HADAL_RETURN_IF_ERROR(CompilePending());
    return arguments;
  }

 private:
  // Which values of a schema, and how they are written.
  enum class Part {
    kJson,    // all, as JSON
    kOthers,  // those that are no strings, as JSON
    kText,    // strings, as they are. Holds no rules.
  };

  struct Pending {
    RuleId rule;
    std::shared_ptr<const Json> schema;
    std::string path;
  };

  // --- Structure ---

  absl::Status CompilePending() {
    while (!pending_.empty()) {
      const Pending pending = std::move(pending_.front());
      pending_.pop_front();
      HADAL_ASSIGN_OR_RETURN(const Expr body, CompileSchema(*pending.schema, pending.path, 0));
      e_.DefineRule(pending.rule, body);
    }
    return absl::OkStatus();
  }

  // A part of the text, which outlives this.
  static std::shared_ptr<const Json> InRoot(const Json& part) { return {std::shared_ptr<const Json>(), &part}; }

  // A reference to the schema as a rule, compiled later. `key` says what is the same.
  Expr RuleFor(const std::string& key, std::shared_ptr<const Json> schema, const std::string& path) {
    const auto [found, is_new] = rules_.try_emplace(key);
    if (is_new) {
      found->second = e_.DeclareRule(path);
      pending_.push_back({.rule = found->second, .schema = std::move(schema), .path = path});
    }
    return e_.Call(found->second);
  }

  // A schema inside another.
  absl::StatusOr<Expr> Sub(const Json& schema, const std::string& path, int depth) {
    if (!schema.is_object()) return CompileSchema(schema, path, depth);
    const auto ref = schema.find("$ref");
    if (ref == schema.end() && !schema.contains("allOf")) return CompileSchema(schema, path, depth);
    HADAL_RETURN_IF_ERROR(CheckKeywords(schema, path));
    if (ref != schema.end() && OnlyRef(schema)) {
      HADAL_ASSIGN_OR_RETURN(const Json* target, flattener_.Lookup(ref->get<std::string>(), path));
      return RuleFor(ref->get<std::string>(), InRoot(*target), ref->get<std::string>());
    }
    // What is merged may come again inside itself.
    const std::string text = schema.dump();
    HADAL_RETURN_IF_ERROR(flattener_.CheckGrowth(text.size(), path));
    return RuleFor("=" + text, std::make_shared<const Json>(schema), path);
  }

  static bool OnlyRef(const Json& schema) {
    return std::all_of(schema.items().begin(), schema.items().end(), [](const auto& item) {
      const Keyword* keyword = FindKeyword(item.key());
      return item.key() == "$ref" || (keyword != nullptr && keyword->ignored());
    });
  }

  absl::StatusOr<Expr> CompileSchema(const Json& schema, const std::string& path, int depth) {
    HADAL_RETURN_IF_ERROR(flattener_.CheckGrowth(0, path));
    if (depth > kMaxNestedSchemas)
      return SchemaError(path, "more than {} schemas inside one another", kMaxNestedSchemas);
    HADAL_ASSIGN_OR_RETURN(const Json flat, flattener_.Flatten(schema, path));
    return CompileFlat(flat, path, depth);
  }

  // --- Any type ---

  absl::StatusOr<Expr> CompileFlat(const Json& flat, const std::string& path, int depth, Part part = Part::kJson) {
    if (flat.is_boolean()) return flat == Json(true) ? Any(part) : kNoText;
    if (flat.contains("nullable")) {
      Json without = flat;
      without.erase("nullable");
      HADAL_ASSIGN_OR_RETURN(const Expr value, CompileFlat(without, path, depth, part));
      const bool or_null = flat["nullable"] == Json(true) && part != Part::kText;
      return or_null ? e_.Choice({value, e_.Literal("null")}) : value;
    }
    if (flat.contains(kChoicesKey)) return CompileChoices(flat, path, depth, part);
    if (flat.contains("enum") || flat.contains("const")) return CompileValues(flat, path, part);
    const Json types = NamedOrImpliedTypes(flat);
    if (types.is_null()) return Any(part);
    std::vector<Expr> options;
    for (const Json& type : types) {
      if (!IsPart(part, type == "string")) continue;
      HADAL_ASSIGN_OR_RETURN(const Expr option, CompileType(type.get<std::string>(), flat, path, depth, part));
      options.push_back(option);
    }
    return e_.Choice(options);
  }

  Expr Any(Part part) {
    if (part == Part::kJson) return syntax_.AnyValue();
    if (part == Part::kText) return AnyText(0, kUnlimited);
    return e_.Choice({syntax_.AnyNumber(), e_.Literal("true"), e_.Literal("false"), e_.Literal("null"),
                      syntax_.AnyObject(), syntax_.AnyArray()});
  }

  static bool IsPart(Part part, bool is_string) { return part == Part::kJson || is_string == (part == Part::kText); }

  static Json NamedOrImpliedTypes(const Json& flat) {
    Json types = TypesOf(flat);
    return types.is_null() ? ImpliedTypes(flat) : types;
  }

  static Json ImpliedTypes(const Json& flat) {
    static constexpr const char* kTypes[] = {nullptr, "object", "array", "string", "number"};
    Json types;
    for (const auto& [key, value] : flat.items()) {
      const Keyword* keyword = FindKeyword(key);
      if (keyword == nullptr || keyword->concerns == Keyword::Concerns::kAny) continue;
      const char* type = kTypes[static_cast<int>(keyword->concerns)];
      if (std::find(types.begin(), types.end(), type) == types.end()) types.push_back(type);
    }
    return types;
  }

  // One of each group must hold: the first group's schemas, each together with all the rest.
  absl::StatusOr<Expr> CompileChoices(const Json& flat, const std::string& path, int depth, Part part) {
    const bool alone = flat.size() == 1 && flat[kChoicesKey].size() == 1;
    if (alone && part == Part::kJson) {
      const Json& group = flat[kChoicesKey][0];
      std::vector<Expr> options;
      for (size_t i = 0; i < group.size(); ++i) {
        HADAL_ASSIGN_OR_RETURN(const Expr option, Sub(group[i], fmt::format("{}/anyOf/{}", path, i), depth + 1));
        options.push_back(option);
      }
      return e_.Choice(options);
    }
    return EachChoice(flat, path, depth, [&](const Json& both, const std::string& sub_path) {
      return CompileFlat(both, sub_path, depth + 1, part);
    });
  }

  // `compile` of the schemas of the first group, each merged with all the rest.
  template <typename Compile>
  absl::StatusOr<Expr> EachChoice(const Json& flat, const std::string& path, int depth, const Compile& compile) {
    if (depth > kMaxNestedSchemas)
      return SchemaError(path, "more than {} schemas inside one another", kMaxNestedSchemas);
    Json rest = flat;
    const Json group = rest[kChoicesKey][0];
    rest[kChoicesKey].erase(0);
    if (rest[kChoicesKey].empty()) rest.erase(kChoicesKey);
    if (rest.empty()) rest = true;
    std::vector<Expr> options;
    for (size_t i = 0; i < group.size(); ++i) {
      const std::string sub_path = fmt::format("{}/anyOf/{}", path, i);
      HADAL_ASSIGN_OR_RETURN(const Json flat_choice, flattener_.Flatten(group[i], sub_path));
      HADAL_ASSIGN_OR_RETURN(const Json both, MergeSchemas(rest, flat_choice, sub_path));
      HADAL_ASSIGN_OR_RETURN(const Expr option, compile(both, sub_path));
      options.push_back(option);
    }
    return e_.Choice(options);
  }

  absl::StatusOr<Expr> CompileValues(const Json& flat, const std::string& path, Part part) {
    Json values = flat.contains("enum") ? flat["enum"] : Json::array({flat["const"]});
    Json rest = flat;
    rest.erase("enum");
    rest.erase("const");
    for (const auto& [key, value] : rest.items()) {
      const Keyword* keyword = FindKeyword(key);
      if (keyword != nullptr &&
          (keyword->concerns == Keyword::Concerns::kObject || keyword->concerns == Keyword::Concerns::kArray)) {
        return SchemaError(path, "keyword '{}' is not supported beside 'enum' or 'const'", key);
      }
    }
    std::vector<Expr> options;
    for (const Json& value : values) {
      if (flat.contains("const") && value != flat["const"]) continue;
      if (!IsPart(part, value.is_string())) continue;
      HADAL_ASSIGN_OR_RETURN(const Expr option, CompileValue(value, rest, path, part));
      options.push_back(option);
    }
    return e_.Choice(options);
  }

  absl::StatusOr<Expr> CompileValue(const Json& value, const Json& rest, const std::string& path, Part part) {
    if (!HasType(value, TypesOf(rest))) return kNoText;
    if (value.is_number()) {
      const auto found = [&](const char* key) { return rest.contains(key) ? rest[key] : Json(); };
      const Json min = found("minimum"), max = found("maximum");
      const Json above = found("exclusiveMinimum"), below = found("exclusiveMaximum");
      const bool fits = (min.is_null() || value >= min) && (max.is_null() || value <= max) &&
                        (above.is_null() || value > above) && (below.is_null() || value < below);
      if (!fits) return kNoText;
    }
    if (!value.is_string()) return syntax_.Value(value);
    const bool is_text = part == Part::kText;
    const Expr literal = is_text ? e_.Literal(value.get_ref<const std::string&>()) : syntax_.Value(value);
    const size_t length = CountChars(value.get_ref<const std::string&>());
    if (length < Count(rest, "minLength", 0) || length > Count(rest, "maxLength", kUnlimited)) return kNoText;
    if (!rest.contains(kPatternsKey) && !rest.contains("format")) return literal;
    HADAL_ASSIGN_OR_RETURN(const Expr any, CompileString(rest, path, is_text));
    return e_.Intersection(literal, any);
  }

  static bool HasType(const Json& value, const Json& types) {
    if (types.is_null()) return true;
    return std::any_of(types.begin(), types.end(), [&](const Json& type) {
      if (type == "object") return value.is_object();
      if (type == "array") return value.is_array();
      if (type == "string") return value.is_string();
      if (type == "boolean") return value.is_boolean();
      if (type == "null") return value.is_null();
      if (type == "number") return value.is_number();
      // 1.0 is an integer too.
      return value.is_number_integer() ||
             (value.is_number_float() && value.get<double>() == std::trunc(value.get<double>()));
    });
  }

  absl::StatusOr<Expr> CompileType(const std::string& type, const Json& flat, const std::string& path, int depth,
                                   Part part) {
    if (type == "object") return CompileObject(flat, path, depth, nullptr);
    if (type == "array") return CompileArray(flat, path, depth);
    if (type == "string") return CompileString(flat, path, part == Part::kText);
    if (type == "boolean") return e_.Choice({e_.Literal("true"), e_.Literal("false")});
    if (type == "null") return e_.Literal("null");
    return CompileNumber(flat, type == "integer", path);
  }

  // --- Numbers and strings ---

  absl::StatusOr<Expr> CompileNumber(const Json& flat, bool integers_only, const std::string& path) {
    Expr all = kNoText;
    bool bounded = false;
    for (const auto& [key, exclusive] : {std::pair("minimum", false), std::pair("exclusiveMinimum", true),
                                         std::pair("maximum", false), std::pair("exclusiveMaximum", true)}) {
      const auto found = flat.find(key);
      if (found == flat.end()) continue;
      const absl::StatusOr<Decimal> value = ToDecimal(*found);
      if (!value.ok()) return SchemaError(path, "'{}': expected {}", key, Message(value.status()));
      const NumberBound bound = {.value = *value, .exclusive = exclusive};
      const bool is_lower = std::string_view(key).ends_with("inimum");
      const Expr within = is_lower ? NumbersBetween(bound, std::nullopt, integers_only, &e_)
                                   : NumbersBetween(std::nullopt, bound, integers_only, &e_);
      all = bounded ? e_.Intersection(all, within) : within;
      bounded = true;
    }
    if (bounded) return all;
    return integers_only ? syntax_.AnyInteger() : syntax_.AnyNumber();
  }

  Expr AnyText(uint32_t min, uint32_t max) { return e_.Repeat(Utf8Expr(CharSet::All(), &e_), min, max); }

  // A string that the schema allows, in quotes unless it is to be as it is. Holds no rules.
  absl::StatusOr<Expr> CompileString(const Json& flat, const std::string& path, bool is_text) {
    const uint32_t min = Count(flat, "minLength", 0), max = Count(flat, "maxLength", kUnlimited);
    if (!flat.contains(kPatternsKey) && !flat.contains("format")) {
      return is_text ? AnyText(min, max) : syntax_.AnyString(min, max);
    }
    Expr content = kNoText;
    bool constrained = false;
    const auto both = [&](Expr part) {
      content = constrained ? e_.Intersection(content, part) : part;
      constrained = true;
    };
    const Json no_patterns = Json::array();
    for (const Json& pattern : flat.contains(kPatternsKey) ? flat[kPatternsKey] : no_patterns) {
      HADAL_ASSIGN_OR_RETURN(const Expr part, Regex(pattern.get<std::string>(), true, "pattern", path, is_text));
      both(part);
    }
    if (flat.contains("format")) {
      const std::string format = flat["format"].get<std::string>();
      const std::optional<std::string_view> regex = FormatRegex(format);
      if (!regex.has_value()) {
        return SchemaError(path, "'format': '{}' is not supported; expected one of {}", format, FormatNames());
      }
      HADAL_ASSIGN_OR_RETURN(const Expr part, Regex(*regex, false, "format", path, is_text));
      both(part);
    }
    if (min > 0 || max != kUnlimited) {
      both(is_text ? AnyText(min, max) : e_.Repeat(syntax_.Char(CharSet::All()), min, max));
    }
    return is_text ? content : syntax_.Quoted(content);
  }

  absl::StatusOr<Expr> Regex(std::string_view pattern, bool search, const char* key, const std::string& path,
                             bool is_text = false) {
    RegexOptions options = {.search = search, .spell = nullptr};
    if (!is_text) options.spell = [this](const CharSet& set) { return syntax_.Char(set); };
    absl::StatusOr<Expr> parsed = ParseRegex(pattern, options, &e_, budget_);
    if (!parsed.ok()) return SchemaError(path, "'{}': {}", key, Message(parsed.status()));
    return parsed;
  }

  // --- Objects and arrays ---

  // The objects among a schema's values, as `form` has them (null: as JSON).
  absl::StatusOr<Expr> ObjectsOf(const Json& flat, const std::string& path, int depth, const ParameterForm* form) {
    if (flat.is_boolean()) return flat == Json(true) ? CompileObject(Json::object(), path, depth, form) : kNoText;
    if (flat.contains("nullable")) {
      Json without = flat;
      without.erase("nullable");
      return ObjectsOf(without, path, depth, form);
    }
    if (flat.contains(kChoicesKey)) {
      return EachChoice(flat, path, depth, [&](const Json& both, const std::string& sub_path) {
        return ObjectsOf(both, sub_path, depth + 1, form);
      });
    }
    for (const char* key : {"enum", "const"}) {
      if (flat.contains(key)) return SchemaError(path, "keyword '{}' is not supported for all arguments together", key);
    }
    const Json types = NamedOrImpliedTypes(flat);
    const bool has_objects = types.is_null() || std::find(types.begin(), types.end(), "object") != types.end();
    return has_objects ? CompileObject(flat, path, depth, form) : kNoText;
  }

  absl::StatusOr<Expr> CompileObject(const Json& flat, const std::string& path, int depth, const ParameterForm* form) {
    HADAL_ASSIGN_OR_RETURN(const Json properties, ListedProperties(flat, path));
    ObjectShape shape;
    std::vector<std::string> names;
    for (const auto& [name, property] : properties.items()) {
      if (name.size() > kMaxNameBytes) {
        return SchemaError(path, "'properties': at most {} bytes in a name, found {}", kMaxNameBytes, name.size());
      }
      names.push_back(name);
      const std::string sub_path = Pointer(path + "/properties", name);
      if (form != nullptr && name.find('"') != std::string::npos) {
        return SchemaError(sub_path, "an argument's name cannot hold a quotation mark");
      }
      const Expr key = form == nullptr ? syntax_.StringLiteral(name) : syntax_.Quoted(e_.Literal(name));
      HADAL_ASSIGN_OR_RETURN(const Expr text, CompileMember(key, property, sub_path, depth, form));
      const bool required = IsRequired(flat, name);
      if (text == kNoText && !required) continue;  // must not be there
      shape.members.push_back({.text = text, .required = required});
    }
    HADAL_ASSIGN_OR_RETURN(shape.more, MoreMembers(flat, names, path, depth, form));
    HADAL_RETURN_IF_ERROR(SetMemberCounts(flat, path, &shape));
    ObjectBrackets brackets;
    if (form == nullptr) {
      const Expr close = syntax_.Close('}');
      brackets = {.open = syntax_.Open('{'), .separator = syntax_.Comma(), .close = close, .close_none = close};
    } else {
      brackets.close_none = form->none;
    }
    return ObjectExpr(shape, brackets, &e_);
  }

  // A member with its key, which is in quotes.
  absl::StatusOr<Expr> CompileMember(Expr key, const Json& schema, const std::string& path, int depth,
                                     const ParameterForm* form) {
    if (form == nullptr) {
      HADAL_ASSIGN_OR_RETURN(const Expr value, Sub(schema, path, depth + 1));
      return e_.Sequence({key, syntax_.Colon(), value});
    }
    HADAL_RETURN_IF_ERROR(flattener_.CheckGrowth(0, path));
    HADAL_ASSIGN_OR_RETURN(const Json flat, flattener_.Flatten(schema, path));
    HADAL_ASSIGN_OR_RETURN(const Expr text, CompileFlat(flat, path, depth + 1, Part::kText));
    HADAL_ASSIGN_OR_RETURN(const Expr json, CompileFlat(flat, path, depth + 1, Part::kOthers));
    const Expr value = e_.Choice({e_.Sequence({form->as_text, text}), e_.Sequence({form->as_json, json})});
    return e_.Sequence({form->begin, key, value, form->end});
  }

  static bool IsRequired(const Json& flat, const std::string& name) {
    const auto required = flat.find("required");
    return required != flat.end() && std::find(required->begin(), required->end(), name) != required->end();
  }

  // `properties` with what patternProperties demands of them, and those that are only in `required`.
  absl::StatusOr<Json> ListedProperties(const Json& flat, const std::string& path) {
    const bool listed = flat.contains("properties"), patterned = flat.contains("patternProperties");
    const Json properties = listed ? flat["properties"] : Json::object();
    Json all = properties;
    for (const Json& name : flat.contains("required") ? flat["required"] : Json::array()) {
      const std::string& text = name.get_ref<const std::string&>();
      if (!all.contains(text))
        all[text] = flat.contains("additionalProperties") ? flat["additionalProperties"] : Json(true);
    }
    if (!patterned) return all;
    HADAL_RETURN_IF_ERROR(CheckPatterns(flat, path));
    const auto item = flat["patternProperties"].begin();
    HADAL_ASSIGN_OR_RETURN(const Expr keys, Regex(item.key(), true, "patternProperties", path));
    const absl::StatusOr<Automaton> automaton = BuildAutomaton(e_, syntax_.Quoted(keys), budget_);
    if (!automaton.ok()) return SchemaError(path, "'patternProperties': {}", Message(automaton.status()));
    for (const auto& [name, property] : all.items()) {
      HADAL_ASSIGN_OR_RETURN(const bool matches, Matches(*automaton, name, path));
      if (!matches) continue;
      property = properties.contains(name) ? Json({{"allOf", Json::array({property, *item})}}) : *item;
    }
    return all;
  }

  absl::Status CheckPatterns(const Json& flat, const std::string& path) {
    if (flat["patternProperties"].size() != 1) {
      return SchemaError(path, "'patternProperties': exactly one pattern is supported, found {}",
                         flat["patternProperties"].size());
    }
    if (flat.contains("additionalProperties") && flat["additionalProperties"] != Json(false)) {
      return SchemaError(path, "'additionalProperties' other than false is not supported beside 'patternProperties'");
    }
    if (flat.contains("propertyNames"))
      return SchemaError(path, "'propertyNames' is not supported beside 'patternProperties'");
    return absl::OkStatus();
  }

  // Whether a string, in its one spelling, is among the automaton's texts.
  static absl::StatusOr<bool> Matches(const Automaton& automaton, const std::string& text, const std::string& path) {
    ItemSets sets(automaton);
    sets.AllowWork(10'000'000);
    SetId set = sets.Start();
    for (const char c : Json(text).dump()) set = sets.StepByte(set, static_cast<uint8_t>(c));
    if (sets.exhausted()) return SchemaError(path, "'patternProperties': the pattern takes too much work");
    return sets.accepting(set);
  }

  // A member that is not listed.
  absl::StatusOr<Expr> MoreMembers(const Json& flat, const std::vector<std::string>& names, const std::string& path,
                                   int depth, const ParameterForm* form) {
    const auto member = [&](Expr key, const Json& schema, const std::string& at) {
      return CompileMember(form == nullptr ? key : e_.Intersection(key, PlainName()), schema, at, depth, form);
    };
    if (flat.contains("patternProperties")) {
      const auto item = flat["patternProperties"].begin();
      HADAL_ASSIGN_OR_RETURN(const Expr keys, Regex(item.key(), true, "patternProperties", path));
      return member(e_.Intersection(syntax_.Quoted(keys), syntax_.StringExcept(names)), *item,
                    Pointer(path + "/patternProperties", item.key()));
    }
    Json schema = true;
    if (flat.contains("additionalProperties")) {
      schema = flat["additionalProperties"];
    } else if (flat.contains("properties")) {
      return kNoText;
    }
    const std::string sub_path = path + "/additionalProperties";
    if (!flat.contains("propertyNames")) {
      return member(names.empty() ? syntax_.AnyString() : syntax_.StringExcept(names), schema, sub_path);
    }
    if (schema == Json(false)) return kNoText;
    if (!names.empty()) return SchemaError(path, "'propertyNames' is not supported beside 'properties' or 'required'");
    HADAL_ASSIGN_OR_RETURN(const Json flat_names, flattener_.Flatten(flat["propertyNames"], path + "/propertyNames"));
    if (flat_names.is_boolean()) {
      return flat_names == Json(true) ? member(syntax_.AnyString(), schema, sub_path) : kNoText;
    }
    // Of a name's values only strings count.
    Json string_names = flat_names;
    const Json types = TypesOf(flat_names);
    if (!types.is_null() && std::find(types.begin(), types.end(), "string") == types.end()) return kNoText;
    string_names["type"] = "string";
    string_names.erase("nullable");
    HADAL_ASSIGN_OR_RETURN(const Expr key, CompileFlat(string_names, path + "/propertyNames", depth + 1));
    return member(key, schema, sub_path);
  }

  // The name of a parameter that is not listed: as it is, so that its quotes can be told from it, and short enough for
  // whoever reads it.
  Expr PlainName() {
    constexpr uint32_t kMaxChars = 64;
    const CharSet plain({{0x20, '!'}, {'#', '['}, {']', kMaxChar}});
    return syntax_.Quoted(e_.Repeat(Utf8Expr(plain, &e_), 1, kMaxChars));
  }

  absl::Status SetMemberCounts(const Json& flat, const std::string& path, ObjectShape* shape) {
    const uint32_t min = Count(flat, "minProperties", 0), max = Count(flat, "maxProperties", kUnlimited);
    const auto listed = static_cast<uint32_t>(shape->members.size());
    const auto required = static_cast<uint32_t>(
        std::count_if(shape->members.begin(), shape->members.end(), [](const Member& m) { return m.required; }));
    if (listed == required) {
      // With a fixed number of listed members, the others make up the count.
      shape->min_more = min > listed ? min - listed : 0;
      shape->max_more = max == kUnlimited ? max : max >= listed ? max - listed : 0;
      if (max < listed) return SchemaError(path, "'maxProperties': {} is less than the {} required", max, required);
      if (shape->more == kNoText && shape->min_more > 0) {
        return SchemaError(path, "'minProperties': {} is more than the {} properties there can be", min, listed);
      }
      return absl::OkStatus();
    }
    if (min > required) return SchemaError(path, "'minProperties' is not supported beside optional 'properties'");
    if (max != kUnlimited && (shape->more != kNoText || max < listed)) {
      return SchemaError(path, "'maxProperties' is not supported beside optional 'properties'");
    }
    return absl::OkStatus();
  }

  absl::StatusOr<Expr> CompileArray(const Json& flat, const std::string& path, int depth) {
    ArrayShape shape = {.min = Count(flat, "minItems", 0), .max = Count(flat, "maxItems", kUnlimited)};
    const Json prefix = flat.contains("prefixItems") ? flat["prefixItems"] : Json::array();
    for (size_t i = 0; i < prefix.size(); ++i) {
      HADAL_ASSIGN_OR_RETURN(const Expr element, Sub(prefix[i], fmt::format("{}/prefixItems/{}", path, i), depth + 1));
      shape.prefix.push_back(element);
    }
    if (flat.contains("items")) {
      HADAL_ASSIGN_OR_RETURN(shape.rest, Sub(flat["items"], path + "/items", depth + 1));
    } else if (prefix.empty() || shape.min > prefix.size()) {
      shape.rest = syntax_.AnyValue();
    }
    return ArrayExpr(shape, syntax_, &e_);
  }

  const Json& root_;
  Expressions& e_;
  Budget* budget_;
  SchemaFlattener flattener_;
  JsonSyntax syntax_;
  absl::flat_hash_map<std::string, RuleId> rules_;  // by reference, or "=" and the schema's text
  std::deque<Pending> pending_;
};

// Keys of merged schemas must not come from the text.
bool HoldsMergedKey(const Json& value) {
  if (value.is_object() && (value.contains(kPatternsKey) || value.contains(kChoicesKey))) return true;
  return value.is_structured() && std::any_of(value.begin(), value.end(), HoldsMergedKey);
}

absl::StatusOr<Json> ReadSchema(std::string_view schema, const Budget& budget) {
  HADAL_RETURN_IF_ERROR(budget.CheckText("json schema", schema));
  HADAL_ASSIGN_OR_RETURN(Json root, ParseJsonText("json schema", schema, budget.limits().depth));
  if (HoldsMergedKey(root)) return InvalidArgument("json schema: keys that begin with U+0001 are not supported");
  return root;
}

}  // namespace

absl::StatusOr<Expr> ParseArgumentsSchema(std::string_view schema, const ParameterForm* form, Expressions* expressions,
                                          Budget* budget) {
  HADAL_ASSIGN_OR_RETURN(const Json root, ReadSchema(schema, *budget));
  absl::StatusOr<Expr> compiled = Compiler(root, expressions, budget).CompileArguments(form);
  if (!compiled.ok()) return InvalidArgument("json schema: {}", Message(compiled.status()));
  return compiled;
}

absl::StatusOr<Expr> ParseJsonSchema(std::string_view schema, Expressions* expressions, Budget* budget) {
  HADAL_ASSIGN_OR_RETURN(const Json root, ReadSchema(schema, *budget));
  absl::StatusOr<Expr> compiled = Compiler(root, expressions, budget).Compile();
  if (!compiled.ok()) return InvalidArgument("json schema: {}", Message(compiled.status()));
  return compiled;
}

}  // namespace hadal::guided
