module;
#include <memory>
#include <string>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.passes;
import tessera.nn;
import :replace_modules;

namespace tessera {
namespace {

/// Asks for the children of a module, and for what is below those that stay.
void replace_below(nn::Module& parent, const graph::Change& change,
                   std::vector<std::string>& names) {
  std::vector<std::string> replaced;
  for (const auto& [key, child] : parent.children()) {
    const std::string name = parent.name().empty() ? key : parent.name() + "." + key;
    if (change.replacement(name, child) != nullptr) {  // made again below, where nobody holds it
      replaced.push_back(key);
      names.push_back(name);
    } else {
      replace_below(*child, change, names);
    }
  }
  for (const std::string& key : replaced) {
    const std::string name = parent.name().empty() ? key : parent.name() + "." + key;
    parent.replace_child(key, [&](const std::shared_ptr<nn::Module>& before) {
      return change.replacement(name, before);
    });
  }
}

}  // namespace

std::vector<std::string> replace_modules(nn::Module& root, const graph::Change& change) {
  std::vector<std::string> names;
  try {
    replace_below(root, change, names);
    if (names.empty()) {
      fail_input({.wrong = "it replaces no module of this model",
                  .advice = "use it with a model that has what it replaces"});
    }
  } catch (const Error& error) {
    graph::fail_in_change(change.name, error);
  }
  return names;
}

}  // namespace tessera
