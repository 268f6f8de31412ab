// Logging to stderr through spdlog. Content of requests is never logged at any level.
#pragma once

#include <spdlog/spdlog.h>

namespace hadal {

// Sets the pattern and the level ("trace" ... "off"); unknown names mean "info".
void InitLogging(const char* level);

}  // namespace hadal
