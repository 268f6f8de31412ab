#include "images.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <utility>

#include "base/status.h"
#include "vision/decode.h"
#include "vision/image_block.h"
#include "vision/resample.h"

namespace hadal::cli {
namespace {

constexpr std::string_view kMark = "{image}";

absl::Status At(const std::string& path, const absl::Status& status) {
  return absl::Status(status.code(), fmt::format("{}: {}", path, Message(status)));
}

absl::Status Unreadable(const std::string& path) {
  return InvalidArgument("{}: cannot be read{}{}", path, errno != 0 ? ": " : "",
                         errno != 0 ? std::strerror(errno) : "");
}

}  // namespace

absl::StatusOr<std::vector<uint8_t>> ReadImageFile(const std::string& path) {
  errno = 0;
  std::ifstream file(path, std::ios::binary);
  if (!file) return Unreadable(path);
  const size_t most = vision::DecodeOptions{}.max_bytes;
  std::vector<uint8_t> bytes;
  char buffer[1 << 16];
  while (file.read(buffer, sizeof(buffer)) || file.gcount() > 0) {
    bytes.insert(bytes.end(), buffer, buffer + file.gcount());
    if (bytes.size() > most) return InvalidArgument("{}: expected at most {} MiB, found more", path, most >> 20);
  }
  if (file.bad()) return Unreadable(path);
  return bytes;
}

absl::StatusOr<runtime::ImageList> LoadImages(const runtime::Engine& engine, const std::vector<std::string>& paths,
                                              std::string* pictures) {
  constexpr int kColumns = 80;
  HADAL_RETURN_IF_ERROR(engine.CheckImages(paths.size()));
  runtime::ImageList images;
  images.reserve(paths.size());
  for (const std::string& path : paths) {
    HADAL_ASSIGN_OR_RETURN(const std::vector<uint8_t> bytes, ReadImageFile(path));
    absl::StatusOr<std::shared_ptr<const vision::PreparedImage>> image = engine.PrepareImage(bytes);
    if (!image.ok()) return At(path, image.status());
    images.push_back(*std::move(image));
    if (pictures == nullptr) continue;
    absl::StatusOr<std::string> picture = DrawImage(bytes, kColumns);
    if (!picture.ok()) return At(path, picture.status());
    *pictures += *picture;
  }
  return images;
}

absl::StatusOr<text::Json> UserContent(std::string_view text, size_t images) {
  if (images == 0) return text::Json(std::string(text));
  text::Json parts = text::Json::array();
  const text::Json image = {{"type", "image"}};
  const auto add_text = [&](std::string_view piece) {
    if (!piece.empty()) parts.push_back({{"type", "text"}, {"text", std::string(piece)}});
  };
  if (text.find(kMark) == std::string_view::npos) {
    for (size_t i = 0; i < images; ++i) parts.push_back(image);
    add_text(text);
    return parts;
  }
  size_t marks = 0;
  while (true) {
    const size_t at = text.find(kMark);
    add_text(text.substr(0, at));
    if (at == std::string_view::npos) break;
    parts.push_back(image);
    ++marks;
    text.remove_prefix(at + kMark.size());
  }
  if (marks == images) return parts;
  return InvalidArgument("the prompt has {} {{image}} marks and there are {} images: expected one mark for each", marks,
                         images);
}

absl::StatusOr<std::string> DrawImage(const std::vector<uint8_t>& bytes, int columns) {
  HADAL_ASSIGN_OR_RETURN(const vision::RgbImage full, vision::DecodeImage(bytes, {.alpha = vision::AlphaMode::kWhite}));
  const int width = std::min(columns, full.width);
  const int64_t scaled = (static_cast<int64_t>(full.height) * width + full.width / 2) / full.width;
  const int height = static_cast<int>(std::clamp<int64_t>(scaled, 1, 4 * columns));
  const vision::RgbImage image = vision::ResizeBicubic(full, width, height);
  std::string out;
  for (int y = 0; y < height; y += 2) {
    const uint8_t* upper = image.row(y);
    const uint8_t* lower = y + 1 < height ? image.row(y + 1) : nullptr;
    for (int x = 0; x < width; ++x, upper += 3) {
      out += fmt::format("\033[38;2;{};{};{}m", upper[0], upper[1], upper[2]);
      if (lower != nullptr) {
        out += fmt::format("\033[48;2;{};{};{}m", lower[0], lower[1], lower[2]);
        lower += 3;
      }
      out += "▀";
    }
    out += "\033[0m\n";
  }
  return out;
}

std::string ImageReport(const std::string& path, const vision::PreparedImage& image) {
  const vision::ImageGrid& grid = image.grid;
  std::string out = fmt::format("\nimage {}\n", path);
  out += fmt::format("  pixels      {} x {}, {} {} x {}\n", image.original_width, image.original_height,
                     grid.stretch ? "stretched to" : "fitted into", grid.width, grid.height);
  out += fmt::format("  patches     {} x {}\n", grid.vit_cols, grid.vit_rows);
  out += fmt::format("  tokens      {} x {}; a block of {}, and up to {} pads before it\n", grid.llm_cols,
                     grid.llm_rows, grid.block_length, vision::kMaxLeadPads);
  out += fmt::format("  sha256      {}\n", HexDigest(image.content_hash));
  // Two rows of the grid at a time go into the block, column by column.
  const int rows = grid.llm_rows + grid.llm_rows % 2;
  out += "  block       [start]\n";
  for (int row = 0; row < rows; ++row) {
    out += row % 2 == 0 ? "              ┌ " : "              └ ";
    for (int column = 0; column <= grid.llm_cols; ++column) {
      out += row >= grid.llm_rows ? "·" : column < grid.llm_cols ? "█" : "↵";
    }
    out += "\n";
  }
  if (rows / 2 * (grid.llm_cols + 1) % 2 != 0) out += "              ··\n";
  out += "              [end]\n";
  return out;
}

text::Json ImageReportJson(const std::string& path, const vision::PreparedImage& image) {
  const vision::ImageGrid& grid = image.grid;
  return {{"file", path},
          {"width", image.original_width},
          {"height", image.original_height},
          {"canvas", {grid.width, grid.height}},
          {"stretched", grid.stretch},
          {"patches", {grid.vit_cols, grid.vit_rows}},
          {"tokens", {grid.llm_cols, grid.llm_rows}},
          {"block_length", grid.block_length},
          {"sha256", HexDigest(image.content_hash)}};
}

}  // namespace hadal::cli
