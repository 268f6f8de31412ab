// Image files on the command line.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "runtime/engine.h"
#include "text/chat.h"
#include "vision/preprocess.h"

namespace hadal::cli {

// The bytes of an image file. InvalidArgument naming the file if it cannot be read or is larger than a decoder takes.
absl::StatusOr<std::vector<uint8_t>> ReadImageFile(const std::string& path);

// Reads and prepares the files for the engine's model; errors name the file. Each file is read once, since it may be a
// pipe. With `pictures` the images are drawn there too (DrawImage).
absl::StatusOr<runtime::ImageList> LoadImages(const runtime::Engine& engine, const std::vector<std::string>& paths,
                                              std::string* pictures = nullptr);

// Content of a user's message: images stand where the text says {image}, or before it if it says so nowhere.
// InvalidArgument if there are marks for another number of images.
absl::StatusOr<text::Json> UserContent(std::string_view text, size_t images);

// The image drawn with half-block characters in 24-bit colours, at most `columns` wide, with a newline after each line.
absl::StatusOr<std::string> DrawImage(const std::vector<uint8_t>& bytes, int columns);

// Grid, tokens and block of an image for `hadal inspect`: as text, or as an object.
std::string ImageReport(const std::string& path, const vision::PreparedImage& image);
text::Json ImageReportJson(const std::string& path, const vision::PreparedImage& image);

}  // namespace hadal::cli
