module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.stores;
import :checkpoint_index;
import :steps;
import :store_place;

namespace tessera::checkpoint_detail {
namespace {

constexpr std::string_view file_front = "rank-";
constexpr std::string_view file_end = ".safetensors";
constexpr std::size_t time_digits = 10;
constexpr std::size_t random_digits = 16;
constexpr std::size_t largest_index = std::size_t{1} << 30;

std::int64_t now() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

bool is_hex(std::string_view text) {
  return text.find_first_not_of("0123456789abcdef") == std::string_view::npos;
}

/// The objects of one step's folder.
struct StepObjects {
  std::string folder;              // its name
  bool complete = false;           // there is an index
  std::vector<std::string> files;  // the other objects in it, not below it
};

/// By their number, from the highest on.
using Steps = std::map<std::pair<std::uint64_t, std::string>, StepObjects, std::greater<>>;

Steps steps_of(stores::OpenStore& store) {
  Steps steps;
  for (const stores::ListedObject& object : store.list()) {
    const std::size_t slash = object.name.find('/');
    if (slash == std::string::npos) {
      continue;
    }
    const std::string folder = object.name.substr(0, slash);
    const std::optional<std::uint64_t> number = checkpoint_number(folder);
    if (!number) {
      continue;
    }
    StepObjects& step = steps[{*number, folder}];
    step.folder = folder;
    std::string name = object.name.substr(slash + 1);
    if (name == index_name) {
      step.complete = true;
    } else if (name.find('/') == std::string::npos) {
      step.files.push_back(std::move(name));
    }
  }
  return steps;
}

/// The names of the files that a checkpoint's index names. Error: it cannot be read.
std::set<std::string> named_files(stores::OpenStore& store, const std::string& folder) {
  const std::string name = folder + "/" + index_name;
  const CheckpointIndex index =
      index_from_json(store.text(name, largest_index), (store.address() / name).text());
  std::set<std::string> names;
  for (const auto& [file, stored] : index.files) {
    names.insert(file);
  }
  return names;
}

/// What old attempts have left in a step's folder.
void remove_attempts(stores::OpenWritableStore& store, const StepObjects& step) {
  std::vector<std::string> old;
  for (const std::string& file : step.files) {
    const std::optional<std::int64_t> begun = SaveAttempt::begun(file);
    if (begun && now() - *begun > oldest_attempt) {
      old.push_back(file);
    }
  }
  if (old.empty()) {
    return;
  }
  const std::set<std::string> named =
      step.complete ? named_files(store, step.folder) : std::set<std::string>();
  for (const std::string& file : old) {
    if (!named.contains(file)) {
      store.remove(step.folder + "/" + file);
    }
  }
}

}  // namespace

SaveAttempt::SaveAttempt() {
  std::random_device random;  // a seeded generator would repeat itself in ranks that were forked
  const std::uint64_t number = (std::uint64_t{random()} << 32U) | random();
  text_ = fmt::format("{:010x}-{:016x}", now(), number);
}

SaveAttempt::SaveAttempt(std::string text) : text_(std::move(text)) {}

std::string SaveAttempt::file_name(int rank) const {
  return fmt::format("{}{}-{}{}", file_front, rank, text_, file_end);
}

std::optional<std::int64_t> SaveAttempt::begun(std::string_view name) {
  constexpr std::size_t attempt = time_digits + 1 + random_digits;
  if (!name.starts_with(file_front) || !name.ends_with(file_end) ||
      name.size() < file_front.size() + 2 + attempt + file_end.size()) {
    return std::nullopt;
  }
  name.remove_prefix(file_front.size());
  name.remove_suffix(file_end.size());
  const std::string_view rank = name.substr(0, name.size() - attempt);
  name.remove_prefix(rank.size());
  const bool right =
      rank.ends_with('-') &&
      rank.substr(0, rank.size() - 1).find_first_not_of("0123456789") == std::string_view::npos &&
      is_hex(name.substr(0, time_digits)) && name[time_digits] == '-' &&
      is_hex(name.substr(time_digits + 1));
  std::int64_t seconds = 0;
  if (!right ||
      std::from_chars(name.data(), name.data() + time_digits, seconds, 16).ec != std::errc()) {
    return std::nullopt;
  }
  return seconds;
}

std::optional<stores::Address> address_of(const std::string& place) {
  stores::Location location = stores::parse_location(place);
  if (stores::Address* const address = std::get_if<stores::Address>(&location)) {
    return std::move(*address);
  }
  return std::nullopt;
}

std::vector<std::string> stored_checkpoints(const stores::Address& folder) {
  stores::OpenStore store(folder);
  std::vector<std::string> paths;
  for (const auto& [number, step] : steps_of(store)) {
    if (step.complete) {
      paths.push_back((folder / step.folder).text());
    }
  }
  return paths;
}

void prune_stored(const stores::Address& folder, int keep) {
  stores::OpenWritableStore store(folder);
  int complete = 0;
  std::string first_problem;
  for (const auto& [number, step] : steps_of(store)) {
    try {
      complete += step.complete ? 1 : 0;
      if (step.complete && complete > keep) {
        const std::set<std::string> files = named_files(store, step.folder);
        store.remove(step.folder + "/" + index_name);
        for (const std::string& file : files) {
          store.remove(step.folder + "/" + file);
        }
      } else {
        remove_attempts(store, step);
      }
    } catch (const Error& error) {
      if (first_problem.empty()) {
        first_problem = error.what();
      }
    }
  }
  store.abort_pending("", static_cast<double>(oldest_attempt));
  if (!first_problem.empty()) {
    fail({.thing = "checkpoint",
          .wrong = "old ones cannot be removed: " + first_problem,
          .advice = "remove what is in the way, or remove them by hand"});
  }
}

}  // namespace tessera::checkpoint_detail
