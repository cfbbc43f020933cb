module;
#include <fmt/format.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.plugin;
import tessera.graph;
import tessera.nn;
import :override;

namespace tessera {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<Override>();

/// Asks for the children of a module, and for what is below those that stay.
void replace_below(nn::Module& parent, const Override& override, std::vector<std::string>& names) {
  std::vector<std::string> replaced;
  for (const auto& [key, child] : parent.children()) {
    const std::string name = parent.name().empty() ? key : parent.name() + "." + key;
    if (override.replacement(name, child) != nullptr) {  // made again below, where nobody holds it
      replaced.push_back(key);
      names.push_back(name);
    } else {
      replace_below(*child, override, names);
    }
  }
  for (const std::string& key : replaced) {
    const std::string name = parent.name().empty() ? key : parent.name() + "." + key;
    parent.replace_child(key, [&](const std::shared_ptr<nn::Module>& before) {
      return override.replacement(name, before);
    });
  }
}

}  // namespace

graph::Transform Override::as_transform() const {
  return {.name = name, .about = about, .run = transform ? transform : [](graph::Editor&) {}};
}

std::vector<std::string> override_names() {
  return plugin::host().names(Override::plugin_kind.name);
}

Override find_override(const std::string& name) {
  Override override = plugin::host().find<Override>(name)();
  if (override.name != name || !override.replacement) {
    fail({.thing = fmt::format("override '{}'", name),
          .wrong = override.replacement ? "its plugin returned one of another name"
                                        : "its plugin returned one without a replacement",
          .expected = fmt::format("'{}'", name),
          .got = fmt::format("'{}'", override.name)});
  }
  return override;
}

std::vector<std::string> replace_modules(nn::Module& root, const Override& override) {
  std::vector<std::string> names;
  try {
    replace_below(root, override, names);
    if (names.empty()) {
      fail_input({.wrong = "it replaces no module of this model",
                  .advice = "use it with a model that has what it replaces"});
    }
  } catch (const Error& error) {
    ErrorFields fields = error.fields();
    fields.thing = fmt::format("override '{}'{}{}", override.name, fields.thing.empty() ? "" : ": ",
                               fields.thing);
    throw Error(std::move(fields), error.kind());
  }
  return names;
}

}  // namespace tessera
