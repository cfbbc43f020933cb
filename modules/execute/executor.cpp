// Shared parts of all executors of programs.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <tessera/printable.hpp>
#include <tessera/visit_dtype.hpp>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <variant>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import :guard_failure;

namespace tessera {

using Kind = Instruction::Kind;

Executor::~Executor() = default;

std::vector<std::map<std::size_t, MemoryPlaceCalls>> memory_place_calls(const Program& program) {
  // About one layer: enough work to hide a read, and few values that are near too early.
  constexpr std::size_t ahead = 64;
  std::vector<std::map<std::size_t, MemoryPlaceCalls>> calls(program.sections.size());
  for (std::size_t s = 0; s < program.sections.size(); ++s) {
    const std::vector<Instruction>& instructions = program.sections[s].instructions;
    std::map<TensorIndex, std::size_t> known;  // after which instruction of the section
    for (std::size_t at = 0; at < instructions.size(); ++at) {
      const Instruction& i = instructions[at];
      for (std::size_t k = 0; k < i.in.size() && i.kind == Kind::call; ++k) {
        const TensorIndex number = i.in[k];
        if (!number.exists() || !program.tensors[number].elsewhere) {
          continue;
        }
        calls[s][at].put_away.push_back(number);
        if (!i.writes(k)) {
          const auto after = known.find(number);
          const std::size_t first = after == known.end() ? 0 : after->second + 1;
          calls[s][std::max(first, at < ahead ? 0 : at - ahead)].fetched.push_back(number);
        }
        known[number] = at;
      }
    }
  }
  return calls;
}

Tensor allocate_elsewhere(MemoryPlace* place, const ResultShape& shape, Device device) {
  if (device != meta && (place == nullptr || device != cpu)) {
    fail({.thing = "replay",
          .wrong = place == nullptr
                       ? "the program keeps values elsewhere, and there is no place"
                       : fmt::format("values of {} cannot be kept elsewhere", to_string(device)),
          .advice = place == nullptr ? "pass a MemoryPlace to the executor"
                                     : "leave offloading out, or train on the CPU"});
  }
  return device == meta ? empty(shape.shape, shape.dtype, meta)
                        : place->allocate(shape.shape, shape.dtype);
}

std::string Executor::refusal(const std::map<std::string, double>& guards) const {
  const std::map<std::string, double>& recorded = program().guards;
  for (const auto& [name, value] : guards) {
    const auto was = recorded.find(name);
    if (was == recorded.end()) {
      return fmt::format("guard '{}' is {}, and the program has none of this name", name,
                         printable(value));
    }
    if (was->second != value) {
      return guard_in_words({.name = name, .value = was->second}, value);
    }
  }
  for (const auto& [name, value] : recorded) {
    if (!guards.contains(name)) {
      return fmt::format("guard '{}' is missing, and was {}", name, printable(value));
    }
  }
  return {};
}

std::vector<Tensor> Executor::arranged(const std::map<std::string, Tensor>& inputs) const {
  for (const auto& [name, x] : inputs) {
    if (!program().inputs.contains(name)) {
      fail({.thing = "replay",
            .wrong = fmt::format("the program has no input '{}'", name),
            .advice = "record the step again"});
    }
  }
  std::vector<Tensor> all;
  for (const auto& [name, unused] : program().inputs) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) {
      fail({.thing = "replay", .wrong = fmt::format("input '{}' is missing", name)});
    }
    all.push_back(found->second);
  }
  return all;
}

void Executor::check_input(const std::string& name, TensorIndex number, const Tensor& x) const {
  const bool distributed = x.is_distributed();
  if (!(distributed ? x.local() : x).is_contiguous()) {
    fail({.thing = "replay",
          .wrong = fmt::format("input '{}' is not contiguous", name),
          .advice = "pass contiguous(x)"});
  }
  const ProgramTensor& expected = program().tensors[number];
  if (!(x.shape() == expected.shape) || x.dtype() != expected.dtype) {
    fail({.thing = "replay",
          .wrong = fmt::format("input '{}' has another shape or type", name),
          .expected = fmt::format("{}{}", name_of(expected.dtype), to_string(expected.shape)),
          .got = fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape())),
          .advice = "record the step again"});
  }
  if (expected.spec != x.spec()) {
    fail({.thing = "replay",
          .wrong = fmt::format("input '{}' has another layout", name),
          .expected = expected.spec ? text_of(*expected.spec) : "a plain tensor",
          .got = distributed ? text_of(*x.spec()) : "a plain tensor",
          .advice = "redistribute it, or record the step again"});
  }
}

