// A step of plain tensors as a step of distributed ones: its instructions run on the meta device
// while a recorder above distribution listens.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.execute;
import tessera.capture;
import :data_parallel;
import :gradient_sums;
import :parameter_gathers;
import :uses;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;

/// Layout of a parameter that is sharded.
Layout sharded_layout(const DeviceMesh& mesh) {
  return Layout::replicated(mesh).with_placement(mesh.ndim() - 1, Shard(0));
}

class DataParallelPlacer {
 public:
  DataParallelPlacer(const Program& from, const DataParallelOptions& options)
      : from_(from),
        options_(options),
        uses_(parameter_uses_of(from)),
        sharded_(sharded_by(options, sharded_parameters(from, uses_, options))),
        whole_(Layout::replicated(options.mesh)),
        batch_(batch_layout(options.mesh)),
        recorder_(ModeLevel::above_distribution),
        tensors_(from.tensors.size()),
        gathers_(from, uses_, sharded_, tensors_, options),
        sums_(options.mesh, tensors_, group_bytes(from, uses_, options)) {}

  Program place() {
    make_inputs();
    PlaceIndex place(0);
    for (const Section& section : from_.sections) {
      recorder_.section(section.kind, [&] {
        const NoGrad no_grad;
        for (const Instruction& i : section.instructions) {
          run(i, place);
          ++place;
        }
        sums_.complete_all();
        make_outputs(section, &section == &from_.sections.back());
      });
    }
    return recorder_.finish_following(from_);
  }

 private:
  /// Layouts that are given decide, whatever the mode would.
  ByTensor<bool> sharded_by(const DataParallelOptions& options, ByTensor<bool> mode) const {
    for (const auto& [name, layout] : options.layouts) {
      const auto input = from_.inputs.find(name);
      if (input != from_.inputs.end() && input->second.role == Role::parameter) {
        mode[input->second.tensor] = !layout.is_replicated();
      }
    }
    return mode;
  }

  static Layout batch_layout(const DeviceMesh& mesh) {
    Layout layout = Layout::replicated(mesh);
    for (int axis = 0; axis < mesh.ndim(); ++axis) {
      layout = layout.with_placement(axis, Shard(0));
    }
    return layout;
  }

  Layout layout_of_input(const std::string& name, const ProgramInput& input) const {
    const ProgramTensor& x = from_.tensors[input.tensor];
    if (const auto given = options_.layouts.find(name); given != options_.layouts.end()) {
      return given->second;
    }
    if (const TensorIndex parameter = uses_.parameter_of[input.tensor]; parameter.exists()) {
      return sharded_[parameter] ? sharded_layout(options_.mesh) : whole_;
    }
    if (input.role != Role::rows) {
      return whole_;
    }
    if (x.shape.size() == 0 || x.shape[0] % options_.mesh.size() != 0) {
      fail_input({.thing = "data_parallel",
                  .wrong = fmt::format("input '{}' cannot be split into {} equal parts", name,
                                       options_.mesh.size()),
                  .expected = fmt::format("a multiple of {} rows", options_.mesh.size()),
                  .got = to_string(x.shape)});
    }
    return batch_;
  }

  void make_inputs() {
    for (const auto& [number, name] : from_.inputs_in_order()) {
      const ProgramTensor& x = from_.tensors[number];
      const ProgramInput& input = from_.inputs.at(name);
      const SpecHandle spec = Spec::make(layout_of_input(name, input), x.shape, x.dtype);
      tensors_[number] = make_distributed(empty(local_shape(*spec), x.dtype, meta), spec);
      recorder_.input(name, tensors_[number], input.role, x.category, input.micro_batch);
    }
  }

