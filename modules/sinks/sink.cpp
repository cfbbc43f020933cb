module;
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.sinks;

import tessera.base;
import tessera.options;
import tessera.plugin;
import :command;

namespace tessera::sinks {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<Sink>();

constexpr std::string_view command_name = "command";

}  // namespace

UnavailableError::UnavailableError(ErrorFields fields, double after)
    : Error(std::move(fields)), after_(after) {}
double UnavailableError::after() const noexcept { return after_; }

Sink::~Sink() = default;
void Sink::check() const {}
void Sink::finish(double /*seconds*/) {}
double Sink::patience() const { return 5; }

std::vector<std::string> built_in_sinks() { return {std::string(command_name)}; }

std::unique_ptr<Sink> load_sink(std::string_view name, std::string_view text,
                                const std::string& where) {
  PluginOptions options(text, where);
  std::unique_ptr<Sink> sink;
  if (name == command_name) {
    sink = make_command_sink(options);
  } else {
    std::vector<std::string> known = plugin::host().names(Sink::plugin_kind.name);
    std::ranges::move(built_in_sinks(), std::back_inserter(known));
    if (std::ranges::find(known, name) == known.end()) {
      std::ranges::sort(known);
      fail_input({.wrong = fmt::format("there is no sink '{}' (there are {}){}", shown(name),
                                       join_words(known), did_you_mean(name, known)),
                  .advice = "'tessera plugin list' shows the plugins"});
    }
    sink = plugin::host().find<Sink>(name)(options);
  }
  if (!sink) {
    fail_input({.thing = fmt::format("sink '{}'", name), .wrong = "its plugin returned no object"});
  }
  options.finish();
  return sink;
}

}  // namespace tessera::sinks
