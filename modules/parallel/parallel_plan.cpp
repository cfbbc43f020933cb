module;
#include <fmt/format.h>
#include <fmt/ranges.h>

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
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.plugin;
import :entries;

namespace tessera::parallel {

/// Attached to each module of a model that has a plan.
struct AppliedPlan {
  std::shared_ptr<ParallelPlan*> plan = nullptr;
  std::shared_ptr<const void> styles = nullptr;  // the module's hooks refer to them
};

namespace {

/// Marks the model as planned and lets it keep what the plan's hooks refer to.
void take_model(nn::Module& model, const std::shared_ptr<const void>& styles,
                const std::shared_ptr<ParallelPlan*>& plan) {
  const std::vector<nn::Module*> modules = nn::all_modules(model);
  for (const nn::Module* module : modules) {
    if (module->attached<nn::PlanState>().applied) {
      fail_input({.thing = "parallel plan",
                  .wrong = fmt::format("{} was given to a plan before, which may have failed",
                                       in_words(*module)),
                  .advice = "build a new model"});
    }
  }
  for (nn::Module* module : modules) {
    module->attach<nn::PlanState>().applied = true;
    module->attach<AppliedPlan>() = {.plan = plan, .styles = styles};
  }
}

/// Every parameter and buffer becomes Replicate over the whole mesh, without memory.
void distribute_model(nn::Module& model, const DeviceMesh& mesh) {
  const auto replicated = [&](const Tensor& value) {
    return make_distributed(value,
                            Spec::make(Layout::replicated(mesh), value.shape(), value.dtype()));
  };
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    const bool trained = parameter->value.requires_grad();
    parameter->value = replicated(parameter->value);
    parameter->value.set_requires_grad(trained);
    parameter->attach<Placers>() = {};
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    buffer->value = replicated(empty(buffer->initial.shape(), buffer->initial.dtype(), meta));
    buffer->attach<Placers>() = {};
  }
}

std::unique_ptr<ParallelStyle> make_style(const StyleEntry& entry, plugin::Host& host) {
  Options options(entry.options, place_of(entry));
  std::unique_ptr<ParallelStyle> style;
  try {
    style = entry.make ? entry.make(options) : host.find<ParallelStyle>(entry.style)(options);
    options.finish();
  } catch (const Error& error) {
    fail_at(entry.where, error);
  }
  if (!style) {
    fail_input(
        {.where = place_of(entry), .wrong = "its factory made no style", .advice = "return one"});
  }
  return style;
}

/// Lets a style put modules of its own in the places of those that the entry matches.
void replace_modules(nn::Module& model, const StyleEntry& entry, ParallelStyle& style) {
  if (!style.facts().replaces_modules) {
    return;
  }
  std::vector<std::pair<nn::Module*, std::string>> places;  // the parent, the child's name there
  for (nn::Module* const parent : nn::all_modules(model)) {
    for (const auto& [child, module] : parent->children()) {
      const bool matches = std::ranges::any_of(entry.on, [&](const std::string& pattern) {
        return matches_pattern(module->name(), pattern);
      });
      if (matches) {
        places.emplace_back(parent, child);
      }
    }
  }
  try {
    for (const auto& [parent, child] : places) {
      parent->replace_child(child, [&](const std::shared_ptr<nn::Module>& before) {
        const std::shared_ptr<nn::Module> after = style.replace(before);
        return after ? after : before;
      });
    }
  } catch (const Error& error) {
    fail_at(entry.where, error);
  }
}

/// Freezes what a style that says so does not train.
void freeze_model(nn::Module& model, const std::vector<std::unique_ptr<ParallelStyle>>& styles) {
  if (std::ranges::none_of(styles,
                           [](const auto& style) { return style->facts().freezes_model; })) {
    return;
  }
  nn::freeze_all_but_updates(model);
}

/// Errors (input): a parameter that would be gathered in another form is not gathered; no style
/// keeps one in the place that it was given.
void check_extensions(nn::Module& model) {
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    if (!parameter->attached<ComputedForm>().style.empty()) {
      continue;  // it keeps and gathers the parameter as it was told
    }
    const auto& places = parameter->attached<nn::MemoryPlaces>();
    if (places.value || places.gradient) {
      fail_input({.where = places.set_by,
                  .wrong = fmt::format("no style keeps parameter '{}' in memory of its own, which "
                                       "could be elsewhere",
                                       parameter->name),
                  .advice = "let an entry of FSDP after it shard the parameter, or let this one "
                            "match fewer modules"});
    }
    if (const auto& form = parameter->attached<ShardForm>(); form.extension) {
      fail_input(
          {.where = form.entry,
           .wrong = fmt::format("no style gathers parameter '{}', so there is nothing to "
                                "extend",
                                parameter->name),
           .advice = "let an entry of FSDP after it shard the parameter, or remove this one"});
    }
  }
}

