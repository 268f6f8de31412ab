// Tokenizer: loading, and the way from text over added tokens, pieces and BPE to ids.
#include "text/tokenizer.h"

#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "base/status.h"
#include "text/bpe.h"
#include "text/pretokenizer.h"
#include "text/tokenizer_added.h"
#include "text/tokenizer_json.h"
#include "text/tokenizer_utf8.h"

namespace hadal::text {
namespace {

// Everything one call of Encode writes to.
struct Scratch {
  Pretokenizer::Scratch pretokenizer;
  Bpe::Scratch bpe;
  std::string pending;  // EncodeSpans: plain text since the last control token
  std::string trusted;  // EncodeSpans: neighbouring trusted spans joined
};

// Scratches that no call uses now. A call takes one and puts it back, so that there are as many as there were calls at
// the same time, the caches inside stay warm, and the lock is held only for the exchange.
class ScratchPool {
 public:
  std::unique_ptr<Scratch> Take() {
    {
      const std::lock_guard<std::mutex> lock(mutex_);
      if (!free_.empty()) {
        std::unique_ptr<Scratch> scratch = std::move(free_.back());
        free_.pop_back();
        return scratch;
      }
    }
    return std::make_unique<Scratch>();
  }
  void Give(std::unique_ptr<Scratch> scratch) {
    constexpr size_t kKeptBytes = size_t{1} << 20;
    scratch->bpe.Trim();
    if (scratch->pending.capacity() > kKeptBytes) std::string().swap(scratch->pending);
    if (scratch->trusted.capacity() > kKeptBytes) std::string().swap(scratch->trusted);
    const std::lock_guard<std::mutex> lock(mutex_);
    free_.push_back(std::move(scratch));
  }

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Scratch>> free_;
};

class Lease {
 public:
  explicit Lease(ScratchPool& pool) : pool_(pool), scratch_(pool.Take()) {}
  ~Lease() { pool_.Give(std::move(scratch_)); }
  Lease(const Lease&) = delete;
  Lease& operator=(const Lease&) = delete;
  Scratch& operator*() { return *scratch_; }

 private:
  ScratchPool& pool_;
  std::unique_ptr<Scratch> scratch_;
};

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary | std::ios::ate);
  const std::streamoff size = file ? static_cast<std::streamoff>(file.tellg()) : -1;
  std::error_code error;
  if (size < 0 || std::filesystem::is_directory(path, error)) return NotFound("{}: cannot be opened", path);
  std::string text(static_cast<size_t>(size), '\0');
  file.seekg(0);
  if (!file.read(text.data(), size)) return NotFound("{}: cannot be read ({} bytes expected)", path, size);
  return text;
}

constexpr uint8_t kAddedFlag = 1;
constexpr uint8_t kSpecialFlag = 2;

}  // namespace

struct Tokenizer::Impl {
  Impl(const TokenizerJson& file, Pretokenizer pretokenizer_in, Bpe bpe_in)
      : pretokenizer(std::move(pretokenizer_in)), bpe(std::move(bpe_in)), added(file.added), flags(file.tokens.size()) {
    size_t total = 0;
    for (const std::string& token : file.tokens) total += token.size();
    bytes.reserve(total);  // ids_by_content points into it
    offsets.reserve(file.tokens.size() + 1);
    offsets.push_back(0);
    for (const std::string& token : file.tokens) {
      bytes += token;
      offsets.push_back(bytes.size());
    }
    ids_by_content.reserve(file.tokens.size());
    for (const AddedToken& token : file.added) {
      flags[token.id] = kAddedFlag | (token.special ? kSpecialFlag : 0);
      ids_by_content.try_emplace(Bytes(token.id), token.id);
    }
    for (size_t id = 0; id < file.tokens.size(); ++id) ids_by_content.try_emplace(Bytes(id), static_cast<int32_t>(id));
  }

  std::string_view Bytes(size_t id) const { return {bytes.data() + offsets[id], offsets[id + 1] - offsets[id]}; }
  bool Known(int32_t id) const { return id >= 0 && static_cast<size_t>(id) < flags.size(); }

  void EncodePlain(std::string_view text, Scratch& scratch, std::vector<int32_t>* ids) const {
    pretokenizer.Split(text, scratch.pretokenizer,
                       [&](std::string_view piece) { bpe.Encode(piece, scratch.bpe, ids); });
  }

