// Images that stand in a request as data: URIs (spec serving-runtime 6.11).
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace hadal::serving {

// Standard base64 (RFC 4648 section 4), padded, nothing else in between. InvalidArgument says at which character it
// went wrong.
absl::StatusOr<std::vector<uint8_t>> DecodeBase64(std::string_view text);

// The bytes of "data:image/png;base64,...", of image/png, image/jpeg (image/jpg) or image/webp, at most `max_bytes` of
// them: larger ones are refused before they are decoded. The bytes themselves are not looked at: the decoder goes by
// them alone, as a label often lies. InvalidArgument for everything else; http, https and file URLs are told how it is.
absl::StatusOr<std::vector<uint8_t>> DecodeImageUri(std::string_view uri, size_t max_bytes);

}  // namespace hadal::serving
