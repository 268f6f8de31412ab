// ParseHeader: the JSON header of a safetensors file, read event by event so that hostile nesting or size costs
// nothing.
#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace hadal::checkpoint {
namespace {

using Json = nlohmann::json;

// Names from files go into messages; cut what nobody would read.
std::string Quoted(std::string_view name) {
  constexpr size_t kShown = 120;
  if (name.size() <= kShown) return fmt::format("\"{}\"", name);
  return fmt::format("\"{}...\" ({} bytes)", name.substr(0, kShown), name.size());
}

// The header has a fixed depth: object -> entry object -> shape / data_offsets array. Every event that does not fit is
// an error, so nothing is ever nested deeper than three levels.
class HeaderReader : public nlohmann::json_sax<Json> {
 public:
  explicit HeaderReader(SafetensorsHeader* out) : out_(out) {}

  const std::string& error() const { return error_; }

  bool null() override { return Unexpected("null"); }
  bool boolean(bool) override { return Unexpected("a boolean"); }
  bool number_float(number_float_t, const string_t& text) override { return Unexpected("the number " + text); }
  bool binary(binary_t&) override { return Unexpected("binary data"); }

  bool number_integer(number_integer_t value) override {
    if (place_ == Place::kShape) {
      return Fail("tensor {}: shape has the negative dimension {}", Quoted(entry_.name), value);
    }
    if (place_ == Place::kOffsets) {
      return Fail("tensor {}: data_offsets has the negative offset {}", Quoted(entry_.name), value);
    }
    return Unexpected("a number");
  }

  bool number_unsigned(number_unsigned_t value) override {
    if (place_ == Place::kShape) {
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return Fail("tensor {}: dimension {} is too large", Quoted(entry_.name), value);
      }
      if (entry_.shape.size() == kMaxRank) {
        return Fail("tensor {}: more than {} dimensions", Quoted(entry_.name), kMaxRank);
      }
      entry_.shape.push_back(static_cast<int64_t>(value));
      return true;
    }
    if (place_ == Place::kOffsets) {
      if (offset_count_ == 2) return Fail("tensor {}: data_offsets has more than two numbers", Quoted(entry_.name));
      (offset_count_ == 0 ? entry_.begin : entry_.end) = value;
      ++offset_count_;
      return true;
    }
    return Unexpected("a number");
  }

  bool string(string_t& value) override {
    if (place_ == Place::kDType) {
      absl::StatusOr<DType> dtype = ParseDType(value);
      if (!dtype.ok()) return Fail("tensor {}: {}", Quoted(entry_.name), Message(dtype.status()));
      entry_.dtype = *dtype;
      place_ = Place::kEntry;
      return true;
    }
    if (place_ == Place::kMetadata) {
      out_->metadata[member_] = value;
      return true;
    }
    return Unexpected("the string " + Quoted(value));
  }

  bool start_object(std::size_t) override {
    switch (place_) {
      case Place::kStart:
        place_ = Place::kTop;
        return true;
      case Place::kTop:
        place_ = member_ == "__metadata__" ? Place::kMetadata : Place::kEntry;
        return true;
      default:
        return Unexpected("an object");
    }
  }

  bool key(string_t& name) override {
    if (place_ == Place::kTop) return StartEntry(name);
    if (place_ == Place::kMetadata) {
      member_ = name;
      return true;
    }
    return StartMember(name);
  }

  bool end_object() override {
    if (place_ == Place::kEntry) {
      place_ = Place::kTop;
      return FinishEntry();
    }
    place_ = place_ == Place::kMetadata ? Place::kTop : Place::kEnd;
    return true;
  }

  bool start_array(std::size_t) override {
    if (place_ == Place::kShapeStart) {
      place_ = Place::kShape;
      return true;
    }
    if (place_ == Place::kOffsetsStart) {
      place_ = Place::kOffsets;
      return true;
    }
    return Unexpected("an array");
  }

