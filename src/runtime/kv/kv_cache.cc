#include "runtime/kv/kv_cache.h"

#include <algorithm>
#include <random>
#include <utility>

#include "base/status.h"

namespace hadal::runtime {
namespace {

template <typename T>
std::span<const uint8_t> BytesOf(const T* data, size_t count) {
  return {reinterpret_cast<const uint8_t*>(data), count * sizeof(T)};
}

std::string RandomHashSeed() {
  std::random_device entropy;
  std::string seed;
  for (int i = 0; i < 4; ++i) {
    const uint32_t word = entropy();
    seed.append(reinterpret_cast<const char*>(&word), sizeof(word));
  }
  return seed;
}

int64_t TagOf(int32_t prefix, bool tail) { return 2 * static_cast<int64_t>(prefix) + (tail ? 1 : 0); }

}  // namespace

KvCache::KvCache(models::Model* model, KvCacheOptions options)
    : model_(model),
      layout_(model->kv_layout()),
      options_(std::move(options)),
      pool_(model->kv_layout().empty() ? 0 : model->limits().cache_slabs, [this](int64_t tag) { Evicted(tag); }),
      slots_(static_cast<size_t>(model->limits().max_seqs)) {
  if (options_.hash_seed.empty()) options_.hash_seed = RandomHashSeed();
  if (layout_.empty()) options_.prefix_cache = false;
  for (const models::KvGroup& group : layout_.groups) windows_ = windows_ || group.windowed();
  HADAL_CHECK(layout_.empty() || model->limits().cache_slabs > 0);
}

int32_t& KvCache::Entry(int64_t group, int32_t slot, int64_t block) {
  return model_->BlockTable(group, slot)[block % layout_.groups[group].table_blocks];
}

// H(block) = SHA-256(H(block - 1), tokens, images that overlap it); the first also has the seed and the salt.
Sha256Digest KvCache::HashBlock(const Slot& slot, int64_t block, std::span<const int32_t> tokens) const {
  const int64_t size = layout_.resume_tokens;
  const int64_t begin = block * size;
  Sha256 hash;
  if (block == 0) {
    const std::array<uint64_t, 2> lengths = {options_.hash_seed.size(), slot.sequence.salt.size()};
    hash.Update(BytesOf(lengths.data(), lengths.size()));
    hash.Update(BytesOf(options_.hash_seed.data(), options_.hash_seed.size()));
    hash.Update(BytesOf(slot.sequence.salt.data(), slot.sequence.salt.size()));
  } else {
    hash.Update(slot.hashes[block - 1]);
  }
  hash.Update(BytesOf(tokens.data() + begin, static_cast<size_t>(size)));
  for (const KvImage& image : slot.sequence.images) {
    if (image.offset >= begin + size || image.offset + image.length <= begin) continue;
    const std::array<int64_t, 2> place = {image.offset - begin, image.length};
    hash.Update(BytesOf(place.data(), place.size()));
    hash.Update(image.content);
  }
  return hash.Finish();
}

bool KvCache::MayResumeAt(const Slot& slot, int64_t position) const {
  return std::none_of(slot.sequence.images.begin(), slot.sequence.images.end(), [&](const KvImage& image) {
    return position > image.offset && position < image.offset + image.length;
  });
}

bool KvCache::WantsTail(const Slot& slot, int64_t position) const {
  if (!MayResumeAt(slot, position)) return false;
  const int64_t size = layout_.resume_tokens;
  if (position > slot.prompt_tokens || position == slot.junction) return true;
  if (position == (slot.prompt_tokens - 1) / size * size) return true;
  if (options_.retention_interval <= 0) return false;
  const int64_t interval = (options_.retention_interval + size - 1) / size * size;
  return position % interval == 0;
}

KvCache::Found KvCache::Find(Slot* slot, std::span<const int32_t> prompt) const {
  Found found;
  if (!options_.prefix_cache || !slot->sequence.read_prefix) return found;
  const int64_t size = layout_.resume_tokens;
  // At least one token is computed, for its logits.
  const int64_t blocks = (static_cast<int64_t>(prompt.size()) - 1) / size;
  for (int64_t block = 0; block < blocks; ++block) {
    slot->hashes.push_back(HashBlock(*slot, block, prompt));
    if (!Known(slot->hashes.back(), KvStore::Part::kBlock)) {
      slot->hashes.pop_back();
      break;
    }
    found.known = (block + 1) * size;
    const bool complete = !windows_ || Known(slot->hashes.back(), KvStore::Part::kTail);
    if (complete && MayResumeAt(*slot, found.known)) {
      found.tokens = found.known;
    }
  }
  return found;
}

int64_t KvCache::CachedTokens(const KvSequence& sequence) const {
  Slot slot;
  slot.sequence = sequence;
  return Find(&slot, sequence.prompt).tokens;
}

int64_t KvCache::Begin(int32_t index, KvSequence sequence) {
  Slot& slot = slots_[index];
  HADAL_CHECK(!slot.used && !sequence.prompt.empty());
  const std::span<const int32_t> prompt = sequence.prompt;
  slot = {};
  slot.used = true;
  slot.sequence = std::move(sequence);
  slot.sequence.prompt = {};
  slot.prompt_tokens = static_cast<int64_t>(prompt.size());
  slot.held.resize(layout_.groups.size());
  Found found = Find(&slot, prompt);
  if (found.known > found.tokens) slot.junction = found.known;
  if (options_.store != nullptr) found.tokens = BringBack(&slot, prompt, found.tokens);
  slot.hashes.resize(static_cast<size_t>(found.tokens / layout_.resume_tokens));
  if (found.tokens > 0) Attach(index, found.tokens);
  return found.tokens;
}

bool KvCache::Known(const Sha256Digest& hash, KvStore::Part part) const {
  const auto it = by_hash_.find(hash);
  if (it != by_hash_.end()) {
    const Prefix& prefix = prefixes_[it->second];
    if ((part == KvStore::Part::kBlock ? prefix.block : prefix.tail) != BlockPool::kNoObject) return true;
  }
  return options_.store != nullptr && options_.store->Has(hash, part);
}

void KvCache::GroupsOf(KvStore::Part part, int64_t position, std::vector<size_t>* groups) const {
  groups->clear();
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const models::KvGroup& group = layout_.groups[g];
    if (group.windowed() != (part == KvStore::Part::kTail)) continue;
    int64_t count = 1;
    if (group.windowed()) count = group.EndBlock(position) - group.FirstBlock(group.FirstNeeded(position));
    groups->insert(groups->end(), static_cast<size_t>(count), g);
  }
}

