module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.execute;
import tessera.capture;

// Op::element against the kernel: an operator whose element is compiled together with another
// operator has the bits that it has alone.
namespace tessera::conformance {
namespace {

/// The sample's call and one more, as a program.
Program program_of_call(const CallSample& sample) {
  const auto record = [&] {
    tessera::Recorder recorder;
    for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
      if (sample.inputs[i].defined()) {
        recorder.input(fmt::format("operand {}", i), sample.inputs[i]);
      }
    }
    recorder.section(SectionKind::step, [&] {
      const Tensors made = call(*sample.op, sample.inputs, sample.attributes);
      for (std::size_t k = 0; k < made.size(); ++k) {
        recorder.output(fmt::format("result {}", k), made[k]);
      }
      recorder.output("next", made[0].dtype() == DType::boolean ? ops::cast(made[0], DType::f32)
                                                                : ops::neg(made[0]));
    });
    return recorder.finish({});
  };
  const NoGrad no_grad;
  return program_of(record());
}

std::map<std::string, std::vector<double>> results_of(Executor& executor,
                                                      const CallSample& sample) {
  std::map<std::string, Tensor> inputs;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    if (sample.inputs[i].defined()) {
      inputs[fmt::format("operand {}", i)] = sample.inputs[i];
    }
  }
  executor.begin(inputs);
  executor.run(SectionKind::step, {});
  std::map<std::string, std::vector<double>> results;
  for (const auto& [name, number] : executor.program().outputs) {
    results[name] = to_doubles(executor.output(name));
  }
  executor.end();
  return results;
}

/// NaN is equal to NaN.
bool same(const std::vector<double>& a, const std::vector<double>& b) {
  return std::ranges::equal(
      a, b, [](double x, double y) { return x == y || (std::isnan(x) && std::isnan(y)); });
}

}  // namespace

ElementAccount check_elements(std::span<const CallSample> samples) {
  ElementAccount account;
  for (const CallSample& sample : samples) {
    const bool plain = std::ranges::all_of(sample.inputs, [](const Tensor& x) {
      return !x.defined() ||
             (x.is_contiguous() && (is_floating(x.dtype()) || x.dtype() == DType::boolean));
    });
    if (sample.op->element == nullptr || sample.op->in_place || !plain) {
      continue;
    }
    const Program program = program_of_call(sample);
    graph::PlannedExecutor compiled(program, true);
    const graph::CompiledKernels kernels = *compiled.compiled();
    account.missing = kernels.missing;
    if (kernels.replaced < 2) {
      continue;
    }
    ++account.calls;
    Replay replay(program);
    const auto wanted = results_of(replay, sample);
    for (const auto& [name, found] : results_of(compiled, sample)) {
      if (!same(found, wanted.at(name))) {
        account.findings.push_back(
            fmt::format("{}: the {} of its element is {}, that of its kernel {}", sample.name, name,
                        fmt::join(found, " "), fmt::join(wanted.at(name), " ")));
      }
    }
  }
  return account;
}

}  // namespace tessera::conformance