/// How many ranks there are along these axes.
int ranks_along(const DeviceMesh& mesh, const std::vector<int>& axes) {
  int ranks = 1;
  for (const int axis : axes) {
    ranks *= mesh.axis_size(axis);
  }
  return ranks;
}

}  // namespace

ParallelPlan::ParallelPlan(nn::Module& model, const DeviceMesh& mesh,
                           const std::vector<StyleEntry>& entries, plugin::Host& host)
    : self_(std::make_shared<ParallelPlan*>(this)),
      model_(model),
      mesh_(mesh),
      styles_(std::make_shared<Styles>()) {
  model.set_names(model.name());  // patterns, groups and errors refer to names
  for (const StyleEntry& entry : entries) {
    styles_->push_back(make_style(entry, host));
    replace_modules(model, entry, *styles_->back());
  }
  freeze_model(model, *styles_);
  std::vector<ResolvedEntry> resolved;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    resolved.push_back(resolve(entries[i], (*styles_)[i]->facts(), model, mesh));
  }
  check_together(resolved, mesh);

  std::set<int> used;
  for (const ResolvedEntry& entry : resolved) {
    used.insert(entry.axes.begin(), entry.axes.end());
  }
  for (int axis = 0; axis < mesh.ndim(); ++axis) {
    if (!used.contains(axis) && mesh.axis_size(axis) > 1) {
      fail_input(
          {.thing = "mesh",
           .wrong =
               fmt::format("no style uses axis '{}', so its {} ranks would all do the same work",
                           mesh.axis_name(axis), mesh.axis_size(axis)),
           .advice =
               "add a [[parallel]] entry for it (Replicate splits the batch) or remove the axis"});
    }
  }

  divide(resolved);
  std::set<int> splitting;
  std::set<int> in_sequence;
  for (const ResolvedEntry& entry : resolved) {
    if (entry.facts.splits_batch) {
      splitting.insert(entry.axes.begin(), entry.axes.end());
    }
    if (entry.facts.splits_sequence) {
      in_sequence.insert(entry.axes.begin(), entry.axes.end());
    }
  }
  batch_axes_.assign(splitting.begin(), splitting.end());
  sequence_axes_.assign(in_sequence.begin(), in_sequence.end());
  take_model(model, styles_, self_);
  distribute_model(model, mesh_);
  apply(resolved);
  check_extensions(model);
  std::vector<int> compute_axes;
  for (int axis = 0; axis < mesh_.ndim(); ++axis) {
    if (!splitting.contains(axis)) {
      compute_axes.push_back(axis);
    }
  }
  for (const nn::Module* module : nn::all_modules(model)) {
    nn::check_placements(*module, compute_axes);
  }
}

void ParallelPlan::divide(std::vector<ResolvedEntry>& entries) {
  const DeviceMesh whole = mesh_;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const ResolvedEntry& entry = entries[i];
    if (!entry.facts.divides_model) {
      continue;
    }
    nn::LanguageModel* const model = nn::as_language_model(model_);
    if (model == nullptr || model->pieces().empty()) {
      fail_input({.where = place_of(entry.entry),
                  .wrong = fmt::format("a model of the kind {} cannot be divided into stages, as "
                                       "its family does not say how it is a chain of pieces",
                                       model_.kind()),
                  .advice = "remove the entry, or let the family override "
                            "nn::LanguageModel::pieces"});
    }
    const int axis = entry.axes.front();
    try {
      stages_ = std::make_unique<const Stages>(model_, whole, axis,
                                               (*styles_)[i]->divide(*model, whole.axis_size(axis)),
                                               place_of(entry.entry));
    } catch (const Error& error) {
      fail_at(entry.entry.where, error);
    }
  }
  if (!stages_) {
    return;
  }
  mesh_ = stages_->stage_mesh();
  for (int axis = 0; axis < whole.ndim(); ++axis) {
    if (axis != stages_->axis()) {
      const int own = mesh_.axis_index(whole.axis_name(axis));
      if (const Link link = link_of(whole, axis); link_of(mesh_, own) != link) {
        set_link(mesh_, own, link);
      }
    }
  }
  const std::set<const nn::Module*> gone = stages_->cut(model_);
  for (ResolvedEntry& entry : entries) {
    std::erase_if(entry.modules, [&](const nn::Module* module) { return gone.contains(module); });
    std::vector<int> axes;
    for (const int axis : entry.axes) {
      if (axis != stages_->axis()) {
        axes.push_back(mesh_.axis_index(whole.axis_name(axis)));
      }
    }
    entry.axes = std::move(axes);
  }
}

