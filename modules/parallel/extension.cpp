module;
#include <fmt/format.h>

#include <memory>
#include <string>
#include <string_view>
#include <utility>
module tessera.parallel;

import tessera.base;
import tessera.nn;

namespace tessera::parallel {

ShardExtension::~ShardExtension() = default;

void set_extension(nn::Parameter& parameter, std::shared_ptr<ShardExtension> extension,
                   std::string_view entry) {
  if (!parameter.extended_by.empty()) {
    fail_input({.thing = "parallel plan",
                .wrong = fmt::format("{} and {} would both extend how parameter '{}' is gathered",
                                     parameter.extended_by, entry, parameter.name),
                .advice = "remove one of the two entries, or give them different modules"});
  }
  if (!parameter.computed_by.empty()) {
    fail_input({.thing = "parallel plan",
                .wrong = fmt::format("{} comes after {}, which gathers parameter '{}'", entry,
                                     parameter.computed_by, parameter.name),
                .advice = "swap the two entries"});
  }
  parameter.extension = std::move(extension);
  parameter.extended_by = entry;
}

std::shared_ptr<ShardExtension> take_extension(nn::Parameter& parameter) {
  parameter.extension_taken = parameter.extension != nullptr;
  return std::static_pointer_cast<ShardExtension>(parameter.extension);
}

}  // namespace tessera::parallel
