module;
#include <fmt/format.h>

#include <string>
module tessera.calls;

import tessera.base;
import :first_error;

namespace tessera::collective {

std::string to_string(const FirstError& error) {
  std::string text = error.rank >= 0 ? fmt::format("rank {}", error.rank) : "";
  const auto add = [&](const std::string& part) { text += (text.empty() ? "" : ", ") + part; };
  if (error.step >= 0) {
    add(fmt::format("step {}", error.step));
  }
  // A rank that trains has errors of the training: one word says both.
  if (!error.where.empty() && !error.text.starts_with(error.where + ": ")) {
    add(error.where);
  }
  return text.empty() ? error.text : fmt::format("{}: {}", text, error.text);
}

}  // namespace tessera::collective
