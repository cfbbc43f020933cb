// What the body of a captured step gets.
module;
#include <fmt/format.h>

#include <cstddef>
#include <map>
#include <string>
module tessera.train;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.capture;
import :captured_step;

namespace tessera {

StepCall::StepCall(CapturedStep& step, const Tensors& inputs, const StepNumbers& numbers,
                   Recorder* recorder)
    : step_(step),
      inputs_(&inputs),
      numbers_(numbers),
      recorder_(recorder),
      updated_(step.parts_.optimizers.size(), false) {}

namespace {

double given(const std::map<std::string, double>& numbers, const std::string& name,
             const char* what, const char* where) {
  const auto found = numbers.find(name);
  if (found == numbers.end()) {
    fail({.thing = "captured step",
          .wrong = fmt::format("the call has no {} '{}'", what, name),
          .advice = fmt::format("pass it in StepNumbers::{}", where)});
  }
  return found->second;
}

}  // namespace

Number StepCall::number(const std::string& name) const {
  const double value = given(numbers_.others, name, "number", "others");
  return recorder_ == nullptr ? Number(value) : Number::variable("number." + name, value);
}

double StepCall::guard(const std::string& name) const {
  return given(numbers_.guards, name, "guard", "guards");
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
