// Replays that a guard ends.
module;
#include <algorithm>
#include <cstddef>
#include <set>
#include <span>
#include <string>
#include <vector>
module tessera.execute;

import tessera.base;
import tessera.tensor;
import tessera.program;
import :guard_failure;

namespace tessera {
namespace {

using Kind = Instruction::Kind;

}  // namespace

GuardFailure::GuardFailure(const GuardValue& recorded, std::size_t number, double now)
    : Error(ErrorFields{.thing = "replay",
                        .wrong = guard_in_words(recorded, now),
                        .advice = "take the step in another way, and record it again"}),
      number_(number),
      now_(now) {}

void complete_communication(const Program& program, ProgramPlace until,
                            const ByTensor<Tensor>& tensors) {
  const Op& wait = find_op("wait");
  for (const Tensor& x : tensors) {
    if (x && x.storage().pending() != nullptr) {
      call_kernel(wait, {&x, 1}, {});
    }
  }
  // Peers may still read the operands of calls of several tensors.
  const Op& readers = find_op("wait_readers");
  const ArgumentField& group = readers.arguments->fields[0];
  std::set<std::string> done;
  for (std::size_t s = 0; s <= until.section; ++s) {
    const std::vector<Instruction>& instructions = program.sections[s].instructions;
    const std::size_t end = s == until.section ? until.at : instructions.size();
    for (std::size_t n = 0; n < end; ++n) {
      const Instruction& i = instructions[n];
      if (i.kind != Kind::call || i.op->communicates == Communicates::none ||
          i.op->arguments == nullptr) {
        continue;
      }
      const auto& fields = i.op->arguments->fields;
      const auto field = std::ranges::find(fields, group.type, &ArgumentField::type);
      const auto held = std::ranges::find_if(
          i.in, [&](TensorIndex number) { return number.exists() && tensors[number].defined(); });
      if (field == fields.end() || held == i.in.end()) {
        continue;
      }
      const std::vector<ArgumentValue> given = i.op->arguments->values(i.attributes);
      const Attributes arguments = readers.arguments->from_values(
          std::vector{given[static_cast<std::size_t>(field - fields.begin())]});
      if (done.insert(print_arguments(readers, arguments)).second) {
        call_kernel(readers, {&tensors[*held], 1}, arguments);
      }
    }
  }
}

}  // namespace tessera
