module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.plugin;

import tessera.base;

namespace tessera::plugin {
namespace {

using Key = std::pair<std::string, std::string>;  // kind, name

/// Gate one and the state of the file. Kinds are checked at each use: they can be declared later.
struct ScannedFile {
  PluginFile found;
  FileIdentity identity;
};

ScannedFile scan(const std::string& path) {
  const LibraryFile file = read_library_file(path);
  ScannedFile scanned{{file.path, std::nullopt, file.refusals, false}, file.identity};
  if (!file.bytes.empty() || file.refusals.empty()) {
    StampReading reading = stamp_of(file);
    scanned.found.stamp = std::move(reading.stamp);
    std::move(reading.refusals.begin(), reading.refusals.end(),
              std::back_inserter(scanned.found.refusals));
  }
  return scanned;
}

void append(std::vector<std::string>& to, std::vector<std::string> from) {
  std::move(from.begin(), from.end(), std::back_inserter(to));
}

bool provides(const PluginFile& found, std::string_view kind, std::string_view name) {
  return found.stamp &&
         std::any_of(found.stamp->provides.begin(), found.stamp->provides.end(),
                     [&](const Offer& o) { return o.kind == kind && o.name == name; });
}

std::string text_of(const PluginFile& refused) {
  return fmt::format("{}: {}", refused.file, fmt::join(refused.refusals, "; "));
}

std::uint64_t hash_text(std::string_view text) {
  std::uint64_t hash = text.size();
  for (const char c : text) {
    hash = hash_combine(hash, static_cast<unsigned char>(c));
  }
  return hash;
}

}  // namespace

struct Host::State {
  SearchOptions search;
  mutable std::recursive_mutex mutex;  // a plugin may use the Host while it registers
  mutable std::optional<std::vector<ScannedFile>> scanned;
  std::map<Key, Entry> entries;
  std::vector<LoadedPlugin> loaded;
  std::vector<FileIdentity> loaded_files;

  /// The search, done once.
  const std::vector<ScannedFile>& files() const {
    if (!scanned) {
      scanned.emplace();
      for (const Candidate& candidate : search_libraries(search)) {
        if (!candidate.refusal.empty()) {
          scanned->push_back({{candidate.path, std::nullopt, {candidate.refusal}, false}, {}});
          continue;
        }
        ScannedFile next = scan(candidate.path);
        const bool again = std::any_of(scanned->begin(), scanned->end(), [&](const ScannedFile& s) {
          return next.identity.inode != 0 && s.identity == next.identity;
        });
        if (!again) {
          scanned->push_back(std::move(next));
        }
      }
    }
    return *scanned;
  }

  std::vector<PluginFile> list() const {
    std::vector<PluginFile> all;
    for (const ScannedFile& s : files()) {
      PluginFile found = s.found;
      found.loaded =
          std::find(loaded_files.begin(), loaded_files.end(), s.identity) != loaded_files.end();
      if (found.stamp) {
        append(found.refusals, refused_kinds(*found.stamp));
      }
      all.push_back(std::move(found));
    }
    return all;
  }

  std::vector<std::string> names(std::string_view kind) const {
    std::set<std::string> all;
    for (const auto& [key, entry] : entries) {
      if (key.first == kind) {
        all.insert(key.second);
      }
    }
    for (const PluginFile& found : list()) {
      if (found.stamp && found.refusals.empty()) {
        for (const Offer& offer : found.stamp->provides) {
          if (offer.kind == kind) {
            all.insert(offer.name);
          }
        }
      }
    }
    return {all.begin(), all.end()};
  }

  void add(const std::vector<Entry>& added) {
    for (const Entry& entry : added) {
      entries.emplace(Key(entry.kind, entry.name), entry);
    }
  }

  /// Names that are already registered, each with both files.
  std::vector<std::string> duplicates(const std::vector<Entry>& added) const {
    std::vector<std::string> refusals;
    for (const Entry& entry : added) {
      const auto taken = entries.find(Key(entry.kind, entry.name));
      if (taken != entries.end()) {
        refusals.push_back(fmt::format("{} '{}': registered by {} and by {}; remove one of them",
                                       entry.kind, entry.name, taken->second.file, entry.file));
      }
    }
    return refusals;
  }

  std::optional<std::string> same_plugin_loaded(const Stamp& stamp) const {
    for (const LoadedPlugin& other : loaded) {
      if (other.name == stamp.name) {
        return other.digest == stamp.digest ? "" : other.file;
      }
    }
    return std::nullopt;
  }

