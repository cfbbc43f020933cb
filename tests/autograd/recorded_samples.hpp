// Sample calls of every operator, recorded on leaves. Include it behind the imports of
// tessera.base, tensor, autograd and ops, and operator_samples.hpp.
#pragma once
#include <algorithm>
#include <cstddef>
#include <functional>
#include <set>
#include <span>
#include <string>
#include <vector>

namespace on_graph {

inline const std::vector<tessera::testing::CallSample>& samples() {
  static const std::vector<tessera::testing::CallSample> all = tessera::testing::call_samples(3);
  return all;
}

inline std::vector<tessera::Tensor> clones(std::span<const tessera::Tensor> list,
                                           bool requires_grad = false) {
  std::vector<tessera::Tensor> copies;
  for (const tessera::Tensor& x : list) {
    copies.push_back(x ? tessera::ops::clone(tessera::detached(x)) : tessera::Tensor());
    if (x && requires_grad && tessera::is_floating(x.dtype())) {
      copies.back().set_requires_grad();
    }
  }
  return copies;
}

inline bool differentiable(const tessera::testing::CallSample& sample) {
  return sample.op->backward != nullptr && !sample.op->in_place &&
         std::any_of(sample.output_gradients.begin(), sample.output_gradients.end(),
                     [](const tessera::Tensor& g) { return g.defined(); });
}

/// One call with leaves, and the roots of its backward.
struct Recorded {
  std::vector<tessera::Tensor> leaves;
  tessera::Tensors out;
  std::vector<tessera::Tensor> roots;
  std::vector<tessera::Tensor> root_gradients;

  explicit Recorded(const tessera::testing::CallSample& sample)
      : leaves(clones(sample.inputs, true)),
        out(tessera::call(*sample.op, leaves, sample.attributes)) {
    for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
      if (sample.output_gradients[i] && out[i].requires_grad()) {
        roots.push_back(out[i]);
        root_gradients.push_back(tessera::ops::clone(sample.output_gradients[i]));
      }
    }
  }

  std::vector<tessera::Tensor> gradients_of_leaves() const {
    std::vector<tessera::Tensor> all;
    for (const tessera::Tensor& x : leaves) {
      all.push_back(x && x.requires_grad() ? x.grad() : tessera::Tensor());
    }
    return all;
  }
};

using Findings = std::set<std::string>;
inline Findings none() { return {}; }

inline void find_in(Findings& all, const std::string& name, const std::function<void()>& f) {
  try {
    f();
  } catch (const tessera::Error& error) {
    all.insert(name + ": " + error.what());
  }
}

}  // namespace on_graph
