module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module tessera.parallel;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.nn;
import tessera.plugin;

namespace tessera::parallel {
namespace {

std::string place_of(const StyleEntry& entry) {
  return entry.where.empty() ? entry.style : entry.where + ": " + entry.style;
}

/// An error of a style or its options, with the entry's place in front unless it says it already.
[[noreturn]] void fail_at(const StyleEntry& entry, const Error& error) {
  const std::string text = error.what();
  fail_input(entry.where.empty() || text.starts_with(entry.where) ? text
                                                                  : entry.where + ": " + text);
}

std::string in_words(const nn::Module& module) {
  return module.name().empty() ? "the whole model" : fmt::format("module '{}'", module.name());
}

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
    fail_input(
        fmt::format("{}: 'on' names no module; write patterns over qualified names, or \".\" for "
                    "the whole model",
                    place_of(entry)));
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
        fail_input(fmt::format("{}: pattern '{}' matches no module of the model{}", place_of(entry),
                               alternative, did_you_mean(alternative, names)));
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

int axis_of(const DeviceMesh& mesh, const StyleEntry& entry) {
  const auto names = mesh.axis_names();
  const auto found = std::find(names.begin(), names.end(), entry.axis);
  if (found == names.end()) {
    const std::vector<std::string> known(names.begin(), names.end());
    fail_input(fmt::format("{}: the mesh has no axis '{}' (its axes: {}){}", place_of(entry),
                           entry.axis, join_words(known), did_you_mean(entry.axis, known)));
  }
  return static_cast<int>(found - names.begin());
}

/// Holds the entries' facts against each other.
void check_together(const std::vector<StyleEntry>& entries, const std::vector<StyleFacts>& facts) {
  for (std::size_t i = 0; i < entries.size(); ++i) {
    for (std::size_t j = 0; j < entries.size(); ++j) {
      const StyleEntry& a = entries[i];
      const StyleEntry& b = entries[j];
      const auto& after = facts[i].after;
      if (j > i && std::find(after.begin(), after.end(), b.style) != after.end()) {
        fail_input(fmt::format("{}: must come after {} ({}); swap the two entries", place_of(a),
                               b.style, b.where.empty() ? "a later entry" : b.where));
      }
      if (i == j || a.axis != b.axis) {
        continue;
      }
      const auto& excludes = facts[i].excludes;
      if (std::find(excludes.begin(), excludes.end(), b.style) != excludes.end()) {
        fail_input(fmt::format("{}: cannot share axis '{}' with {}; give one of them another axis",
                               place_of(a), a.axis, place_of(b)));
      }
      if (i < j && facts[i].splits_batch != facts[j].splits_batch) {
        fail_input(fmt::format(
            "{} and {} are both on axis '{}', but one splits the batch along it and the other does "
            "not; give one of them another axis",
            place_of(a), place_of(b), a.axis));
      }
    }
  }
}

/// Marks the model as planned and lets it keep what the plan's hooks refer to.
void take_model(nn::Module& model, const std::shared_ptr<const void>& styles) {
  model.set_names(model.name());  // patterns, groups and errors refer to names
  const std::vector<nn::Module*> modules = nn::all_modules(model);
  for (const nn::Module* module : modules) {
    if (module->is_planned()) {
      fail_input(fmt::format(
          "parallel plan: {} was given to a plan before, which may have failed; build a new model",
          in_words(*module)));
    }
  }
  for (nn::Module* module : modules) {
    module->set_planned();
    module->keep_alive(styles);
  }
}

}  // namespace

ParallelPlan::ParallelPlan(nn::Module& model, const DeviceMesh& mesh,
                           const std::vector<StyleEntry>& entries, plugin::Host& host)
    : model_(model), mesh_(mesh), styles_(std::make_shared<Styles>()) {
  std::vector<StyleFacts> facts;
  std::vector<int> axes;
  for (const StyleEntry& entry : entries) {
    axes.push_back(axis_of(mesh, entry));
    Options options(entry.options, place_of(entry));
    try {
      styles_->push_back(host.find<ParallelStyle>(entry.style)(options));
    } catch (const Error& error) {
      fail_at(entry, error);
    }
    options.finish();
    facts.push_back(styles_->back()->facts());
  }
  check_together(entries, facts);

  std::set<int> splitting;
  std::set<int> used;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    used.insert(axes[i]);
    if (facts[i].splits_batch) {
      splitting.insert(axes[i]);
    }
  }
  batch_axes_.assign(splitting.begin(), splitting.end());
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (!used.contains(axis) && mesh.axis_size(axis) > 1) {
      fail_input(fmt::format(
          "mesh: no style uses axis '{}', so its {} ranks would all do the same work; add a "
          "[[parallel]] entry for it (Replicate splits the batch) or remove the axis",
          mesh.axis_name(axis), mesh.axis_size(axis)));
    }
  }

  take_model(model, styles_);
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    const bool trained = parameter->value.requires_grad();
    const Spec* const spec =
        Spec::make(Layout::replicated(mesh), parameter->value.shape(), parameter->value.dtype());
    parameter->value = make_distributed(parameter->value, spec);
    parameter->value.set_requires_grad(trained);
    parameter->placed_by.assign(static_cast<std::size_t>(mesh.ndim()), {});
  }
  std::map<std::tuple<std::string, int, const nn::Module*>, const StyleEntry*> first;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    StyleSummary row{entries[i].style, entries[i].axis, 0, 0};
    std::set<const nn::Parameter*> covered;
    for (nn::Module* module : matched_modules(model, entries[i])) {
      const auto [before, fresh] =
          first.try_emplace({entries[i].style, axes[i], module}, &entries[i]);
      if (!fresh && !facts[i].repeatable) {
        fail_input(fmt::format(
            "{}: {} is applied to {} along axis '{}' already, by {}; remove one of the two "
            "entries, or give them different modules",
            place_of(entries[i]), entries[i].style, in_words(*module), entries[i].axis,
            before->second->where.empty() ? "an earlier entry" : before->second->where));
      }
      applied_.emplace_back(module->name(),
                            fmt::format("{} on '{}'", place_of(entries[i]), entries[i].axis));
      try {
        (*styles_)[i]->apply({*module, mesh, axes[i], entries[i].style, place_of(entries[i])});
      } catch (const Error& error) {
        fail_at(entries[i], error);
      }
      ++row.modules;
      for (const nn::ParameterPointer& parameter : nn::all_parameters(*module)) {
        if (covered.insert(parameter.get()).second) {
          row.parameters += parameter->value.numel();
        }
      }
    }
    summary_.push_back(std::move(row));
  }
  std::vector<int> compute_axes;
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (!splitting.contains(axis)) {
      compute_axes.push_back(axis);
    }
  }
  for (const nn::Module* module : nn::all_modules(model)) {
    module->check_placements(compute_axes);
  }
}

