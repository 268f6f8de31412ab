// The map engine; the rules of the models are in weight_rules.cc.
#define PCRE2_CODE_UNIT_WIDTH 8
#include "checkpoint/weight_map.h"

#include <pcre2.h>

#include "base/status.h"

namespace hadal::checkpoint {

struct WeightMap::CompiledRegex {
  explicit CompiledRegex(pcre2_code* compiled) : code(compiled) {}
  ~CompiledRegex() { pcre2_code_free(code); }
  CompiledRegex(const CompiledRegex&) = delete;
  CompiledRegex& operator=(const CompiledRegex&) = delete;

  pcre2_code* code;
};

namespace {

absl::Status CheckRules(const std::vector<MapRule>& rules, std::string_view list) {
  for (const MapRule& rule : rules) {
    if (rule.from.empty()) return InvalidArgument("weight map: a {} rule has an empty source", list);
  }
  return absl::OkStatus();
}

// Replaces the first match; true if there was one.
absl::StatusOr<bool> Substitute(pcre2_code* code, const MapRule& rule, std::string* name) {
  pcre2_match_data* match = pcre2_match_data_create_from_pattern(code, nullptr);
  const auto* subject = reinterpret_cast<PCRE2_SPTR>(name->data());
  const int found = pcre2_match(code, subject, name->size(), 0, 0, match, nullptr);
  bool matched = found >= 0;
  std::string result;
  int outcome = found;
  if (matched && rule.to.has_value()) {
    PCRE2_SIZE size = name->size() * 2 + rule.to->size() * 4 + 64;
    result.resize(size);
    outcome = pcre2_substitute(code, subject, name->size(), 0, 0, match, nullptr,
                               reinterpret_cast<PCRE2_SPTR>(rule.to->data()), rule.to->size(),
                               reinterpret_cast<PCRE2_UCHAR*>(result.data()), &size);
    if (outcome >= 0) {
      result.resize(size);
      *name = result;
    }
  }
  pcre2_match_data_free(match);
  if (outcome < 0 && outcome != PCRE2_ERROR_NOMATCH) {
    return InvalidArgument("weight map: pattern \"{}\" fails on \"{}\" (PCRE2 error {})", rule.from, *name, outcome);
  }
  return matched;
}

bool EndsWith(std::string_view text, std::string_view tail) {
  return text.size() >= tail.size() && text.substr(text.size() - tail.size()) == tail;
}

bool StartsWith(std::string_view text, std::string_view head) { return text.substr(0, head.size()) == head; }

}  // namespace

WeightMap::WeightMap() = default;
WeightMap::WeightMap(WeightMap&&) noexcept = default;
WeightMap& WeightMap::operator=(WeightMap&&) noexcept = default;
WeightMap::~WeightMap() = default;

absl::StatusOr<WeightMap> WeightMap::Create(WeightMapRules rules) {
  WeightMap map;
  HADAL_RETURN_IF_ERROR(CheckRules(rules.rename, "rename"));
  HADAL_RETURN_IF_ERROR(CheckRules(rules.regex, "regex"));
  HADAL_RETURN_IF_ERROR(CheckRules(rules.substring, "substring"));
  HADAL_RETURN_IF_ERROR(CheckRules(rules.prefix, "prefix"));
  HADAL_RETURN_IF_ERROR(CheckRules(rules.suffix, "suffix"));
  for (const StackedRule& rule : rules.stacked) {
    if (rule.from.empty()) return InvalidArgument("weight map: a stacked rule has an empty source");
  }
  for (const MapRule& rule : rules.regex) {
    int error = 0;
    PCRE2_SIZE offset = 0;
    pcre2_code* code =
        pcre2_compile(reinterpret_cast<PCRE2_SPTR>(rule.from.data()), rule.from.size(), 0, &error, &offset, nullptr);
    if (code == nullptr) {
      return InvalidArgument("weight map: pattern \"{}\" does not compile: PCRE2 error {} at {}", rule.from, error,
                             offset);
    }
    pcre2_jit_compile(code, PCRE2_JIT_COMPLETE);  // without JIT it is only slower
    map.regexes_.push_back(std::make_unique<CompiledRegex>(code));
  }
  map.rules_ = std::move(rules);
  return map;
}

bool WeightMap::LooksMapped(std::string_view name) const {
  for (const MapRule& rule : rules_.prefix) {
    if (rule.to.has_value() && !rule.to->empty() && StartsWith(name, *rule.to)) return true;
  }
  for (const MapRule& rule : rules_.suffix) {
    if (rule.to.has_value() && !rule.to->empty() && EndsWith(name, *rule.to)) return true;
  }
  for (const MapRule& rule : rules_.substring) {
    if (rule.to.has_value() && !rule.to->empty() && name.find(*rule.to) != std::string_view::npos) return true;
  }
  for (const StackedRule& rule : rules_.stacked) {
    if (name.find(rule.to) != std::string_view::npos) return true;
  }
  return false;
}

absl::StatusOr<std::optional<MappedName>> WeightMap::Apply(std::string_view original) const {
  if (!rules_.idempotent && LooksMapped(original)) {
    return FailedPrecondition("weight map: \"{}\" has been mapped already", original);
  }
  MappedName mapped{.name = std::string(original), .shard = std::nullopt};
  std::string& name = mapped.name;
  for (const MapRule& rule : rules_.rename) {
    if (name != rule.from) continue;
    if (!rule.to.has_value()) return std::optional<MappedName>();
    name = *rule.to;
  }
  for (size_t i = 0; i < rules_.regex.size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(const bool matched, Substitute(regexes_[i]->code, rules_.regex[i], &name));
    if (matched && !rules_.regex[i].to.has_value()) return std::optional<MappedName>();
  }
  for (const MapRule& rule : rules_.substring) {
    const size_t at = name.find(rule.from);
    if (at == std::string::npos) continue;
    if (!rule.to.has_value()) return std::optional<MappedName>();
    name.replace(at, rule.from.size(), *rule.to);
  }
  for (const StackedRule& rule : rules_.stacked) {
    const size_t at = name.find(rule.from);
    if (at == std::string::npos) continue;
    name.replace(at, rule.from.size(), rule.to);
    mapped.shard = rule.shard;
  }
  for (const MapRule& rule : rules_.prefix) {
    if (!StartsWith(name, rule.from)) continue;
    if (!rule.to.has_value()) return std::optional<MappedName>();
    name.replace(0, rule.from.size(), *rule.to);
  }
  for (const MapRule& rule : rules_.suffix) {
    if (!EndsWith(name, rule.from)) continue;
    if (!rule.to.has_value()) return std::optional<MappedName>();
    name.replace(name.size() - rule.from.size(), rule.from.size(), *rule.to);
  }
  return std::optional<MappedName>(std::move(mapped));
}

}  // namespace hadal::checkpoint