  void load(const std::string& path) {
    const LibraryFile file = read_library_file(path);
    std::vector<std::string> refusals = file.refusals;
    StampReading reading;
    if (!file.bytes.empty() || refusals.empty()) {
      reading = stamp_of(file);
      append(refusals, std::move(reading.refusals));
    }
    if (reading.stamp) {
      append(refusals, refused_kinds(*reading.stamp));
    }
    if (refusals.empty()) {
      const auto other = same_plugin_loaded(*reading.stamp);
      if (other && other->empty()) {
        return;  // the same content, in whatever folder
      }
      if (other) {
        refusals.push_back(fmt::format(
            "plugin '{}' with other content is already loaded from {}; remove one of them",
            reading.stamp->name, *other));
      }
    }
    if (refusals.empty()) {
      Registrar registrar(reading.stamp->name, file.path);
      if (std::string why = load_and_register(file, registrar); !why.empty()) {
        refusals.push_back(std::move(why));
      } else {
        append(refusals, refused_entries(*reading.stamp, registrar.entries()));
        append(refusals, duplicates(registrar.entries()));
      }
      if (refusals.empty()) {
        add(registrar.entries());
        loaded.push_back(
            {reading.stamp->name, reading.stamp->version, reading.stamp->digest, file.path});
        loaded_files.push_back(file.identity);
        return;
      }
    }
    fail_input({.thing = fmt::format("plugin {}", file.path),
                .wrong = fmt::format("refused: {}", fmt::join(refusals, "; "))});
  }

  [[noreturn]] void not_found(std::string_view kind, std::string_view name) const {
    const std::vector<std::string> known = names(kind);
    std::string text =
        fmt::format("{} '{}': no plugin provides it (known: {}){}", kind, shown(name),
                    known.empty() ? "none" : join_words(known), did_you_mean(name, known));
    for (const PluginFile& found : list()) {
      if (!found.refusals.empty()) {
        text += fmt::format("; refused {}", text_of(found));
      }
    }
    fail_input(text);
  }

  const Entry& find(std::string_view kind, std::string_view name) {
    const Key key(kind, name);
    if (const auto it = entries.find(key); it != entries.end()) {
      return it->second;
    }
    std::vector<PluginFile> usable;
    std::vector<PluginFile> refused;
    for (PluginFile& found : list()) {
      if (provides(found, kind, name)) {
        (found.refusals.empty() ? usable : refused).push_back(std::move(found));
      }
    }
    if (usable.empty()) {
      if (refused.empty()) {
        not_found(kind, name);
      }
      std::vector<std::string> reasons;
      std::transform(refused.begin(), refused.end(), std::back_inserter(reasons), text_of);
      fail_input({.thing = fmt::format("{} '{}'", kind, name),
                  .wrong = fmt::format("the plugin is refused: {}", fmt::join(reasons, "; "))});
    }
    for (const PluginFile& other : usable) {
      if (other.stamp->digest != usable.front().stamp->digest) {
        fail_input(
            {.thing = fmt::format("{} '{}'", kind, name),
             .wrong = fmt::format("provided by {} and by {}", usable.front().file, other.file),
             .advice = "remove one of them"});
      }
    }
    load(usable.front().file);
    const auto it = entries.find(key);
    require(it != entries.end(), "plugin host: a loaded plugin did not register what it promised");
    return it->second;
  }
};

Host::Host(SearchOptions search) : state_(std::make_unique<State>()) {
  state_->search = std::move(search);
}
Host::~Host() = default;

void Host::load(const std::string& path) {
  const std::lock_guard lock(state_->mutex);
  state_->load(path);
}

std::vector<PluginFile> Host::list() const {
  const std::lock_guard lock(state_->mutex);
  return state_->list();
}

std::vector<std::string> Host::names(std::string_view kind) const {
  const std::lock_guard lock(state_->mutex);
  return state_->names(kind);
}

std::vector<LoadedPlugin> Host::loaded() const {
  const std::lock_guard lock(state_->mutex);
  std::vector<LoadedPlugin> all = state_->loaded;
  std::sort(all.begin(), all.end(), [](const auto& a, const auto& b) { return a.name < b.name; });
  return all;
}

std::uint64_t Host::loaded_hash() const {
  std::uint64_t hash = 0;
  for (const LoadedPlugin& plugin : loaded()) {
    hash = hash_combine(hash, hash_text(plugin.name));
    hash = hash_combine(hash, hash_text(plugin.version));
    hash = hash_combine(hash, hash_text(plugin.digest));
  }
  return hash;
}

const void* Host::find_factory(std::string_view kind, std::string_view name) {
  const std::lock_guard lock(state_->mutex);
  return state_->find(kind, name).factory.get();
}

void Host::add_entries(const std::vector<Entry>& entries) {
  const std::lock_guard lock(state_->mutex);
  if (const auto taken = state_->duplicates(entries); !taken.empty()) {
    fail(taken.front());
  }
  state_->add(entries);
}

}  // namespace tessera::plugin
