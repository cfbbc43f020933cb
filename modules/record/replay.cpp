module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tessera/printable.hpp>
#include <tessera/visit_dtype.hpp>
#include <typeinfo>
#include <utility>
#include <vector>
module tessera.record;

import tessera.base;
import tessera.mesh;
import tessera.tensor;

namespace tessera {
namespace {

using Kind = Instruction::Kind;

Tensor tensor_of(const Instruction& i, const ResultShape& shape, Device device) {
  if (i.kind == Kind::full) {
    return full(shape.shape, i.values[0], shape.dtype, device);
  }
  Tensor x = empty(shape.shape, shape.dtype, device);
  if (i.kind == Kind::values && !x.is_meta()) {
    kernels::visit_stored(shape.dtype, [&]<class T>(T) {
      std::ranges::transform(i.values, static_cast<T*>(x.raw_data()),
                             [](double v) { return static_cast<T>(v); });
    });
  }
  return x;
}

Attributes bound(const Instruction& i, const StepVariables& variables) {
  if (i.bindings.empty()) {
    return i.attributes;
  }
  std::vector<ArgumentValue> values = i.op->arguments->values(i.attributes);
  for (const Binding& b : i.bindings) {
    ArgumentValue& value = values[static_cast<std::size_t>(b.field)];
    if (const auto stream = variables.streams.find(b.variable);
        i.op->arguments->fields[static_cast<std::size_t>(b.field)].type ==
        ArgumentType<RandomNumbers>::name) {
      require(stream != variables.streams.end(),
              "replay: a random stream of the program is missing");
      RandomNumbers numbers = ArgumentType<RandomNumbers>::from_value(value);
      numbers.seed = stream->second.seed;
      numbers.stream = stream->second.stream;
      numbers.offset = stream->second.offset + static_cast<std::uint64_t>(b.offset);
      value = ArgumentType<RandomNumbers>::value(numbers);
    } else if (const auto number = variables.numbers.find(b.variable);
               number != variables.numbers.end()) {
      value = number->second;
    } else if (const auto count = variables.counts.find(b.variable);
               count != variables.counts.end()) {
      value = count->second + b.offset;
    } else {
      fail({.thing = "replay",
            .wrong = fmt::format("the variable '{}' has no value", b.variable),
            .advice = "set it before the section"});
    }
  }
  return i.op->arguments->from_values(values);
}

}  // namespace

struct Replay::State {
  Program program;
  /// By section and instruction: the numbers that nothing later uses.
  std::vector<std::vector<std::vector<int>>> last_uses;
  /// By number: whether other ranks read the tensor, because ranks reduce it.
  std::vector<bool> peers_read;
  std::vector<Tensor> tensors;
  std::vector<Tensor> operands;  // of the running instruction

  void find_last_uses() {
    std::set<int> used;
    for (const auto& [name, number] : program.outputs) {
      used.insert(number);
    }
    for (const auto& [name, number] : program.inputs) {
      used.insert(number);  // they go at the end
    }
    last_uses.resize(program.sections.size());
    for (std::size_t s = program.sections.size(); s-- > 0;) {
      const std::vector<Instruction>& instructions = program.sections[s].instructions;
      last_uses[s].resize(instructions.size());
      for (std::size_t i = instructions.size(); i-- > 0;) {
        for (const std::vector<int>* numbers : {&instructions[i].in, &instructions[i].out}) {
          for (const int number : *numbers) {
            if (number >= 0 && used.insert(number).second) {
              last_uses[s][i].push_back(number);
            }
          }
        }
      }
    }
  }

  void find_sources() {
    peers_read.assign(program.tensors.size(), false);
    const auto is_source = [&](int number) {
      return number >= 0 && peers_read[static_cast<std::size_t>(number)];
    };
    for (auto section = program.sections.rbegin(); section != program.sections.rend(); ++section) {
      for (auto i = section->instructions.rbegin(); i != section->instructions.rend(); ++i) {
        const bool reduces =
            i->kind == Kind::call && (i->op->communicates == Communicates::all_reduce ||
                                      i->op->communicates == Communicates::reduce_scatter);
        const bool aliases = i->kind == Kind::alias && is_source(i->out[0]);
        for (const int number : i->in) {
          if (number >= 0 && (reduces || aliases)) {
            peers_read[static_cast<std::size_t>(number)] = true;
          }
        }
        if (reduces && i->op->communicates == Communicates::all_reduce) {
          for (const int number : i->out) {
            if (number >= 0) {
              peers_read[static_cast<std::size_t>(number)] = true;  // a piece of the result
            }
          }
        }
      }
    }
  }
  /// Whether a result of the instruction is read by other ranks.
  bool is_for_peers(const Instruction& i) const {
    return std::ranges::any_of(i.out, [&](int number) {
      return number >= 0 && peers_read[static_cast<std::size_t>(number)];
    });
  }

  Tensor& at(int number) { return tensors[static_cast<std::size_t>(number)]; }

  Device device() const {
    const auto any = program.inputs.begin();
    return any == program.inputs.end() ? cpu
                                       : tensors[static_cast<std::size_t>(any->second)].device();
  }

  void set(int number, Tensor x) {
    const ResultShape& expected = program.tensors[static_cast<std::size_t>(number)];
    if (!(x.shape() == expected.shape) || x.dtype() != expected.dtype) {
      fail(fmt::format("%{} is {}{} (expected {}{})", number, name_of(x.dtype()),
                       to_string(x.shape()), name_of(expected.dtype), to_string(expected.shape)));
    }
    at(number) = std::move(x);
  }