ParallelPlan::~ParallelPlan() = default;

Error ParallelPlan::explained(const Error& error) const {
  const auto* const raised = dynamic_cast<const ModuleError*>(&error);
  std::string scope = raised == nullptr ? "" : raised->module();
  std::vector<std::string> at_work;
  while (true) {
    for (const auto& [module, entry] : applied_) {
      const bool within = scope.empty() || module == scope || module.starts_with(scope + ".");
      if (within && std::find(at_work.begin(), at_work.end(), entry) == at_work.end()) {
        at_work.push_back(entry);
      }
    }
    if (!at_work.empty() || scope.empty()) {
      break;
    }
    const std::size_t dot = scope.rfind('.');
    scope.resize(dot == std::string::npos ? 0 : dot);
  }
  return Error(
      fmt::format("{}\n  styles applied {}: {}; change their modules, or their input and output "
                  "options, so that the layouts fit",
                  error.what(), scope.empty() ? "in the model" : fmt::format("in '{}'", scope),
                  at_work.empty() ? "none" : join_words(at_work)),
      ErrorKind::input);
}

int ParallelPlan::batch_parts() const {
  int parts = 1;
  for (const int axis : batch_axes_) {
    parts *= mesh_.axis_size(axis);
  }
  return parts;
}

int ParallelPlan::batch_part() const {
  int part = 0;
  for (const int axis : batch_axes_) {
    part = part * mesh_.axis_size(axis) + mesh_.coordinate_of(current_rank(), axis);
  }
  return part;
}

Layout ParallelPlan::batch_layout() const {
  Layout layout = Layout::replicated(mesh_);
  for (const int axis : batch_axes_) {
    layout = layout.with_placement(axis, Shard(0));
  }
  return layout;
}

void ParallelPlan::materialize(Device device) {
  if (materialized_) {
    fail("parallel plan: materialize() was called twice; the parameters have their memory already");
  }
  materialized_ = true;
  for (const auto& style : *styles_) {
    style->materialize();
  }
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model_)) {
    const Tensor& value = parameter->value;
    if (!value.is_meta() && !(value.device() == device)) {
      fail_input(
          fmt::format("parallel plan: a style keeps parameter '{}' in the memory of {} (expected "
                      "{}); use styles that leave the memory to the plan, or train on {}",
                      parameter->name, to_string(value.device()), to_string(device),
                      to_string(value.device())));
    }
  }
  nn::materialize(model_, device);
}

void ParallelPlan::before_optimizer() {
  for (const auto& style : *styles_) {
    style->before_optimizer();
  }
}

}  // namespace tessera::parallel
