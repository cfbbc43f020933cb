module;
#include <fmt/format.h>

#include <map>
#include <string>
module tessera.tensor;

import tessera.base;

namespace tessera {

void StateDict::merge(const std::string& prefix, const StateDict& other) {
  const auto add = [&](auto& into, const auto& from) {
    for (const auto& [name, value] : from) {
      if (!into.emplace(prefix + "." + name, value).second) {
        fail({.thing = "state",
              .wrong = fmt::format("the name '{}.{}' occurs twice", prefix, name)});
      }
    }
  };
  add(tensors, other.tensors);
  add(scalars, other.scalars);
}

StateDict StateDict::part(const std::string& prefix) const {
  StateDict found;
  const std::string begin = prefix + ".";
  const auto take = [&](auto& into, const auto& from) {
    for (auto it = from.lower_bound(begin); it != from.end() && it->first.starts_with(begin);
         ++it) {
      into.emplace(it->first.substr(begin.size()), it->second);
    }
  };
  take(found.tensors, tensors);
  take(found.scalars, scalars);
  return found;
}

}  // namespace tessera
