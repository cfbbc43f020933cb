// The recorder's knowledge of the memory that a step uses.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <span>
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

std::uint64_t next_serial() {
  static std::uint64_t serial = 0;
  return __atomic_add_fetch(&serial, 1, __ATOMIC_RELAXED);
}

std::string described(const Tensor& x) {
  return x.is_distributed() ? to_string(*x.spec())
                            : fmt::format("{}{}", name_of(x.dtype()), to_string(x.shape()));
}

/// Error: integers that f64 cannot hold.
std::vector<double> exact(std::vector<double> values, const Tensor& x) {
  const auto too_large = [](double v) { return std::fabs(v) > 9007199254740992.0; };
  if (x.dtype() == DType::i64 && std::ranges::any_of(values, too_large)) {
    fail({.thing = "record",
          .wrong = "integers beyond 2^53 in a constant, which no text holds: " + described(x),
          .advice = "pass it as an input"});
  }
  return values;
}

/// The tensor's values, exactly.
std::vector<double> exact_values(const Tensor& x) { return exact(to_doubles(x), x); }

/// Notes the category that the memory is booked on at present; the last one is in the program.
void note_category(RecordedMemory& memory, const Tensor& x) {
  if (local_of(x).storage().category() != MemoryCategory::other) {
    memory.category = local_of(x).storage().category();
  }
}

bool is(const RecordedView& v, const Tensor& x) {
  const Tensor& part = local_of(x);
  return v.offset == part.offset() && v.shape == part.shape() && v.strides == part.strides() &&
         v.dtype == part.dtype() && v.spec == x.spec();
}

RecordedView view_of(TensorIndex tensor, const Tensor& x) {
  const Tensor& part = local_of(x);
  return {tensor, part.offset(), part.shape(), part.strides(), part.dtype(), x.spec()};
}

/// Whether the result is the first operand as it is, so that the call has made nothing.
bool gives_back_operand(const Call& call, const Tensors& out) {
  return !call.op.in_place && out.size() == 1 && !call.in.empty() && out[0] && call.in[0] &&
         &local_of(out[0]).storage() == &local_of(call.in[0]).storage() &&
         is(view_of(TensorIndex(), call.in[0]), out[0]);
}

}  // namespace

Recorder::State::State(ModeLevel level) : serial(next_serial() << 32U) { program().level = level; }

void Recorder::State::add(Instruction made) {
  const std::string* const module = current_module();
  const std::string* const written = current_operation();
  const bool is_part = made.op != nullptr && written != nullptr && *written != made.op->name &&
                       (program().level == ModeLevel::above_distribution ||
                        made.op->communicates != Communicates::none);
  made.scope = program().scope({.phase = phase,
                                .module = module == nullptr ? "" : *module,
                                .operation = is_part ? *written : "",
                                .part = part_of_step});
  instructions().push_back(std::move(made));
}

RecordedMemory* Recorder::State::memory_of(const Storage& storage) {
  const std::uint64_t tag = storage.tag();
  const std::uint64_t at = tag - serial;
  return tag >= serial && at < memories.size() ? &memories[at] : nullptr;
}

RecordedMemory& Recorder::State::new_memory(Storage& storage) {
  storage.set_tag(serial + memories.size());
  memories.emplace_back();
  return memories.back();
}

TensorIndex Recorder::State::new_tensor(const ResultShape& shape, const SpecHandle& spec) {
  if (spec != nullptr) {
    program().mesh(spec->layout.mesh());
  }
  return program().tensors.add({shape, spec});
}

TensorIndex Recorder::State::define(const Tensor& x, MemoryCategory category) {
  RecordedMemory* memory = memory_of(local_of(x).storage());
  if (memory == nullptr) {
    memory = &new_memory(local_of(x).storage());
    memory->category = category;
  }
  const TensorIndex tensor = new_tensor({.shape = x.shape(), .dtype = x.dtype()}, x.spec());
  const auto replaced = [&](const RecordedView& v) { return memory->views.size() > 1 && is(v, x); };
  std::erase_if(memory->views, replaced);
  memory->views.push_back(view_of(tensor, x));
  note_category(*memory, x);
  return tensor;
}