  /// Makes the outputs that the host or a later section reads: whole, or as the parameter whose
  /// gradient it is.
  void make_outputs(const Section& section, bool last) {
    for (const auto& [name, number] : from_.outputs) {
      const bool made_here = std::ranges::any_of(section.instructions, [&](const Instruction& i) {
        return std::ranges::find(i.out, number) != i.out.end();
      });
      if (!made_here && !(last && !outputs_.contains(name))) {
        continue;
      }
      Tensor& x = tensors_[number];
      if (x.layout().has_partial() && options_.reduces_outputs) {
        const MemoryScope booked(from_.tensors[number].category);
        x = redistribute(x, whole_);
      }
      recorder_.output(name, x);
      outputs_[name] = number;
    }
  }

  void run(const Instruction& i, PlaceIndex place) {
    try {
      run_in_scope(from_, i, [&] {
        gathers_.enter(i, place);
        std::ranges::for_each(i.in, [&](TensorIndex number) { sums_.complete(number); });
        recorder_.follow(&i);
        execute(i, place);
        recorder_.follow(nullptr);
        complete_gradients(i, place);
      });
    } catch (const Error& error) {
      throw Error(fmt::format("data_parallel: {}: {}", place_in_words(from_, place), error.what()),
                  error.kind());
    }
  }

  void execute(const Instruction& i, PlaceIndex place) {
    switch (i.kind) {
      case Kind::call:
        call_operator(i, place);
        return;
      case Kind::empty:
      case Kind::full:
      case Kind::values: {
        const ProgramTensor& x = from_.tensors[i.out[0]];
        const MemoryScope booked(x.category);
        tensors_[i.out[0]] =
            make_distributed(filled(i, x, meta), Spec::make(whole_, x.shape, x.dtype));
        return;
      }
      case Kind::alias:
        make_alias(i);
        return;
      case Kind::release:
      case Kind::restore:
        fail("memory is released in it, which a style does; record the step without styles");
      case Kind::check:
        fail("the host has read a value, which has no place in a program of other ranks");
    }
  }

  void make_alias(const Instruction& i) {
    const Tensor& base = tensors_[i.in[0]];
    const ProgramTensor& x = from_.tensors[i.out[0]];
    if (!base.layout().is_replicated()) {
      fail(fmt::format("its memory is addressed without an operator, and is {}",
                       to_string(base.layout())));
    }
    tensors_[i.out[0]] =
        make_distributed(aliased(i, x, base.local()), Spec::make(whole_, x.shape, x.dtype));
  }

