// tokenizer.json: parsing and every check on it.
#include "text/tokenizer_json.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "text/tokenizer_utf8.h"

namespace hadal::text {
namespace {

using Json = nlohmann::json;

// A DeepSeek file has 8 MB; parsed JSON takes about ten times its text in memory.
constexpr size_t kMaxFileBytes = size_t{256} << 20;
// The longest real one has 36. Matching costs this much for each byte of text at worst.
constexpr size_t kMaxAddedTokenBytes = 1024;
// The rule of ByteLevel with `use_regex: true`: GPT-2's.
constexpr char kByteLevelRegex[] = R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)";

// `text` in quotes for a message, cut to a readable length at a character's border.
std::string Quoted(std::string_view text) {
  constexpr size_t kMax = 60;
  if (text.size() <= kMax) return fmt::format("\"{}\"", text);
  return fmt::format("\"{}...\"", text.substr(0, ValidUtf8Prefix(text.substr(0, kMax))));
}

// What a value is, for "expected X, found Y".
std::string Found(const Json* value) {
  if (value == nullptr) return "nothing";
  if (value->is_string()) return Quoted(value->get_ref<const std::string&>());
  if (value->is_boolean() || value->is_number()) return value->dump();
  return value->type_name();
}

const Json* Get(const Json& object, const char* key) {
  const auto it = object.find(key);
  return it == object.end() ? nullptr : &*it;
}

// A field that may be missing or null.
const Json* GetNonNull(const Json& object, const char* key) {
  const Json* value = Get(object, key);
  return value == nullptr || value->is_null() ? nullptr : value;
}

absl::StatusOr<std::string> GetString(const Json& object, const char* key, std::string_view where) {
  const Json* value = Get(object, key);
  if (value == nullptr || !value->is_string()) {
    return InvalidArgument("{}.{}: expected a string, found {}", where, key, Found(value));
  }
  return value->get<std::string>();
}

absl::StatusOr<bool> GetBool(const Json& object, const char* key, bool fallback, std::string_view where) {
  const Json* value = GetNonNull(object, key);
  if (value == nullptr) return fallback;
  if (!value->is_boolean()) return InvalidArgument("{}.{}: expected a boolean, found {}", where, key, Found(value));
  return value->get<bool>();
}

// A token id, or nothing if the value cannot be one.
std::optional<int32_t> AsId(const Json& value) {
  if (!value.is_number_integer()) return std::nullopt;
  if (!value.is_number_unsigned() && value.get<int64_t>() < 0) return std::nullopt;
  const uint64_t id = value.get<uint64_t>();
  if (id > 0x7FFFFFFF) return std::nullopt;
  return static_cast<int32_t>(id);
}

// Parses strictly: no comments, valid UTF-8, no key twice in one object (the second would silently win).
absl::StatusOr<Json> ParseStrictly(std::string_view text) {
  struct Object {
    size_t keys = 0;
    std::string last_key;
  };
  std::vector<Object> open;
  std::string repeated_in;
  bool repeated = false;
  const auto callback = [&](int, Json::parse_event_t event, Json& parsed) {
    if (event == Json::parse_event_t::object_start) {
      open.emplace_back();
    } else if (event == Json::parse_event_t::key) {
      ++open.back().keys;
      open.back().last_key = parsed.get_ref<const std::string&>();
    } else if (event == Json::parse_event_t::object_end) {
      if (!repeated && parsed.size() != open.back().keys) {
        repeated = true;
        for (size_t i = 0; i + 1 < open.size() && i < 4; ++i) repeated_in += open[i].last_key + ".";
      }
      open.pop_back();
    }
    return true;
  };
  try {
    Json root = Json::parse(text.begin(), text.end(), callback);
    if (repeated) {
      if (repeated_in.empty()) return InvalidArgument("the file gives a key twice at its top level");
      repeated_in.pop_back();
      return InvalidArgument("{}: a key is given twice", Quoted(repeated_in));
    }
    if (!root.is_object()) return InvalidArgument("expected a JSON object, found {}", Found(&root));
    return root;
  } catch (const Json::exception& error) {
    // The parser quotes what it read last, which may be long and not even UTF-8.
    std::string reason;
    AppendLossyUtf8(std::string_view(error.what()).substr(0, 200), &reason);
    return InvalidArgument("not valid JSON: {}", reason);
  }
}

// The byte-level alphabet: printable Latin-1 characters stand for themselves, the other bytes for U+0100 and on.
class ByteAlphabet {
 public:
  ByteAlphabet() {
    bytes_.fill(-1);
    int next = 0x100;
    for (int byte = 0; byte < 256; ++byte) {
      const bool itself = (byte >= 33 && byte <= 126) || (byte >= 161 && byte <= 172) || byte >= 174;
      bytes_[itself ? byte : next++] = static_cast<int16_t>(byte);
    }
  }

