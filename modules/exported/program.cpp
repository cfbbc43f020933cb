// Modules of a program, its division into calls of them, and its computation.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.autograd;
import tessera.checkpoint;
import tessera.dtensor;
import tessera.nn;
import tessera.ops;
import tessera.tensor;
import :aten;
import :graph;
import :program;

namespace tessera::exported {
namespace {

constexpr std::size_t never = ~std::size_t{0};

/// "model.layers", "0" of "model.layers.0".
std::pair<std::string, std::string> divided_name(const std::string& name) {
  const std::size_t dot = name.rfind('.');
  return dot == std::string::npos ? std::pair(std::string(), name)
                                  : std::pair(name.substr(0, dot), name.substr(dot + 1));
}

bool is_number(const std::string& name) {
  return !name.empty() &&
         std::ranges::all_of(name, [](unsigned char c) { return std::isdigit(c); });
}

bool is_tensor(const GraphValue& value) { return value.kind == ValueKind::tensor; }

}  // namespace

/// Divides nodes into segments, and gives their values slots.
class Divider {
 public:
  Divider(Program& program) : program_(program), graph_(program.graph_) {
    defined_.assign(graph_.values.size(), never);
    last_used_.assign(graph_.values.size(), never);
    for (std::size_t i = 0; i < graph_.nodes.size(); ++i) {
      for (const int result : graph_.nodes[i].results) {
        if (result >= 0) {
          defined_[static_cast<std::size_t>(result)] = i;
        }
      }
      for (const int used : used_by(i)) {
        last_used_[static_cast<std::size_t>(used)] = i;
      }
    }
    for (const int output : ends()) {
      last_used_[static_cast<std::size_t>(output)] = graph_.nodes.size();
    }
  }

  Segment root(nn::Module& module) { return divided(module, 0, graph_.nodes.size(), 0, true); }

 private:
  using Slots = std::map<int, int>;  // by value

  std::vector<int> ends() const {
    std::vector<int> all = graph_.outputs;
    for (const BufferUpdate& update : graph_.updates) {
      all.push_back(update.value);
    }
    return all;
  }

  std::vector<int> used_by(std::size_t node) const {
    std::vector<int> all;
    for (const Argument& argument : graph_.nodes[node].arguments) {
      for (const ArgumentItem& item : argument.items) {
        if (item.value >= 0) {
          all.push_back(item.value);
        }
      }
    }
    return all;
  }

  bool is_held(int value) const {
    return program_.parameters_.contains(value) || program_.buffers_.contains(value);
  }

  static int slot(Segment& segment, Slots& slots, int value) {
    const auto [found, is_new] = slots.emplace(value, segment.slots);
    segment.slots += is_new ? 1 : 0;
    return found->second;
  }

  /// The slot of a value that a segment holds itself.
  void hold(Segment& segment, Slots& slots, int value) {
    if (slots.contains(value) || !is_held(value)) {
      return;
    }
    const int at = slot(segment, slots, value);
    if (const auto found = program_.parameters_.find(value); found != program_.parameters_.end()) {
      segment.parameters.emplace_back(at, found->second);
    } else {
      segment.buffers.emplace_back(at, program_.buffers_.at(value));
    }
  }

  Segment divided(nn::Module& module, std::size_t begin, std::size_t end, std::size_t level,
                  bool is_root) {
    Segment segment{.module = &module};
    Slots slots;
    pass_in(segment, slots, begin, end, is_root);
    for (std::size_t i = begin; i < end;) {
      const std::size_t last = end_of_call(i, end, level);
      if (last == i) {
        add_node(segment, slots, i);
        ++i;
        continue;
      }
      const ModuleCall call = graph_.nodes[i].module[level];
      nn::Module& inner =
          *program_.parts_.at(graph_.modules[static_cast<std::size_t>(call.module)].name);
      ProgramStep step;
      step.call = std::make_unique<Segment>(divided(inner, i, last, level + 1, false));
      connect(*step.call, segment, slots);
      segment.steps.push_back(std::move(step));
      i = last;
    }
    pass_out(segment, slots, begin, end, is_root);
    drop_unused(segment, end, slots);
    return segment;
  }