bool KvCache::Restore(const Sha256Digest& hash, KvStore::Part part, int64_t position, std::vector<int32_t>* held) {
  const bool tail = part == KvStore::Part::kTail;
  const auto it = by_hash_.find(hash);
  ObjectId object = BlockPool::kNoObject;
  if (it != by_hash_.end()) object = tail ? prefixes_[it->second].tail : prefixes_[it->second].block;
  if (object != BlockPool::kNoObject) {
    for (const int32_t slab : pool_.SlabsOf(object)) {
      pool_.Hold(slab);
      held->push_back(slab);
    }
    return true;
  }
  GroupsOf(part, position, &groups_);
  if (groups_.empty() || static_cast<int64_t>(groups_.size()) > pool_.available()) return false;
  int64_t bytes = 0;
  for (const size_t g : groups_) bytes += layout_.groups[g].bytes;
  std::vector<std::byte> content(static_cast<size_t>(bytes));
  if (!options_.store->Read(hash, part, content)) return false;
  gathered_.clear();
  const std::byte* from = content.data();
  for (const size_t g : groups_) {
    gathered_.push_back(pool_.Allocate());
    model_->WriteSlab(gathered_.back(), from, layout_.groups[g].bytes);
    from += layout_.groups[g].bytes;
  }
  const int32_t prefix = PrefixIndex(hash);
  (tail ? prefixes_[prefix].tail : prefixes_[prefix].block) = pool_.Keep(gathered_, TagOf(prefix, tail));
  held->insert(held->end(), gathered_.begin(), gathered_.end());
  ++stats_.restored;
  return true;
}

