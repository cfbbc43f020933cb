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
  ShardForm& form = parameter.attach<ShardForm>();
  if (!form.entry.empty()) {
    fail_input({.thing = "parallel plan",
                .wrong = fmt::format("{} and {} would both extend how parameter '{}' is gathered",
                                     form.entry, entry, parameter.name),
                .advice = "remove one of the two entries, or give them different modules"});
  }
  if (const std::string& style = parameter.attached<ComputedForm>().style; !style.empty()) {
    fail_input({.thing = "parallel plan",
                .wrong = fmt::format("{} comes after {}, which gathers parameter '{}'", entry,
                                     style, parameter.name),
                .advice = "swap the two entries"});
  }
  form = {std::move(extension), std::string(entry)};
}

}  // namespace tessera::parallel