  /// The end of the nodes from `begin` on that are in the same call of an inner module; `begin`
  /// where that node is in none.
  std::size_t end_of_call(std::size_t begin, std::size_t end, std::size_t level) const {
    std::size_t last = begin;
    while (last < end && graph_.nodes[last].module.size() > level &&
           graph_.nodes[last].module[level] == graph_.nodes[begin].module[level]) {
      ++last;
    }
    return last;
  }

  /// What the nodes use of others' results, in the order of their first uses. `outside` is the
  /// value, until connect().
  void pass_in(Segment& segment, Slots& slots, std::size_t begin, std::size_t end, bool is_root) {
    if (is_root) {
      for (const GraphInput& input : graph_.inputs) {
        if (input.role == InputRole::user) {
          segment.tensors_in.push_back({slot(segment, slots, input.value), input.value});
        }
      }
      return;
    }
    for (std::size_t i = begin; i < end; ++i) {
      for (const int used : used_by(i)) {
        const std::size_t from = defined_[static_cast<std::size_t>(used)];
        if ((from == never || from < begin) && !is_held(used) && !slots.contains(used)) {
          auto& passed = is_tensor(graph_.values[static_cast<std::size_t>(used)])
                             ? segment.tensors_in
                             : segment.numbers_in;
          passed.push_back({slot(segment, slots, used), used});
        }
      }
    }
  }

  void pass_out(Segment& segment, Slots& slots, std::size_t begin, std::size_t end, bool is_root) {
    if (is_root) {
      for (const int output : ends()) {
        hold(segment, slots, output);
        segment.tensors_out.push_back({slots.at(output), output});
      }
      return;
    }
    for (std::size_t i = begin; i < end; ++i) {
      for (const int result : graph_.nodes[i].results) {
        if (result < 0 || last_used_[static_cast<std::size_t>(result)] < end ||
            last_used_[static_cast<std::size_t>(result)] == never) {
          continue;
        }
        auto& passed = is_tensor(graph_.values[static_cast<std::size_t>(result)])
                           ? segment.tensors_out
                           : segment.numbers_out;
        passed.push_back({slots.at(result), result});
      }
    }
  }

  /// Values of an inner segment that are outside of it: slots of the outer one.
  static void connect(Segment& inner, Segment& outer, Slots& slots) {
    for (auto* passed :
         {&inner.tensors_in, &inner.numbers_in, &inner.tensors_out, &inner.numbers_out}) {
      for (PassedValue& one : *passed) {
        one.outside = slot(outer, slots, one.outside);
      }
    }
  }

  void add_node(Segment& segment, Slots& slots, std::size_t i) {
    for (const int used : used_by(i)) {
      hold(segment, slots, used);
    }
    segment.steps.push_back({.node = static_cast<int>(i)});
    for (const int result : graph_.nodes[i].results) {
      if (result >= 0) {
        slot(segment, slots, result);
      }
    }
    places_[i] = {};
    for (const int used : used_by(i)) {
      places_[i].push_back(slots.at(used));
    }
    for (const int result : graph_.nodes[i].results) {
      places_[i].push_back(result < 0 ? -1 : slots.at(result));
    }
  }

  /// After which step each slot is empty again.
  void drop_unused(Segment& segment, std::size_t end, const Slots& slots) {
    std::vector<std::size_t> last(static_cast<std::size_t>(segment.slots), never);
    for (std::size_t s = 0; s < segment.steps.size(); ++s) {
      const ProgramStep& step = segment.steps[s];
      if (step.call) {
        for (const auto* passed : {&step.call->tensors_in, &step.call->tensors_out}) {
          for (const PassedValue& one : *passed) {
            last[static_cast<std::size_t>(one.outside)] = s;
          }
        }
        continue;
      }
      for (const int at : places_.at(static_cast<std::size_t>(step.node))) {
        if (at >= 0) {
          last[static_cast<std::size_t>(at)] = s;
        }
      }
    }
    for (const PassedValue& one : segment.tensors_out) {
      last[static_cast<std::size_t>(one.inside)] = never;
    }
    for (const auto& [value, at] : slots) {
      const std::size_t s = last[static_cast<std::size_t>(at)];
      if (s != never && is_tensor(graph_.values[static_cast<std::size_t>(value)]) &&
          (last_used_[static_cast<std::size_t>(value)] < end ||
           last_used_[static_cast<std::size_t>(value)] == never)) {
        segment.steps[s].drop.push_back(at);
      }
    }
  }