void ParallelPlan::apply(const std::vector<ResolvedEntry>& entries) {
  std::map<std::tuple<std::string, int, const nn::Module*>, const StyleEntry*> first;
  for (std::size_t i = 0; i < entries.size(); ++i) {
    const StyleEntry& entry = entries[i].entry;
    StyleSummary row{entry.style, fmt::format("{}", fmt::join(entry.axis.names(), ", "))};
    if (entries[i].facts.divides_model) {
      row.modules = 1;
      row.divides_model = true;
      for (const nn::ParameterPointer& parameter : nn::whole_parameters(model_)) {
        row.parameters += parameter->value.numel();
      }
      summary_.push_back(std::move(row));
      continue;
    }
    std::set<const nn::Parameter*> covered;
    for (nn::Module* module : entries[i].modules) {
      std::vector<int> axes = entries[i].axes;
      if (axes.empty()) {
        axes.push_back(-1);
      }
      for (const int axis : axes) {
        const auto [before, fresh] = first.try_emplace({entry.style, axis, module}, &entry);
        if (!fresh && !entries[i].facts.repeatable) {
          fail_input(
              {.where = place_of(entry),
               .wrong = fmt::format(
                   "{} is applied to {}{} already, by {}", entry.style, in_words(*module),
                   axis < 0 ? "" : fmt::format(" along axis '{}'", mesh_.axis_name(axis)),
                   before->second->where.empty() ? "an earlier entry" : before->second->where),
               .advice = "remove one of the two entries, or give them different modules"});
        }
      }
      applied_.emplace_back(module->name(), fmt::format("{}{}{}", place_of(entry),
                                                        entry.axis.names().empty() ? "" : " on ",
                                                        axes_in_words(entry)));
      try {
        (*styles_)[i]->apply({.module = *module,
                              .model = model_,
                              .mesh = mesh_,
                              .axis = entries[i].axes.empty() ? -1 : entries[i].axes.back(),
                              .axes = entries[i].axes,
                              .style = entry.style,
                              .entry = place_of(entry)});
      } catch (const Error& error) {
        fail_at(entry.where, error);
      }
      ++row.modules;
      for (const nn::ParameterPointer& parameter : nn::all_parameters(*module)) {
        if (covered.insert(parameter.get()).second) {
          row.parameters += parameter->value.numel();
        }
      }
    }
    try {
      (*styles_)[i]->applied();
    } catch (const Error& error) {
      fail_at(entry.where, error);
    }
    row.place = place_of(entry);
    row.unused = (*styles_)[i]->unused();
    if (!stages_) {
      refuse_unused(row);  // else they may fit modules of another stage
    }
    summary_.push_back(std::move(row));
  }
}

void refuse_unused(const StyleSummary& applied) {
  if (!applied.unused.empty()) {
    fail_input({.where = applied.place, .wrong = applied.unused.front()});
  }
}

ParallelPlan::~ParallelPlan() { *self_ = nullptr; }

ParallelPlan* plan_of(const nn::Module& module) {
  const std::shared_ptr<ParallelPlan*>& plan = module.attached<AppliedPlan>().plan;
  return plan == nullptr ? nullptr : *plan;
}

Error ParallelPlan::explained(const Error& error) const {
  if (!error.fields().where.empty()) {  // it names what asks for it
    return Error(error.fields(), ErrorKind::input);
  }
  std::string scope = error.fields().module.value_or("");
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
  ErrorFields fields = error.fields();
  fields.details += fmt::format(
      "{}  styles applied {}: {}; change their modules, or their input and output options, so that "
      "the layouts fit",
      fields.details.empty() ? "" : "\n",
      scope.empty() ? "in the model" : fmt::format("in '{}'", scope),
      at_work.empty() ? "none" : join_words(at_work));
  return Error(std::move(fields), ErrorKind::input);
}

int ParallelPlan::batch_parts() const { return ranks_along(mesh_, batch_axes_); }

