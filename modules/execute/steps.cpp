// A program becomes a list of steps; run_steps.cpp runs them.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
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
import :chains;
import :compiled_chains;
import :steps;

namespace tessera::graph {
namespace {

using Kind = Instruction::Kind;
using StepKind = PreparedInstruction::Kind;

std::span<const Chain> chains_in(const CompiledChains* compiled) {
  return compiled == nullptr ? std::span<const Chain>() : compiled->chains();
}

/// What the host's memory has takes nothing of the device's.
Shadow with_kept(Shadow shadow, const ByMemory<MemoryLocation>& kept) {
  for (const MemoryIndex m : kept.keys()) {
    if (kept[m] != MemoryLocation::device && !shadow.memories[m].is_input) {
      shadow.memories[m].elsewhere = true;
    }
  }
  return shadow;
}

}  // namespace

ByMemory<MemoryLocation> memories_kept_in(const Program& program, const Shadow& shadow,
                                          const std::vector<bool>& on_host) {
  ByMemory<MemoryLocation> kept(shadow.memories.size(), MemoryLocation::device);
  if (on_host.empty()) {
    return kept;
  }
  std::size_t at = 0;
  for (const auto& [name, input] : program.inputs) {
    if (on_host[at++]) {
      kept[shadow.memory(input.tensor)] =
          input.role == Role::parameter ? MemoryLocation::host_as_parameter : MemoryLocation::host;
    }
  }
  for (const Instruction* const i : places_of(program)) {
    if (i->kind != Kind::call || i->op->in_place) {
      continue;
    }
    // What a view copies stays in the memory that it is a view of.
    const bool there =
        i->op->view != nullptr
            ? is_copy(*i, shadow) && kept[shadow.memory(i->in[0])] != MemoryLocation::device
            : computes_on_host(*i, shadow, kept);
    for (const TensorIndex number : i->out) {
      if (there && number.exists()) {
        kept[shadow.memory(number)] = MemoryLocation::host;
      }
    }
  }
  return kept;
}

bool computes_on_host(const Instruction& i, const Shadow& shadow,
                      const ByMemory<MemoryLocation>& kept) {
  if (i.op->in_place) {
    return kept[shadow.memory(i.in[0])] != MemoryLocation::device;
  }
  bool on_host = false;
  for (const TensorIndex number : i.in) {
    if (number.exists() && kept[shadow.memory(number)] != MemoryLocation::host) {
      return false;
    }
    on_host = on_host || number.exists();
  }
  return on_host;
}

bool can_be_planned(const Program& program, Device device) {
  return std::ranges::all_of(program.sections, [&](const Section& section) {
    return std::ranges::all_of(section.instructions, [&](const Instruction& i) {
      return i.kind != Kind::call || i.op->view != nullptr || kernel_of(*i.op, device.type);
    });
  });
}

PreparedProgram::PreparedProgram(const Program& program, Device device, CompiledChains* compiled,
                                 MemoryPlace* elsewhere, std::vector<bool> on_host)
    : program_(program),
      device_(device),
      compiled_(compiled),
      elsewhere_(elsewhere),
      copy_op_(&find_op("copy_")),
      on_host_(std::move(on_host)),
      shadow_(shadow_of(program, chains_in(compiled))),
      kept_in_(memories_kept_in(program, shadow_, on_host_)),
      block_(block_of(program, with_kept(shadow_, kept_in_), device.type, chains_in(compiled))),
      place_calls_(memory_place_calls(program)) {
  if (!on_host_.empty()) {
    fetches_.emplace(program, fetched_ahead);
    fetches_->begin_on(device);
  }
  std::optional<PeersReadScope> scope;
  if (block_.for_peers) {
    scope.emplace();
  }
  memory_block_ = empty({block_.bytes}, DType::u8, device);
  scope.reset();
  for (const MemoryIndex m : block_.offsets.keys()) {
    if (!shadow_.memories[m].inside) {
      ++(block_.offsets[m] >= 0 ? memory_.in_block : memory_.allocated);
    }
  }
  memory_.allocated -= static_cast<int>(program.inputs.size());
  memory_.block_bytes = block_.bytes;
  memory_.least_bytes = block_.least;

  numbers_ = ByMemory<std::vector<TensorIndex>>(shadow_.memories.size());
  for (const TensorIndex number : program.tensors.keys()) {
    if (const MemoryIndex memory = shadow_.memory(number); memory.exists()) {
      numbers_[memory].push_back(number);
    }
  }
  make_tensors();
  add_steps();
  find_slots();
}

bool PreparedProgram::in_block(TensorIndex number) const {
  const MemoryIndex memory = shadow_.memory(number);
  return memory.exists() && block_.offsets[memory] >= 0;
}

void PreparedProgram::make_tensors() {
  tensors_.resize(program_.tensors.size());
  for (const MemoryIndex m : block_.offsets.keys()) {
    if (block_.offsets[m] < 0) {
      continue;
    }
    // Memories have storages of their own, so that work in progress belongs to one of them.
    const IntrusivePointer<Storage> storage =
        Storage::part_of(memory_block_.storage(), block_.offsets[m],
                         static_cast<std::size_t>(shadow_.memories[m].bytes));
    for (const TensorIndex number : numbers_[m]) {
      const Tensor& like = shadow_.at(number);
      tensors_[number] =
          from_storage(storage, like.shape(), like.strides(), like.offset(), like.dtype(), device_);
    }
  }
}

void PreparedProgram::add_steps() {
  views_.resize(program_.tensors.size());
  PlaceIndex place(0);
  ByPlace<std::vector<MemoryIndex>> ends(shadow_.partners.size() + 1);  // not in the block
  for (const MemoryIndex m : shadow_.memories.keys()) {
    const Memory& memory = shadow_.memories[m];
    if (block_.offsets[m] < 0 && !memory.is_input && !memory.is_output && !memory.inside) {
      ends[memory.last].push_back(m);
    }
  }
  for (const Section& section : program_.sections) {
    sections_.emplace_back();
    const std::string* part = nullptr;
    for (std::size_t i = 0; i < section.instructions.size(); ++i, ++place) {
      const std::size_t before = sections_.back().size();
      add_step(section.instructions[i], i, place);
      const std::string& own = program_.scopes[section.instructions[i].scope].part;
      if (sections_.back().size() > before && !own.empty() && (part == nullptr || own != *part)) {
        part = &own;
        sections_.back().back().part = part;
      }
      const auto step = [&]() -> PreparedInstruction& {
        if (sections_.back().empty() || sections_.back().back().instruction != i) {
          sections_.back().push_back({.kind = StepKind::nothing, .instruction = i});
        }
        return sections_.back().back();
      };
      const auto& asked = place_calls_[sections_.size() - 1];
      if (const auto calls = asked.find(i); calls != asked.end()) {
        step().place_calls = &calls->second;
      }
      if (!ends[place].empty()) {
        step().dropped = ends[place];
      }
    }
  }
}

void PreparedProgram::set_place(PreparedInstruction& step) const {
  const Instruction& i = *step.source;
  const auto is_there = [&](TensorIndex number) {
    return number.exists() && kept_in_[shadow_.memory(number)] != MemoryLocation::device;
  };
  step.across = i.op->view == nullptr &&
                (std::ranges::any_of(i.in, is_there) || std::ranges::any_of(i.out, is_there));
  step.place = step.across && computes_on_host(i, shadow_, kept_in_) ? cpu : device_;
}

void PreparedProgram::add_step(const Instruction& i, std::size_t at, PlaceIndex place) {
  PreparedInstruction step{.instruction = at, .source = &i};
  switch (i.kind) {
    case Kind::alias:
      if (!in_block(i.out[0])) {
        views_[i.in[0]].push_back(&i);
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
      const ProgramTensor& x = program_.tensors[i.out[0]];
      step.constant =
          i.kind == Kind::full ? full({1}, i.values[0], x.dtype) : filled(i, x, device_);
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
      if (compiled_ != nullptr && compiled_->at(place).exists()) {
        add_chain(std::move(step), place);
        return;
      }
      set_place(step);
      if (is_called(i, shadow_) || (step.across && step.place == cpu)) {
        step.kind = StepKind::call;
      } else if (is_copy(i, shadow_)) {
        step.kind = in_block(i.out[0]) ? StepKind::copy : StepKind::call;
      } else if (i.op->view != nullptr) {
        if (!in_block(i.out[0])) {
          views_[i.in[0]].push_back(&i);
        }
        return;
      } else {
        step.kernel = kernel_of(*i.op, device_.type);
        step.bumps = i.op->in_place && !i.op->keeps_versions;
        if (block_.workspaces[place] >= 0) {
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
    const Dims& shape = shadow_.at(i.in[0]).shape();
    step.out[0] = alias(step.out[0], shape, contiguous_strides(shape), step.out[0].offset());
  }
  sections_.back().push_back(std::move(step));
}

void PreparedProgram::add_operands(PreparedInstruction& step, std::span<const TensorIndex> in,
                                   std::span<const TensorIndex> out,
                                   std::span<const TensorIndex> made) {
  step.in_numbers.assign(in.begin(), in.end());
  step.out_numbers.assign(out.begin(), out.end());
  for (const TensorIndex number : in) {
    step.in.push_back(number.exists() ? tensors_[number] : Tensor());
  }
  for (const TensorIndex number : out) {
    step.out.push_back(number.exists() ? tensors_[number] : Tensor());
  }
  for (const TensorIndex number : made) {
    if (number.exists() && !in_block(number)) {
      step.allocated.push_back(number);
      step.for_peers = step.for_peers || shadow_.memories[shadow_.memory(number)].for_peers;
    }
  }
}

/// The chain is one step, in the place of its last call.
void PreparedProgram::add_chain(PreparedInstruction step, PlaceIndex place) {
  step.kind = StepKind::chain;
  step.chain = compiled_->at(place);
  const Chain& chain = compiled_->chain(step.chain);
  if (place != chain.last()) {
    return;
  }
  std::vector<TensorIndex> in;
  std::vector<TensorIndex> out;
  std::vector<TensorIndex> made;
  for (const Chain::Input& input : chain.inputs) {
    in.push_back(input.tensor);
  }
  for (const Chain::Output& output : chain.outputs) {
    out.push_back(output.tensor);
    if (output.is_made) {
      made.push_back(output.tensor);
    }
  }
  if (block_.workspaces[place] >= 0) {
    step.workspace = workspace_at(place);
  }
  add_operands(step, in, out, made);
  sections_.back().push_back(std::move(step));
}

std::span<std::byte> PreparedProgram::workspace_at(PlaceIndex place) const {
  return {static_cast<std::byte*>(memory_block_.device_address()) + block_.workspaces[place],
          static_cast<std::size_t>(block_.workspace_bytes[place])};
}

void PreparedProgram::find_slots() {
  slots_.resize(program_.tensors.size());
  for (std::vector<PreparedInstruction>& section : sections_) {
    for (PreparedInstruction& step : section) {
      const auto add = [&](TensorIndex number, Tensor& slot) {
        if (number.exists() && !in_block(number)) {
          slots_[number].push_back(&slot);
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

}  // namespace tessera::graph