 public:
  /// Nodes name values by slots from here on.
  void apply_slots() {
    for (const auto& [i, places] : places_) {
      GraphNode& node = program_.graph_.nodes[i];
      auto next = places.begin();
      for (Argument& argument : node.arguments) {
        for (ArgumentItem& item : argument.items) {
          if (item.value >= 0) {
            item.value = *next++;
          }
        }
      }
      for (int& result : node.results) {
        result = *next++;
      }
    }
  }

 private:
  Program& program_;
  const ExportedGraph& graph_;
  std::vector<std::size_t> defined_;    // by value: the node; never: an input
  std::vector<std::size_t> last_used_;  // by value: the node, or their number for outputs
  std::map<std::size_t, std::vector<int>> places_;  // by node: slots of arguments and results
};

Tensors ExportedPart::forward(const Tensors& /*inputs*/) {
  fail({.thing = kind_,
        .wrong = "a module of an exported program has no forward of its own",
        .advice = "call the whole model"});
}

std::vector<std::string> blocks_of(const ExportedGraph& graph) {
  std::map<std::string, std::string> kinds;
  std::map<std::string, std::vector<std::string>> lists;
  for (const ExportedModule& module : graph.modules) {
    kinds.emplace(module.name, module.kind);
    const auto [above, last] = divided_name(module.name);
    if (is_number(last)) {
      lists[above].push_back(module.name);
    }
  }
  std::vector<std::string> found;
  for (const auto& [above, all] : lists) {
    const bool inside = std::ranges::any_of(
        found, [&](const std::string& outer) { return all.front().starts_with(outer + "."); });
    const bool alike = std::ranges::all_of(
        all, [&](const std::string& name) { return kinds.at(name) == kinds.at(all.front()); });
    if (!inside && alike && all.size() > 1) {
      found.insert(found.end(), all.begin(), all.end());
    }
  }
  return found;
}

Program::Program(ExportedGraph graph) : graph_(std::move(graph)) {
  for (const ExportedModule& module : graph_.modules) {
    kinds_.emplace(module.name, module.kind);
  }
}

std::shared_ptr<ExportedPart> Program::part(const std::string& name) {
  if (const auto found = parts_.find(name); found != parts_.end()) {
    return found->second;
  }
  const auto [above, last] = divided_name(name);
  const auto kind = kinds_.find(name);
  auto made = std::make_shared<ExportedPart>(kind == kinds_.end() ? "ModuleList" : kind->second);
  part(above)->attach(last, made);
  parts_.emplace(name, made);
  return made;
}

void Program::build(nn::Module& root, const TensorSource& file) {
  const auto part = std::make_shared<ExportedPart>("ExportedModel");
  parts_.emplace("", part);
  build_parts(file);
  // What a part may do to itself is protected in other modules.
  constexpr auto add_parameter = &ExportedPart::add_parameter;
  constexpr auto add_buffer = &ExportedPart::add_buffer;
  constexpr nn::Child (nn::Module::*attach)(std::string, std::shared_ptr<nn::Module>) =
      &ExportedPart::attach;
  for (const auto& [name, parameter] : part->parameters()) {
    (root.*add_parameter)(name, parameter);
  }
  for (const auto& [name, buffer] : part->buffers()) {
    (root.*add_buffer)(name, buffer);
  }
  for (const auto& [name, child] : part->children()) {
    (root.*attach)(name, child);
  }
}

void Program::build_parts(const TensorSource& file) {
  std::set<std::string> names;
  for (const ExportedModule& module : graph_.modules) {
    names.insert(module.name);
  }
  for (const GraphInput& input : graph_.inputs) {
    std::string above = divided_name(input.target).first;
    for (; input.role != InputRole::user && !above.empty(); above = divided_name(above).first) {
      names.insert(above);
    }
  }
  for (const GraphInput& input : graph_.inputs) {
    if (input.role != InputRole::user && !names.insert(input.target).second) {
      fail_input({.thing = graph_.path,
                  .wrong = fmt::format("'{}' is the name of two things", shown(input.target, 80)),
                  .advice = "export the program again"});
    }
  }
  for (const GraphInput& input : graph_.inputs) {
    if (input.role != InputRole::user) {
      add_tensor(input, file);
    }
  }
  for (const ExportedModule& module : graph_.modules) {
    part(module.name);
  }
}

void Program::add_tensor(const GraphInput& input, const TensorSource& file) {
  const GraphValue& value = graph_.values[static_cast<std::size_t>(input.value)];
  const auto [above, last] = divided_name(input.target);
  const Dims shape(value.shape);
  if (input.role != InputRole::parameter) {
    const auto buffer = std::make_shared<nn::Buffer>(file.read(input.target), input.saved);
    part(above)->add_buffer(last, buffer);
    buffers_.emplace(input.value, buffer);
    buffers_by_name_.emplace(input.target, buffer);
    return;
  }
  nn::ParameterPointer& parameter = stored_[input.storage];
  if (!parameter || !(parameter->value.shape() == shape)) {
    using Form = nn::Initialization;
    const Form form = shape.size() > 1
                          ? Form{.kind = Form::Kind::normal, .standard_deviation = 0.02}
                      : last == "weight" ? Form{.kind = Form::Kind::ones}
                                         : Form{.kind = Form::Kind::zeros};
    parameter = std::make_shared<nn::Parameter>(shape, value.dtype, form);
    if (!value.requires_grad && is_floating(value.dtype)) {
      parameter->value.set_requires_grad(false);
    }
  }
  part(above)->add_parameter(last, parameter);
  parameters_.emplace(input.value, parameter);
}

void Program::divide(nn::Module& root) {
  Divider divider(*this);
  root_ = divider.root(root);
  divider.apply_slots();
}

std::vector<std::string> Program::input_names() const {
  std::vector<std::string> names;
  for (const GraphInput& input : graph_.inputs) {
    if (input.role == InputRole::user) {
      names.push_back(graph_.values[static_cast<std::size_t>(input.value)].name);
    }
  }
  return names;
}

void Program::set_recompute(bool enabled) {
  const std::vector<std::string> names = blocks_of(graph_);
  const std::set<std::string> all(names.begin(), names.end());
  const auto mark = [&](const auto& self, Segment& segment) -> void {
    for (ProgramStep& step : segment.steps) {
      if (step.call) {
        step.call->recompute = enabled && all.contains(step.call->module->name());
        self(self, *step.call);
      }
    }
  };
  mark(mark, root_);
}

void Program::check_inputs(const Tensors& inputs) const {
  std::map<std::string, std::int64_t> extents;  // by symbol: those of one symbol are equal
  std::size_t i = 0;
  for (const GraphInput& input : graph_.inputs) {
    if (input.role != InputRole::user) {
      continue;
    }
    const GraphValue& expected = graph_.values[static_cast<std::size_t>(input.value)];
    const Tensor x = i < inputs.size() ? inputs[i] : Tensor();
    ++i;
    bool fits = x && x.dtype() == expected.dtype &&
                static_cast<std::size_t>(x.dims()) == expected.shape.size();
    for (std::size_t d = 0; fits && d < expected.shape.size(); ++d) {
      const std::int64_t extent = x.shape()[static_cast<int>(d)];
      fits = expected.shape[d] < 0 || expected.shape[d] == extent;
      if (const std::string& symbol = expected.symbols[d]; fits && !symbol.empty()) {
        const DimRange range = range_of(graph_, symbol);
        fits = extent >= range.low && extent <= range.high &&
               extents.emplace(symbol, extent).first->second == extent;
      }
    }
    if (!fits) {
      fail_input({.thing = graph_.path,
                  .wrong = fmt::format("input '{}' is not one that the program was exported for",
                                       shown(expected.name, 80)),
                  .expected = type_text(graph_, expected),
                  .got = x ? fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape())) : "none",
                  .advice = "export it with these extents in dynamic_shapes"});
    }
  }
}

