// muon: Muon, the momentum of each matrix orthogonalised by Newton-Schulz iterations. As
// torch.optim.Muon (Jordan et al., 2024):
//     m += (1 - momentum) (g - m)
//     u = nesterov ? g + momentum (m - g) : m
//     o = the iteration of u: x = u / |u|; a = x x^T; x = c0 x + (c1 a + c2 a a) x, `ns_steps`
//     times p = p (1 - lr decay) - lr ratio o
// `ratio` follows from the shape [rows, columns]: adjust_lr = "original": sqrt(max(1, rows /
// columns)); "match_rms_adamw": 0.2 sqrt(max(rows, columns)), for learning rates of AdamW;
// "spectral_unclamped": sqrt(rows / columns).
// A parameter of three dims is a stack of matrices, such as those of experts, each of which is
// orthogonalised alone. Other parameters are updated by `fallback`, with its own options:
//     fallback = { name = "adamw", lr_scale = 1.0, betas = [0.9, 0.95] }
// Distributed over ranks: matrices of one shape and layout are stacked, and the stack is split over
// the ranks by an all-to-all (where all ranks have the matrices, without communication), so each
// rank iterates on whole matrices of its own. Then the results come back by an all-to-all (or an
// all-gather). So there are at most two collectives along each axis for each shape, whatever the
// number of matrices. A stack is spread in the same way by itself; if it is split between its
// matrices already, nothing is sent.
// Options: momentum = 0.95, nesterov = true, ns_coefficients = [3.4445, -4.775, 2.0315], eps =
// 1e-7, ns_steps = 5, adjust_lr = "original", compute = "f32" (or "bf16", as torch), fallback.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.optim;
import tessera.options;
import tessera.plugin;

namespace {

using namespace tessera;

class Muon final : public optim::UpdateRule {
 public:
  explicit Muon(PluginOptions& options)
      : momentum_(options.number("momentum", 0.95, "a number of at least 0 and less than 1",
                                 [](double x) { return x >= 0 && x < 1; })),
        nesterov_(options.flag("nesterov", true)),
        coefficients_(options.numbers("ns_coefficients", {3.4445, -4.775, 2.0315}, "three numbers",
                                      [](double x) { return std::isfinite(x); })),
        eps_(options.number("eps", 1e-7, "a number more than 0", [](double x) { return x > 0; })),
        iterations_(options.integer("ns_steps", 5)),
        adjust_(options.choice("adjust_lr", "original",
                               {"original", "match_rms_adamw", "spectral_unclamped"})),
        compute_(options.choice("compute", "f32", {"f32", "bf16"})) {
    if (iterations_ < 1 || iterations_ > 99) {
      options.refuse("ns_steps must be 1 to 99");
    }
    PluginOptions fallback = options.table("fallback");
    const std::string name = fallback.text("name", "adamw");
    fallback_.lr_scale =
        fallback.number("lr_scale", 1, "a number more than 0", [](double x) { return x > 0; });
    fallback_.rule = optim::load_rule(name, fallback);
  }

  std::vector<optim::StateTensor> states() const override { return {{.name = "momentum_buffer"}}; }
  bool takes(const Dims& shape) const override { return shape.size() == 2 || is_stack(shape); }
  Fallback fallback() const override { return fallback_; }

  void update(const optim::UpdateGroup& group) override {
    std::vector<Tensor> updates;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor& momentum = group.states[0][i];
      const Tensor gradient = ops::mul_scalar(
          ops::cast(group.gradients[i], group.parameters[i].dtype()), group.grad_scale);
      ops::lerp_scalar_(momentum, gradient, 1 - momentum_);
      updates.push_back(nesterov_ ? ops::lerp_scalar(gradient, momentum, momentum_) : momentum);
    }
    std::vector<bool> done(updates.size(), false);
    for (std::size_t first = 0; first < updates.size(); ++first) {
      std::vector<std::size_t> alike;
      for (std::size_t i = first; i < updates.size(); ++i) {
        if (!done[i] && (i == first || (!is_stack(updates[i].shape()) &&
                                        same_kind(updates[i], updates[first])))) {
          alike.push_back(i);
          done[i] = true;
        }
      }
      if (!alike.empty()) {
        orthogonalize(updates, alike);
      }
    }
    ops::foreach_mul_(group.parameters, 1 - group.lr * group.weight_decay);
    ops::foreach_add_(group.parameters, updates, -group.lr);
  }

