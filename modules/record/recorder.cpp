module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <tessera/visit_dtype.hpp>
#include <utility>
#include <vector>
module tessera.record;

import tessera.base;
import tessera.mesh;
import tessera.tensor;

namespace tessera {
namespace {

/// A tensor within its storage.
struct View {
  int number;
  std::int64_t offset;
  Dims shape;
  Dims strides;
  DType dtype;
};

/// Memory that the step has seen. Its storage's tag finds it.
struct Memory {
  std::vector<View> views;  // of these the first one is the base of aliases
  bool pending = false;     // a collective that was issued fills it
  /// A restored storage that no instruction has used yet: its tensor is made when its type is
  /// known. -1: none.
  std::ptrdiff_t undeclared = -1;
  std::size_t undeclared_section = 0;
  std::int64_t bytes = 0;
};

std::uint64_t next_serial() {
  static std::uint64_t serial = 0;
  return __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
}

std::string described(const Tensor& x) {
  return fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape()));
}

std::string place() {
  const std::string* const module = current_module();
  return module == nullptr
             ? std::string()
             : fmt::format(" in module '{}'", module->empty() ? "the model" : *module);
}

/// The tensor's values, exactly. Error: integers that f64 cannot hold.
std::vector<double> exact_values(const Tensor& x) {
  std::vector<double> values = to_doubles(x);
  const auto too_large = [](double v) { return std::fabs(v) > 9007199254740992.0; };
  if (x.dtype() == DType::i64 && std::ranges::any_of(values, too_large)) {
    fail({.thing = "record",
          .wrong = "integers beyond 2^53 in a constant, which no text holds: " + described(x),
          .advice = "pass it as an input"});
  }
  return values;
}

}  // namespace

struct Recorder::State {
  std::uint64_t serial = next_serial() << 32U;
  Recording recording;
  std::vector<Memory> memories;
  bool paused = true;
  bool executes = true;

  Program& program() { return recording.program; }
  std::vector<Instruction>& instructions() { return program().sections.back().instructions; }

  Memory* memory_of(const Storage& storage) {
    const std::uint64_t tag = storage.tag();
    const std::uint64_t at = tag - serial;
    return tag >= serial && at < memories.size() ? &memories[at] : nullptr;
  }

  Memory& new_memory(Storage& storage) {
    storage.set_tag(serial + memories.size());
    memories.emplace_back();
    return memories.back();
  }

  int new_number(const Tensor& x) {
    program().tensors.push_back({x.shape(), x.dtype()});
    return static_cast<int>(program().tensors.size()) - 1;
  }

  /// A tensor that an instruction has made.
  int define(const Tensor& x) {
    Memory* memory = memory_of(x.storage());
    if (memory == nullptr) {
      memory = &new_memory(x.storage());
    }
    const int number = new_number(x);
    const auto replaced = [&](const View& v) { return memory->views.size() > 1 && is(v, x); };
    std::erase_if(memory->views, replaced);
    memory->views.push_back({number, x.offset(), x.shape(), x.strides(), x.dtype()});
    return number;
  }

  static bool is(const View& v, const Tensor& x) {
    return v.offset == x.offset() && v.shape == x.shape() && v.strides == x.strides() &&
           v.dtype == x.dtype();
  }

  /// A storage that was restored before it was used becomes a tensor of the type of its first use.
  void declare(Memory& memory, const Tensor& x) {
    if (memory.undeclared < 0) {
      return;
    }
    const std::int64_t count = memory.bytes / static_cast<std::int64_t>(size_of(x.dtype()));
    program().tensors.push_back({{count}, x.dtype()});
    const int number = static_cast<int>(program().tensors.size()) - 1;
    Instruction& made = program()
                            .sections[memory.undeclared_section]
                            .instructions[static_cast<std::size_t>(memory.undeclared)];
    made.out = {number};
    memory.views.push_back({number, 0, {count}, {1}, x.dtype()});
    memory.undeclared = -1;
  }