  bool end_array() override {
    place_ = Place::kEntry;
    return true;
  }

  bool parse_error(std::size_t position, const std::string&, const Json::exception& error) override {
    return Fail("not valid JSON at byte {} of the header: {}", position, error.what());
  }

 private:
  enum class Place { kStart, kTop, kMetadata, kEntry, kDType, kShapeStart, kShape, kOffsetsStart, kOffsets, kEnd };

  template <typename... Args>
  bool Fail(fmt::format_string<Args...> format, Args&&... args) {
    if (error_.empty()) error_ = fmt::format(format, std::forward<Args>(args)...);
    return false;
  }

  bool Unexpected(const std::string& found) {
    switch (place_) {
      case Place::kStart:
      case Place::kEnd:
        return Fail("expected a JSON object, found {}", found);
      case Place::kTop:
        return Fail("tensor {}: expected an object with dtype, shape and data_offsets, found {}", Quoted(member_),
                    found);
      case Place::kMetadata:
        return Fail("__metadata__ {}: expected a string, found {}", Quoted(member_), found);
      case Place::kEntry:
        return Fail("tensor {}: unexpected {}", Quoted(entry_.name), found);
      case Place::kDType:
        return Fail("tensor {}: dtype must be a string, found {}", Quoted(entry_.name), found);
      case Place::kShapeStart:
      case Place::kShape:
        return Fail("tensor {}: shape must be an array of non-negative integers, found {}", Quoted(entry_.name), found);
      case Place::kOffsetsStart:
      case Place::kOffsets:
        return Fail("tensor {}: data_offsets must be two non-negative integers, found {}", Quoted(entry_.name), found);
    }
    return false;
  }

  bool StartEntry(const std::string& name) {
    member_ = name;
    if (name == "__metadata__") return true;
    if (name.empty()) return Fail("a tensor has an empty name");
    if (name.size() > kMaxNameBytes) return Fail("tensor name {}: longer than {} bytes", Quoted(name), kMaxNameBytes);
    if (!names_.insert(name).second) return Fail("tensor {} appears twice in the header", Quoted(name));
    entry_ = HeaderEntry();
    entry_.name = name;
    has_dtype_ = has_shape_ = has_offsets_ = false;
    offset_count_ = 0;
    return true;
  }

  bool StartMember(const std::string& name) {
    if (place_ != Place::kEntry) return Unexpected("the member " + Quoted(name));
    bool* seen = nullptr;
    if (name == "dtype") {
      seen = &has_dtype_;
      place_ = Place::kDType;
    } else if (name == "shape") {
      seen = &has_shape_;
      place_ = Place::kShapeStart;
    } else if (name == "data_offsets") {
      seen = &has_offsets_;
      place_ = Place::kOffsetsStart;
    } else {
      return Fail("tensor {}: unknown member {}; expected dtype, shape and data_offsets", Quoted(entry_.name),
                  Quoted(name));
    }
    if (*seen) return Fail("tensor {}: {} appears twice", Quoted(entry_.name), name);
    *seen = true;
    return true;
  }

  bool FinishEntry() {
    if (!has_dtype_ || !has_shape_ || !has_offsets_) {
      return Fail("tensor {}: {} is missing", Quoted(entry_.name),
                  !has_dtype_   ? "dtype"
                  : !has_shape_ ? "shape"
                                : "data_offsets");
    }
    if (offset_count_ != 2) {
      return Fail("tensor {}: data_offsets must be two numbers, found {}", Quoted(entry_.name), offset_count_);
    }
    out_->entries.push_back(std::move(entry_));
    return true;
  }

  SafetensorsHeader* out_;
  std::string error_;
  Place place_ = Place::kStart;
  std::string member_;
  HeaderEntry entry_;
  bool has_dtype_ = false, has_shape_ = false, has_offsets_ = false;
  int offset_count_ = 0;
  std::unordered_set<std::string> names_;
};

