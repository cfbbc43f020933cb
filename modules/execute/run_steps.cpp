// Runs the list of steps that a program has become.
module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
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
using StepKind = PreparedInstruction::Kind;

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

void PreparedProgram::set(TensorIndex number, Tensor x) {
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

void PreparedProgram::drop(TensorIndex number) noexcept {
  tensors_[number] = Tensor();
  for (Tensor* const slot : slots_[number]) {
    *slot = Tensor();
  }
}

void PreparedProgram::begin(std::span<const Tensor> given, const CheckInput& check) {
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

void PreparedProgram::fill(const PreparedInstruction& step) const {
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

void PreparedProgram::run_kernel(PreparedInstruction& step, const Attributes& attributes) {
  const Op& op = *step.source->op;
  const Call call{op, step.in, attributes, step.workspace};
  // The number of threads may have grown since the block was planned.
  const std::size_t bytes = step.kernel.workspace_bytes(call, step.out);
  if (bytes > step.workspace.size()) {
    const MemoryScope scope(MemoryCategory::workspace);
    const IntrusivePointer<Storage> memory =
        device_ == cpu ? Storage::allocate(bytes) : Storage::allocate_on(device_, bytes);
    step.kernel.run({op, step.in, attributes, {static_cast<std::byte*>(memory->data()), bytes}},
                    step.out);
  } else {
    step.kernel.run(call, step.out);
  }
  bump(step);
}

void PreparedProgram::bump(const PreparedInstruction& step) const {
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

Tensor PreparedProgram::allocated(TensorIndex number) const {
  const ProgramTensor& x = program_.tensors[number];
  return x.elsewhere ? allocate_elsewhere(elsewhere_, x, device_)
                     : empty(x.shape, x.dtype, device_);
}

void PreparedProgram::execute(PreparedInstruction& step, const Bound& bound) {
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

void PreparedProgram::execute_with_places(PreparedInstruction& step, const Bound& bound) {
  for (const TensorIndex number : step.place_calls->fetched) {
    elsewhere_->fetch(tensors_[number]);
  }
  step.across ? execute_across(step, bound) : execute(step, bound);
  for (const TensorIndex number : step.place_calls->put_away) {
    elsewhere_->put_away(tensors_[number]);
  }
}

void PreparedProgram::execute_across(PreparedInstruction& step, const Bound& bound) {
  struct MovedOperands {
    PreparedInstruction& step;
    const ByTensor<Tensor>& tensors;
    std::vector<std::size_t> operands = {};
    ~MovedOperands() {
      for (const std::size_t k : operands) {
        step.in[k] = tensors[step.in_numbers[k]];
      }
    }
  };
  MovedOperands moved{.step = step, .tensors = tensors_};
  const Instruction& i = *step.source;
  for (std::size_t k = 0; k < step.in_numbers.size(); ++k) {
    const TensorIndex number = step.in_numbers[k];
    if (!number.exists()) {
      continue;
    }
    Tensor& x = step.in[k];
    const bool is_parameter = kept_in_[shadow_.memory(number)] == MemoryLocation::host_as_parameter;
    if (i.writes(k) && is_parameter) {
      fetches_->wait_for(x.storage());
    }
    if (!(x.device() == step.place)) {
      moved.operands.push_back(k);
      Tensor fetched = is_parameter ? fetches_->taken(number) : Tensor();
      x = fetched ? std::move(fetched) : copied_to(x, step.place);
    }
  }
  execute(step, bound);
  for (const std::size_t k : moved.operands) {
    if (i.writes(k)) {
      const Tensor& original = tensors_[step.in_numbers[k]];
      call_kernel(*copy_op_, std::array{original, copied_to(step.in[k], original.device())}, {});
    }
  }
}

void PreparedProgram::fetch_ahead(std::size_t section, std::size_t first,
                                  const PreparedInstruction& step) {
  const auto on_host = [](const Tensor& x) { return x && x.device() == cpu; };
  for (std::size_t i = first; i <= step.instruction; ++i) {
    fetches_->before({section, i}, tensors_, on_host);
  }
}

void PreparedProgram::run_graph(std::vector<PreparedInstruction>& steps,
                                StepGraphs::RecordedGraph& recorded, const Bound& bound) {
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

void PreparedProgram::run(ProgramPlace& place, const Bound& bound,
                          const std::function<void(const std::string& part)>& at_part) {
  std::vector<PreparedInstruction>& steps = sections_[place.section];
  if (graphs_) {
    graphs_->begin(sections_, place.section);
  }
  std::size_t next = 0;  // instruction that has not asked for what it needs
  for (std::size_t i = 0; i < steps.size();) {
    PreparedInstruction& step = steps[i];
    place.at = step.instruction;
    if (fetches_) {
      fetch_ahead(place.section, next, step);
      next = std::max(next, step.instruction + 1);
    }
    if (step.part != nullptr) {
      at_part(*step.part);
    }
    StepGraphs::RecordedGraph* const recorded = graphs_ ? graphs_->at(place.section, i) : nullptr;
    if (recorded != nullptr) {
      run_graph(steps, *recorded, bound);
      i = recorded->last;
      continue;
    }
    if (step.place_calls != nullptr) {
      execute_with_places(step, bound);
    } else {
      step.across ? execute_across(step, bound) : execute(step, bound);
    }
    for (const MemoryIndex memory : step.dropped) {
      for (const TensorIndex number : numbers_[memory]) {
        drop(number);
      }
    }
    ++i;
  }
}

void PreparedProgram::wait_for_fetches() {
  if (fetches_) {
    fetches_->end();
  }
}

void PreparedProgram::end(bool failed) noexcept {
  if (failed && fetches_) {
    fetches_->abandon();
  }
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
