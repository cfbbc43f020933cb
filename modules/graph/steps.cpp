module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <utility>
#include <vector>
module tessera.graph;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.record;
import :block;
import :chains;
import :compiled_chains;
import :shadow;
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

std::span<const Chain> chains_in(const CompiledChains* compiled) {
  return compiled == nullptr ? std::span<const Chain>() : compiled->chains();
}

}  // namespace

PlannedSteps::PlannedSteps(const Program& program, CompiledChains* compiled)
    : program_(program),
      compiled_(compiled),
      copy_op_(&find_op("copy_")),
      shadow_(shadow_of(program, chains_in(compiled))),
      block_(block_of(program, shadow_, chains_in(compiled))) {
  std::optional<PeersReadScope> scope;
  if (block_.for_peers) {
    scope.emplace();
  }
  memory_block_ = empty({block_.bytes}, DType::u8);
  scope.reset();
  for (std::size_t m = 0; m < block_.offsets.size(); ++m) {
    if (!shadow_.memories[m].inside) {
      ++(block_.offsets[m] >= 0 ? memory_.in_block : memory_.allocated);
    }
  }
  memory_.allocated -= static_cast<int>(program.inputs.size());
  memory_.block_bytes = block_.bytes;
  memory_.least_bytes = block_.least;

  numbers_.resize(shadow_.memories.size());
  for (std::size_t n = 0; n < program.tensors.size(); ++n) {
    if (shadow_.memory_of[n] >= 0) {
      numbers_[index(shadow_.memory_of[n])].push_back(static_cast<int>(n));
    }
  }
  make_tensors();
  add_steps();
  find_slots();
}

bool PlannedSteps::in_block(int number) const {
  const int memory = shadow_.memory_of[index(number)];
  return memory >= 0 && block_.offsets[index(memory)] >= 0;
}

void PlannedSteps::make_tensors() {
  tensors_.resize(program_.tensors.size());
  auto* const begin = static_cast<std::byte*>(memory_block_.raw_data());
  for (std::size_t m = 0; m < block_.offsets.size(); ++m) {
    if (block_.offsets[m] < 0) {
      continue;
    }
    // Memories have storages of their own, so that work in progress belongs to one of them.
    const Counted<Storage> storage = Storage::borrow(
        begin + block_.offsets[m], static_cast<std::size_t>(shadow_.memories[m].bytes));
    for (const int number : numbers_[m]) {
      const Tensor& like = shadow_.tensors[index(number)];
      tensors_[index(number)] =
          from_storage(storage, like.shape(), like.strides(), like.offset(), like.dtype());
    }
  }
}

void PlannedSteps::add_steps() {
  views_.resize(program_.tensors.size());
  int place = 0;
  std::map<int, std::vector<int>> ends;  // memories that are not in the block, by their last place
  for (std::size_t m = 0; m < shadow_.memories.size(); ++m) {
    const Memory& memory = shadow_.memories[m];
    if (block_.offsets[m] < 0 && !memory.is_input && !memory.is_output && !memory.inside) {
      ends[memory.last].push_back(static_cast<int>(m));
    }
  }
  for (const Section& section : program_.sections) {
    sections_.emplace_back();
    for (std::size_t i = 0; i < section.instructions.size(); ++i, ++place) {
      add_step(section.instructions[i], i, place);
      if (const auto dropped = ends.find(place); dropped != ends.end()) {
        if (sections_.back().empty() || sections_.back().back().instruction != i) {
          sections_.back().push_back({.kind = StepKind::nothing, .instruction = i});
        }
        sections_.back().back().dropped = dropped->second;
      }
    }
  }
}

