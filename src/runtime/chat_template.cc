#include "runtime/chat_template.h"

#include <filesystem>
#include <optional>

#include "base/status.h"
#include "checkpoint/safetensors.h"

namespace hadal::runtime {
namespace {

namespace fs = std::filesystem;
using checkpoint::ModelFamily;
using text::ChatFormat;

// Published files have less than 200 KiB; some list every added token.
constexpr uint64_t kMaxTemplateFile = 16 << 20;

struct Found {
  std::string path;
  absl::StatusOr<std::optional<std::string>> text;  // nothing: the file has no template
};

Found FindTemplate(const fs::path& dir) {
  std::error_code ignored;
  const fs::path jinja = dir / "chat_template.jinja", config = dir / "tokenizer_config.json";
  if (fs::exists(jinja, ignored)) return {jinja.string(), checkpoint::ReadTextFile(jinja.string(), kMaxTemplateFile)};
  if (!fs::exists(config, ignored)) return {config.string(), std::nullopt};
  absl::StatusOr<std::string> text = checkpoint::ReadTextFile(config.string(), kMaxTemplateFile);
  if (!text.ok()) return {config.string(), text.status()};
  return {config.string(), text::ChatTemplateOfConfig(*text)};
}

}  // namespace

ChatFormat DefaultChatFormat(ModelFamily family) {
  switch (family) {
    case ModelFamily::kV4:
      return ChatFormat::kV4;
    case ModelFamily::kV32:
      return ChatFormat::kV32;
    case ModelFamily::kV3:
      return ChatFormat::kV3;
  }
  return ChatFormat::kV4;
}

ChatFormat ChooseChatFormat(const std::string& dir, ModelFamily family, std::vector<std::string>* warnings) {
  const ChatFormat fallback = DefaultChatFormat(family);
  std::error_code ignored;
  const fs::path path(dir);
  const Found found = FindTemplate(fs::is_directory(path, ignored) ? path : path.parent_path());
  const auto warn = [&](std::string_view what) {
    warnings->push_back(fmt::format("{}: {}; chats are encoded as {}'s", found.path, what, ChatFormatName(fallback)));
  };
  if (!found.text.ok()) {
    warn(fmt::format("cannot read the chat template: {}", Message(found.text.status())));
    return fallback;
  }
  if (!found.text->has_value()) {
    if (family == ModelFamily::kV3) {
      warn("no chat template, by which V3, R1 and V3.1 differ");
    }
    return fallback;
  }
  const std::optional<ChatFormat> format = text::RecogniseChatTemplate(**found.text);
  if (!format.has_value()) {
    warn("the chat template is none of those published for V3, R1, V3.1 and V3.2, and templates are not run");
    return fallback;
  }
  const bool v4 = family == ModelFamily::kV4;
  if (v4 != (*format == ChatFormat::kV4)) {
    warn(fmt::format("the chat template is that of {}, which this model does not speak", ChatFormatName(*format)));
    return fallback;
  }
  return *format;
}

}  // namespace hadal::runtime
