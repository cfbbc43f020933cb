// Runs the list of steps that a program has become.
module;
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
module tessera.execute;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :block;
import :compiled_chains;
import :steps;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;
using StepKind = PlannedStep::Kind;

/// Other views of `base`, as the instruction says.
Tensors views_of(const Instruction& i, const ProgramTensor& shape, const Tensor& base) {
  Tensors out;
  if (i.kind == Kind::call) {
    i.op->view({*i.op, {&base, 1}, i.attributes}, out);
    return out;
  }
  out.push_back(aliased(i, shape, base));
  return out;
}

}  // namespace

void PlannedSteps::set(TensorIndex number, Tensor x) {
  Tensor& own = tensors_[number];
  own = std::move(x);
  for (Tensor* const slot : slots_[number]) {
    *slot = own;
  }
  for (const Instruction* const view : views_[number]) {
    const Tensors made = own ? views_of(*view, program_.tensors[view->out[0]], own) : Tensors();
    for (std::size_t k = 0; k < view->out.size(); ++k) {
      set(view->out[k], own ? made[k] : Tensor());
    }
  }
}

void PlannedSteps::drop(TensorIndex number) noexcept {
  tensors_[number] = Tensor();
  for (Tensor* const slot : slots_[number]) {
    *slot = Tensor();
  }
}

void PlannedSteps::begin(std::span<const Tensor> given, const CheckInput& check) {
  std::size_t at = 0;
  for (const auto& [name, input] : program_.inputs) {
    const TensorIndex number = input.tensor;
    const Tensor& x = given[at++];
    const Tensor& before = tensors_[number];
    const bool same = before && &before.storage() == &x.storage() &&
                      before.offset() == x.offset() && before.shape() == x.shape() &&
                      before.dtype() == x.dtype() && x.is_contiguous();
    if (!same) {
      check(name, number, x);
      if (before && graphs_) {
        graphs_->leave_out(number);
      }
      set(number, detached(x));
    }
  }
}

void PlannedSteps::fill(const PlannedStep& step) const {
  const Tensor& x = step.out[0];
  const std::size_t size = size_of(x.dtype());
  const Stream stream = current_stream(device_);
  if (step.source->kind == Kind::full) {
    stream.fill(x.device_address(), step.constant.raw_data(), size, x.numel());
  } else if (x.numel() > 0) {
    stream.copy(x.device_address(), step.constant.device_address(),
                static_cast<std::size_t>(x.numel()) * size, CopyKind::on_device);
  }
}

void PlannedSteps::run_kernel(PlannedStep& step, const Attributes& attributes) {
  const Op& op = *step.source->op;
  const Call call{op, step.in, attributes, step.workspace};
  // The number of threads may have grown since the block was planned.
  const std::size_t bytes = step.kernel.workspace_bytes(call, step.out);
  if (bytes > step.workspace.size()) {
    const MemoryScope scope(MemoryCategory::workspace);
    const Counted<Storage> memory =
        device_ == cpu ? Storage::allocate(bytes) : Storage::allocate_on(device_, bytes);
    step.kernel.run({op, step.in, attributes, {static_cast<std::byte*>(memory->data()), bytes}},
                    step.out);
  } else {
    step.kernel.run(call, step.out);
  }
  bump(step);
}

void PlannedSteps::bump(const PlannedStep& step) const {
  const Op& op = *step.source->op;
  if (step.bumps && device_ == cpu) {  // a kernel of the CPU moves the further ones itself
    step.in[0].storage().bump_version();
  } else if (step.bumps) {
    for (std::size_t k = 0; k < step.in.size(); ++k) {
      if (step.in[k] && op.writes(op.place_of(k, step.in.size()).operand)) {
        step.in[k].storage().bump_version();
      }
    }
  }
}

Tensor PlannedSteps::allocated(TensorIndex number) const {
  const ProgramTensor& x = program_.tensors[number];
  return x.elsewhere ? allocate_elsewhere(elsewhere_, x, device_)
                     : empty(x.shape, x.dtype, device_);
}