// Bytes the shape asks for, or an error if they do not fit.
absl::StatusOr<uint64_t> BytesOf(const HeaderEntry& entry, std::string_view source) {
  uint64_t elements = 1;
  bool overflow = false;
  for (int64_t dim : entry.shape) {
    overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(dim), &elements);
  }
  uint64_t bits = 0;
  overflow |= __builtin_mul_overflow(elements, static_cast<uint64_t>(DTypeBits(entry.dtype)), &bits);
  // A dimension of zero hides an overflow of the others; no published tensor is empty in such a way.
  if (overflow || bits / 8 > static_cast<uint64_t>(std::numeric_limits<int64_t>::max()) / 2) {
    return InvalidArgument("{}: tensor {}: shape {} overflows", source, Quoted(entry.name), ShapeText(entry.shape));
  }
  if (bits % 8 != 0) {
    return InvalidArgument("{}: tensor {}: shape {} of {} is not a whole number of bytes", source, Quoted(entry.name),
                           ShapeText(entry.shape), DTypeName(entry.dtype));
  }
  return bits / 8;
}

absl::Status CheckEntry(const HeaderEntry& entry, std::string_view source) {
  HADAL_ASSIGN_OR_RETURN(const uint64_t expected, BytesOf(entry, source));
  if (entry.end < entry.begin) {
    return InvalidArgument("{}: tensor {}: data_offsets [{}, {}] run backwards", source, Quoted(entry.name),
                           entry.begin, entry.end);
  }
  if (entry.end - entry.begin != expected) {
    return InvalidArgument("{}: tensor {}: {} {} needs {} bytes, data_offsets [{}, {}] hold {}", source,
                           Quoted(entry.name), DTypeName(entry.dtype), ShapeText(entry.shape), expected, entry.begin,
                           entry.end, entry.end - entry.begin);
  }
  return absl::OkStatus();
}

absl::Status CheckPlacement(const SafetensorsHeader& header, uint64_t payload_bytes, std::string_view source) {
  std::vector<const HeaderEntry*> order;
  order.reserve(header.entries.size());
  for (const HeaderEntry& entry : header.entries) {
    if (entry.end > entry.begin) order.push_back(&entry);
  }
  std::sort(order.begin(), order.end(), [](const HeaderEntry* a, const HeaderEntry* b) { return a->begin < b->begin; });
  for (size_t i = 1; i < order.size(); ++i) {
    if (order[i]->begin < order[i - 1]->end) {
      return InvalidArgument("{}: tensors {} [{}, {}] and {} [{}, {}] overlap", source, Quoted(order[i - 1]->name),
                             order[i - 1]->begin, order[i - 1]->end, Quoted(order[i]->name), order[i]->begin,
                             order[i]->end);
    }
  }
  for (const HeaderEntry& entry : header.entries) {
    if (entry.end > payload_bytes) {
      return InvalidArgument(
          "{}: truncated: tensor {} ends at byte {} of the data, but only {} bytes of data are there", source,
          Quoted(entry.name), entry.end, payload_bytes);
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<SafetensorsHeader> ParseHeader(std::string_view json, uint64_t payload_bytes, std::string_view source) {
  SafetensorsHeader header;
  HeaderReader reader(&header);
  bool parsed = false;
  try {
    parsed = Json::sax_parse(json.begin(), json.end(), &reader);
  } catch (const std::exception& error) {
    return InvalidArgument("{}: {}", source, error.what());
  }
  if (!parsed || !reader.error().empty()) return InvalidArgument("{}: {}", source, reader.error());
  for (const HeaderEntry& entry : header.entries) HADAL_RETURN_IF_ERROR(CheckEntry(entry, source));
  HADAL_RETURN_IF_ERROR(CheckPlacement(header, payload_bytes, source));
  return header;
}

}  // namespace hadal::checkpoint