Tensors Program::run(const Tensors& inputs, bool training) {
  check_inputs(inputs);
  std::vector<RunValue> values(static_cast<std::size_t>(root_.slots));
  for (std::size_t i = 0; i < root_.tensors_in.size(); ++i) {
    values[static_cast<std::size_t>(root_.tensors_in[i].inside)].tensor = inputs[i];
  }
  const Device device = inputs.empty() ? cpu : inputs[0].device();
  values = compute(root_, std::move(values), device, training);
  Tensors outputs;
  for (std::size_t i = 0; i < graph_.outputs.size(); ++i) {
    outputs.push_back(values[static_cast<std::size_t>(root_.tensors_out[i].inside)].tensor);
  }
  if (training) {
    const NoGrad no_grad;
    for (std::size_t i = 0; i < graph_.updates.size(); ++i) {
      const PassedValue& from = root_.tensors_out[graph_.outputs.size() + i];
      const nn::BufferPointer& buffer = buffers_by_name_.at(graph_.updates[i].buffer);
      ops::copy_(buffer->value, values[static_cast<std::size_t>(from.inside)].tensor);
    }
  }
  return outputs;
}

std::vector<RunValue> Program::compute(const Segment& segment, std::vector<RunValue> values,
                                       Device device, bool training) const {
  const PlainIsReplicate constants;  // what the program makes is equal on all ranks
  const AllowRedistribution redistribution;
  for (const auto& [slot, parameter] : segment.parameters) {
    values[static_cast<std::size_t>(slot)].tensor = parameter->use();
  }
  for (const auto& [slot, buffer] : segment.buffers) {
    values[static_cast<std::size_t>(slot)].tensor = buffer->value;
  }
  for (const ProgramStep& step : segment.steps) {
    if (step.call) {
      call(*step.call, values, device, training);
    } else {
      const GraphNode& node = graph_.nodes[static_cast<std::size_t>(step.node)];
      const AtenOperator& row = aten_operator(node.operator_index);
      const Arguments arguments(node, values, device, training);
      if (row.compute_number != nullptr) {
        if (node.results.size() == 1 && node.results[0] >= 0) {
          values[static_cast<std::size_t>(node.results[0])] = row.compute_number(arguments);
        }
      } else {
        const Tensors results = row.compute(arguments);
        for (std::size_t i = 0; i < node.results.size() && i < results.size(); ++i) {
          if (node.results[i] >= 0) {
            values[static_cast<std::size_t>(node.results[i])] = {.tensor = results[i]};
          }
        }
      }
    }
    for (const int slot : step.drop) {
      values[static_cast<std::size_t>(slot)].tensor = {};
    }
  }
  return values;
}