std::size_t Executor::section_of(SectionKind kind) const {
  const std::vector<Section>& sections = program().sections;
  const auto found = std::ranges::find(sections, kind, &Section::kind);
  if (found == sections.end()) {
    fail({.thing = "replay",
          .wrong = fmt::format("the program has no section '{}'", name_of(kind))});
  }
  return static_cast<std::size_t>(found - sections.begin());
}

Attributes Executor::bound(const Instruction& i, const StepVariables& variables) {
  if (i.bindings.empty()) {
    return i.attributes;
  }
  std::vector<ArgumentValue> values = i.op->arguments->values(i.attributes);
  for (const Binding& b : i.bindings) {
    ArgumentValue& value = values[static_cast<std::size_t>(b.field)];
    if (!b.stream.empty()) {
      const auto stream = variables.streams.find(b.stream);
      require(stream != variables.streams.end(),
              "replay: a random stream of the program is missing");
      RandomNumbers numbers = ArgumentType<RandomNumbers>::from_value(value);
      numbers.seed = stream->second.seed;
      numbers.stream = stream->second.stream;
      numbers.offset = stream->second.offset + static_cast<std::uint64_t>(b.offset);
      value = ArgumentType<RandomNumbers>::value(numbers);
    } else if (const double number = b.value.value(variables);
               std::holds_alternative<std::int64_t>(value)) {
      value = static_cast<std::int64_t>(number);
    } else {
      value = number;
    }
  }
  return i.op->arguments->from_values(values);
}

void Executor::rethrow(const Error& error, ProgramPlace place,
                       const ByTensor<Tensor>& tensors) const {
  if (const auto* const failed = dynamic_cast<const GuardFailure*>(&error)) {
    complete_communication(program(), place, tensors);
    std::size_t number = 0;
    for (std::size_t s = 0; s <= place.section; ++s) {
      const std::vector<Instruction>& all = program().sections[s].instructions;
      const auto end =
          s == place.section ? all.begin() + static_cast<std::ptrdiff_t>(place.at) : all.end();
      number += static_cast<std::size_t>(
          std::count_if(all.begin(), end, std::mem_fn(&Instruction::is_guard)));
    }
    throw GuardFailure(guards_of(program())[number], number, failed->now());
  }
  if (typeid(error) != typeid(Error)) {
    throw;  // another rank's
  }
  const Section& one = program().sections[place.section];
  const Instruction& i = one.instructions[place.at];
  const std::string read =
      i.kind == Kind::check ? fmt::format("of {}: ", read_in_words(program(), i)) : std::string();
  throw Error(fmt::format("replay: section '{}', instruction {} ({}): {}{}", name_of(one.kind),
                          place.at + 1, to_text(program(), i), read, error.what()),
              error.kind());
}

std::string Executor::in_words(ProgramPlace place) const {
  std::size_t before = place.at;
  for (std::size_t s = 0; s < place.section; ++s) {
    before += program().sections[s].instructions.size();
  }
  return graph::call_in_words(program(), PlaceIndex(static_cast<int>(before)));
}

void Executor::move_streams() const {
  for (const auto& [name, drawn] : program().draws) {
    random_stream(name).offset += drawn;
  }
}

namespace {

std::string described(const ResultShape& x, const SpecHandle& spec) {
  return spec != nullptr ? to_string(*spec)
                         : fmt::format("{}{}", name_of(x.dtype), to_string(x.shape));
}

void set_result(const Program& program, TensorIndex number, Tensor x, ByTensor<Tensor>& tensors) {
  const ProgramTensor& expected = program.tensors[number];
  if (!(x.shape() == expected.shape) || x.dtype() != expected.dtype || x.spec() != expected.spec) {
    fail(fmt::format("{} is {} (expected {})", to_text(number),
                     described({x.shape(), x.dtype()}, x.spec()),
                     described(expected, expected.spec)));
  }
  tensors[number] = std::move(x);
}

/// Makes a tensor of memory: this rank's part of it, which is distributed then.
template <class Make>
void set_memory(const Program& program, TensorIndex number, ByTensor<Tensor>& tensors,
                const Make& make) {
  const ProgramTensor& x = program.tensors[number];
  const Tensor part = make(x.spec == nullptr ? static_cast<const ResultShape&>(x)
                                             : ResultShape{local_shape(*x.spec), x.dtype});
  set_result(program, number, x.spec == nullptr ? part : make_distributed(part, x.spec), tensors);
}

}  // namespace

