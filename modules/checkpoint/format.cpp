module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.plugin;
import :exported;
import :format;
import :gguf;
import :checkpoint_files;
import :reader;
import :store_place;

namespace tessera {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<CheckpointFormat>();

struct BuiltIn {
  std::string_view name;
  std::unique_ptr<CheckpointFormat> (*make)();
};
/// In the order in which they are tried.
constexpr std::array<BuiltIn, 5> built_in = {
    {{"tessera", checkpoint_detail::tessera_format},
     {"torch", checkpoint_detail::torch_format},
     {"safetensors", checkpoint_detail::safetensors_format},
     {"gguf", checkpoint_detail::gguf_format},
     {"pt2", checkpoint_detail::exported_format}}};

bool is_built_in(std::string_view name) {
  return std::ranges::find(built_in, name, &BuiltIn::name) != built_in.end();
}

std::unique_ptr<CheckpointFormat> make_format(std::string_view name) {
  if (const auto* const found = std::ranges::find(built_in, name, &BuiltIn::name);
      found != built_in.end()) {
    return found->make();
  }
  const std::vector<std::string> known = checkpoint_formats();
  if (std::ranges::find(known, name) == known.end()) {
    fail_input({.wrong = fmt::format("there is no checkpoint format '{}' (there are {}){}",
                                     shown(name), join_words(known), did_you_mean(name, known)),
                .advice = "'tessera plugin list' shows the plugins"});
  }
  std::unique_ptr<CheckpointFormat> made = plugin::host().find<CheckpointFormat>(name)();
  if (!made) {
    fail_input({.thing = fmt::format("checkpoint format '{}'", name),
                .wrong = "its plugin returned no object"});
  }
  return made;
}

}  // namespace

CheckpointFormat::~CheckpointFormat() = default;

std::optional<std::string> CheckpointFormat::weights_prefix() const { return std::nullopt; }

bool CheckpointFormat::can_write() const { return false; }

WrittenCounts CheckpointFormat::write(const TensorSource& /*from*/, const std::string& folder,
                                      const WriteOptions& /*options*/) const {
  fail_input({.thing = folder,
              .wrong = fmt::format("this format ({}) can be read, but not written", described()),
              .advice = "write another one, such as safetensors"});
}

const CheckpointFormat& checkpoint_format(std::string_view name) {
  static std::mutex mutex;  // ranks that are threads call this at the same time
  static auto& made = *new std::map<std::string, std::unique_ptr<CheckpointFormat>, std::less<>>;
  const std::lock_guard lock(mutex);
  if (const auto found = made.find(name); found != made.end()) {
    return *found->second;
  }
  return *made.emplace(name, make_format(name)).first->second;
}

std::vector<std::string> checkpoint_formats() {
  std::vector<std::string> names;
  for (const BuiltIn& one : built_in) {
    names.emplace_back(one.name);
  }
  for (std::string& name : plugin::host().names(CheckpointFormat::plugin_kind.name)) {
    if (!is_built_in(name)) {
      names.push_back(std::move(name));
    }
  }
  return names;
}

OpenedTensors open_tensors(const std::string& path) {
  if (checkpoint_detail::address_of(path) &&
      checkpoint_detail::CheckpointFiles::at(path)->has_index()) {
    return {"tessera", std::make_unique<CheckpointReader>(path)};  // what fails there says why
  }
  for (const BuiltIn& one : built_in) {  // before any plugin is looked for
    if (const CheckpointFormat& format = checkpoint_format(one.name); format.recognises(path)) {
      return {std::string(one.name), format.open(path)};
    }
  }
  std::vector<std::string> expected;
  for (const std::string& name : checkpoint_formats()) {
    const CheckpointFormat& format = checkpoint_format(name);
    if (!is_built_in(name) && format.recognises(path)) {
      return {name, format.open(path)};
    }
    expected.push_back(format.described());
  }
  fail_input({.thing = path,
              .wrong = fmt::format("it is not a checkpoint, and not a model (expected {})",
                                   fmt::join(expected, ", or ")),
              .advice = "name the folder of one checkpoint or model"});
}

}  // namespace tessera