  // The bytes that a token's characters stand for, or nothing if it has a character outside the alphabet.
  std::optional<std::string> Bytes(std::string_view token) const {
    std::string result;
    for (size_t i = 0; i < token.size();) {
      const unsigned char lead = static_cast<unsigned char>(token[i]);
      int character = lead;
      if (lead >= 0x80) {
        if (lead < 0xC2 || lead > 0xDF || i + 1 == token.size()) return std::nullopt;
        character = (lead & 0x1F) << 6 | (static_cast<unsigned char>(token[i + 1]) & 0x3F);
      }
      if (character >= static_cast<int>(bytes_.size()) || bytes_[character] < 0) return std::nullopt;
      result.push_back(static_cast<char>(bytes_[character]));
      i += lead >= 0x80 ? 2 : 1;
    }
    return result;
  }

 private:
  std::array<int16_t, 0x100 + 68> bytes_{};  // 68 bytes are not printable
};

class Reader {
 public:
  explicit Reader(const Json& root) : root_(root) {}

  absl::StatusOr<TokenizerJson> Read() {
    HADAL_RETURN_IF_ERROR(ReadNormalizer(GetNonNull(root_, "normalizer"), "normalizer"));
    HADAL_RETURN_IF_ERROR(ReadPreTokenizers());
    HADAL_RETURN_IF_ERROR(ReadDecoder());
    HADAL_RETURN_IF_ERROR(ReadModelOptions());
    HADAL_RETURN_IF_ERROR(ReadVocab());
    HADAL_RETURN_IF_ERROR(ReadAddedTokens());
    HADAL_RETURN_IF_ERROR(PlaceTokens());
    HADAL_RETURN_IF_ERROR(ReadBytes());
    HADAL_RETURN_IF_ERROR(ReadMerges());
    return std::move(result_);
  }

 private:
  absl::Status ReadNormalizer(const Json* normalizer, const std::string& where);
  absl::Status ReadPreTokenizers();
  absl::Status ReadSplit(const Json& split, const std::string& where);
  absl::Status ReadByteLevel(const Json& byte_level, const std::string& where);
  absl::Status ReadDecoder();
  absl::Status ReadModelOptions();
  absl::Status ReadVocab();
  absl::Status ReadAddedTokens();
  absl::Status PlaceTokens();
  absl::Status ReadBytes();
  absl::Status ReadMerges();
  absl::StatusOr<std::pair<std::string_view, std::string_view>> MergeSides(const Json& merge, size_t index) const;