  /// The number of an operand; an alias of its memory where it is another view of it.
  int number_of(const Tensor& x, const std::string& what) {
    Memory* const memory = memory_of(x.storage());
    if (memory == nullptr) {
      fail({.thing = "record",
            .wrong = fmt::format("{}{} is a {} that was made before the recorded step and is not "
                                 "one of its inputs",
                                 what, place(), described(x)),
            .advice = "make it within the step, or name it as an input"});
    }
    declare(*memory, x);
    for (const View& v : memory->views) {
      if (is(v, x)) {
        return v.number;
      }
    }
    const auto base =
        std::ranges::find_if(memory->views, [&](const View& v) { return v.dtype == x.dtype(); });
    if (base == memory->views.end()) {
      fail({.thing = "record",
            .wrong = fmt::format("{}{} is a {} in memory of another type, which cannot be recorded",
                                 what, place(), described(x))});
    }
    Instruction alias{.kind = Instruction::Kind::alias,
                      .in = {base->number},
                      .strides = x.strides(),
                      .offset = x.offset() - base->offset};
    const int number = new_number(x);
    alias.out = {number};
    memory->views.push_back({number, x.offset(), x.shape(), x.strides(), x.dtype()});
    instructions().push_back(std::move(alias));
    return number;
  }

  /// The results of a call that is not executed.
  static Tensors rehearsed(const Call& call) {
    Tensors out;
    if (call.op.view != nullptr) {
      call.op.view(call, out);
    } else if (call.op.in_place) {
      out.push_back(call.in[0]);
    } else {
      ResultShapes shapes;
      call.op.infer(call, shapes);
      for (const ResultShape& r : shapes) {
        out.push_back(empty(r.shape, r.dtype, call.in.empty() ? cpu : call.in[0].device()));
      }
    }
    return out;
  }

  Tensors record(const Call& call, NextCall& next) {
    Instruction made{.op = &call.op, .attributes = call.attributes};
    for (std::size_t i = 0; i < call.in.size(); ++i) {
      made.in.push_back(
          call.in[i] ? number_of(call.in[i],
                                 fmt::format("operand '{}' of {}",
                                             call.op.operand_name(i, call.in.size()), call.op.name))
                     : -1);
    }
    Tensors out = executes ? next(call) : rehearsed(call);
    if (!call.op.in_place) {
      for (const Tensor& result : out) {
        made.out.push_back(result ? define(result) : -1);
      }
    }
    note_pending(call.in);
    note_pending({out.begin(), out.size()});
    instructions().push_back(std::move(made));
    return out;
  }

  void note_pending(std::span<const Tensor> tensors) {
    for (const Tensor& x : tensors) {
      if (Memory* memory = x ? memory_of(x.storage()) : nullptr) {
        memory->pending = x.storage().pending() != nullptr;
      }
    }
  }

  void create(const Action& action) {
    using Kind = Instruction::Kind;
    const Tensor& x = action.out[0];
    Instruction made{.kind = Kind::empty};
    if (action.name == "from_values") {
      made.kind = Kind::values;
      made.values = exact_values(x);
    } else if (action.name == "zeros" || action.name == "full") {
      made.kind = x.numel() > 0 ? Kind::full : Kind::empty;
      made.values =
          x.numel() > 0 ? exact_values(alias(x, {1}, {1}, x.offset())) : std::vector<double>();
    } else if (action.name != "empty" && action.name != "shared_empty") {
      fail({.thing = "record",
            .wrong = fmt::format("the factory '{}'{} cannot be recorded", action.name, place()),
            .advice = "use empty, zeros, full or from_values"});
    }
    made.out = {define(x)};
    instructions().push_back(std::move(made));
  }

