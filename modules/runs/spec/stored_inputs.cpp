module;
#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;
import tessera.cache;
import tessera.hub;
import :stored_inputs;

namespace tessera::runs {
namespace {

/// Calls `change` with each text of a slot of paths.
void for_paths(const Slot& slot, const std::function<void(std::string& path)>& change) {
  if (auto* const* one = std::get_if<std::string*>(&slot)) {
    change(**one);
  } else if (auto* const* list = std::get_if<std::vector<std::string>*>(&slot)) {
    std::ranges::for_each(**list, change);
  }
}

/// The copy of an address, which is made once.
const std::string& copy_of(RunSpec& spec, const std::string& text, Reads reads) {
  const stores::Address address{text};
  auto found = spec.copies.find(address.text());
  if (found == spec.copies.end()) {
    stores::CopyRules rules;
    if (reads == Reads::model) {
      rules.choose = hub::leave_out_other_formats;
    }
    found = spec.copies.emplace(address.text(), stores::fetch(address, rules)).first;
  }
  return found->second.path();
}

}  // namespace

std::string path_from(const std::filesystem::path& folder, const std::string& text) {
  if (stores::is_address(text)) {
    return text;
  }
  const std::string path = (folder / text).lexically_normal().string();
  return stores::is_address(path) ? "./" + path : path;  // a file that has such a name
}

void place_paths(const Key& key, const Slot& slot, const std::filesystem::path& folder) {
  for_paths(slot, [&](std::string& path) {
    if (!path.empty() && std::ranges::find(key.choices, path) == key.choices.end()) {
      path = path_from(folder, path);
    }
  });
}

RunSpec with_copies(RunSpec spec) {
  for (const Key& key : config_keys(spec.model.family)) {
    if (key.in_list() || (key.reads == Reads::nothing && !key.is_path)) {
      continue;
    }
    for_paths(key.slot(spec, 0), [&](std::string& path) {
      if (!stores::is_address(path) || key.reads == Reads::checkpoints) {
        return;
      }
      at_key(spec, key.path, [&] {
        if (key.reads == Reads::nothing) {
          fail_input({.thing = stores::Address(path).text(),
                      .wrong = "this is no place of a store for this key (expected a path)",
                      .advice = fmt::format("write ./{} for a file of this name", path)});
        }
        try {
          path = copy_of(spec, path, key.reads);
        } catch (const CacheError& error) {
          fail_input(error.what());
        }
      });
    });
  }
  at_key(spec, "data.sources", [&] {
    for (const SourceConfig& source : data_sources(spec)) {
      for (const std::string& path : source.paths) {
        if (stores::is_address(path)) {
          copy_of(spec, path, Reads::files);
        }
      }
    }
  });
  return spec;
}

RunSpec with_addresses(RunSpec spec) {
  for (const Key& key : config_keys(spec.model.family)) {
    if (key.in_list() || key.reads == Reads::nothing) {
      continue;
    }
    for_paths(key.slot(spec, 0), [&](std::string& path) {
      for (const auto& [address, copy] : spec.copies) {
        if (path == copy.path()) {
          path = address;
          return;
        }
      }
    });
  }
  return spec;
}

}  // namespace tessera::runs