  const Json& root_;
  const Json* model_ = nullptr;
  const ByteAlphabet alphabet_;
  absl::flat_hash_map<std::string_view, int32_t> vocab_;  // keys of model.vocab, which root_ holds
  TokenizerJson result_;
};

absl::Status Reader::ReadNormalizer(const Json* normalizer, const std::string& where) {
  if (normalizer == nullptr) return absl::OkStatus();
  if (!normalizer->is_object()) return InvalidArgument("{}: expected an object, found {}", where, Found(normalizer));
  HADAL_ASSIGN_OR_RETURN(const std::string type, GetString(*normalizer, "type", where));
  const Json* parts = Get(*normalizer, "normalizers");
  if (type != "Sequence" || parts == nullptr || !parts->is_array() || !parts->empty()) {
    return Unimplemented("{}: type {} is not supported, expected null or an empty Sequence", where, Quoted(type));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadPreTokenizers() {
  const Json* top = GetNonNull(root_, "pre_tokenizer");
  if (top == nullptr || !top->is_object()) {
    return InvalidArgument("pre_tokenizer: expected an object, found {}", Found(top));
  }
  HADAL_ASSIGN_OR_RETURN(const std::string top_type, GetString(*top, "type", "pre_tokenizer"));
  std::vector<std::pair<const Json*, std::string>> steps;
  if (top_type == "Sequence") {
    const Json* list = Get(*top, "pretokenizers");
    if (list == nullptr || !list->is_array()) {
      return InvalidArgument("pre_tokenizer.pretokenizers: expected an array, found {}", Found(list));
    }
    for (const Json& step : *list) {
      steps.emplace_back(&step, fmt::format("pre_tokenizer.pretokenizers[{}]", steps.size()));
    }
  } else {
    steps.emplace_back(top, "pre_tokenizer");
  }
  bool byte_level = false;
  for (const auto& [step, where] : steps) {
    if (!step->is_object()) return InvalidArgument("{}: expected an object, found {}", where, Found(step));
    HADAL_ASSIGN_OR_RETURN(const std::string type, GetString(*step, "type", where));
    if (byte_level) return Unimplemented("{}: {} after ByteLevel is not supported", where, Quoted(type));
    if (type == "Split") {
      HADAL_RETURN_IF_ERROR(ReadSplit(*step, where));
    } else if (type == "ByteLevel") {
      HADAL_RETURN_IF_ERROR(ReadByteLevel(*step, where));
      byte_level = true;
    } else {
      return Unimplemented("{}: type {} is not supported, expected Split or ByteLevel", where, Quoted(type));
    }
  }
  if (!byte_level) return Unimplemented("pre_tokenizer: expected ByteLevel as the last step, found none");
  return absl::OkStatus();
}

absl::Status Reader::ReadSplit(const Json& split, const std::string& where) {
  HADAL_ASSIGN_OR_RETURN(const std::string behavior, GetString(split, "behavior", where));
  if (behavior != "Isolated") {
    return Unimplemented("{}.behavior: {} is not supported, expected Isolated", where, Quoted(behavior));
  }
  // `invert` swaps matches and gaps; Isolated makes pieces of both, so it changes nothing here.
  HADAL_RETURN_IF_ERROR(GetBool(split, "invert", false, where).status());
  const Json* pattern = Get(split, "pattern");
  if (pattern == nullptr || !pattern->is_object() || pattern->size() != 1) {
    return InvalidArgument("{}.pattern: expected an object with Regex or String, found {}", where, Found(pattern));
  }
  const std::string kind = pattern->begin().key();
  if (kind != "Regex" && kind != "String") {
    return Unimplemented("{}.pattern: {} is not supported, expected Regex or String", where, Quoted(kind));
  }
  HADAL_ASSIGN_OR_RETURN(std::string text, GetString(*pattern, kind.c_str(), where + ".pattern"));
  result_.split_rules.push_back({.pattern = std::move(text), .literal = kind == "String"});
  return absl::OkStatus();
}

absl::Status Reader::ReadByteLevel(const Json& byte_level, const std::string& where) {
  HADAL_ASSIGN_OR_RETURN(const bool prefix_space, GetBool(byte_level, "add_prefix_space", true, where));
  if (prefix_space) return Unimplemented("{}.add_prefix_space: true is not supported, expected false", where);
  HADAL_ASSIGN_OR_RETURN(const bool use_regex, GetBool(byte_level, "use_regex", true, where));
  if (use_regex) result_.split_rules.push_back({.pattern = kByteLevelRegex});
  return absl::OkStatus();
}

absl::Status Reader::ReadDecoder() {
  const Json* decoder = GetNonNull(root_, "decoder");
  if (decoder == nullptr || !decoder->is_object()) {
    return InvalidArgument("decoder: expected an object, found {}", Found(decoder));
  }
  HADAL_ASSIGN_OR_RETURN(const std::string type, GetString(*decoder, "type", "decoder"));
  if (type != "ByteLevel") return Unimplemented("decoder: type {} is not supported, expected ByteLevel", Quoted(type));
  return absl::OkStatus();
}

absl::Status Reader::ReadModelOptions() {
  model_ = GetNonNull(root_, "model");
  if (model_ == nullptr || !model_->is_object()) {
    return InvalidArgument("model: expected an object, found {}", Found(model_));
  }
  HADAL_ASSIGN_OR_RETURN(const std::string type, GetString(*model_, "type", "model"));
  if (type != "BPE") return Unimplemented("model.type: {} is not supported, expected BPE", Quoted(type));
  for (const char* flag : {"byte_fallback", "ignore_merges"}) {
    HADAL_ASSIGN_OR_RETURN(const bool on, GetBool(*model_, flag, false, "model"));
    if (on) return Unimplemented("model.{}: true is not supported, expected false", flag);
  }
  for (const char* affix : {"continuing_subword_prefix", "end_of_word_suffix"}) {
    const Json* value = GetNonNull(*model_, affix);
    const std::string* text = value == nullptr ? nullptr : value->get_ptr<const std::string*>();
    if (value != nullptr && (text == nullptr || !text->empty())) {
      return Unimplemented("model.{}: {} is not supported, expected null", affix, Found(value));
    }
  }
  const Json* dropout = GetNonNull(*model_, "dropout");
  if (dropout != nullptr && *dropout != 0) {
    return Unimplemented("model.dropout: {} is not supported, expected null", Found(dropout));
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadVocab() {
  const Json* vocab = Get(*model_, "vocab");
  if (vocab == nullptr || !vocab->is_object()) {
    return InvalidArgument("model.vocab: expected an object of token to id, found {}", Found(vocab));
  }
  vocab_.reserve(vocab->size());
  for (const auto& [token, value] : vocab->items()) {
    const std::optional<int32_t> id = AsId(value);
    if (!id.has_value()) {
      return InvalidArgument("model.vocab[{}]: expected an id of 0 to 2147483647, found {}", Quoted(token),
                             Found(&value));
    }
    vocab_.emplace(token, *id);
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadAddedTokens() {
  const Json* list = GetNonNull(root_, "added_tokens");
  if (list == nullptr) return absl::OkStatus();
  if (!list->is_array()) return InvalidArgument("added_tokens: expected an array, found {}", Found(list));
  absl::flat_hash_map<std::string_view, size_t> seen;
  for (size_t i = 0; i < list->size(); ++i) {
    const Json& entry = (*list)[i];
    const std::string where = fmt::format("added_tokens[{}]", i);
    if (!entry.is_object()) return InvalidArgument("{}: expected an object, found {}", where, Found(&entry));
    AddedToken token;
    HADAL_ASSIGN_OR_RETURN(token.content, GetString(entry, "content", where));
    if (token.content.empty() || token.content.size() > kMaxAddedTokenBytes) {
      return InvalidArgument("{}.content: {} bytes, expected 1 to {}", where, token.content.size(),
                             kMaxAddedTokenBytes);
    }
    const auto [first, is_new] = seen.try_emplace(entry["content"].get_ref<const std::string&>(), i);
    if (!is_new) {
      return InvalidArgument("{}: {} is already added_tokens[{}]", where, Quoted(token.content), first->second);
    }
    const Json* id_value = Get(entry, "id");
    const std::optional<int32_t> id = id_value == nullptr ? std::nullopt : AsId(*id_value);
    if (!id.has_value()) {
      return InvalidArgument("{}.id: expected an id of 0 to 2147483647, found {}", where, Found(id_value));
    }
    token.id = *id;
    for (const char* flag : {"lstrip", "rstrip", "single_word"}) {
      HADAL_ASSIGN_OR_RETURN(const bool on, GetBool(entry, flag, false, where));
      if (on) return Unimplemented("{}.{}: true is not supported for {}", where, flag, Quoted(token.content));
    }
    HADAL_ASSIGN_OR_RETURN(token.special, GetBool(entry, "special", false, where));
    HADAL_ASSIGN_OR_RETURN(token.normalized, GetBool(entry, "normalized", !token.special, where));
    result_.added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// Gives every id its bytes. Ids must be 0, 1, 2... without a hole, which also bounds memory by the size of the file.
absl::Status Reader::PlaceTokens() {
  size_t count = vocab_.size();
  for (const AddedToken& token : result_.added) {
    const auto known = vocab_.find(token.content);
    if (known == vocab_.end()) {
      ++count;
    } else if (known->second != token.id) {
      return InvalidArgument("added token {}: id {} here, but {} in model.vocab", Quoted(token.content), token.id,
                             known->second);
    }
  }
  std::vector<std::string_view> names(count);
  std::vector<bool> used(count, false);
  const auto place = [&](std::string_view name, int32_t id) -> absl::Status {
    if (static_cast<size_t>(id) >= count) {
      return InvalidArgument("token {} has id {}, but there are only {} tokens: the ids have a hole", Quoted(name), id,
                             count);
    }
    if (used[id]) return InvalidArgument("id {} is given to both {} and {}", id, Quoted(names[id]), Quoted(name));
    used[id] = true;
    names[id] = name;
    return absl::OkStatus();
  };
  for (const auto& [name, id] : vocab_) HADAL_RETURN_IF_ERROR(place(name, id));
  result_.tokens.resize(count);
  for (size_t id = 0; id < count; ++id) {
    if (!used[id]) continue;
    // The reference decoder gives a token with characters outside the alphabet back as it stands.
    result_.tokens[id] = alphabet_.Bytes(names[id]).value_or(std::string(names[id]));
  }
  for (const AddedToken& token : result_.added) {
    if (vocab_.contains(token.content)) continue;
    HADAL_RETURN_IF_ERROR(place(token.content, token.id));
    result_.tokens[token.id] = token.content;
  }
  return absl::OkStatus();
}

absl::Status Reader::ReadBytes() {
  std::array<bool, 256> found{};
  for (const auto& [name, id] : vocab_) {
    if (name.size() > 2) continue;
    const std::optional<std::string> bytes = alphabet_.Bytes(name);
    if (!bytes.has_value() || bytes->size() != 1) continue;
    const unsigned char byte = static_cast<unsigned char>((*bytes)[0]);
    found[byte] = true;
    result_.byte_ids[byte] = id;
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!found[byte]) return InvalidArgument("model.vocab: no token for byte 0x{:02X} alone", byte);
  }
  return absl::OkStatus();
}

absl::StatusOr<std::pair<std::string_view, std::string_view>> Reader::MergeSides(const Json& merge,
                                                                                 size_t index) const {
  if (merge.is_string()) {
    const std::string_view text = merge.get_ref<const std::string&>();
    const size_t space = text.find(' ');
    if (space != std::string_view::npos && text.find(' ', space + 1) == std::string_view::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  } else if (merge.is_array() && merge.size() == 2 && merge[0].is_string() && merge[1].is_string()) {
    return std::pair<std::string_view, std::string_view>(merge[0].get_ref<const std::string&>(),
                                                         merge[1].get_ref<const std::string&>());
  }
  return InvalidArgument("model.merges[{}]: expected \"left right\" or [left, right], found {}", index, Found(&merge));
}

absl::Status Reader::ReadMerges() {
  const Json* merges = Get(*model_, "merges");
  if (merges == nullptr || !merges->is_array()) {
    return InvalidArgument("model.merges: expected an array, found {}", Found(merges));
  }
  result_.merges.reserve(merges->size());
  std::string product;
  for (size_t i = 0; i < merges->size(); ++i) {
    HADAL_ASSIGN_OR_RETURN(const auto sides, MergeSides((*merges)[i], i));
    product.assign(sides.first);
    product += sides.second;
    std::array<int32_t, 3> ids{};
    const std::array<std::string_view, 3> names = {sides.first, sides.second, product};
    for (size_t part = 0; part < 3; ++part) {
      const auto it = vocab_.find(names[part]);
      if (it == vocab_.end()) {
        return InvalidArgument("model.merges[{}]: {} {} is not in model.vocab", i, part < 2 ? "token" : "the product",
                               Quoted(names[part]));
      }
      ids[part] = it->second;
    }
    result_.merges.push_back({.left = ids[0], .right = ids[1], .product = ids[2]});
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TokenizerJson> ParseTokenizerJson(std::string_view text) {
  if (text.size() > kMaxFileBytes) {
    return InvalidArgument("{} bytes, expected at most {}", text.size(), kMaxFileBytes);
  }
  HADAL_ASSIGN_OR_RETURN(const Json root, ParseStrictly(text));
  return Reader(root).Read();
}

}  // namespace hadal::text
