module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.models;
import tessera.nn;
import tessera.hub;
import tessera.app.base;

namespace tessera::app {
namespace {

// Axes, by what their ranks have different parts of.
constexpr std::string_view replicate = "replicate";
constexpr std::string_view shard = "shard";
constexpr std::string_view tensor = "tensor";
constexpr std::string_view context = "context";
constexpr std::string_view expert = "expert";
constexpr std::string_view pipe = "pipe";

struct AxisKind {
  std::string_view name;
  std::string_view in_words;
  bool parts_parameters = false;
  bool parts_batch = false;
  bool within_machine = false;  // its collectives are waited for within each layer
};
constexpr AxisKind axis_kinds[] = {
    {.name = replicate, .in_words = "replicated", .parts_batch = true},
    {.name = shard, .in_words = "fully sharded", .parts_parameters = true, .parts_batch = true},
    {.name = tensor, .in_words = "tensor", .parts_parameters = true, .within_machine = true},
    {.name = context, .in_words = "context"},
    {.name = pipe, .in_words = "stages", .parts_parameters = true},
    {.name = expert, .in_words = "experts", .parts_parameters = true, .parts_batch = true},
};
const AxisKind& kind_of(std::string_view axis) {
  return *std::ranges::find(axis_kinds, axis, &AxisKind::name);
}

std::string style(std::string_view name, std::string_view axis, const std::vector<std::string>& on,
                  std::string_view options = "") {
  return fmt::format("{{style = \"{}\", axis = \"{}\", on = [\"{}\"]{}}}", name, axis,
                     fmt::join(on, "\", \""),
                     options.empty() ? "" : fmt::format(", options = {{ {} }}", options));
}

/// Layers that are split by columns and rows, with logits that stay split.
std::vector<std::string> split_layers(const ModulePatterns& model) {
  return {
      style("PrepareModuleInput", tensor, model.blocks),
      style("ColwiseParallel", tensor, model.columns), style("RowwiseParallel", tensor, model.rows),
      style("ColwiseParallel", tensor, {model.logits}), style("LossParallel", tensor, {"loss"})};
}

/// The same between parts of the sequence, on which norms work.
std::vector<std::string> split_by_sequence(const ModulePatterns& model) {
  return {style("SequenceParallel", tensor, model.norms),
          style("PrepareModuleInput", tensor, model.blocks,
                R"o(input = "Shard(1)", desired = "Replicate")o"),
          style("ColwiseParallel", tensor, model.columns),
          style("RowwiseParallel", tensor, model.rows, R"o(output = "Shard(1)")o"),
          style("ColwiseParallel", tensor, {model.logits},
                R"o(input = "Shard(1)", output = "Shard(-1)")o"),
          style("LossParallel", tensor, {"loss"})};
}

/// A row of the table: its axes, and which styles are on them.
struct LayoutKind {
  std::vector<std::string_view> axes = {};  // the outermost first
  bool by_sequence = false;                 // of tensor: norms and loss by parts of the sequence
  bool needs_long = false;                  // only where sequences are long
};
const std::vector<LayoutKind>& layout_kinds() {
  static const std::vector<LayoutKind> all = {
      {},
      {.axes = {shard}},
      {.axes = {replicate, shard}},
      {.axes = {replicate}},
      {.axes = {tensor}},
      {.axes = {tensor}, .by_sequence = true},
      {.axes = {shard, tensor}},
      {.axes = {shard, tensor}, .by_sequence = true},
      {.axes = {replicate, tensor}},
      {.axes = {replicate, tensor}, .by_sequence = true},
      {.axes = {replicate, shard, tensor}},
      {.axes = {replicate, shard, tensor}, .by_sequence = true},
      {.axes = {context}, .needs_long = true},
      {.axes = {shard, context}, .needs_long = true},
      {.axes = {shard, tensor, context}, .needs_long = true},
      {.axes = {pipe}},
      {.axes = {pipe, shard}},
      {.axes = {pipe, shard, tensor}},
      {.axes = {expert}},
      {.axes = {shard, expert}},
  };
  return all;
}

bool has(const std::vector<std::string_view>& axes, std::string_view axis) {
  return std::ranges::find(axes, axis) != axes.end();
}

/// The styles of a kind; none where the model has no modules for them.
std::vector<std::string> styles_of(const LayoutKind& kind, const ModulePatterns& model) {
  std::vector<std::string> all;
  if (has(kind.axes, tensor)) {
    if (model.columns.empty() || model.logits.empty() ||
        (kind.by_sequence && model.norms.empty())) {
      return {};
    }
    all = kind.by_sequence ? split_by_sequence(model) : split_layers(model);
  }
  if (has(kind.axes, pipe)) {
    all.insert(all.begin(), style("Pipeline", pipe, {"."}));
  }
  if (has(kind.axes, expert)) {
    if (model.experts.empty()) {
      return {};
    }
    all.push_back(style("ExpertParallel", expert, model.experts));
  }
  if (has(kind.axes, context)) {
    all.push_back(style("ContextParallel", context, {"**.inner_attention"}));
  }
  std::vector<std::string> whole = {"."};
  if (!model.layers.empty()) {
    whole.insert(whole.begin(), model.layers);
  }
  if (has(kind.axes, shard)) {
    all.push_back(has(kind.axes, replicate)
                      ? fmt::format("{{style = \"FSDP\", axis = [\"{}\", \"{}\"], on = "
                                    "[\"{}\"]}}",
                                    replicate, shard, fmt::join(whole, "\", \""))
                      : style("FSDP", shard, whole));
  } else if (has(kind.axes, replicate)) {
    all.push_back(style("Replicate", replicate, {"."}));
  }
  return all;
}

void add_once(std::vector<std::string>& all, std::string one) {
  if (std::ranges::find(all, one) == all.end()) {
    all.push_back(std::move(one));
  }
}

/// "model.layers.*.norm" of "model.layers.3.norm".
std::string in_all_layers(const std::string& name, const std::string& prefix) {
  if (prefix.empty() || !name.starts_with(prefix)) {
    return name;
  }
  const std::size_t end = name.find('.', prefix.size());
  return prefix + "*" + (end == std::string::npos ? "" : name.substr(end));
}

/// Every way in which `ranks` is a product of `count` factors that are at least 2.
void divide(std::int64_t ranks, std::size_t count, std::vector<std::int64_t>& chosen,
            std::vector<std::vector<std::int64_t>>& all) {
  if (count == 0) {
    if (ranks == 1) {
      all.push_back(chosen);
    }
    return;
  }
  for (std::int64_t factor = 2; factor <= ranks; ++factor) {
    if (ranks % factor == 0) {
      chosen.push_back(factor);
      divide(ranks / factor, count - 1, chosen, all);
      chosen.pop_back();
    }
  }
}

RunLayout layout_of(const LayoutKind& kind, const std::vector<std::int64_t>& shape,
                    const std::vector<std::string>& styles) {
  RunLayout layout;
  std::vector<std::string> axes;
  for (std::size_t k = 0; k < shape.size(); ++k) {
    const AxisKind& axis = kind_of(kind.axes[k]);
    layout.axes.push_back({std::string(axis.name), shape[k]});
    axes.push_back(fmt::format("\"{}\"", axis.name));
    layout.name +=
        fmt::format("{}{} {}", layout.name.empty() ? "" : " x ", axis.in_words, shape[k]);
  }
  layout.name += layout.name.empty() ? "one rank" : kind.by_sequence ? " (by sequence)" : "";
  layout.overrides = {fmt::format("mesh.axes=[{}]", fmt::join(axes, ", ")),
                      fmt::format("mesh.shape=[{}]", fmt::join(shape, ", ")),
                      fmt::format("parallel=[{}]", fmt::join(styles, ", "))};
  if (has(kind.axes, pipe)) {  // is not captured
    layout.overrides.insert(layout.overrides.end(), {"graph.capture=false", "graph.transforms=[]"});
  }
  return layout;
}

/// Bytes that arrive in a second at each of `members` ranks with `apart` ranks between two of them,
/// at the most.
double bandwidth_of(const Hardware& hardware, double members, double apart) {
  const double together = std::max(1.0, std::min(members, hardware.ranks / apart));
  const double machines = members / together;
  const double inside = hardware.inside.bandwidth;
  return machines <= 1
             ? inside
             : std::max(inside, hardware.between.bandwidth * (members - 1) / (machines - 1));
}

}  // namespace

ModulePatterns patterns_of(const hub::ModelShape& shape, nn::Module& model) {
  const models::ModelFamily& family = hub::family_of(shape);
  const models::TensorSplit split = family.tensor_split(hub::sizes_of(shape));
  ModulePatterns patterns{.columns = split.columns, .rows = split.rows, .logits = split.logits};
  const std::string prefix = family.layers(hub::sizes_of(shape)).prefix;
  patterns.layers = prefix.empty() ? "" : prefix + "*";
  for (const std::string& column : split.columns) {
    add_once(patterns.blocks, column.substr(0, column.rfind('.')));
  }
  for (const nn::Module* module : nn::all_modules(model)) {
    const std::string pattern = in_all_layers(module->name(), prefix);
    const std::string leaf = pattern.substr(pattern.rfind('.') + 1);
    const auto matches = [&](const std::string& other) {
      return matches_pattern(module->name(), other);
    };
    const auto is_inside = [&](const std::string& block) {
      return matches_pattern(module->name(), block + ".**");
    };
    if (leaf == "experts") {
      add_once(patterns.experts, pattern);
    } else if (!module->parameters().empty() && module->children().empty() &&
               pattern != split.logits && std::ranges::none_of(split.rows, matches) &&
               std::ranges::none_of(split.columns, matches) &&
               std::ranges::none_of(patterns.blocks, is_inside)) {
      add_once(patterns.norms, pattern);
    }
  }
  return patterns;
}

std::int64_t RunLayout::ranks(std::string_view axis) const {
  const auto found = std::ranges::find(axes, axis, &LayoutAxis::name);
  return found == axes.end() ? 1 : found->ranks;
}

std::int64_t RunLayout::parameter_parts() const {
  std::int64_t parts = 1;
  for (const LayoutAxis& axis : axes) {
    parts *= kind_of(axis.name).parts_parameters ? axis.ranks : 1;
  }
  return parts;
}

std::int64_t RunLayout::batch_parts() const {
  std::int64_t parts = 1;
  for (const LayoutAxis& axis : axes) {
    parts *= kind_of(axis.name).parts_batch ? axis.ranks : 1;
  }
  return parts;
}

std::vector<RunLayout> layouts_of(const LayoutQuestion& question) {
  std::vector<RunLayout> layouts;
  for (const LayoutKind& kind : layout_kinds()) {
    const std::vector<std::string> styles = styles_of(kind, question.modules);
    if ((kind.needs_long && !question.is_long) || (styles.empty() && !kind.axes.empty())) {
      continue;
    }
    std::vector<std::string> entries = question.kept;
    entries.insert(entries.end(), styles.begin(), styles.end());
    std::vector<std::int64_t> chosen;
    std::vector<std::vector<std::int64_t>> shapes;
    divide(question.ranks, kind.axes.size(), chosen, shapes);
    for (const std::vector<std::int64_t>& shape : shapes) {
      bool within = true;
      for (std::size_t k = 0; k < shape.size(); ++k) {
        within = within &&
                 (!kind_of(kind.axes[k]).within_machine || shape[k] <= question.ranks_of_machine);
      }
      if (within) {
        layouts.push_back(layout_of(kind, shape, entries));
      }
    }
  }
  return layouts;
}

double least_seconds(const RunLayout& layout, const StepDivision& division, const BoundSizes& sizes,
                     const Hardware& hardware) {
  const auto of = [&](std::string_view axis) { return static_cast<double>(layout.ranks(axis)); };
  double ranks = 1;
  for (const LayoutAxis& axis : layout.axes) {
    ranks *= static_cast<double>(axis.ranks);
  }
  const double parts = static_cast<double>(layout.batch_parts());
  const DeviceRates& rates = hardware.rates;
  const double rate = sizes.element > 2 ? rates.products_of_words
                                        : std::max(rates.products, rates.products_of_bytes);
  // The first micro-batch has to reach the last stage.
  const auto micro_batches = static_cast<double>(division.micro_batches);
  const double bubble = (micro_batches + of(pipe) - 1) / micro_batches;
  const double products = bubble * (division.recomputes ? 4.0 / 3 : 1) * sizes.flops_of_row *
                          parts * division.rows / ranks / rate;
  // Two sums of each layer's hidden states in forward, for which a rank waits; two in backward.
  const double t = of(tensor);
  const double hidden = division.rows * sizes.row_tokens / of(context) * sizes.dim * sizes.element;
  const double sums_of_layers =
      2 * sizes.layers / of(pipe) * hidden * (t - 1) / t / bandwidth_of(hardware, t, 1);
  // A gather and a sum of each parameter in each micro-batch; a sum of what replicas have.
  const double inner = t * of(context) * of(expert);
  const double s = of(shard);
  const double parts_of_model = t * of(expert) * of(pipe);
  const double sharded = micro_batches * (sizes.gathered + sizes.summed) / parts_of_model *
                         (s - 1) / s / bandwidth_of(hardware, s, inner);
  const double r = of(replicate);
  const double replicated =
      sizes.summed / parts_of_model / s * (r - 1) / r / bandwidth_of(hardware, r, inner * s);
  const double beside = sums_of_layers + sharded + replicated;
  return sums_of_layers + (hardware.overlaps ? std::max(products, beside) : products + beside);
}

}  // namespace tessera::app