  Pretokenizer pretokenizer;
  Bpe bpe;
  AddedTokenMatcher added;
  std::vector<uint8_t> flags;  // by id
  std::string bytes;           // of all tokens, joined
  std::vector<size_t> offsets;
  absl::flat_hash_map<std::string_view, int32_t> ids_by_content;
  mutable ScratchPool scratches;
};

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::Load(const std::string& path) {
  std::error_code error;
  const std::string file = std::filesystem::is_directory(path, error) ? path + "/tokenizer.json" : path;
  HADAL_ASSIGN_OR_RETURN(const std::string text, ReadFile(file));
  return FromJson(text, file);
}

absl::StatusOr<std::shared_ptr<const Tokenizer>> Tokenizer::FromJson(std::string_view text, std::string_view name) {
  const auto named = [name](const absl::Status& status) {
    return absl::Status(status.code(), fmt::format("{}: {}", name, Message(status)));
  };
  absl::StatusOr<TokenizerJson> file = ParseTokenizerJson(text);
  if (!file.ok()) return named(file.status());
  absl::StatusOr<Pretokenizer> pretokenizer = Pretokenizer::Create(file->split_rules);
  if (!pretokenizer.ok()) return named(pretokenizer.status());
  absl::StatusOr<Bpe> bpe = Bpe::Create(file->byte_ids, file->merges);
  if (!bpe.ok()) return named(bpe.status());
  auto impl = std::make_unique<Impl>(*file, *std::move(pretokenizer), *std::move(bpe));
  return std::shared_ptr<const Tokenizer>(new Tokenizer(std::move(impl)));
}

std::vector<int32_t> Tokenizer::Encode(std::string_view text, Special special) const {
  std::vector<int32_t> ids;
  Encode(text, special, &ids);
  return ids;
}

void Tokenizer::Encode(std::string_view text, Special special, std::vector<int32_t>* ids) const {
  Lease lease(impl_->scratches);
  Scratch& scratch = *lease;
  if (special == Special::kPlain) {
    impl_->EncodePlain(text, scratch, ids);
    return;
  }
  impl_->added.Split(
      text, [&](std::string_view plain) { impl_->EncodePlain(plain, scratch, ids); },
      [&](int32_t id) { ids->push_back(id); });
}

std::vector<int32_t> Tokenizer::EncodeSpans(std::span<const Span> spans) const {
  std::vector<int32_t> ids;
  EncodeSpans(spans, &ids);
  return ids;
}

void Tokenizer::EncodeSpans(std::span<const Span> spans, std::vector<int32_t>* ids) const {
  Lease lease(impl_->scratches);
  Scratch& scratch = *lease;
  scratch.pending.clear();
  const auto flush = [&] {
    impl_->EncodePlain(scratch.pending, scratch, ids);
    scratch.pending.clear();
  };
  for (size_t i = 0; i < spans.size();) {
    if (!spans[i].trusted) {
      scratch.pending += spans[i++].text;
      continue;
    }
    scratch.trusted.clear();
    for (; i < spans.size() && spans[i].trusted; ++i) scratch.trusted += spans[i].text;
    impl_->added.Split(
        scratch.trusted, [&](std::string_view plain) { scratch.pending += plain; },
        [&](int32_t id) {
          flush();
          ids->push_back(id);
        });
  }
  flush();
}

std::string Tokenizer::Decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (skip_special && IsSpecialFlag(id)) continue;
    bytes += TokenBytes(id);
  }
  if (ValidUtf8Prefix(bytes) == bytes.size()) return bytes;
  std::string text;
  AppendLossyUtf8(bytes, &text);
  return text;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return impl_->Known(id) ? impl_->Bytes(static_cast<size_t>(id)) : std::string_view();
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view content) const {
  const auto it = impl_->ids_by_content.find(content);
  if (it == impl_->ids_by_content.end()) return std::nullopt;
  return it->second;
}

bool Tokenizer::IsAdded(int32_t id) const { return impl_->Known(id) && (impl_->flags[id] & kAddedFlag) != 0; }
bool Tokenizer::IsSpecialFlag(int32_t id) const { return impl_->Known(id) && (impl_->flags[id] & kSpecialFlag) != 0; }
int32_t Tokenizer::vocab_size() const { return static_cast<int32_t>(impl_->flags.size()); }

std::vector<std::string_view> Tokenizer::Pretokenize(std::string_view text) const {
  std::vector<std::string_view> pieces;
  Lease lease(impl_->scratches);
  impl_->pretokenizer.Split(text, (*lease).pretokenizer, [&](std::string_view piece) { pieces.push_back(piece); });
  return pieces;
}

}  // namespace hadal::text
