module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
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
import :recorder_state;

namespace tessera {
namespace {

/// Refuses what no mode above distribution sees: calls of communicators outside of operators.
class NoDirectCalls final : public Mode {
 public:
  explicit NoDirectCalls(const bool& paused) : paused_(paused) {}
  void perform(Action& action, NextAction& next) override {
    if (!paused_ && (action.kind == ActionKind::collective || action.kind == ActionKind::wait)) {
      refuse(action);
    }
    next(action);
  }
  [[noreturn]] static void refuse(const Action& action) {
    fail({.thing = "record",
          .wrong = fmt::format("a communicator is called directly{} ({} '{}'), which a program "
                               "cannot repeat",
                               recorded_place(), name_of(action.kind), action.name),
          .advice = "use the operators of tessera.ops, such as all_reduce"});
  }

 private:
  const bool& paused_;
};

/// Refuses an address of values: what the host reads or writes there is in no program.
[[noreturn]] void refuse_address(const Tensor& x) {
  fail(
      {.thing = "record",
       .wrong = fmt::format("the host takes the address of the values of a {}{}{} (data<T>()), and "
                            "what it reads or writes there is in no program",
                            name_of(x.dtype()), to_string(x.shape()), recorded_place()),
       .advice = "write by operators (ops::copy_, ops::fill_) or make it by from_values(); read "
                 "by to_doubles(), item() or guard(); or do it before the step"});
}

}  // namespace

Recorder::Recorder(ModeLevel level) : state_(std::make_unique<State>(level)) {
  state_->program().rank = current_rank();
  begin_recording();
  static_cast<void>(take_read_variables());  // of what was done before
}
Recorder::~Recorder() = default;

void Recorder::input(const std::string& name, const Tensor& x, Role role, MemoryCategory category,
                     int micro_batch) {
  State& s = *state_;
  if (s.program().inputs.contains(name)) {
    fail({.thing = "record",
          .wrong = fmt::format("there are two inputs '{}'", name),
          .advice = "give each a name of its own"});
  }
  if (x.is_distributed() && s.program().level == ModeLevel::below_distribution) {
    fail({.thing = "record",
          .wrong = fmt::format("input '{}' is distributed, and the recorder is below distribution",
                               name),
          .advice = "name its local part, or record above distribution"});
  }
  if (!local_of(x).is_contiguous()) {
    fail({.thing = "record",
          .wrong = fmt::format("input '{}' is not contiguous", name),
          .advice = "pass contiguous(x)"});
  }
  s.program().inputs[name] = {
      .tensor = s.define(x, category), .role = role, .micro_batch = micro_batch};
}

void Recorder::output(const std::string& name, const Tensor& x) {
  State& s = *state_;
  s.program().outputs[name] = s.index_of(x, fmt::format("output '{}'", name));
}

void Recorder::gradient(const std::string& name, const Tensor& x, const std::string& input) {
  Program& program = state_->program();
  if (!program.inputs.contains(input)) {
    fail({.thing = "record",
          .wrong = fmt::format("output '{}' is the gradient of '{}', which is not an input", name,
                               input),
          .advice = "name an input of the step"});
  }
  output(name, x);
  program.gradients[name] = input;
}

void Recorder::update(int optimizer, const std::string& input) {
  Program& program = state_->program();
  const auto found = program.inputs.find(input);
  if (found == program.inputs.end() || found->second.role != Role::parameter) {
    fail({.thing = "record",
          .wrong = fmt::format("an optimizer updates '{}', which is not {}", input,
                               found == program.inputs.end() ? "an input" : "a parameter"),
          .advice = "name the parameter as an input of the step, with the role parameter"});
  }
  program.updates.push_back({.optimizer = optimizer, .input = input});
}

void Recorder::section(SectionKind kind, const std::function<void()>& body) {
  State& s = *state_;
  s.program().sections.push_back({.kind = kind});
  NoDirectCalls none(s.paused);
  std::optional<ModeScope> scope_of_none;
  if (s.program().level == ModeLevel::above_distribution) {
    scope_of_none.emplace(ModeLevel::below_distribution, none);
  }
  const ModeScope scope(s.program().level, *this);
  s.paused = false;
  try {
    body();
  } catch (...) {
    s.paused = true;
    throw;
  }
  s.paused = true;
}

void Recorder::pause(const std::function<void()>& body) {
  const bool before = std::exchange(state_->paused, true);
  body();
  state_->paused = before;
}

void Recorder::follow(const Instruction* instruction) {
  State& s = *state_;
  const Instruction* const last = std::exchange(s.followed, instruction);
  if (last != nullptr && !last->bindings.empty() && !std::exchange(s.followed_on, false)) {
    s.followed = nullptr;
    fail(
        {.thing = "record",
         .wrong = fmt::format("{} is executed by calls of other operators, so nothing follows from "
                              "its variable '{}'",
                              last->op->name, to_text(last->bindings.front()))});
  }
  s.followed_on = false;
}

Recording Recorder::finish(const StepVariables& variables) {
  State& s = *state_;
  if (const std::vector<std::string> read = take_read_variables(); !read.empty()) {
    fail({.thing = "record",
          .wrong = fmt::format("the step takes a plain number from {} (Number::value()), which its "
                               "program would keep as a constant",
                               join_words(read)),
          .advice = "compute with the Number itself; what decides how a step goes is a guard"});
  }
  for (const RecordedMemory& memory : s.memories) {
    for (const RecordedView& v : memory.views) {
      s.program().tensors[v.tensor].category = memory.category;
    }
    if (memory.pending) {
      const ResultShape& x = s.program().tensors[memory.views.front().tensor];
      fail({.thing = "record",
            .wrong = fmt::format("a collective was issued for {} ({}{}) and nothing waits for it "
                                 "within the step",
                                 to_text(memory.views.front().tensor), name_of(x.dtype),
                                 to_string(x.shape)),
            .advice = "call wait()"});
    }
  }
  for (Section& section : s.program().sections) {  // memory that nothing has used
    std::erase_if(section.instructions, [](const Instruction& i) {
      return i.kind == Instruction::Kind::empty && i.out.empty();
    });
  }
  for (const auto& [name, stream] : random_state()) {
    const auto start = variables.streams.find(name);
    const std::uint64_t before = start == variables.streams.end() ? 0 : start->second.offset;
    if (stream.offset != before) {
      s.program().draws[name] = stream.offset - before;
    }
  }
  s.bind_streams(variables);
  s.declare_variables(variables);
  s.recording.variables = variables;
  return std::move(s.recording);
}

Program Recorder::finish_following(const Program& other) {
  StepVariables variables;
  variables.streams = random_state();  // no numbers are drawn here
  Program made = finish(variables).program;
  made.numbers = other.numbers;
  made.counts = other.counts;
  made.draws = other.draws;
  made.guards = other.guards;
  made.updates = other.updates;
  made.gradients = other.gradients;
  return made;
}

Tensors Recorder::call(const Call& call, NextCall& next) {
  return state_->paused ? next(call) : state_->record(call, next);
}

void Recorder::perform(Action& action, NextAction& next) {
  State& s = *state_;
  if (s.paused) {
    next(action);
    return;
  }
  switch (action.kind) {
    case ActionKind::create:
      next(action);
      s.create(action);
      return;
    case ActionKind::read:
      if (action.name == "data") {
        refuse_address(action.in[0]);
      }
      s.read(action, next);
      return;
    case ActionKind::collective:
    case ActionKind::wait:
      NoDirectCalls::refuse(action);
    case ActionKind::phase: {
      const Phase before = s.phase;
      const std::string part_before = s.part_of_step;
      if (const std::optional<Phase> known = phase_named(action.name)) {
        s.phase = *known;
      } else {
        s.part_of_step = action.name;
      }
      const auto leave = [&] {
        s.phase = before;
        s.part_of_step = part_before;
      };
      try {
        next(action);
      } catch (...) {
        leave();
        throw;
      }
      leave();
      return;
    }
    case ActionKind::release:
    case ActionKind::restore:
      s.change_memory(action);
      next(action);
      return;
    default:
      next(action);
  }
}

}  // namespace tessera
