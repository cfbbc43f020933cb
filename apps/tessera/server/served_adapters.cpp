module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <exception>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.app.server;

import tessera.base;
import tessera.hub;
import tessera.text;

namespace tessera::app {
namespace {

namespace fs = std::filesystem;

bool has_control(const std::string& text) {
  return std::ranges::any_of(
      text, [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7F'; });
}

/// Whether a path without links and dots is below a folder of this kind.
bool is_below(const fs::path& path, const fs::path& folder) {
  const auto [end, at] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return end == folder.end() && at != path.end();
}

}  // namespace

ServedAdapters::ServedAdapters(const text::TextModel& model, AdapterOptions options,
                               std::string base)
    : model_(model), options_(std::move(options)), base_(std::move(base)) {
  if (options_.used() && !model_.ranks().takes_adapters()) {
    fail_input({.thing = base_,
                .wrong = "the model computes texts one after the other, and takes no adapters by "
                         "their names",
                .advice = "merge one: --adapter FOLDER"});
  }
  if (!options_.folder.empty()) {
    std::error_code failed;
    const fs::path whole = fs::canonical(options_.folder, failed);
    if (failed || !fs::is_directory(whole)) {
      fail_input({.thing = options_.folder, .wrong = "there is no such folder of adapters"});
    }
    options_.folder = whole.string();
  }
  for (const auto& [name, path] : options_.named) {
    reserve(name);
    read(name, path, [](const std::exception* error) {
      if (error != nullptr) {
        throw Error(error->what(), ErrorKind::input);
      }
    });
    work();
  }
}

AdapterUse ServedAdapters::find(const std::string& name) const {
  const std::lock_guard lock(mutex_);
  const auto found = named_.find(name);
  return found == named_.end() ? nullptr : found->second;
}

std::vector<AdapterUse> ServedAdapters::all() const {
  const std::lock_guard lock(mutex_);
  std::vector<AdapterUse> all;
  for (const auto& [name, adapter] : named_) {
    all.push_back(adapter);
  }
  return all;
}

/// What is wrong elsewhere is not told: whether there is a file is no business of clients.
std::string ServedAdapters::checked_path(const std::string& path) const {
  const fs::path allowed = options_.folder;
  const auto refuse = [] {
    fail_input({.thing = "lora_path",
                .wrong = "there is no such folder of an adapter below that of --adapter-folder"});
  };
  std::error_code failed;
  const fs::path whole = fs::canonical(allowed / path, failed);
  if (failed || has_control(path) || !is_below(whole, allowed) ||
      !fs::is_directory(whole, failed)) {
    refuse();
  }
  for (const char* const name : {"adapter_config.json", "adapter_model.safetensors"}) {
    const fs::path file = fs::canonical(whole / name, failed);
    if (failed || !is_below(file, allowed) || !fs::is_regular_file(file, failed)) {
      refuse();
    }
  }
  return whole.string();
}

/// From here on the name is taken. Errors (input): it cannot be.
void ServedAdapters::reserve(const std::string& name) {
  constexpr std::size_t longest = 128;
  if (name.empty() || name.size() > longest || has_control(name)) {
    fail_input({.thing = "lora_name",
                .wrong = "is not a name of an adapter",
                .expected = fmt::format("1 to {} bytes without control characters", longest)});
  }
  const std::lock_guard lock(mutex_);
  if (name == base_ || named_.contains(name) || arriving_.contains(name)) {
    fail_input({.thing = "lora_name",
                .wrong = fmt::format("there is a model '{}' already", name),
                .advice = "unload it first, or choose another name"});
  }
  if (std::ssize(named_) + std::ssize(arriving_) + std::ssize(leaving_) >= options_.most) {
    fail_input({.thing = "adapters",
                .wrong = "there are too many",
                .expected = fmt::format("at most {} (--adapters)", options_.most),
                .advice = "unload one"});
  }
  arriving_.insert(name);
}

void ServedAdapters::read(const std::string& name, const std::string& path,
                          std::function<void(const std::exception*)> done) {
  try {
    Arrival arrival{.adapter = std::make_shared<ServedAdapter>(),
                    .updates = model_.read_adapter(path),
                    .done = std::move(done)};
    arrival.adapter->name = name;
    arrival.adapter->path = path;
    arrival.adapter->created = static_cast<std::int64_t>(std::time(nullptr));
    const std::lock_guard lock(mutex_);
    arrivals_.push_back(std::move(arrival));
  } catch (...) {
    const std::lock_guard lock(mutex_);
    arriving_.erase(name);
    throw;
  }
}

void ServedAdapters::load(const std::string& name, const std::string& path,
                          std::function<void(const std::exception*)> done) {
  const std::string whole = checked_path(path);
  reserve(name);
  read(name, whole, std::move(done));
}

bool ServedAdapters::unload(const std::string& name) {
  const std::lock_guard lock(mutex_);
  const auto found = named_.find(name);
  if (found == named_.end()) {
    return false;
  }
  leaving_.push_back(std::move(found->second));
  named_.erase(found);
  return true;
}

void ServedAdapters::work() {
  std::vector<Arrival> arrived;
  std::vector<AdapterUse> gone;
  {
    const std::lock_guard lock(mutex_);
    arrived.swap(arrivals_);
    // Its name is gone, so nobody else can get it any more.
    const auto unused = std::ranges::stable_partition(
        leaving_, [](const AdapterUse& adapter) { return adapter.use_count() > 1; });
    gone.assign(unused.begin(), unused.end());
    leaving_.erase(unused.begin(), unused.end());
  }
  text::ModelRanks& ranks = model_.ranks();
  for (const AdapterUse& adapter : gone) {
    ranks.drop_adapter(adapter->number);
  }
  for (Arrival& arrival : arrived) {
    const std::string name = arrival.adapter->name;
    try {
      arrival.adapter->number = ++numbers_;
      ranks.add_adapter(arrival.adapter->number, arrival.updates, arrival.adapter->path);
    } catch (const Error& error) {
      {
        const std::lock_guard lock(mutex_);
        arriving_.erase(name);
      }
      if (error.kind() != ErrorKind::input) {
        throw;
      }
      arrival.done(&error);
      continue;
    }
    {
      const std::lock_guard lock(mutex_);
      arriving_.erase(name);
      named_.emplace(name, std::move(arrival.adapter));
    }
    arrival.done(nullptr);
  }
}

}  // namespace tessera::app
