#include "base/log.h"

#include <spdlog/sinks/stdout_color_sinks.h>

#include <cstdio>
#include <memory>

#include "base/status.h"

namespace hadal {

void InitLogging(const char* level) {
  auto logger = std::make_shared<spdlog::logger>("hadal", std::make_shared<spdlog::sinks::stderr_color_sink_mt>());
  logger->set_pattern("%Y-%m-%d %H:%M:%S.%e %^%l%$ %v");
  spdlog::level::level_enum parsed = spdlog::level::from_str(level);
  if (parsed == spdlog::level::off && std::string_view(level) != "off") parsed = spdlog::level::info;
  logger->set_level(parsed);
  spdlog::set_default_logger(std::move(logger));
}

void CheckFailed(const char* condition, const char* file, int line) {
  std::fprintf(stderr, "hadal: internal error: %s is false at %s:%d\n", condition, file, line);
  std::abort();
}

}  // namespace hadal
