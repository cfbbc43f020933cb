module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

namespace tessera::nn {
namespace {

/// The number of ranks that dim `d` is cut for.
std::int64_t shards_of(const Tensor& x, int d) {
  std::int64_t shards = 1;
  if (x.is_distributed()) {
    const Layout& layout = x.layout();
    for (int axis = 0; axis < layout.mesh().ndim(); ++axis) {
      shards *= layout.placement(axis).is_shard(d) ? layout.mesh().axis_size(axis) : 1;
    }
  }
  return shards;
}

/// Consecutive parts of rows along one of their dims; all ranks have the same.
class RowParts {
 public:
  /// Of x [..., in]. `rows`: of a rank in a part, at most, but at least one of the dim; 0: one
  /// part.
  RowParts(const Tensor& x, std::int64_t rows) {
    const int last = x.dims() - 1;
    for (int d = last - 1; d >= 0 && dim_ < 0; --d) {
      dim_ = shards_of(x, d) == 1 ? d : -1;
    }
    if (dim_ < 0 || rows == 0) {
      return;
    }
    std::int64_t across = 1;  // rows of a rank at each place of the dim
    for (int d = 0; d < last; ++d) {
      const std::int64_t shards = shards_of(x, d);
      across *= d == dim_ ? 1 : (x.size(d) + shards - 1) / shards;
    }
    extent_ = x.size(dim_);
    each_ = std::max<std::int64_t>(1, rows / std::max<std::int64_t>(1, across));
    count_ = std::max<std::int64_t>(1, (extent_ + each_ - 1) / each_);
  }

  std::int64_t count() const { return count_; }
  /// Part i of a tensor whose first dims are those of the rows.
  Tensor of(const Tensor& x, std::int64_t i) const {
    return count_ == 1 ? x : ops::narrow(x, dim_, i * each_, std::min(each_, extent_ - i * each_));
  }
  Tensor joined(const Tensors& parts) const {
    return count_ == 1 ? parts[0] : ops::cat(std::span<const Tensor>(parts), dim_);
  }

 private:
  int dim_ = -1;
  std::int64_t extent_ = 0;
  std::int64_t each_ = 0;
  std::int64_t count_ = 1;
};

struct SavedForward {
  LinearCrossEntropy options;
  RowParts parts;
  SavedTensor x;
  SavedTensor weight;
  SavedTensor bias;
  SavedTensor targets;
  std::vector<SavedTensor> log_sums;  // of each part
  bool needs_x = false;
  bool needs_weight = false;
  bool needs_bias = false;
};

/// The gradient of the logits of a part, as the product makes them.
Tensor logits_gradient(const SavedForward& s, const Tensor& logits, const Tensor& targets,
                       const Tensor& log_sums, const Tensor& dlosses) {
  const LinearCrossEntropy& o = s.options;
  if (o.softcap == 0) {
    return ops::cross_entropy_grad(dlosses, logits, targets, log_sums, o.ignore_index,
                                   o.loss_parallel);
  }
  Tensor leaf = detached(logits);
  leaf.set_requires_grad();
  Tensor capped;
  {
    const NoGrad recording(true);
    capped = soft_capped(leaf, o.softcap);
  }
  const std::vector<Tensor> gradient{ops::cross_entropy_grad(
      dlosses, detached(capped), targets, log_sums, o.ignore_index, o.loss_parallel)};
  return gradients(std::vector<Tensor>{capped}, gradient, std::vector<Tensor>{leaf})[0];
}

/// Sums over the parts of the gradients of weight and bias.
class ParameterSums {
 public:
  void add_weight(const Tensor& dlogits, const Tensor& x, bool last) {
    if (weight_) {
      ops::linear_grad_weight_(weight_, dlogits, x);
      return;
    }
    weight_ = ops::linear_grad_weight(dlogits, x);
    if (!last && size_of(weight_.dtype()) == 2) {
      weight_ = ops::cast(weight_, DType::f32);
    }
  }

  void add_bias(const Tensor& dlogits) {
    Dims rows;
    for (int d = 0; d < dlogits.dims() - 1; ++d) {
      rows.push_back(d);
    }
    const Tensor part = rows.empty() ? dlogits : ops::sum(dlogits, rows);
    bias_ = bias_ ? ops::add(bias_, part) : part;
  }

