module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.nn;
import :entries;

namespace tessera::parallel {

std::string place_of(const StyleEntry& entry) {
  const std::string style = shown(entry.style, 60);
  return entry.where.empty() ? style : entry.where + ": " + style;
}

std::string in_words(const nn::Module& module) {
  return module.name().empty() ? "the whole model" : fmt::format("module '{}'", module.name());
}

std::string axes_in_words(const StyleEntry& entry) {
  std::vector<std::string> quoted;
  for (const std::string& name : entry.axis.names()) {
    quoted.push_back(fmt::format("'{}'", name));
  }
  return join_words(quoted);
}

bool ResolvedEntry::on_axis(int axis) const { return std::ranges::find(axes, axis) != axes.end(); }

namespace {

/// The modules that the patterns match, inner ones first; every alternative of every pattern must
/// match something.
std::vector<nn::Module*> matched_modules(nn::Module& model, const StyleEntry& entry) {
  const std::vector<nn::Module*> all = nn::all_modules(model);
  std::vector<std::string> names;
  for (const nn::Module* module : all) {
    names.push_back(module->name());
  }
  std::set<nn::Module*> matched;
  if (entry.on.empty()) {
    fail_input({.where = place_of(entry),
                .wrong = "'on' names no module",
                .advice = "write patterns over qualified names, or \".\" for the whole model"});
  }
  for (const std::string& pattern : entry.on) {
    for (const std::string& alternative : expand_braces(pattern)) {
      const std::size_t before = matched.size();
      std::size_t hits = 0;
      for (nn::Module* module : all) {
        if (matches_pattern(module->name(), alternative)) {
          matched.insert(module);
          ++hits;
        }
      }
      if (hits == 0 && matched.size() == before) {
        fail_input({.where = place_of(entry),
                    .wrong = fmt::format("pattern '{}' matches no module of the model{}",
                                         shown(alternative), did_you_mean(alternative, names))});
      }
    }
  }
  std::vector<nn::Module*> ordered;
  for (nn::Module* module : all) {
    if (matched.contains(module)) {
      ordered.push_back(module);
    }
  }
  const auto depth = [](const nn::Module* module) {
    return module->name().empty() ? -1
                                  : std::count(module->name().begin(), module->name().end(), '.');
  };
  std::map<long, std::vector<nn::Module*>, std::greater<>>
      by_depth;  // the order of the tree within a depth
  for (nn::Module* module : ordered) {
    by_depth[depth(module)].push_back(module);
  }
  ordered.clear();
  for (const auto& [level, modules] : by_depth) {
    ordered.insert(ordered.end(), modules.begin(), modules.end());
  }
  return ordered;
}

int axis_of(const DeviceMesh& mesh, const StyleEntry& entry, const std::string& name) {
  const auto names = mesh.axis_names();
  const auto found = std::find(names.begin(), names.end(), name);
  if (found == names.end()) {
    const std::vector<std::string> known(names.begin(), names.end());
    fail_input({.where = place_of(entry),
                .wrong = fmt::format("the mesh has no axis '{}' (its axes: {}){}", shown(name),
                                     join_words(known), did_you_mean(name, known))});
  }
  return static_cast<int>(found - names.begin());
}

std::vector<int> axes_of(const DeviceMesh& mesh, const StyleEntry& entry, int most) {
  std::vector<int> axes;
  for (const std::string& name : entry.axis.names()) {
    axes.push_back(axis_of(mesh, entry, name));
    if (std::count(axes.begin(), axes.end(), axes.back()) > 1) {
      fail_input({.where = place_of(entry),
                  .wrong = fmt::format("axis '{}' is named twice", name),
                  .advice = "name each axis once"});
    }
  }
  if (axes.empty() != (most == 0) || static_cast<int>(axes.size()) > most) {
    fail_input({.where = place_of(entry),
                .wrong = "works on the wrong number of axes",
                .expected = most <= 1 ? fmt::format("{}", most) : fmt::format("1 to {}", most),
                .got = fmt::format("{}", axes.size()),
                .advice = most == 0      ? "remove 'axis'"
                          : axes.empty() ? "name an axis of the mesh: axis = \"...\""
                          : most == 1    ? "write one entry for each axis"
                                         : "see the style's page for what each axis does"});
  }
  return axes;
}

/// Every module must declare the split that the style needs.
void check_splits(const ResolvedEntry& resolved, nn::Module& model) {
  const std::string& wanted = resolved.facts.needs_split;
  const auto can = [&](const nn::Module& module) {
    const std::vector<nn::LayerSplit> splits = nn::splits_of(module);
    return std::ranges::any_of(splits, [&](const auto& split) { return split.name == wanted; });
  };
  for (const nn::Module* module : resolved.modules) {
    if (wanted.empty() || can(*module)) {
      continue;
    }
    std::set<std::string> kinds;
    for (const nn::Module* other : nn::all_modules(model)) {
      if (can(*other)) {
        kinds.emplace(other->kind());
      }
    }
    fail_input(
        {.where = place_of(resolved.entry),
         .wrong = fmt::format("{} is a {}, which does not declare a split by {}", in_words(*module),
                              module->kind(), wanted),
         .advice =
             kinds.empty()
                 ? "no module of this model does: declare it in Module::splits"
                 : fmt::format("choose among the modules that do, which are of the kind {}",
                               join_words(std::vector<std::string>(kinds.begin(), kinds.end())))});
  }
}

/// The first parameter below modules of both entries; null where there is none.
const nn::Parameter* shared_parameter(const ResolvedEntry& a, const ResolvedEntry& b) {
  std::set<const nn::Parameter*> of_a;
  for (nn::Module* module : a.modules) {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*module)) {
      of_a.insert(parameter.get());
    }
  }
  for (nn::Module* module : b.modules) {
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*module)) {
      if (of_a.contains(parameter.get())) {
        return parameter.get();
      }
    }
  }
  return nullptr;
}