void Program::call(const Segment& segment, std::vector<RunValue>& values, Device device,
                   bool training) const {
  const auto at = [&values](int slot) -> RunValue& {
    return values[static_cast<std::size_t>(slot)];
  };
  Tensors inputs;
  for (const PassedValue& passed : segment.tensors_in) {
    inputs.push_back(at(passed.outside).tensor);
  }
  std::vector<RunValue> numbers;
  for (const PassedValue& passed : segment.numbers_in) {
    numbers.push_back(at(passed.outside));
  }
  // A block that is computed again in backward outlives this call.
  const auto made = std::make_shared<std::vector<RunValue>>();
  const auto body = [this, &segment, numbers, made, device, training](const Tensors& in) {
    std::vector<RunValue> inner(static_cast<std::size_t>(segment.slots));
    for (std::size_t i = 0; i < segment.tensors_in.size(); ++i) {
      inner[static_cast<std::size_t>(segment.tensors_in[i].inside)].tensor = in[i];
    }
    for (std::size_t i = 0; i < segment.numbers_in.size(); ++i) {
      inner[static_cast<std::size_t>(segment.numbers_in[i].inside)] = numbers[i];
    }
    inner = compute(segment, std::move(inner), device, training);
    Tensors outputs;
    for (const PassedValue& passed : segment.tensors_out) {
      outputs.push_back(inner[static_cast<std::size_t>(passed.inside)].tensor);
    }
    made->clear();
    for (const PassedValue& passed : segment.numbers_out) {
      made->push_back(inner[static_cast<std::size_t>(passed.inside)]);
    }
    return outputs;
  };
  Tensors outputs;
  if (segment.recompute && grad_enabled()) {
    outputs = checkpoint(
        [module = segment.module, body](std::span<const Tensor> again) {
          Tensors in;
          for (const Tensor& x : again) {
            in.push_back(x);
          }
          return module->call(in, body);
        },
        inputs);
  } else {
    outputs = segment.module->call(inputs, body);
  }
  for (std::size_t i = 0; i < segment.tensors_out.size(); ++i) {
    at(segment.tensors_out[i].outside).tensor = outputs[i];
  }
  for (std::size_t i = 0; i < segment.numbers_out.size(); ++i) {
    at(segment.numbers_out[i].outside) = (*made)[i];
  }
}

}  // namespace tessera::exported