void Recorder::State::declare(RecordedMemory& memory, const Tensor& x) {
  if (memory.undeclared < 0) {
    return;
  }
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  const DType dtype = memory.bytes % size == 0 ? x.dtype() : DType::u8;
  const std::int64_t count = memory.bytes / static_cast<std::int64_t>(size_of(dtype));
  const TensorIndex tensor = new_tensor(ResultShape{.shape = {count}, .dtype = dtype});
  Instruction& made = program()
                          .sections[memory.undeclared_section]
                          .instructions[static_cast<std::size_t>(memory.undeclared)];
  made.out = {tensor};
  memory.views.push_back({tensor, 0, {count}, {1}, dtype});
  memory.undeclared = -1;
}

TensorIndex Recorder::State::index_of(const Tensor& x, const std::string& what) {
  RecordedMemory* const memory = memory_of(local_of(x).storage());
  if (memory == nullptr) {
    fail({.thing = "record",
          .wrong = fmt::format("{}{} is a {} that was made before the recorded step and is not "
                               "one of its inputs",
                               what, recorded_place(), described(x)),
          .advice = "make it within the step, or name it as an input"});
  }
  declare(*memory, x);
  note_category(*memory, x);
  for (const RecordedView& v : memory->views) {
    if (is(v, x)) {
      return v.tensor;
    }
  }
  return add_alias(*memory, x, what);
}

TensorIndex Recorder::State::add_alias(RecordedMemory& memory, const Tensor& x,
                                       const std::string& what) {
  const Tensor& part = local_of(x);
  const auto same_type = std::ranges::find_if(
      memory.views, [&](const RecordedView& v) { return v.dtype == x.dtype(); });
  const RecordedView& base = same_type == memory.views.end() ? memory.views.front() : *same_type;
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  const std::int64_t bytes =
      part.offset() * size - base.offset * static_cast<std::int64_t>(size_of(base.dtype));
  if (bytes % size != 0) {
    fail({.thing = "record",
          .wrong = fmt::format("{}{} is a {} that begins within an element of its type", what,
                               recorded_place(), described(x))});
  }
  Instruction alias{.kind = Instruction::Kind::alias,
                    .in = {base.tensor},
                    .strides = part.strides(),
                    .offset = bytes / size};
  const TensorIndex tensor = new_tensor({.shape = x.shape(), .dtype = x.dtype()}, x.spec());
  alias.out = {tensor};
  memory.views.push_back(view_of(tensor, x));
  add(std::move(alias));
  return tensor;
}

void Recorder::State::bind(Instruction& made) {
  if (!made.attributes.is_traced()) {
    return;
  }
  int word = 0;
  for (std::size_t f = 0; f < made.op->arguments->fields.size(); ++f) {
    const ArgumentField& field = made.op->arguments->fields[f];
    if (field.type == ArgumentType<RandomNumbers>::name) {
      word += ArgumentType<RandomNumbers>::words;
    } else if (field.dynamic) {
      if (const SourceId source = made.attributes.traced_source(word); source != 0) {
        made.bindings.push_back({.field = static_cast<int>(f), .value = Expression(source)});
      }
      ++word;
    }
  }
  made.attributes.drop_sources();
}

void Recorder::State::bind_streams(const StepVariables& variables) {
  std::map<std::string, RandomStream> starts = variables.streams;
  for (const auto& [name, now] : random_state()) {  // those that the step has begun
    starts.try_emplace(name, RandomStream{.seed = now.seed, .stream = now.stream, .offset = 0});
  }
  for (Section& section : program().sections) {
    for (Instruction& i : section.instructions) {
      const std::size_t fields =
          i.op == nullptr || i.op->arguments == nullptr ? 0 : i.op->arguments->fields.size();
      for (std::size_t f = 0; f < fields; ++f) {
        const bool bound = std::ranges::any_of(
            i.bindings, [&](const Binding& b) { return b.field == static_cast<int>(f); });
        if (bound || i.op->arguments->fields[f].type != ArgumentType<RandomNumbers>::name) {
          continue;
        }
        const RandomNumbers numbers =
            ArgumentType<RandomNumbers>::from_value(i.op->arguments->values(i.attributes)[f]);
        for (const auto& [name, stream] : starts) {
          if (stream.seed == numbers.seed && stream.stream == numbers.stream) {
            i.bindings.push_back(
                {.field = static_cast<int>(f),
                 .stream = name,
                 .offset = static_cast<std::int64_t>(numbers.offset - stream.offset)});
            break;
          }
        }
      }
    }
  }
}