int64_t KvCache::BringBack(Slot* slot, std::span<const int32_t> prompt, int64_t tokens) {
  if (tokens == 0) return 0;
  const int64_t size = layout_.resume_tokens;
  // All are held until the end, so that none makes room for another.
  std::vector<int32_t> held;
  const bool blocks = !layout_.groups.front().windowed();
  int64_t whole = 0;
  while (whole < tokens) {
    const int64_t restored = stats_.restored;
    if (blocks && !Restore(slot->hashes[whole / size], KvStore::Part::kBlock, whole, &held)) break;
    if (stats_.restored > restored) TellStored(*slot, whole / size, prompt);
    whole += size;
  }
  for (; whole > 0; whole -= size) {
    if (!MayResumeAt(*slot, whole)) continue;
    const Sha256Digest& hash = slot->hashes[whole / size - 1];
    if (!windows_) break;
    if (Known(hash, KvStore::Part::kTail) && Restore(hash, KvStore::Part::kTail, whole, &held)) break;
  }
  for (const int32_t slab : held) pool_.LetGo(slab);
  return whole;
}

void KvCache::Save(const Sha256Digest& hash, KvStore::Part part, int64_t position) {
  if (options_.store == nullptr || options_.store->Has(hash, part)) return;
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return;
  const Prefix& prefix = prefixes_[it->second];
  const ObjectId object = part == KvStore::Part::kTail ? prefix.tail : prefix.block;
  if (object == BlockPool::kNoObject) return;
  GroupsOf(part, position, &groups_);
  std::vector<std::byte> content;
  size_t number = 0;
  for (const int32_t slab : pool_.SlabsOf(object)) {
    const int64_t bytes = layout_.groups[groups_[number++]].bytes;
    const size_t at = content.size();
    content.resize(at + static_cast<size_t>(bytes));
    model_->ReadSlab(slab, content.data() + at, bytes);
  }
  options_.store->Write(hash, part, std::move(content));
}

// The sequence holds the blocks of its first `tokens` tokens, whose hashes it has.
void KvCache::Attach(int32_t index, int64_t tokens) {
  Slot& slot = slots_[index];
  slot.computed = tokens;
  std::span<const int32_t> tail;
  if (windows_) tail = pool_.SlabsOf(prefixes_[by_hash_.at(slot.hashes.back())].tail);
  size_t next_in_tail = 0;
  size_t whole_group = 0;
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const models::KvGroup& group = layout_.groups[g];
    Held& held = slot.held[g];
    held.first = group.FirstBlock(group.FirstNeeded(tokens));
    held.end = group.EndBlock(tokens);
    for (int64_t b = held.first; b < held.end; ++b) {
      int32_t slab = 0;
      if (group.windowed()) {
        slab = tail[next_in_tail++];
      } else {
        // A group without a window has one block between two resume points.
        slab = pool_.SlabsOf(prefixes_[by_hash_.at(slot.hashes[b])].block)[whole_group];
      }
      pool_.Hold(slab);
      Entry(static_cast<int64_t>(g), index, b) = slab;
    }
    if (!group.windowed()) ++whole_group;
  }
}

bool KvCache::Reserve(int32_t index, int64_t end) {
  Slot& slot = slots_[index];
  HADAL_CHECK(slot.used);
  int64_t wanted = 0;
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    wanted += std::max<int64_t>(0, layout_.groups[g].EndBlock(end) - slot.held[g].end);
  }
  if (wanted > pool_.available()) return false;
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    Held& held = slot.held[g];
    const int64_t blocks = layout_.groups[g].EndBlock(end);
    HADAL_CHECK(blocks - held.first <= layout_.groups[g].table_blocks);
    for (; held.end < blocks; ++held.end) Entry(static_cast<int64_t>(g), index, held.end) = pool_.Allocate();
  }
  return true;
}

