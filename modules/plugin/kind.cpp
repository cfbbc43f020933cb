module;
#include <fmt/format.h>

#include <map>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

struct KindTable {
  std::mutex mutex;
  std::map<std::string, DeclaredKind, std::less<>> kinds;
};

/// Never destroyed: kinds are declared by static initialisers and read until the process ends.
KindTable& table() {
  static auto* t = new KindTable;
  return *t;
}

}  // namespace

void declare_kind(const Kind& kind, std::string_view factory_type) {
  require(!kind.name.empty() && kind.version >= 1,
          "plugin kind: needs a name and a version of at least 1");
  const std::lock_guard lock(table().mutex);
  const auto [it, fresh] = table().kinds.try_emplace(
      std::string(kind.name),
      DeclaredKind{std::string(kind.name), kind.version, std::string(factory_type)});
  const DeclaredKind& known = it->second;
  if (!fresh && (known.version != kind.version || known.factory_type != factory_type)) {
    fail({.thing = fmt::format("plugin kind '{}'", kind.name),
          .wrong = fmt::format(
              "declared twice with different interfaces ({}, version {}, and {}, version {})",
              known.factory_type, known.version, factory_type, kind.version),
          .advice = "give one of them another name"});
  }
}

std::vector<DeclaredKind> declared_kinds() {
  const std::lock_guard lock(table().mutex);
  std::vector<DeclaredKind> all;
  for (const auto& [name, kind] : table().kinds) {
    all.push_back(kind);
  }
  return all;
}

}  // namespace tessera::plugin