  Tensor weight(DType dtype) const { return ops::cast(weight_, dtype); }
  const Tensor& bias() const { return bias_; }

 private:
  Tensor weight_;
  Tensor bias_;
};

constexpr const char* name = "linear_cross_entropy";

void backward_in_parts(const SavedForward& s, const Tensor& dlosses, std::span<Tensor> out) {
  if (grad_enabled()) {
    fail({.thing = name,
          .wrong = "its gradient cannot be differentiated again, as backward computes it part by "
                   "part (requested by create_graph)",
          .advice = "use linear and cross_entropy"});
  }
  const Tensor& x = s.x.get(name);
  const Tensor& weight = s.weight.get_unfilled(name);
  const Tensor& bias = s.bias.get_unfilled(name);
  const Tensor& targets = s.targets.get(name);
  ParameterSums sums;
  Tensors dx;
  for (std::int64_t i = 0; i < s.parts.count(); ++i) {
    const Tensor part = s.parts.of(x, i);
    Tensor logits;
    run_phase("recomputation", [&] { logits = ops::linear(part, weight, bias); });
    const Tensor dlogits =
        logits_gradient(s, std::exchange(logits, Tensor()), s.parts.of(targets, i),
                        s.log_sums[static_cast<std::size_t>(i)].get(name), s.parts.of(dlosses, i));
    if (s.needs_x) {
      dx.push_back(ops::linear_grad_input(dlogits, weight));
    }
    if (s.needs_weight) {
      sums.add_weight(dlogits, part, i + 1 == s.parts.count());
    }
    if (s.needs_bias) {
      sums.add_bias(dlogits);
    }
  }
  if (s.needs_x) {
    out[0] = s.parts.joined(dx);
  }
  if (s.needs_weight) {
    out[1] = sums.weight(weight.dtype());
  }
  if (s.needs_bias) {
    out[2] = sums.bias();
  }
}

}  // namespace

Tensor soft_capped(const Tensor& x, double softcap) {
  return softcap == 0 ? x : ops::mul_scalar(ops::tanh(ops::mul_scalar(x, 1 / softcap)), softcap);
}

Tensor linear_cross_entropy(const Tensor& x, const Tensor& weight, const Tensor& bias,
                            const Tensor& targets, const LinearCrossEntropy& options) {
  if (!x || !targets) {
    fail({.thing = name, .wrong = "x or targets is an undefined tensor", .expected = "tensors"});
  }
  const auto needs = [](const Tensor& t) { return grad_enabled() && t && t.requires_grad(); };
  const auto saved = std::make_shared<SavedForward>(SavedForward{.options = options,
                                                                 .parts = RowParts(x, options.rows),
                                                                 .x = SavedTensor(x),
                                                                 .weight = SavedTensor(weight),
                                                                 .bias = SavedTensor(bias),
                                                                 .targets = SavedTensor(targets),
                                                                 .log_sums = {},
                                                                 .needs_x = needs(x),
                                                                 .needs_weight = needs(weight),
                                                                 .needs_bias = needs(bias)});
  const bool differentiated = saved->needs_x || saved->needs_weight || saved->needs_bias;
  Tensor losses;
  {
    const NoGrad no_grad;
    Tensors of_parts;
    for (std::int64_t i = 0; i < saved->parts.count(); ++i) {
      const Tensor logits = ops::linear(saved->parts.of(x, i), weight, bias);
      if (i == 0 && options.check) {
        options.check(logits);
      }
      ops::RowLosses part = ops::cross_entropy_with_sums(
          soft_capped(logits, options.softcap), saved->parts.of(targets, i), options.ignore_index,
          options.loss_parallel);
      of_parts.push_back(std::move(part.losses));
      if (differentiated) {
        saved->log_sums.emplace_back(std::move(part.log_sums));
      }
    }
    losses = saved->parts.joined(of_parts);
  }
  saved->options.check = {};
  if (differentiated) {
    std::vector<Tensor> inputs{x, weight};
    if (bias) {
      inputs.push_back(bias);
    }
    record_function(name, inputs, std::vector<Tensor>{losses},
                    [saved](std::span<const Tensor> grads, std::span<Tensor> out) {
                      backward_in_parts(*saved, grads[0], out);
                    });
  }
  return losses;
}

}  // namespace tessera::nn
