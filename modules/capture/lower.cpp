module;
#include <fmt/format.h>

#include <cstddef>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.capture;

import tessera.base;
import tessera.device;
import tessera.mesh;
import tessera.tensor;
import tessera.program;
import tessera.execute;
import :recorder_state;

namespace tessera {
namespace {

Tensor meta_input(const ProgramTensor& x) {
  return x.spec == nullptr ? empty(x.shape, x.dtype, meta)
                           : make_distributed(empty(local_shape(*x.spec), x.dtype, meta), x.spec);
}

/// Category that the memory of an instruction's results is booked on.
std::optional<MemoryCategory> category_of(const Program& program, const Instruction& i) {
  for (const TensorIndex number : i.out) {
    if (number.exists()) {
      return program.tensors[number].category;
    }
  }
  return std::nullopt;
}

/// Executes an instruction on the meta device where it is written: in its phase and module.
void trace(const Program& program, const Instruction& i, Recorder& recorder,
           ByTensor<Tensor>& tensors) {
  std::optional<MemoryScope> booked;
  if (const auto category = category_of(program, i)) {
    booked.emplace(*category);
  }
  run_in_scope(program, i, [&] {
    recorder.follow(&i);
    execute(program, i, i.attributes, tensors, meta);
    recorder.follow(nullptr);
  });
}

void trace_section(const Program& program, const Section& section, Recorder& recorder,
                   ByTensor<Tensor>& tensors) {
  const NoGrad no_grad;
  for (std::size_t n = 0; n < section.instructions.size(); ++n) {
    const Instruction& i = section.instructions[n];
    try {
      if (i.is_guard()) {  // all ranks read the same
        run_in_scope(program, i, [&] { guard(i.guard, local_of(tensors[i.in[0]]), i.values[0]); });
        continue;
      }
      if (i.kind == Instruction::Kind::check) {
        fail("the host has read a value, which has no place in a program of another rank");
      }
      trace(program, i, recorder, tensors);
    } catch (const Error& error) {
      throw Error(fmt::format("lower: section '{}', instruction {} ({}): {}", name_of(section.kind),
                              n + 1, to_text(program, i), error.what()),
                  error.kind());
    }
  }
}

}  // namespace

Tensors CallsOnMeta::call(const Call& call, NextCall& next) {
  return graph::has_no_operands(call.in) ? graph::results_without_operands(call) : next(call);
}

Program lower(const Program& program) {
  if (program.level != ModeLevel::above_distribution) {
    fail({.thing = "lower",
          .wrong = "the program is below distribution already",
          .expected = "one that was recorded above distribution"});
  }
  const PlannedMemoryScope planned;  // memory without bytes has categories too
  CallsOnMeta calls;
  const ModeScope scope(ModeLevel::below_distribution, calls);
  Recorder recorder;
  ByTensor<Tensor> tensors(program.tensors.size());
  for (const auto& [number, name] : program.inputs_in_order()) {
    const ProgramInput& of = program.inputs.at(name);
    const ProgramTensor& x = program.tensors[number];
    Tensor& input = tensors[number];
    input = meta_input(x);
    recorder.input(name, local_of(input), of.role, x.category, of.micro_batch);
  }
  for (const Section& section : program.sections) {
    recorder.section(section.kind, [&] { trace_section(program, section, recorder, tensors); });
  }
  for (const auto& [name, number] : program.outputs) {
    recorder.output(name, local_of(tensors[number]));
  }
  return recorder.finish_following(program);
}

}  // namespace tessera
