// Errors across library borders are absl::Status; exceptions stay inside a library (DESIGN: "Errors").
// A message says what was expected, what was found and where (file, tensor, field, byte).
#pragma once

#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

#define HADAL_CONCAT_INNER(a, b) a##b
#define HADAL_CONCAT(a, b) HADAL_CONCAT_INNER(a, b)

// Leaves the function with the status if it is not OK.
#define HADAL_RETURN_IF_ERROR(expr)                                                  \
  do {                                                                               \
    if (absl::Status hadal_status = (expr); !hadal_status.ok()) return hadal_status; \
  } while (false)

// HADAL_ASSIGN_OR_RETURN(auto x, MakeX()): declares or assigns x, or leaves the function with the error.
#define HADAL_ASSIGN_OR_RETURN(lhs, expr) HADAL_ASSIGN_OR_RETURN_IMPL(HADAL_CONCAT(hadal_or_, __LINE__), lhs, expr)
#define HADAL_ASSIGN_OR_RETURN_IMPL(tmp, lhs, expr) \
  auto tmp = (expr);                                \
  if (!tmp.ok()) return std::move(tmp).status();    \
  lhs = *std::move(tmp)

// For bugs of our own only, never for bad input: prints the condition and place, then aborts.
#define HADAL_CHECK(condition)                                              \
  do {                                                                      \
    if (!(condition)) ::hadal::CheckFailed(#condition, __FILE__, __LINE__); \
  } while (false)

namespace hadal {

[[noreturn]] void CheckFailed(const char* condition, const char* file, int line);

// Status makers that format their message. (Debian's Abseil keeps its own string_view, so absl::StrCat does not take a
// std::string_view; fmt does.)
template <typename... Args>
absl::Status InvalidArgument(fmt::format_string<Args...> format, Args&&... args) {
  return absl::InvalidArgumentError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status NotFound(fmt::format_string<Args...> format, Args&&... args) {
  return absl::NotFoundError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status ResourceExhausted(fmt::format_string<Args...> format, Args&&... args) {
  return absl::ResourceExhaustedError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status Unimplemented(fmt::format_string<Args...> format, Args&&... args) {
  return absl::UnimplementedError(fmt::format(format, std::forward<Args>(args)...));
}
template <typename... Args>
absl::Status FailedPrecondition(fmt::format_string<Args...> format, Args&&... args) {
  return absl::FailedPreconditionError(fmt::format(format, std::forward<Args>(args)...));
}

// The message as a std::string_view, for fmt and the standard library.
inline std::string_view Message(const absl::Status& status) {
  return {status.message().data(), status.message().size()};
}

}  // namespace hadal