void PlannedSteps::add_step(const Instruction& i, std::size_t at, int place) {
  PlannedStep step{.instruction = at, .source = &i};
  switch (i.kind) {
    case Kind::alias:
      if (!in_block(i.out[0])) {
        views_[index(i.in[0])].push_back(&i);
      }
      return;
    case Kind::empty:
      if (in_block(i.out[0])) {
        return;
      }
      step.kind = StepKind::create;
      break;
    case Kind::full:
    case Kind::values: {
      step.kind = StepKind::fill;
      const ProgramTensor& x = program_.tensors[index(i.out[0])];
      step.constant = i.kind == Kind::full ? full({1}, i.values[0], x.dtype) : filled(i, x, cpu);
      break;
    }
    case Kind::release:
    case Kind::restore:
      if (in_block(i.in[0])) {
        return;
      }
      step.kind = i.kind == Kind::release ? StepKind::release : StepKind::restore;
      break;
    case Kind::check:
      step.kind = StepKind::check;
      break;
    case Kind::call:
      if (compiled_ != nullptr && compiled_->at(place) >= 0) {
        add_chain(std::move(step), place);
        return;
      }
      if (is_called(i, shadow_)) {
        step.kind = StepKind::call;
      } else if (is_copy(i, shadow_)) {
        step.kind = in_block(i.out[0]) ? StepKind::copy : StepKind::call;
      } else if (i.op->view != nullptr) {
        if (!in_block(i.out[0])) {
          views_[index(i.in[0])].push_back(&i);
        }
        return;
      } else {
        step.kernel = kernel_of(*i.op, cpu.type);
        step.bumps = i.op->in_place && !i.op->keeps_versions;
        if (block_.workspaces[index(place)] >= 0) {
          step.workspace = workspace_at(place);
        }
      }
  }
  add_operands(step, i.in, i.out, i.out);
  if (i.kind == Kind::call && i.op->in_place) {
    step.out_numbers = {i.in[0]};
    step.out = {step.in[0]};
  }
  if (step.kind == StepKind::copy) {
    const Dims& shape = shadow_.tensors[index(i.in[0])].shape();
    step.out[0] = alias(step.out[0], shape, contiguous_strides(shape), step.out[0].offset());
  }
  sections_.back().push_back(std::move(step));
}

void PlannedSteps::add_operands(PlannedStep& step, std::span<const int> in,
                                std::span<const int> out, std::span<const int> made) {
  step.in_numbers.assign(in.begin(), in.end());
  step.out_numbers.assign(out.begin(), out.end());
  for (const int number : in) {
    step.in.push_back(number < 0 ? Tensor() : tensors_[index(number)]);
  }
  for (const int number : out) {
    step.out.push_back(number < 0 ? Tensor() : tensors_[index(number)]);
  }
  for (const int number : made) {
    if (number >= 0 && !in_block(number)) {
      step.allocated.push_back(number);
      step.for_peers =
          step.for_peers || shadow_.memories[index(shadow_.memory_of[index(number)])].for_peers;
    }
  }
}

/// The chain is one step, in the place of its last call.
void PlannedSteps::add_chain(PlannedStep step, int place) {
  step.kind = StepKind::chain;
  step.chain = compiled_->at(place);
  const Chain& chain = compiled_->chains()[index(step.chain)];
  if (place != chain.last()) {
    return;
  }
  std::vector<int> in;
  std::vector<int> out;
  std::vector<int> made;
  for (const Chain::Input& input : chain.inputs) {
    in.push_back(input.number);
  }
  for (const Chain::Output& output : chain.outputs) {
    out.push_back(output.number);
    if (output.is_made) {
      made.push_back(output.number);
    }
  }
  if (block_.workspaces[index(place)] >= 0) {
    step.workspace = workspace_at(place);
  }
  add_operands(step, in, out, made);
  sections_.back().push_back(std::move(step));
}

std::span<std::byte> PlannedSteps::workspace_at(int place) const {
  return {static_cast<std::byte*>(memory_block_.raw_data()) + block_.workspaces[index(place)],
          static_cast<std::size_t>(block_.workspace_bytes[index(place)])};
}

