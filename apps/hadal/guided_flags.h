// The flags that demand a form of the answer.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "cli.h"
#include "guided/grammar.h"
#include "runtime/engine.h"

namespace hadal::cli {

class GuidedFlags {
 public:
  // In the help group "Form of the answer".
  void Register(CLI::App* app);

  bool given() const {
    return json_object_ || !json_schema_.empty() || !regex_.empty() || !grammar_.empty() || !choices_.empty();
  }

  // The compiled form; null if no flag asks for one. InvalidArgument for more than one, and for what does not compile.
  absl::StatusOr<std::shared_ptr<const guided::Grammar>> Compile(runtime::Engine* engine) const;

 private:
  bool json_object_ = false;
  std::string json_schema_, regex_, grammar_;
  std::vector<std::string> choices_;
};

}  // namespace hadal::cli
