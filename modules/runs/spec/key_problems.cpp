module;
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>
module tessera.runs;

import tessera.base;
import :key_problems;

namespace tessera::runs {

bool KeyProblems::known(std::initializer_list<const char*> keys) const {
  return std::ranges::none_of(keys, [&](const char* key) { return unread_.contains(key); });
}

void KeyProblems::add(const std::vector<std::string>& keys, const std::string& text) {
  for (const std::string& key : keys) {
    const auto found = config_.given.find(key);
    if (found != config_.given.end()) {
      problems_.add(found->second, fmt::format("{}: {}", key, text));
      return;
    }
  }
  problems_.add(config_.place_of_key(keys.front()), fmt::format("{}: {}", keys.front(), text));
}

void KeyProblems::add_errors(const char* key, std::string_view thing,
                             const std::function<void()>& check) {
  if (!known({key})) {
    return;
  }
  try {
    check();
  } catch (const Error& error) {
    std::string_view text = error.what();
    text.remove_prefix(text.starts_with(thing) ? thing.size() : 0);
    add({key}, std::string(text));
  }
}

}  // namespace tessera::runs
