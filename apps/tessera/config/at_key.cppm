// The place of a key for errors of what reads its value. Included after the import of tessera.base.
#pragma once
#include <string>
#include <utility>

#include "config/config.hpp"

namespace tessera::app {

/// Calls `f`. Its Error (input) gets the place of the key, unless it has one, and names the key
/// once.
template <class F>
decltype(auto) at_key(const Config& config, const std::string& key, F&& f) {
  try {
    return std::forward<F>(f)();
  } catch (const Error& error) {
    if (error.kind() != ErrorKind::input || !error.fields().where.empty()) {
      throw;
    }
    ErrorFields fields = error.fields();
    fields.where = config.place(key);
    if (fields.thing == key) {
      fields.thing.clear();
    } else if (fields.thing.empty() && fields.wrong.starts_with(key + ": ")) {
      fields.wrong.erase(0, key.size() + 2);
    }
    fail_input(std::move(fields));
  }
}

}  // namespace tessera::app
