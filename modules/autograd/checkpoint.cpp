module;
#include <functional>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.autograd;

import tessera.base;
import tessera.tensor;

namespace tessera {
Tensors checkpoint(const CheckpointedFunction& function, std::span<const Tensor> inputs) {
  if (!grad_enabled()) {
    return function(inputs);
  }
  const RandomPosition random = random_position();
  std::vector<Tensor> saved;
  for (const Tensor& input : inputs) {
    saved.push_back(input ? detached(input) : Tensor());
  }
  Tensors out;
  {
    const NoGrad no_grad;
    out = function(saved);
  }
  for (Tensor& result : out) {
    if (result) {
      result = detached(result);
    }
  }
  std::vector<bool> needed;
  for (const Tensor& input : inputs) {
    needed.push_back(input && input.requires_grad());
  }
  record_function(
      "checkpoint", inputs, out,
      [function, random, saved = std::move(saved), needed = std::move(needed)](
          std::span<const Tensor> grads, std::span<Tensor> results) {
        if (grad_enabled()) {
          fail(
              "checkpoint: its gradient cannot be differentiated again, as backward ends at the "
              "inputs (asked for by create_graph); call the function without checkpoint()");
        }
        std::vector<Tensor> again;
        for (std::size_t i = 0; i < saved.size(); ++i) {
          again.push_back(saved[i] ? detached(saved[i]) : Tensor());
          if (needed[i]) {
            again.back().set_requires_grad();
          }
        }
        Tensors computed;
        {
          const NoGrad recording(true);
          const ReplayScope replay(random);
          computed = function(again);
        }
        std::vector<Tensor> roots;
        std::vector<Tensor> root_grads;
        for (std::size_t i = 0; i < computed.size(); ++i) {
          if (grads[i] && computed[i].requires_grad()) {
            roots.push_back(computed[i]);
            root_grads.push_back(grads[i]);
          }
        }
        backward(roots, root_grads);
        for (std::size_t i = 0; i < again.size(); ++i) {
          if (needed[i]) {
            results[i] = again[i].grad();
          }
        }
      },
      true);
  return out;
}

}  // namespace tessera
