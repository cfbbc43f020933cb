module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <vector>
module tessera.passes;

import tessera.base;
import tessera.plugin;
import tessera.program;
import :builtin;
import :change;
import :editor;
import :keep_gathers;

namespace tessera::graph {
namespace {

[[maybe_unused]] const bool declared = plugin::declare_kind<Change>();

const Change* built_in(const std::string& name) {
  const auto found = std::ranges::find(built_in_passes(), name, &Change::name);
  return found == built_in_passes().end() ? nullptr : &*found;
}

/// A file that offers the name and is refused is the reason; else the name is wrong.
[[noreturn]] void fail_unknown(const std::string& name, const std::vector<std::string>& known) {
  for (const plugin::PluginFile& found : plugin::host().list()) {
    const bool offers =
        found.stamp && std::ranges::find(found.stamp->provides, name, &plugin::Offer::name) !=
                           found.stamp->provides.end();
    if (offers && !found.refusals.empty()) {
      fail_input({.thing = "changes",
                  .wrong = fmt::format("the plugin of '{}' is refused: {}: {}", shown(name),
                                       found.file, fmt::join(found.refusals, "; "))});
    }
  }
  const std::string nearest = nearest_name(name, known);
  fail_input({.thing = "changes",
              .wrong = fmt::format("there is no change '{}'", shown(name)),
              .expected = fmt::format("one of {}", join_words(known)),
              .advice = nearest.empty() ? "'tessera plugin list' shows the plugins"
                                        : fmt::format("did you mean '{}'?", nearest)});
}

/// A built-in pass, whose function takes what an editor has.
std::function<void(Editor&)> on_program(void (*pass)(Program& program, const Analysis& known)) {
  return [pass](Editor& edit) { pass(edit.program(), edit.known()); };
}

void merge_where_agreed(Editor& edit) {
  if (edit.agree()) {
    merge_collectives(edit.program(), edit.known(), edit.agree());
  }
}

}  // namespace

const std::vector<Change>& built_in_passes() {
  static const std::vector<Change> passes = {
      {.name = "views",
       .about = "Views of views become views of the memory's first tensor; equal views become one.",
       .facts = {.keeps_bits = true, .is_default = true},
       .run = on_program(simplify_views)},
      {.name = "copies",
       .about =
           "Copies of values that stay as they are (clone, contiguous) are not made, where the "
           "original needs no more memory and all bits stay the same.",
       .facts = {.keeps_bits = true, .is_default = true},
       .run = on_program(elide_copies)},
      {.name = "merge_collectives",
       .about =
           "Collectives that all ranks make of the same values twice are made once, where that "
           "does not raise the peak of memory.",
       .facts = {.keeps_bits = true, .is_default = true},
       .run = merge_where_agreed},
      {.name = "common",
       .about = "Merges calls that compute the same values, where the first result is still there.",
       .facts = {.keeps_bits = true, .is_default = true},
       .run = on_program(merge_common)},
      {.name = "dead",
       .about = "Removes instructions whose results nothing needs. What other ranks take part in "
                "stays.",
       .facts = {.keeps_bits = true, .is_default = true},
       .run = on_program(remove_dead)},
      {.name = "lifetimes",
       .about = "Memory that is released and restored becomes a new memory for each time, so that "
                "others can take its place in between.",
       .facts = {.keeps_bits = true, .ends_lifetimes = true, .is_default = true},
       .run = on_program(split_lifetimes)},
      {.name = "keep_gathers",
       .about = "What was gathered before is kept and not gathered again. With a budget of memory: "
                "as much as fits.",
       .facts = {.keeps_bits = true, .after = {"lifetimes"}},
       .run = on_program(keep_all_gathers),
       .keeps = PartialPass{.spare = keep_gathers, .within = keep_gathers_within}},
      {.name = "recompute",
       .about = "What is cheap to compute again is not kept from forward, where that lowers the "
                "peak of memory.",
       .facts = {.keeps_bits = true, .after = {"lifetimes"}},
       .run = on_program(recompute_cheap)},
      {.name = "early_issues",
       .about = "Collectives are issued as early as their operands and the peak of memory permit.",
       .facts = {.keeps_bits = true,
                 .moves_communication = true,
                 .is_default = true,
                 .after = {"lifetimes"}},
       .run = on_program(advance_issues)},
      {.name = "late_waits",
       .about = "Waits for collectives move down to where their results are first used.",
       .facts = {.keeps_bits = true, .moves_communication = true, .is_default = true},
       .run = on_program(delay_waits)},
  };
  return passes;
}

std::vector<std::string> default_passes() {
  std::vector<std::string> names;
  for (const Change& pass : built_in_passes()) {
    if (pass.facts.is_default) {
      names.push_back(pass.name);
    }
  }
  return names;
}

std::vector<std::string> facts_in_words(const Change& change) {
  std::vector<std::string> words;
  const auto add = [&](bool is_so, std::string_view text) {
    if (is_so) {
      words.emplace_back(text);
    }
  };
  const ChangeFacts& facts = change.facts;
  add(change.replacement != nullptr, "before distribution: replaces modules");
  add(change.run != nullptr, "after distribution: changes the program");
  words.emplace_back(facts.keeps_bits ? "keeps bits" : "changes what steps compute");
  add(facts.needs_loss, "needs the loss");
  add(facts.evaluates_as_written, "evaluations of the model as it is written are right");
  add(facts.ends_lifetimes, "ends lifetimes of memory");
  add(facts.moves_communication, "only moves communication");
  add(change.keeps.has_value(), "keeps memory to spare communication");
  add(!facts.after.empty(), "after " + join_words(facts.after));
  words.emplace_back(is_pass(change) ? "named in graph.passes or graph.transforms"
                                     : "named in graph.transforms");
  return words;
}

bool is_pass(const Change& change) {
  return change.facts.keeps_bits && change.run && !change.replacement;
}

void check_facts(const Change& change) {
  const ChangeFacts& facts = change.facts;
  const auto refuse = [&](bool is_wrong, const char* wrong, const char* advice) {
    if (is_wrong) {
      fail({.thing = fmt::format("change '{}'", change.name), .wrong = wrong, .advice = advice});
    }
  };
  refuse(!change.run && !change.replacement, "it has no function",
         "set Change::run or Change::replacement");
  refuse(facts.needs_loss && !change.run, "it says that it needs the loss and changes no program",
         "set Change::run, or leave needs_loss out");
  refuse(facts.evaluates_as_written && !change.replacement,
         "it speaks of evaluations of the model as it is written and replaces no module",
         "set Change::replacement, or leave evaluates_as_written out");
  const bool of_passes = facts.ends_lifetimes || facts.moves_communication || facts.is_default ||
                         change.keeps.has_value();
  refuse(of_passes && !is_pass(change),
         "it has facts of a pass, and does not keep bits or acts before distribution",
         "set keeps_bits, or leave those facts out");
}

std::vector<std::string> change_names() {
  std::vector<std::string> names;
  for (const Change& pass : built_in_passes()) {
    names.push_back(pass.name);
  }
  std::ranges::copy(plugin::host().names(Change::plugin_kind.name), std::back_inserter(names));
  return names;
}

void check_changes(std::span<const std::string> names) {
  for (const std::string& name : names) {
    if (built_in(name) != nullptr) {
      continue;  // a program without plugins has no host
    }
    const std::vector<std::string> known = change_names();
    if (std::ranges::find(known, name) == known.end()) {
      fail_unknown(name, known);
    }
  }
}

Change find_change(const std::string& name) {
  if (const Change* const pass = built_in(name)) {
    return *pass;
  }
  check_changes({&name, 1});
  Change change = plugin::host().find<Change>(name)();
  if (change.name != name) {
    fail({.thing = fmt::format("change '{}'", name),
          .wrong = "its plugin returned one of another name",
          .expected = fmt::format("'{}'", name),
          .got = fmt::format("'{}'", change.name)});
  }
  check_facts(change);
  return change;
}

std::vector<std::string> without_keeping(std::span<const std::string> names) {
  std::vector<std::string> others;
  std::ranges::copy_if(names, std::back_inserter(others),
                       [](const std::string& name) { return !find_change(name).keeps; });
  return others;
}

void check_order(const Change& change, std::span<const std::string> before) {
  for (const std::string& needed : change.facts.after) {
    if (std::ranges::find(before, needed) == before.end()) {
      fail_input({.thing = "changes",
                  .wrong = fmt::format("'{}' needs '{}' before it", change.name, needed),
                  .advice = fmt::format("add '{}' before '{}'", needed, change.name)});
    }
  }
}

void check_passes(std::span<const std::string> names) {
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Change change = find_change(names[i]);
    if (!is_pass(change)) {
      fail_input(
          {.thing = "changes",
           .wrong = fmt::format("'{}' is no pass: {}", change.name,
                                change.replacement ? "it replaces modules, before distribution"
                                                   : "it changes what steps compute"),
           .advice = "name it in graph.transforms"});
    }
    check_order(change, names.first(i));
  }
}

}  // namespace tessera::graph