void run_in_scope(const Program& program, const Instruction& instruction,
                  const std::function<void()>& body) {
  const ProgramScope& from = program.scopes[instruction.scope];
  const ModuleScope module(from.module.empty() ? nullptr : interned_name(from.module));
  std::optional<OperationScope> operation;
  if (!from.operation.empty()) {
    operation.emplace(from.operation);
  }
  const auto in_phase = [&] {
    from.phase == Phase::none ? body() : run_phase(name_of(from.phase), body);
  };
  from.part.empty() ? in_phase() : run_phase(from.part, in_phase);
}

void execute(const Program& program, const Instruction& i, const Attributes& arguments,
             ByTensor<Tensor>& tensors, Device device) {
  const auto part = [&]() -> const Tensor& { return local_of(tensors[i.in[0]]); };
  switch (i.kind) {
    case Kind::call: {
      InlineVector<Tensor, 8> operands;
      for (const TensorIndex number : i.in) {
        operands.push_back(number.exists() ? tensors[number] : Tensor());
      }
      const std::span<const Tensor> in(operands.begin(), operands.size());
      Tensors out = program.level == ModeLevel::below_distribution
                        ? call_kernel(*i.op, in, arguments)
                        : call(*i.op, in, arguments);
      for (std::size_t k = 0; k < i.out.size(); ++k) {
        if (i.out[k].exists()) {
          set_result(program, i.out[k], std::move(out[k]), tensors);
        }
      }
      return;
    }
    case Kind::alias:
      set_memory(program, i.out[0], tensors,
                 [&](const ResultShape& shape) { return aliased(i, shape, part()); });
      return;
    case Kind::empty:
    case Kind::full:
    case Kind::values:
      set_memory(program, i.out[0], tensors,
                 [&](const ResultShape& shape) { return filled(i, shape, device); });
      return;
    case Kind::release:
      part().storage().release_memory();
      return;
    case Kind::restore:
      part().storage().restore_memory();
      return;
    case Kind::check:
      check_recorded_values(i, part());
  }
}

namespace {

/// Elements that from_values() makes tensors of.
template <class T>
constexpr bool is_made_of_values =
    std::is_same_v<T, float> || std::is_same_v<T, double> || std::is_same_v<T, std::int64_t> ||
    std::is_same_v<T, std::int32_t> || std::is_same_v<T, std::uint8_t> ||
    std::is_same_v<T, std::int8_t> || std::is_same_v<T, bool>;

/// Without memory, but so that a mode sees the values.
Tensor described_values(std::span<const double> values, const ResultShape& shape) {
  Tensor x;
  kernels::visit_stored(shape.dtype, [&]<class T>(T) {
    if constexpr (is_made_of_values<T>) {
      const auto typed = std::make_unique<T[]>(values.size());
      std::ranges::transform(values, typed.get(), [](double v) { return static_cast<T>(v); });
      x = from_values(std::span<const T>(typed.get(), values.size()), shape.shape, meta);
    }
  });
  require(static_cast<bool>(x), "record: there are no constants of such a type");
  return x;
}

}  // namespace

Tensor filled(const Instruction& i, const ResultShape& shape, Device device) {
  if (i.kind == Kind::full) {
    return full(shape.shape, i.values[0], shape.dtype, device);
  }
  if (i.kind == Kind::values && device == meta) {
    return described_values(i.values, shape);
  }
  if (i.kind == Kind::empty) {
    return empty(shape.shape, shape.dtype, device);
  }
  const Tensor x = empty(shape.shape, shape.dtype, cpu);
  kernels::visit_stored(shape.dtype, [&]<class T>(T) {
    std::ranges::transform(i.values, static_cast<T*>(x.raw_data()),
                           [](double v) { return static_cast<T>(v); });
  });
  return device == cpu ? x : copied_to(x, device);
}

void check_recorded_values(const Instruction& instruction, const Tensor& x) {
  if (x.is_meta()) {
    return;
  }
  const std::vector<double> now = to_doubles(x);
  if (now == instruction.values) {
    if (instruction.is_guard()) {
      note_decision(fmt::format("guard '{}' is {}", instruction.guard, printable(now[0])));
    }
    return;
  }
  if (instruction.is_guard()) {
    throw GuardFailure({.name = instruction.guard, .value = instruction.values[0]}, 0, now[0]);
  }
  fail(
      fmt::format("the host read other values when the step was recorded, and what follows "
                  "depends on them; {}",
                  legal_read));
}

}  // namespace tessera