int ParallelPlan::batch_part() const {
  int part = 0;
  for (const int axis : batch_axes_) {
    part = part * mesh_.axis_size(axis) + mesh_.coordinate_of(current_rank(), axis);
  }
  return part;
}

std::vector<StyleSummary> ParallelPlan::summary() const {
  std::vector<StyleSummary> all = summary_;
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i].decided = (*styles_)[i]->decided();
  }
  return all;
}

int ParallelPlan::sequence_parts() const { return ranks_along(mesh_, sequence_axes_); }

Layout ParallelPlan::row_layout() const {
  Layout layout = Layout::replicated(mesh_);
  for (const int axis : batch_axes_) {
    layout = layout.with_placement(axis, Shard(0));
  }
  return layout;
}

Layout ParallelPlan::batch_layout() const {
  Layout layout = row_layout();
  for (const int axis : sequence_axes_) {
    layout = layout.with_placement(axis, Shard(1));
  }
  return layout;
}

Tensor ParallelPlan::sequence_part(const Tensor& rows) const {
  const std::int64_t parts = sequence_parts();
  if (parts == 1) {
    return rows;
  }
  const std::int64_t length = rows.size(1);
  if (length % parts != 0) {
    std::vector<std::string> names;
    for (const int axis : sequence_axes_) {
      names.push_back(fmt::format("'{}'", mesh_.axis_name(axis)));
    }
    fail_input({.thing = "sequence",
                .wrong = fmt::format("its {} tokens cannot be split equally over the {} ranks of "
                                     "axis {}",
                                     length, parts, join_words(names)),
                .advice = fmt::format("set data.seq_len to a multiple of {}, such as {}, or choose "
                                      "another size of the axis",
                                      parts, (length + parts - 1) / parts * parts)});
  }
  std::int64_t part = 0;
  for (const int axis : sequence_axes_) {
    part = part * mesh_.axis_size(axis) + mesh_.coordinate_of(current_rank(), axis);
  }
  Dims shape = rows.shape();
  shape[1] = length / parts;
  if (rows.is_meta()) {
    return empty(shape, rows.dtype(), meta);
  }
  const std::int64_t first = rows.offset() + length / parts * part * rows.strides()[1];
  return ops::contiguous(alias(rows, shape, rows.strides(), first));
}

Tensor ParallelPlan::batch_of(const Tensor& rows) const {
  Dims shape = rows.shape();
  shape[0] *= batch_parts();
  if (const int parts = sequence_parts(); parts > 1) {
    shape[1] *= parts;
  }
  return from_local(rows, batch_layout(), shape);
}

void ParallelPlan::materialize(Device device) {
  if (materialized_) {
    fail({.thing = "parallel plan",
          .wrong = "materialize() was called twice",
          .advice = "the parameters have their memory already"});
  }
  materialized_ = true;
  for (const auto& style : *styles_) {
    style->materialize(device);
  }
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model_)) {
    const Tensor& value = parameter->value;
    const bool elsewhere = parameter->attached<nn::MemoryPlaces>().value && value.device() == cpu;
    if (!value.is_meta() && !elsewhere && !(value.device() == device)) {
      fail_input(
          {.thing = "parallel plan",
           .wrong = fmt::format("a style keeps parameter '{}' in the memory of {}", parameter->name,
                                to_string(value.device())),
           .expected = to_string(device),
           .advice = fmt::format("use styles that leave the memory to the plan, or train on {}",
                                 to_string(value.device()))});
    }
  }
  for (const nn::BufferPointer& buffer : nn::all_buffers(model_)) {
    const Tensor part = distribute(buffer->initial, buffer->value.layout()).local();
    buffer->value =
        make_distributed(ops::clone(ops::to_device(part, device)), buffer->value.spec());
  }
  nn::materialize(model_, device);
}

void ParallelPlan::initialized() {
  const NoGrad no_grad;
  for (const auto& style : *styles_) {
    style->initialized();
  }
}

void ParallelPlan::before_optimizer() {
  for (const auto& style : *styles_) {
    style->before_optimizer();
  }
}

void ParallelPlan::after_optimizer() {
  for (const auto& style : *styles_) {
    style->after_optimizer();
  }
}

ParallelPlan apply(nn::Module& model, const DeviceMesh& mesh,
                   const std::vector<StyleEntry>& entries) {
  return {model, mesh, entries, plugin::host()};
}

}  // namespace tessera::parallel