  Tensor aliased(const Instruction& i) {
    const Tensor& base = at(i.in[0]);
    const ResultShape& shape = program.tensors[static_cast<std::size_t>(i.out[0])];
    const auto first = base.offset() * static_cast<std::int64_t>(size_of(base.dtype())) /
                       static_cast<std::int64_t>(size_of(shape.dtype));
    return from_storage(base.impl()->storage, shape.shape, i.strides, first + i.offset, shape.dtype,
                        base.device());
  }

  void execute(const Instruction& i, const StepVariables& variables) {
    std::optional<PeersReadScope> scope;
    if (is_for_peers(i)) {
      scope.emplace();
    }
    switch (i.kind) {
      case Kind::call: {
        operands.clear();
        for (const int number : i.in) {
          operands.push_back(number < 0 ? Tensor() : at(number));
        }
        Tensors out = i.bindings.empty() ? call_kernel(*i.op, operands, i.attributes)
                                         : call_kernel(*i.op, operands, bound(i, variables));
        operands.clear();
        for (std::size_t k = 0; k < i.out.size(); ++k) {
          if (i.out[k] >= 0) {
            set(i.out[k], std::move(out[k]));
          }
        }
        return;
      }
      case Kind::alias:
        set(i.out[0], aliased(i));
        return;
      case Kind::empty:
      case Kind::full:
      case Kind::values:
        set(i.out[0], tensor_of(i, program.tensors[static_cast<std::size_t>(i.out[0])], device()));
        return;
      case Kind::release:
        at(i.in[0]).storage().release_memory();
        return;
      case Kind::restore:
        at(i.in[0]).storage().restore_memory();
        return;
      case Kind::check: {
        const Tensor& x = at(i.in[0]);
        if (!x.is_meta() && to_doubles(x) != i.values) {
          fail(
              "the host read other values when the step was recorded, and what follows depends on "
              "them; record the step again");
        }
      }
    }
  }
};

Replay::Replay(Program program) : state_(std::make_unique<State>()) {
  if (program.rank != current_rank()) {
    fail({.thing = "replay",
          .wrong = fmt::format("the program is that of rank {}", program.rank),
          .expected = fmt::format("rank {}", current_rank()),
          .advice = "each rank has its own"});
  }
  state_->program = std::move(program);
  state_->find_last_uses();
  state_->find_sources();
}
Replay::~Replay() = default;

const Program& Replay::program() const { return state_->program; }

std::string Replay::refusal(const StepVariables& variables) const {
  for (const auto& [name, value] : state_->program.required) {
    const auto found = variables.numbers.find(name);
    if (found == variables.numbers.end() || found->second != value) {
      return fmt::format("'{}' is {} and was {} in both recorded steps", name,
                         found == variables.numbers.end()
                             ? std::string("missing")
                             : fmt::format("{}", printable(found->second)),
                         printable(value));
    }
  }
  return {};
}

void Replay::begin(const std::map<std::string, Tensor>& inputs) {
  State& s = *state_;
  s.tensors.assign(s.program.tensors.size(), Tensor());
  for (const auto& [name, x] : inputs) {
    if (!s.program.inputs.contains(name)) {
      fail({.thing = "replay",
            .wrong = fmt::format("the program has no input '{}'", name),
            .advice = "record the step again"});
    }
  }
  for (const auto& [name, number] : s.program.inputs) {
    const auto found = inputs.find(name);
    if (found == inputs.end()) {
      fail({.thing = "replay", .wrong = fmt::format("input '{}' is missing", name)});
    }
    if (!found->second.is_contiguous()) {
      fail({.thing = "replay",
            .wrong = fmt::format("input '{}' is not contiguous", name),
            .advice = "pass contiguous(x)"});
    }
    try {
      s.set(number, found->second);
    } catch (const Error& error) {
      fail({.thing = "replay",
            .wrong = fmt::format("input '{}': {}", name, error.what()),
            .advice = "record the step again"});
    }
  }
}

void Replay::run(std::string_view section, const StepVariables& variables) {
  State& s = *state_;
  const auto found = std::ranges::find(s.program.sections, section, &Section::name);
  if (found == s.program.sections.end()) {
    fail({.thing = "replay", .wrong = fmt::format("the program has no section '{}'", section)});
  }
  const NoGrad no_grad;
  const auto& last_uses = s.last_uses[static_cast<std::size_t>(found - s.program.sections.begin())];
  for (std::size_t i = 0; i < found->instructions.size(); ++i) {
    try {
      s.execute(found->instructions[i], variables);
    } catch (const Error& error) {
      if (typeid(error) != typeid(Error)) {
        throw;  // another rank's
      }
      throw Error(fmt::format("replay: section '{}', instruction {} ({}): {}", section, i + 1,
                              to_text(s.program, found->instructions[i]), error.what()),
                  error.kind());
    }
    for (const int number : last_uses[i]) {
      s.at(number) = Tensor();
    }
  }
}

const Tensor& Replay::output(const std::string& name) const {
  const auto found = state_->program.outputs.find(name);
  if (found == state_->program.outputs.end() || !state_->at(found->second)) {
    fail({.thing = "replay", .wrong = fmt::format("there is no output '{}' yet", name)});
  }
  return state_->at(found->second);
}

void Replay::end() {
  for (const auto& [name, drawn] : state_->program.draws) {
    random_stream(name).offset += drawn;
  }
  state_->tensors.clear();
}

void Replay::abandon() noexcept { state_->tensors.clear(); }

}  // namespace tessera