void PlannedSteps::find_slots() {
  slots_.resize(program_.tensors.size());
  for (std::vector<PlannedStep>& section : sections_) {
    for (PlannedStep& step : section) {
      const auto add = [&](int number, Tensor& slot) {
        if (number >= 0 && !in_block(number)) {
          slots_[index(number)].push_back(&slot);
        }
      };
      for (std::size_t k = 0; k < step.in_numbers.size(); ++k) {
        add(step.in_numbers[k], step.in[k]);
      }
      for (std::size_t k = 0; k < step.out_numbers.size(); ++k) {
        add(step.out_numbers[k], step.out[k]);
      }
    }
  }
}

void PlannedSteps::set(int number, Tensor x) {
  Tensor& own = tensors_[index(number)];
  own = std::move(x);
  for (Tensor* const slot : slots_[index(number)]) {
    *slot = own;
  }
  for (const Instruction* const view : views_[index(number)]) {
    const Tensors made =
        own ? views_of(*view, program_.tensors[index(view->out[0])], own) : Tensors();
    for (std::size_t k = 0; k < view->out.size(); ++k) {
      set(view->out[k], own ? made[k] : Tensor());
    }
  }
}

void PlannedSteps::drop(int number) noexcept {
  tensors_[index(number)] = Tensor();
  for (Tensor* const slot : slots_[index(number)]) {
    *slot = Tensor();
  }
}

void PlannedSteps::begin(std::span<const Tensor> given, const CheckInput& check) {
  std::size_t at = 0;
  for (const auto& [name, number] : program_.inputs) {
    const Tensor& x = given[at++];
    const Tensor& before = tensors_[index(number)];
    const bool same = before && &before.storage() == &x.storage() &&
                      before.offset() == x.offset() && before.shape() == x.shape() &&
                      before.dtype() == x.dtype() && x.is_contiguous();
    if (!same) {
      check(name, number, x);
      set(number, detached(x));
    }
  }
}

void PlannedSteps::run_kernel(PlannedStep& step, const Attributes& attributes) {
  const Op& op = *step.source->op;
  const Call call{op, step.in, attributes, step.workspace};
  // The number of threads may have grown since the block was planned.
  const std::size_t bytes = op.workspace == nullptr ? 0 : op.workspace(call, step.out);
  if (bytes > step.workspace.size()) {
    const MemoryScope scope(MemoryCategory::workspace);
    const Counted<Storage> memory = Storage::allocate(bytes);
    step.kernel({op, step.in, attributes, {static_cast<std::byte*>(memory->data()), bytes}},
                step.out);
  } else {
    step.kernel(call, step.out);
  }
  if (step.bumps) {
    step.in[0].storage().bump_version();
  }
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
        if (i.out[k] >= 0) {
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
      for (const int number : step.allocated) {
        const ProgramTensor& x = program_.tensors[index(number)];
        set(number, empty(x.shape, x.dtype));
      }
      if (step.kind == StepKind::fill) {
        const Tensor& x = step.out[0];
        const std::size_t size = size_of(x.dtype());
        if (step.source->kind == Kind::full) {
          current_stream(cpu).fill(x.device_address(), step.constant.raw_data(), size, x.numel());
        } else if (x.numel() > 0) {
          std::memcpy(x.raw_data(), step.constant.raw_data(),
                      static_cast<std::size_t>(x.numel()) * size);
        }
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

void PlannedSteps::run(std::size_t section, std::size_t& instruction, const Bound& bound) {
  for (PlannedStep& step : sections_[section]) {
    instruction = step.instruction;
    execute(step, bound);
    for (const int memory : step.dropped) {
      for (const int number : numbers_[index(memory)]) {
        drop(number);
      }
    }
  }
}

void PlannedSteps::end(bool failed) noexcept {
  for (std::size_t m = 0; m < numbers_.size(); ++m) {
    for (const int number : numbers_[m]) {
      if (block_.offsets[m] < 0 && !shadow_.memories[m].is_input) {
        drop(number);
      } else if (failed && tensors_[index(number)]) {
        tensors_[index(number)].storage().take_pending();
      }
    }
  }
}

}  // namespace tessera::graph