  void change_memory(const Action& action) {
    using Kind = Instruction::Kind;
    Storage& storage = *action.storage;
    Memory* memory = memory_of(storage);
    const bool restores = action.kind == ActionKind::restore;
    if (memory == nullptr && restores && !storage.has_memory()) {
      memory = &new_memory(storage);
      memory->bytes = static_cast<std::int64_t>(storage.bytes());
      memory->undeclared = static_cast<std::ptrdiff_t>(instructions().size());
      memory->undeclared_section = program().sections.size() - 1;
      instructions().push_back({.kind = Kind::empty});
    } else if (memory != nullptr && !memory->views.empty() && restores != storage.has_memory()) {
      instructions().push_back(
          {.kind = restores ? Kind::restore : Kind::release, .in = {memory->views.front().number}});
    }
    // Memory that the step has not used is released: nothing that it needs.
  }
};

Recorder::Recorder() : state_(std::make_unique<State>()) {
  state_->program().rank = current_rank();
}
Recorder::~Recorder() = default;

void Recorder::input(const std::string& name, const Tensor& local) {
  State& s = *state_;
  if (s.program().inputs.contains(name)) {
    fail({.thing = "record",
          .wrong = fmt::format("there are two inputs '{}'", name),
          .advice = "give each a name of its own"});
  }
  if (!local.is_contiguous()) {
    fail({.thing = "record",
          .wrong = fmt::format("input '{}' is not contiguous", name),
          .advice = "pass contiguous(x)"});
  }
  s.program().inputs[name] = s.define(local);
}

void Recorder::output(const std::string& name, const Tensor& local) {
  State& s = *state_;
  s.program().outputs[name] = s.number_of(local, fmt::format("output '{}'", name));
}

void Recorder::section(const std::string& name, const std::function<void()>& body) {
  State& s = *state_;
  s.program().sections.push_back({name});
  const ModeScope scope(ModeLevel::below_distribution, *this);
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

void Recorder::rehearse(const StepVariables& variables, const std::function<void()>& body) {
  State& s = *state_;
  const Program program = s.program();
  const std::vector<Memory> memories = s.memories;
  const std::size_t first = s.instructions().size();
  s.executes = false;
  try {
    body();
  } catch (...) {
    s.executes = true;
    throw;
  }
  s.executes = true;
  std::vector<Instruction> rehearsed(s.instructions().begin() + static_cast<std::ptrdiff_t>(first),
                                     s.instructions().end());
  s.recording.program = program;
  const std::size_t used = s.memories.size();
  s.memories = memories;
  s.memories.resize(used);  // a tensor of the rehearsal is not taken for a later one
  s.recording.rehearsals.push_back({.section = s.program().sections.size() - 1,
                                    .first = first,
                                    .instructions = std::move(rehearsed),
                                    .variables = variables});
}

Recording Recorder::finish(const StepVariables& variables) {
  State& s = *state_;
  for (const Memory& memory : s.memories) {
    if (memory.pending) {
      const ResultShape& x =
          s.program().tensors[static_cast<std::size_t>(memory.views.front().number)];
      fail({.thing = "record",
            .wrong = fmt::format("a collective was issued for %{} ({}{}) and nothing waits for it "
                                 "within the step",
                                 memory.views.front().number, name_of(x.dtype), to_string(x.shape)),
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
  s.recording.variables = variables;
  return std::move(s.recording);
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
    case ActionKind::read: {
      if (!s.executes) {
        fail({.thing = "record",
              .wrong = "values are read within a rehearsal, which has none",
              .advice = "read them before or after the section"});
      }
      next(action);
      Instruction read{.kind = Instruction::Kind::check, .values = action.values};
      read.in = {s.number_of(action.in[0], fmt::format("what the host reads by {}", action.name))};
      s.instructions().push_back(std::move(read));
      return;
    }
    case ActionKind::collective:
    case ActionKind::wait:
      fail({.thing = "record",
            .wrong = fmt::format("a communicator is called directly{} ({} '{}'), which a program "
                                 "cannot repeat",
                                 place(), name_of(action.kind), action.name),
            .advice = "use the operators of tessera.ops, such as all_reduce"});
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
