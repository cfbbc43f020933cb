// Adam and AdamW whose moments are 8-bit codes.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import :elementwise;

namespace tessera::optim {
namespace {

/// Whether the parameter's moments are codes: small ones would gain nothing.
bool is_quantized(const Tensor& parameter) {
  constexpr std::int64_t smallest = 4096;
  return parameter.numel() >= smallest && ops::has_whole_blocks(parameter);
}

Tensor zeros_at(const Tensor& parameter, const Dims& shape, DType dtype) {
  return parameter.is_distributed()
             ? distributed_zeros(shape, parameter.layout(), dtype, parameter.device())
             : zeros(shape, dtype, parameter.device());
}

Tensor codes_of(const Tensor& parameter) {
  return zeros_at(parameter, parameter.shape(),
                  is_quantized(parameter) ? DType::u8 : parameter.dtype());
}

Tensor scales_of(const Tensor& parameter) {
  return is_quantized(parameter)
             ? zeros_at(parameter, ops::quantized_blocks(parameter.shape()), parameter.dtype())
             : Tensor();
}

class Adam8bit final : public UpdateRule {
 public:
  Adam8bit(const AdamWOptions& options, bool decoupled)
      : settings_{.beta1 = options.beta1,
                  .beta2 = options.beta2,
                  .eps = options.eps,
                  .maximize = options.maximize},
        decoupled_(decoupled) {}

  std::vector<StateTensor> states() const override {
    return {{.name = "exp_avg", .make = codes_of},
            {.name = "exp_avg_scale", .make = scales_of},
            {.name = "exp_avg_sq", .make = codes_of},
            {.name = "exp_avg_sq_scale", .make = scales_of}};
  }

  void update(const UpdateGroup& group) override {
    ops::AdamStep settings = settings_;
    settings.lr = group.lr;
    settings.weight_decay = group.weight_decay;
    settings.grad_scale = group.grad_scale;
    settings.step = group.step;
    Lists coded;
    Lists others;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      Lists& lists = group.states[0][i].dtype() == DType::u8 ? coded : others;
      lists.parameters.push_back(group.parameters[i]);
      lists.gradients.push_back(group.gradients[i]);
      for (std::size_t k = 0; k < group.states.size(); ++k) {
        lists.states[k].push_back(group.states[k][i]);
      }
    }
    const auto& c = coded.states;
    const auto& o = others.states;
    // States that are not codes have no scales: those lists are undefined, as amsgrad's would be.
    if (decoupled_) {
      ops::adamw_8bit_(coded.parameters, coded.gradients, c[0], c[1], c[2], c[3], settings);
      ops::adamw_(others.parameters, others.gradients, o[0], o[2], o[1], settings);
    } else {
      ops::adam_8bit_(coded.parameters, coded.gradients, c[0], c[1], c[2], c[3], settings);
      ops::adam_(others.parameters, others.gradients, o[0], o[2], o[1], settings);
    }
  }

 private:
  struct Lists {
    std::vector<Tensor> parameters = {};
    std::vector<Tensor> gradients = {};
    std::vector<Tensor> states[4] = {};
  };

  ops::AdamStep settings_;
  bool decoupled_;
};

}  // namespace

std::unique_ptr<UpdateRule> adam_8bit_rule(const AdamWOptions& options, bool decoupled) {
  return std::make_unique<Adam8bit>(options, decoupled);
}

}  // namespace tessera::optim