 private:
  static bool is_stack(const Dims& shape) { return shape.size() == 3; }

  static bool same_kind(const Tensor& a, const Tensor& b) {
    return a.shape() == b.shape() && a.dtype() == b.dtype() &&
           (!a.is_distributed() || a.layout() == b.layout());
  }

  double ratio(double rows, double columns) const {
    return adjust_ == "original"          ? std::sqrt(std::max(1.0, rows / columns))
           : adjust_ == "match_rms_adamw" ? 0.2 * std::sqrt(std::max(rows, columns))
                                          : std::sqrt(rows / columns);
  }

  /// Replaces these updates, which have one shape and layout, by their iterations. A stack comes
  /// alone.
  void orthogonalize(std::vector<Tensor>& updates, const std::vector<std::size_t>& which) const {
    std::vector<Tensor> list;
    for (const std::size_t i : which) {
      list.push_back(updates[i]);
    }
    const DType dtype = list[0].dtype();
    const bool stacked = is_stack(list[0].shape());
    Tensor x = stacked ? list[0] : ops::stack(list);
    if (x.shape().product() == 0) {
      return;
    }
    const std::int64_t count = x.shape()[0];
    const std::int64_t rows = x.shape()[1];
    const std::int64_t columns = x.shape()[2];
    const Tensor home = x;
    if (x.is_distributed()) {
      Layout spread = x.layout();
      for (int axis = 0; axis < spread.ndim(); ++axis) {
        if (!spread.placement(axis).is_replicate() || count > 1) {
          spread = spread.with_placement(axis, Shard(0));
        }
      }
      x = redistribute(x, spread);
    }
    if (compute_ == "bf16") {
      x = ops::cast(x, DType::bf16);
    } else if (dtype != DType::f64) {
      x = ops::cast(x, DType::f32);
    }
    x = iterated(rows > columns ? ops::transpose(x, 1, 2) : x);
    x = ops::mul_scalar(ops::cast(rows > columns ? ops::transpose(x, 1, 2) : x, dtype),
                        ratio(static_cast<double>(rows), static_cast<double>(columns)));
    if (x.is_distributed()) {
      x = redistribute(x, home.layout());
    }
    if (stacked) {
      updates[which[0]] = x;
      return;
    }
    const Tensors parts = ops::unbind(x);
    for (std::size_t i = 0; i < which.size(); ++i) {
      updates[which[i]] = parts[i];
    }
  }

  /// Newton-Schulz iterations of matrices [number, rows, columns], rows <= columns.
  Tensor iterated(Tensor x) const {
    const Tensor norm = ops::sqrt(ops::sum(ops::square(x), {1, 2}, true));
    x = ops::div(x, ops::clamp(norm, eps_, HUGE_VAL));
    for (std::int64_t i = 0; i < iterations_; ++i) {
      const Tensor gram = ops::bmm(x, ops::transpose(x, 1, 2));
      const Tensor polynomial = ops::add(ops::mul_scalar(gram, coefficients_[1]),
                                         ops::mul_scalar(ops::bmm(gram, gram), coefficients_[2]));
      x = ops::add(ops::mul_scalar(x, coefficients_[0]), ops::bmm(polynomial, x));
    }
    return x;
  }

  double momentum_;
  bool nesterov_;
  std::vector<double> coefficients_;
  double eps_;
  std::int64_t iterations_;
  std::string adjust_;
  std::string compute_;
  Fallback fallback_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<optim::UpdateRule>(
      "muon", [](PluginOptions& options) { return std::make_unique<Muon>(options); });
}