void Recorder::State::declare_variables(const StepVariables& variables) {
  std::set<std::string> numbers;
  std::set<std::string> counts;
  for (const Section& section : program().sections) {
    for (const Instruction& i : section.instructions) {
      for (const Binding& binding : i.bindings) {
        for (const std::string& name : binding.value.variables()) {
          (variables.counts.contains(name) ? counts : numbers).insert(name);
        }
      }
    }
  }
  program().numbers.assign(numbers.begin(), numbers.end());
  program().counts.assign(counts.begin(), counts.end());
}

Tensors Recorder::State::record(const Call& call, NextCall& next) {
  Instruction made{.op = &call.op, .attributes = call.attributes};
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    made.in.push_back(
        call.in[i] ? index_of(call.in[i],
                              fmt::format("operand '{}' of {}",
                                          call.op.operand_name(i, call.in.size()), call.op.name))
                   : TensorIndex());
  }
  Tensors out = next(call);
  if (program().level == ModeLevel::above_distribution && gives_back_operand(call, out)) {
    return out;  // a redistribution to the layout that there is, for example
  }
  if (!call.op.in_place) {
    for (const Tensor& result : out) {
      made.out.push_back(result ? define(result) : TensorIndex());
    }
  }
  note_pending(call.in);
  note_pending({out.begin(), out.size()});
  bind(made);
  if (followed != nullptr && followed->op == made.op) {
    made.bindings = followed->bindings;
    followed_on = true;
  }
  add(std::move(made));
  return out;
}

void Recorder::State::note_pending(std::span<const Tensor> tensors) {
  for (const Tensor& x : tensors) {
    if (RecordedMemory* memory = x ? memory_of(local_of(x).storage()) : nullptr) {
      memory->pending = local_of(x).storage().pending() != nullptr;
    }
  }
}

void Recorder::State::create(const Action& action) {
  using Kind = Instruction::Kind;
  const Tensor& x = action.out[0];
  Instruction made{.kind = Kind::empty};
  if (action.name == "from_values") {
    made.kind = Kind::values;
    made.values = x.is_meta() ? exact(action.values, x) : exact_values(x);
  } else if (action.name == "zeros" || action.name == "full") {
    made.kind = x.numel() > 0 ? Kind::full : Kind::empty;
    if (x.numel() > 0) {
      made.values = x.is_meta() ? action.values : exact_values(alias(x, {1}, {1}, x.offset()));
    }
  } else if (action.name != "empty" && action.name != "shared_empty") {
    fail({.thing = "record",
          .wrong =
              fmt::format("the factory '{}'{} cannot be recorded", action.name, recorded_place()),
          .advice = "use empty, zeros, full or from_values"});
  }
  made.out = {define(x)};
  add(std::move(made));
}

void Recorder::State::change_memory(const Action& action) {
  using Kind = Instruction::Kind;
  Storage& storage = *action.storage;
  RecordedMemory* memory = memory_of(storage);
  const bool restores = action.kind == ActionKind::restore;
  if (memory == nullptr && restores && !storage.has_memory()) {
    memory = &new_memory(storage);
    memory->bytes = static_cast<std::int64_t>(storage.bytes());
    memory->undeclared = static_cast<std::ptrdiff_t>(instructions().size());
    memory->undeclared_section = program().sections.size() - 1;
    add({.kind = Kind::empty});
  } else if (memory != nullptr && !memory->views.empty() && restores != storage.has_memory()) {
    add({.kind = restores ? Kind::restore : Kind::release, .in = {memory->views.front().tensor}});
  }
  // Memory that the step has not used is released: nothing that it needs.
}

void Recorder::State::read(Action& action, NextAction& next) {
  next(action);
  Instruction check{.kind = Instruction::Kind::check, .values = action.values};
  if (const GuardRead* const guard = current_guard()) {
    check.guard = std::string(guard->name);
  }
  check.in = {index_of(action.in[0], fmt::format("what the host reads by {}", action.name))};
  add(std::move(check));
}

}  // namespace tessera