  void call_operator(const Instruction& i, PlaceIndex place) {
    const TensorIndex first = i.out.empty() || !i.out[0].exists() ? i.in[0] : i.out[0];
    check_random_numbers(i, from_.tensors[first].shape.product(), options_.mesh.size());
    if (i.op->communicates != Communicates::none || i.op->distributed != nullptr) {
      fail("it communicates; record the step on a mesh of one rank");
    }
    const bool is_view = i.out.size() == 1 && i.out[0].exists() && uses_.view[i.out[0]] == &i;
    if (is_view && uses_.computes[place] && sharded_[uses_.root[i.out[0]]]) {
      return;  // made anew where it is used, so that nothing keeps what was gathered
    }
    std::vector<Tensor> in;
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      in.push_back(i.in[k].exists() ? operand(i, k, place) : Tensor());
    }
    make_results(i, in);
    for (std::size_t k = 0; k < i.in.size(); ++k) {
      if (i.in[k].exists() && i.writes(k)) {
        std::erase_if(converted_, [&](const auto& one) { return one.first.first == i.in[k]; });
      }
    }
  }

  void make_results(const Instruction& i, std::vector<Tensor>& in) {
    const Propagation p = propagate(*i.op, in, i.attributes, true);
    for (std::size_t k = 0; k < in.size(); ++k) {
      if (p.wanted[k] != p.in[k] && !in[k].layout().is_replicated()) {
        in[k] = converted(i.in[k], in[k], p.wanted[k]);
      }
    }
    std::optional<MemoryScope> booked;
    if (!i.out.empty() && i.out[0].exists()) {
      booked.emplace(from_.tensors[i.out[0]].category);
    }
    Tensors out = call(*i.op, in, i.attributes);
    for (std::size_t k = 0; k < i.out.size(); ++k) {
      if (i.out[k].exists()) {
        tensors_[i.out[k]] = std::move(out[k]);
      }
    }
  }

  /// Another layout, which takes communication. Terms are reduced once for all that follows.
  Tensor converted(TensorIndex number, const Tensor& x, const SpecHandle& to) {
    Tensor& kept = converted_[{number, to.get()}];
    if (!kept) {
      kept = redistribute(x, to->layout);
    }
    if (x.layout().has_partial() && !uses_.root[number].exists()) {
      tensors_[number] = kept;
    }
    return kept;
  }

  Tensor operand(const Instruction& i, std::size_t k, PlaceIndex place) {
    const TensorIndex number = i.in[k];
    const TensorIndex root = uses_.root[number];
    if (!root.exists() || !sharded_[root] || !uses_.computes[place] || i.writes(k)) {
      return tensors_[number];
    }
    return gathers_.whole(number);
  }

  void complete_gradients(const Instruction& i, PlaceIndex place) {
    if (options_.mode == DataParallelMode::expand) {
      return;
    }
    const auto complete = [&](TensorIndex number) {
      if (number.exists() && uses_.complete_at[number] == place &&
          tensors_[number].layout().has_partial()) {
        const MemoryScope booked(MemoryCategory::gradient);
        const TensorIndex parameter = uses_.parameter_of[number];
        sums_.add(number, tensors_[parameter].layout(),
                  hash_of_name(name_of_input(from_, parameter)), uses_.alone[number]);
      }
    };
    std::ranges::for_each(i.in, complete);
    std::ranges::for_each(i.out, complete);
    if (std::ranges::find(uses_.all_complete_at, place) != uses_.all_complete_at.end()) {
      sums_.issue();
    }
  }

  const Program& from_;
  const DataParallelOptions& options_;
  const ParameterUses uses_;
  const ByTensor<bool> sharded_;
  const Layout whole_;
  const Layout batch_;
  Recorder recorder_;
  ByTensor<Tensor> tensors_;  // of from_
  /// By tensor and layout: what was redistributed because an operator needs it.
  std::map<std::pair<TensorIndex, const Spec*>, Tensor> converted_;
  ParameterGathers gathers_;
  GradientSums sums_;
  std::map<std::string, TensorIndex> outputs_;  // that are named
};

}  // namespace

namespace {

void check_step(const Program& program, const DataParallelOptions& options) {
  if (!options.mesh) {
    fail({.thing = "data_parallel",
          .wrong = "there is no mesh",
          .expected = "one along whose axes the batch is split"});
  }
  if (!program.meshes.empty()) {
    fail({.thing = "data_parallel",
          .wrong = "the program has distributed tensors",
          .expected = "a step of one rank, on plain tensors",
          .advice = "record it without styles on a mesh of one rank, below distribution"});
  }
  check_roles(program);
}

}  // namespace

std::map<std::string, Layout> parameter_layouts(const Program& program,
                                                const DataParallelOptions& options) {
  check_step(program, options);
  const PlannedMemoryScope planned;
  const Program steps = without_whole_views(as_written(program));
  const ByTensor<bool> sharded = sharded_parameters(steps, parameter_uses_of(steps), options);
  std::map<std::string, Layout> layouts;
  for (const auto& [name, input] : steps.inputs) {
    if (input.role == Role::parameter) {
      layouts.emplace(name, sharded[input.tensor] ? sharded_layout(options.mesh)
                                                  : Layout::replicated(options.mesh));
    }
  }
  return layouts;
}

Program data_parallel(const Program& program, const DataParallelOptions& options) {
  check_step(program, options);
  const PlannedMemoryScope planned;  // memory without bytes has categories too
  const Program steps = without_whole_views(as_written(program));
  return DataParallelPlacer(steps, options).place();
}

}  // namespace tessera::graph
