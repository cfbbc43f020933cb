// What the body of a captured step gets.
module;
#include <fmt/format.h>

#include <cstddef>
#include <string>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.record;
import :captured_step;

namespace tessera {

StepCall::StepCall(CapturedStep& step, const Tensors& inputs, const StepNumbers& numbers,
                   Recorder* recorder)
    : step_(step),
      inputs_(&inputs),
      numbers_(numbers),
      recorder_(recorder),
      updated_(step.parts_.optimizers.size(), false) {}

double StepCall::number(const std::string& name) const {
  const auto found = numbers_.others.find(name);
  if (found == numbers_.others.end()) {
    fail({.thing = "captured step",
          .wrong = fmt::format("the call has no number '{}'", name),
          .advice = "pass it in StepNumbers::others"});
  }
  return found->second;
}

double StepCall::guard(const std::string& name) const {
  const auto found = numbers_.guards.find(name);
  if (found == numbers_.guards.end()) {
    fail({.thing = "captured step",
          .wrong = fmt::format("the call has no guard '{}'", name),
          .advice = "pass it in StepNumbers::guards"});
  }
  return found->second;
}

void StepCall::update(std::size_t optimizer) {
  if (optimizer >= updated_.size()) {
    fail({.thing = "captured step",
          .wrong = "there is no such optimizer",
          .expected = fmt::format("a number below {}", updated_.size()),
          .got = fmt::format("{}", optimizer)});
  }
  if (updated_[optimizer]) {
    fail({.thing = "captured step",
          .wrong = fmt::format("optimizer {} was updated before in this call", optimizer),
          .advice = "make two calls"});
  }
  updated_[optimizer] = true;
  step_.update(optimizer, numbers_.lr[optimizer], recorder_);
}

}  // namespace tessera
