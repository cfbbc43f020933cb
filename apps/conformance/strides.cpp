module;
#include <algorithm>
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

// Every operator, forward and backward, on tensors that do not lie in order in memory: transposed,
// spaced, expanded. The results are those of contiguous tensors of the same values.
namespace tessera::conformance {
namespace {

/// The values in memory whose dims are in the opposite order.
Tensor transposed(const Tensor& x) {
  const NoGrad constant;
  Dims turned;
  for (int d = x.dims() - 1; d >= 0; --d) {
    turned.push_back(x.shape()[d]);
  }
  const Dims of_memory = contiguous_strides(turned);
  Dims strides;
  for (int d = x.dims() - 1; d >= 0; --d) {
    strides.push_back(of_memory[d]);
  }
  const Tensor moved = alias(zeros(turned, x.dtype()), x.shape(), strides, 0);
  ops::copy_(moved, x);
  return moved;
}

/// The first element along the first `dims` dims, repeated without a copy.
Tensor expanded(const Tensor& x, int dims) {
  const NoGrad constant;
  if (x.numel() == 0) {
    return ops::clone(x);
  }
  Dims strides = contiguous_strides(x.shape());
  for (int d = 0; d < std::min(dims, x.dims()); ++d) {
    strides[d] = 0;
  }
  return alias(ops::clone(x), x.shape(), strides, 0);
}

using Form = std::function<Tensor(const Tensor&)>;

const std::map<std::string, Form>& forms() {
  static const std::map<std::string, Form> all = {
      {"transposed", transposed},
      {"spaced", spaced},
      {"expanded along the first dim", [](const Tensor& x) { return expanded(x, 1); }},
      {"expanded along all dims", [](const Tensor& x) { return expanded(x, max_dims); }},
  };
  return all;
}

/// Whether the form may be written: it holds each element once.
bool is_writable(const std::string& form) { return !form.starts_with("expanded"); }

std::string difference(const std::vector<Tensor>& actual, const std::vector<Tensor>& expected) {
  if (actual.size() != expected.size()) {
    return "there are " + std::to_string(actual.size()) + " instead of " +
           std::to_string(expected.size());
  }
  for (std::size_t i = 0; i < actual.size(); ++i) {
    if (actual[i].defined() != expected[i].defined()) {
      return std::to_string(i) + (actual[i] ? " should not exist" : " is missing");
    }
    if (actual[i] &&
        !(largest_difference(actual[i], expected[i]) <= tolerance(expected[i].dtype()))) {
      return std::to_string(i) + " is " + to_string(actual[i]) + ", of contiguous tensors " +
             to_string(expected[i]);
    }
  }
  return {};
}

std::string difference(const CallResult& actual, const CallResult& expected) {
  if (actual.error != expected.error || actual.backward_error != expected.backward_error) {
    return "fails: " + actual.error + actual.backward_error + " (of contiguous tensors: '" +
           expected.error + expected.backward_error + "')";
  }
  std::string text = difference(actual.out, expected.out);
  if (!text.empty()) {
    return "result " + text;
  }
  text = difference(actual.written, expected.written);
  if (!text.empty()) {
    return "written operand " + text;
  }
  text = difference(actual.gradients, expected.gradients);
  return text.empty() ? text : "gradient " + text;
}

Tensor same(const Tensor& x) { return x; }

/// Each operand in the form, but those that are written where the form must not be.
std::vector<Tensor> operands_in(const CallSample& sample, const std::string& name,
                                const Form& form) {
  std::vector<Tensor> operands;
  for (std::size_t i = 0; i < sample.inputs.size(); ++i) {
    const Tensor& x = sample.inputs[i];
    const bool written = sample.op->writes(sample.op->place_of(i, sample.inputs.size()).operand);
    const bool stays = !x || (written && !is_writable(name));
    operands.push_back(!x ? x : stays ? copy_of(x) : form(x));
  }
  return operands;
}

}  // namespace

StrideAccount check_strides(std::span<const CallSample> samples, bool operands_too) {
  StrideAccount account;
  for (const CallSample& sample : samples) {
    const auto compare = [&](const std::string& what, std::span<const Tensor> operands,
                             const Form& gradient, int order, bool may_refuse) {
      // The wanted ones have the same values: an expanded tensor has not those of the sample.
      const CallResult expected = call_plain(
          sample, copies_of(operands), [&](const Tensor& g) { return copy_of(gradient(g)); },
          order);
      const CallResult actual = call_plain(sample, operands, gradient, order);
      if (actual.refusal && expected.error.empty() && may_refuse) {
        // To refuse is right, and clear; to compute something else is not.
        if (actual.error.starts_with(sample.op->name + ": ")) {
          ++account.refused;
        } else {
          account.findings.push_back(sample.name + " with " + what + ": " + actual.error);
        }
        return;
      }
      const std::string text = difference(actual, expected);
      if (!text.empty()) {
        account.findings.push_back(sample.name + " with " + what + ": " + text);
      } else if (actual.error.empty()) {
        ++account.calls;
        account.gradients += actual.gradients.empty() ? 0 : 1;
      }
    };
    const bool has_gradient =
        std::any_of(sample.output_gradients.begin(), sample.output_gradients.end(),
                    [](const Tensor& g) { return g.defined(); });
    for (const auto& [name, form] : forms()) {
      for (int order = 1; has_gradient && order <= 2; ++order) {
        compare("a gradient " + name, copies_of(sample.inputs), form, order, false);
      }
      if (operands_too) {
        compare("operands " + name, operands_in(sample, name, form), same, 1, true);
      }
    }
  }
  return account;
}

}  // namespace tessera::conformance