int32_t KvCache::PrefixIndex(const Sha256Digest& hash) {
  const auto it = by_hash_.find(hash);
  if (it != by_hash_.end()) return it->second;
  auto index = static_cast<int32_t>(prefixes_.size());
  if (unused_prefixes_.empty()) {
    prefixes_.emplace_back();
  } else {
    index = unused_prefixes_.back();
    unused_prefixes_.pop_back();
  }
  prefixes_[index] = {};
  prefixes_[index].hash = hash;
  prefixes_[index].used = true;
  by_hash_.emplace(hash, index);
  return index;
}

void KvCache::ForgetIfEmpty(int32_t index) {
  Prefix& prefix = prefixes_[index];
  if (!prefix.used || prefix.block != BlockPool::kNoObject || prefix.tail != BlockPool::kNoObject) return;
  by_hash_.erase(prefix.hash);
  prefix.used = false;
  unused_prefixes_.push_back(index);
}

void KvCache::Evicted(int64_t tag) {
  ++stats_.evicted;
  const auto index = static_cast<int32_t>(tag / 2);
  if (options_.events != nullptr && tag % 2 == 0) options_.events->Removed(prefixes_[index].hash);
  (tag % 2 == 1 ? prefixes_[index].tail : prefixes_[index].block) = BlockPool::kNoObject;
  ForgetIfEmpty(index);
}

void KvCache::KeepBlock(int32_t index, int64_t block, std::span<const int32_t> tokens) {
  const int32_t prefix = PrefixIndex(slots_[index].hashes[block]);
  if (prefixes_[prefix].block != BlockPool::kNoObject) return;  // another sequence was first
  gathered_.clear();
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    if (!layout_.groups[g].windowed()) gathered_.push_back(Entry(static_cast<int64_t>(g), index, block));
  }
  if (!gathered_.empty()) {
    prefixes_[prefix].block = pool_.Keep(gathered_, TagOf(prefix, false));
    Save(prefixes_[prefix].hash, KvStore::Part::kBlock, (block + 1) * layout_.resume_tokens);
    TellStored(slots_[index], block, tokens);
  }
  ForgetIfEmpty(prefix);
}

void KvCache::TellStored(const Slot& slot, int64_t block, std::span<const int32_t> tokens) const {
  if (options_.events == nullptr) return;
  const auto size = static_cast<size_t>(layout_.resume_tokens);
  const auto at = static_cast<size_t>(block);
  options_.events->Stored(slot.hashes[at], at > 0 ? &slot.hashes[at - 1] : nullptr, tokens.subspan(at * size, size));
}

void KvCache::KeepTail(int32_t index, int64_t position) {
  Slot& slot = slots_[index];
  const int32_t prefix = PrefixIndex(slot.hashes[position / layout_.resume_tokens - 1]);
  if (prefixes_[prefix].tail != BlockPool::kNoObject) return;
  gathered_.clear();
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const models::KvGroup& group = layout_.groups[g];
    if (!group.windowed()) continue;
    const int64_t first = group.FirstBlock(group.FirstNeeded(position)), end = group.EndBlock(position);
    HADAL_CHECK(first >= slot.held[g].first && end <= slot.held[g].end);
    for (int64_t b = first; b < end; ++b) gathered_.push_back(Entry(static_cast<int64_t>(g), index, b));
  }
  if (!gathered_.empty()) prefixes_[prefix].tail = pool_.Keep(gathered_, TagOf(prefix, true));
  ForgetIfEmpty(prefix);
  if (position <= slot.prompt_tokens) {
    Save(slot.hashes.back(), KvStore::Part::kTail, position);
    return;
  }
  // The answer is further now: where it was before is of little use, unless it is one of the regular places.
  if (slot.has_answer_tail) DropTail(slot.answer_tail);
  slot.has_answer_tail = options_.retention_interval <= 0 || position % options_.retention_interval != 0;
  slot.answer_tail = slot.hashes.back();
  slot.answer_tail_tokens = position;
  if (!slot.has_answer_tail) Save(slot.answer_tail, KvStore::Part::kTail, position);
}

