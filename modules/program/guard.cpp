// Values that the host reads within a step and that decide how it continues.
module;
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <string>
#include <string_view>
#include <tessera/printable.hpp>
#include <utility>
#include <vector>
module tessera.program;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera {
namespace {

using Kind = Instruction::Kind;

thread_local const GuardRead* running = nullptr;

class GuardScope {
 public:
  explicit GuardScope(const GuardRead& read) : before_(std::exchange(running, &read)) {}
  ~GuardScope() { running = before_; }
  GuardScope(const GuardScope&) = delete;
  GuardScope& operator=(const GuardScope&) = delete;

 private:
  const GuardRead* before_;
};

void check_name(std::string_view name) {
  constexpr std::string_view allowed =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-";
  if (name.empty() || name.find_first_not_of(allowed) != std::string_view::npos) {
    fail({.thing = "guard",
          .wrong = "the name is not one",
          .expected = "letters, digits, '_', '.' and '-'",
          .got = fmt::format("'{}'", name)});
  }
}

std::string titled(std::string_view name) { return fmt::format("guard '{}'", name); }

/// The number that all ranks read, as a plain tensor.
const Tensor& number_in(std::string_view name, const Tensor& decision) {
  if (!decision || decision.numel() != 1) {
    fail({.thing = titled(name),
          .wrong = "the decision is not one number",
          .expected = "a tensor of one element",
          .got = decision ? "shape " + to_string(decision.shape()) : "no tensor",
          .advice = "reduce it, by ops::amax for example"});
  }
  if (!decision.is_distributed()) {
    return decision;
  }
  if (!decision.layout().is_replicated()) {
    fail({.thing = titled(name),
          .wrong = "ranks would read different numbers",
          .expected = "a decision that is replicated",
          .got = to_string(*decision.spec()),
          .advice = "redistribute it to Layout::replicated(mesh)"});
  }
  return decision.local();
}

std::string in_module(const std::string& module) {
  return module.empty() ? std::string() : fmt::format(" in module '{}'", module);
}

}  // namespace

const GuardRead* current_guard() { return running; }

double guard(std::string_view name, const Tensor& decision, double usual) {
  check_name(name);
  const Tensor& x = number_in(name, decision);
  const GuardRead read{.name = name, .usual = usual};
  const GuardScope scope(read);
  // A mode sees the read, and may answer it; the meta device has no values.
  const auto own = [&](const Tensor& from) { return from.is_meta() ? usual : to_doubles(from)[0]; };
  double value = 0;
  if (!modes_installed()) {
    value = own(x);
  } else {
    Action action{.kind = ActionKind::read, .name = "guard", .in = {x}};
    perform(action, [&] { action.values = {own(action.in[0])}; });
    value = action.values.at(0);
  }
  if (std::isnan(value)) {
    fail({.thing = titled(name),
          .wrong = fmt::format("the decision is NaN{}, which equals nothing", recorded_place()),
          .advice = "decide by ops::isnan or ops::isfinite"});
  }
  note_decision(fmt::format("{}{} is {}", titled(name), recorded_place(), printable(value)));
  return value;
}

std::vector<GuardValue> guards_of(const Program& program) {
  std::vector<GuardValue> all;
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      if (i.is_guard()) {
        all.push_back(
            {.name = i.guard, .module = program.scopes[i.scope].module, .value = i.values[0]});
      }
    }
  }
  return all;
}

std::string guard_in_words(const Program& program, const Instruction& read) {
  return fmt::format("{}{} was {}", titled(read.guard),
                     in_module(program.scopes[read.scope].module), printable(read.values[0]));
}

std::string guard_in_words(const GuardValue& recorded, double now) {
  return fmt::format("{}{} is {}, was {}", titled(recorded.name), in_module(recorded.module),
                     printable(now), printable(recorded.value));
}

void check_guards(const Program& program) {
  // The input whose memory a tensor is in; empty: none.
  ByTensor<std::string> outlives(program.tensors.size());
  for (const auto& [name, input] : program.inputs) {
    outlives[input.tensor] = name;
  }
  const auto of = [&](TensorIndex number) {
    return number.exists() ? outlives[number] : std::string();
  };
  const Instruction* changed = nullptr;
  std::string input;
  const auto change = [&](const Instruction& i, TensorIndex number) {
    if (changed == nullptr && !of(number).empty()) {
      changed = &i;
      input = of(number);
    }
  };
  for (const Section& section : program.sections) {
    for (const Instruction& i : section.instructions) {
      if (i.is_guard() && changed != nullptr) {
        const std::string& module = program.scopes[i.scope].module;
        fail(
            {.thing = titled(i.guard) + in_module(module),
             .wrong = fmt::format("the step has changed '{}' before it ({}), so a replay could not "
                                  "be given up there",
                                  input, to_text(program, *changed)),
             .advice = "read the guard before anything that outlives the step is written"});
      }
      if (i.kind == Kind::release || i.kind == Kind::restore) {
        change(i, i.in[0]);
      } else if (i.kind == Kind::alias || (i.op != nullptr && i.op->view != nullptr)) {
        for (const TensorIndex out : i.out) {
          if (out.exists()) {
            outlives[out] = of(i.in[0]);
          }
        }
      }
      const bool waits =  // it leaves the bytes as they are
          i.op != nullptr && (i.op->completes || i.op->communicates == Communicates::waits);
      for (std::size_t k = 0; !waits && k < i.in.size(); ++k) {
        if (i.writes(k)) {
          change(i, i.in[k]);
        }
      }
    }
  }
}

std::string recorded_place() {
  const std::string* const module = current_module();
  return module == nullptr
             ? std::string()
             : fmt::format(" in module '{}'", module->empty() ? "the model" : *module);
}

}  // namespace tessera