const nn::Module* shared_module(const ResolvedEntry& a, const ResolvedEntry& b) {
  const auto found = std::ranges::find_first_of(a.modules, b.modules);
  return found == a.modules.end() ? nullptr : *found;
}

/// `earlier` stands before `later` in the config.
void check_order(const ResolvedEntry& earlier, const ResolvedEntry& later) {
  const auto refuse = [&](const std::string& why) {
    fail_input(
        {.where = place_of(earlier.entry),
         .wrong = fmt::format("must come after {} ({}), {}", later.entry.style,
                              later.entry.where.empty() ? "a later entry" : later.entry.where, why),
         .advice = "swap the two entries"});
  };
  if (earlier.entry.style == later.entry.style) {
    return;  // a style knows itself
  }
  if (earlier.facts.keeps_parameters &&
      (later.facts.places_parameters || later.facts.extends_gathers)) {
    if (const nn::Parameter* const shared = shared_parameter(earlier, later)) {
      refuse(later.facts.places_parameters
                 ? fmt::format("which places the parameter '{}'", shared->name)
                 : fmt::format("which says how the parameter '{}' is kept and gathered",
                               shared->name));
    }
  }
  if (earlier.facts.wraps_forward && later.facts.converts_values) {
    if (const nn::Module* const shared = shared_module(earlier, later)) {
      refuse(fmt::format("which converts values of {}", in_words(*shared)));
    }
  }
}

void check_pair(const ResolvedEntry& a, const ResolvedEntry& b, const DeviceMesh& mesh) {
  if (a.facts.divides_model && b.facts.divides_model) {
    fail_input(
        {.where = place_of(b.entry),
         .wrong = fmt::format("the model is divided into stages already, by {}", place_of(a.entry)),
         .advice = "remove one of the two entries"});
  }
  for (const int axis : a.axes) {
    if (!b.on_axis(axis)) {
      continue;
    }
    if (a.facts.divides_model || b.facts.divides_model) {
      const bool first = a.facts.divides_model;
      fail_input({.where = place_of((first ? b : a).entry),
                  .wrong = fmt::format("is on axis '{}', along which {} divides the model into "
                                       "stages",
                                       mesh.axis_name(axis), place_of((first ? a : b).entry)),
                  .advice = "give one of them another axis"});
    }
    if (a.facts.splits_sequence != b.facts.splits_sequence) {
      const ResolvedEntry& splits = a.facts.splits_sequence ? a : b;
      fail_input({.where = place_of(splits.entry),
                  .wrong = fmt::format("splits the sequence along axis '{}', which {} uses too",
                                       mesh.axis_name(axis),
                                       place_of((a.facts.splits_sequence ? b : a).entry)),
                  .advice = "give one of them another axis"});
    }
    if (a.facts.splits_batch != b.facts.splits_batch) {
      fail_input(fmt::format(
          "{} and {} are both on axis '{}', but one splits the batch along it and the other does "
          "not; give one of them another axis",
          place_of(a.entry), place_of(b.entry), mesh.axis_name(axis)));
    }
    if (a.facts.splits_batch && a.entry.style != b.entry.style) {
      if (const nn::Parameter* const shared = shared_parameter(a, b)) {
        fail_input({.where = place_of(a.entry),
                    .wrong = fmt::format("cannot share axis '{}' with {}, as each splits the batch "
                                         "in its own way, and both are applied to parameter '{}'",
                                         mesh.axis_name(axis), place_of(b.entry), shared->name),
                    .advice = "give one of them another axis, or other modules"});
      }
    }
  }
  if (a.facts.keeps_parameters && b.facts.keeps_parameters &&
      (a.entry.style != b.entry.style || a.axes != b.axes)) {
    if (const nn::Parameter* const shared = shared_parameter(a, b)) {
      fail_input(fmt::format(
          "{} and {} would both keep the parameter '{}' in memory of their own; give them "
          "different "
          "modules, or use one of them only{}",
          place_of(a.entry), place_of(b.entry), shared->name,
          a.facts.most_axes > 1 && a.entry.style == b.entry.style ? ", on all axes" : ""));
    }
  }
}

}  // namespace

ResolvedEntry resolve(const StyleEntry& entry, StyleFacts facts, nn::Module& model,
                      const DeviceMesh& mesh) {
  std::vector<int> axes = axes_of(mesh, entry, facts.most_axes);
  ResolvedEntry resolved{entry, std::move(axes), std::move(facts), matched_modules(model, entry)};
  check_splits(resolved, model);
  if (resolved.facts.divides_model &&
      (resolved.modules.size() != 1 || resolved.modules.front() != &model)) {
    fail_input({.where = place_of(entry),
                .wrong = "divides the whole model into stages, and is applied to a part of it",
                .advice = "set on = [\".\"]"});
  }
  return resolved;
}

void check_together(const std::vector<ResolvedEntry>& entries, const DeviceMesh& mesh) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (std::size_t j = i + 1; j < entries.size(); ++j) {
      check_pair(entries[i], entries[j], mesh);
      check_order(entries[i], entries[j]);
    }
  }
}

}  // namespace tessera::parallel