void KvCache::DropTail(const Sha256Digest& hash) {
  const auto it = by_hash_.find(hash);
  if (it == by_hash_.end()) return;
  const int32_t index = it->second;
  Prefix& prefix = prefixes_[index];
  if (prefix.tail == BlockPool::kNoObject) return;
  pool_.Drop(prefix.tail);
  prefix.tail = BlockPool::kNoObject;
  ForgetIfEmpty(index);
}

void KvCache::Commit(int32_t index, std::span<const int32_t> tokens, int64_t computed) {
  Slot& slot = slots_[index];
  HADAL_CHECK(slot.used && computed >= slot.computed && computed <= static_cast<int64_t>(tokens.size()));
  if (!slot.counted) {
    slot.counted = true;
    if (options_.prefix_cache && slot.sequence.read_prefix) {
      stats_.query_tokens += slot.prompt_tokens;
      stats_.hit_tokens += slot.computed;
    }
  }
  if (options_.prefix_cache) {
    const int64_t size = layout_.resume_tokens;
    for (int64_t end = (slot.computed / size + 1) * size; end <= computed; end += size) {
      slot.hashes.push_back(HashBlock(slot, end / size - 1, tokens));
      KeepBlock(index, end / size - 1, tokens);
      if (WantsTail(slot, end)) KeepTail(index, end);
    }
  }
  slot.computed = computed;
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    const models::KvGroup& group = layout_.groups[g];
    Held& held = slot.held[g];
    const int64_t needed = std::min(group.FirstBlock(group.FirstNeeded(computed)), held.end);
    for (; held.first < needed; ++held.first) pool_.LetGo(Entry(static_cast<int64_t>(g), index, held.first));
  }
}

void KvCache::End(int32_t index) {
  Slot& slot = slots_[index];
  HADAL_CHECK(slot.used);
  // Of an answer only the last place is worth a file.
  if (slot.has_answer_tail) Save(slot.answer_tail, KvStore::Part::kTail, slot.answer_tail_tokens);
  for (size_t g = 0; g < layout_.groups.size(); ++g) {
    Held& held = slot.held[g];
    // From the end, so that the blocks that fewest prompts share are given up first.
    for (; held.end > held.first; --held.end) pool_.LetGo(Entry(static_cast<int64_t>(g), index, held.end - 1));
  }
  slot = {};
}

void KvCache::ResetPrefixCache() {
  if (options_.events != nullptr) options_.events->Cleared();
  for (size_t i = 0; i < prefixes_.size(); ++i) {
    Prefix& prefix = prefixes_[i];
    if (!prefix.used) continue;
    for (ObjectId* object : {&prefix.block, &prefix.tail}) {
      if (*object != BlockPool::kNoObject) pool_.Drop(*object);
      *object = BlockPool::kNoObject;
    }
    ForgetIfEmpty(static_cast<int32_t>(i));
  }
}

double KvCache::usage() const {
  if (pool_.slabs() == 0) return 0;
  return 1.0 - static_cast<double>(pool_.available()) / static_cast<double>(pool_.slabs());
}

bool KvCache::Consistent() const {
  int64_t used = 0;
  for (const Prefix& prefix : prefixes_) {
    if (!prefix.used) continue;
    ++used;
    const auto it = by_hash_.find(prefix.hash);
    if (it == by_hash_.end() || &prefixes_[it->second] != &prefix) return false;
  }
  return used == static_cast<int64_t>(by_hash_.size()) && pool_.Consistent();
}

}  // namespace hadal::runtime