void PlannedSteps::execute(PlannedStep& step, const Bound& bound) {
  std::optional<PeersReadScope> scope;
  if (step.for_peers) {
    scope.emplace();
  }
  switch (step.kind) {
    case StepKind::call: {
      const Instruction& i = *step.source;
      const Tensors out = call_kernel(*i.op, step.in, i.bindings.empty() ? i.attributes : bound(i));
      for (std::size_t k = 0; k < i.out.size(); ++k) {
        if (i.out[k].exists()) {
          set(i.out[k], out[k]);
        }
      }
      return;
    }
    case StepKind::copy:
      call_kernel(*copy_op_, std::array{step.out[0], step.in[0]}, {});
      return;
    case StepKind::create:
    case StepKind::fill:
    case StepKind::kernel:
    case StepKind::chain:
      for (const TensorIndex number : step.allocated) {
        set(number, allocated(number));
      }
      if (step.kind == StepKind::fill) {
        fill(step);
      } else if (step.kind == StepKind::kernel) {
        const Instruction& i = *step.source;
        i.bindings.empty() ? run_kernel(step, i.attributes) : run_kernel(step, bound(i));
      } else if (step.kind == StepKind::chain) {
        compiled_->run(step.chain, step.in, step.out, step.workspace, bound);
      }
      return;
    case StepKind::check:
      check_recorded_values(*step.source, step.in[0]);
      return;
    case StepKind::release:
      step.in[0].storage().release_memory();
      return;
    case StepKind::restore:
      step.in[0].storage().restore_memory();
      return;
    case StepKind::nothing:
      return;
  }
}

void PlannedSteps::execute_with_places(PlannedStep& step, const Bound& bound) {
  for (const TensorIndex number : step.place_calls->fetched) {
    elsewhere_->fetch(tensors_[number]);
  }
  execute(step, bound);
  for (const TensorIndex number : step.place_calls->put_away) {
    elsewhere_->put_away(tensors_[number]);
  }
}

void PlannedSteps::run_graph(std::vector<PlannedStep>& steps, StepGraphs::Recorded& recorded,
                             const Bound& bound) {
  const Stream stream = current_stream(device_);
  if (recorded.graph) {
    for (std::size_t i = recorded.first; i < recorded.last; ++i) {
      bump(steps[i]);
    }
  } else {
    recorded.graph = DeviceGraph::record(stream, [&] {
      for (std::size_t i = recorded.first; i < recorded.last; ++i) {
        execute(steps[i], bound);
      }
    });
  }
  recorded.graph.launch(stream);
}

void PlannedSteps::run(ProgramPlace& place, const Bound& bound,
                       const std::function<void(const std::string& part)>& at_part) {
  std::vector<PlannedStep>& steps = sections_[place.section];
  if (graphs_) {
    graphs_->begin(sections_, place.section);
  }
  for (std::size_t i = 0; i < steps.size();) {
    PlannedStep& step = steps[i];
    place.at = step.instruction;
    if (step.part != nullptr) {
      at_part(*step.part);
    }
    StepGraphs::Recorded* const recorded = graphs_ ? graphs_->at(place.section, i) : nullptr;
    if (recorded != nullptr) {
      run_graph(steps, *recorded, bound);
      i = recorded->last;
      continue;
    }
    step.place_calls == nullptr ? execute(step, bound) : execute_with_places(step, bound);
    for (const MemoryIndex memory : step.dropped) {
      for (const TensorIndex number : numbers_[memory]) {
        drop(number);
      }
    }
    ++i;
  }
}

void PlannedSteps::end(bool failed) noexcept {
  for (const MemoryIndex m : numbers_.keys()) {
    for (const TensorIndex number : numbers_[m]) {
      if (block_.offsets[m] < 0 && !shadow_.memories[m].is_input) {
        drop(number);
      } else if (failed && tensors_[number]) {
        tensors_[number].storage().take_pending();
      }
    }
  }
}

}  // namespace tessera::graph
