// adafactor: Adafactor, whose second moments of a matrix are a vector of its rows and one of its
// columns. As torch.optim.Adafactor (Shazeer and Stern, 2018), with t the step:
//     w = t^beta2_decay
//     r += w (mean of g^2 over the last dim - r);  c += w (mean over the dim before it - c)
//     v = r c / max(mean of r, eps1)
//     u = g / sqrt(max(v, eps1^2))
//     p = p (1 - lr decay) - max(eps2, rms(p)) min(lr, 1 / sqrt(t)) / max(1, rms(u) / d) u
// A parameter of less than two dims has v += w (g^2 - v) itself.
// Sums over sharded dims are collectives: of the row and column sums that are not complete on a
// rank (in one where their layouts agree), and one each for the norms of all parameters and of all
// updates. r and c are sharded as the dims that they have.
// Options: beta2_decay = -0.8, eps = [0.0, 1e-3] (eps1 = 0: the precision of the parameter's type),
// d = 1.0, maximize = false.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <memory>
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

/// The layout of a sum over `dim` that keeps it, once it is complete.
Layout without_dim(Layout layout, int dim) {
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_shard(dim)) {
      layout = layout.with_placement(axis, Replicate());
    }
  }
  return layout;
}

/// Zeros in the shape of a sum over `dim` (from the back) of the parameter; undefined where the
/// parameter is not factored.
Tensor factor(const Tensor& parameter, int from_back) {
  const int dim = parameter.dims() - from_back;
  if (parameter.dims() < 2) {
    return {};
  }
  Dims shape = parameter.shape();
  shape[dim] = 1;
  return parameter.is_distributed() ? distributed_zeros(shape, without_dim(parameter.layout(), dim),
                                                        parameter.dtype(), parameter.device())
                                    : zeros(shape, parameter.dtype(), parameter.device());
}

/// Completes sums that are Partial. Those of one layout are joined, unless they are sharded too.
void complete(std::vector<Tensor>& sums) {
  std::vector<bool> done(sums.size(), false);
  for (std::size_t first = 0; first < sums.size(); ++first) {
    if (done[first] || !sums[first].is_distributed()) {
      continue;
    }
    const Layout layout = sums[first].layout();
    Layout whole = layout;
    bool sharded = false;
    bool partial = false;
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      sharded = sharded || layout.placement(axis).is_shard();
      partial = partial || layout.placement(axis).is_partial();
      if (layout.placement(axis).is_partial()) {
        whole = whole.with_placement(axis, Replicate());
      }
    }
    if (!partial) {
      continue;
    }
    std::vector<std::size_t> alike;
    std::vector<Tensor> flat;
    for (std::size_t i = first; i < sums.size(); ++i) {
      const bool joins = i == first || (!sharded && !done[i] && sums[i].layout() == layout &&
                                        sums[i].dtype() == sums[first].dtype());
      if (joins) {
        alike.push_back(i);
        flat.push_back(sharded ? sums[i] : ops::reshape(sums[i], {sums[i].numel()}));
        done[i] = true;
      }
    }
    if (sharded) {
      sums[first] = redistribute(sums[first], whole);
      continue;
    }
    const Tensor all = redistribute(ops::cat(flat), whole);
    std::int64_t at = 0;
    for (const std::size_t i : alike) {
      sums[i] = ops::reshape(ops::narrow(all, 0, at, sums[i].numel()), sums[i].shape());
      at += sums[i].numel();
    }
  }
}

/// The root mean square of each tensor, all of one layout, as one vector that every rank has, of
/// this type.
Tensor root_mean_squares_of_one_layout(const std::vector<Tensor>& list, DType dtype) {
  std::vector<double> counts;
  for (const Tensor& x : list) {
    counts.push_back(1 / static_cast<double>(std::max<std::int64_t>(1, x.numel())));
  }
  std::vector<Tensor> squares{ops::foreach_squared_norm(list)};
  complete(squares);
  const Dims shape{static_cast<std::int64_t>(list.size())};
  Tensor shares = from_values(std::span<const double>(counts), shape);
  if (squares[0].is_distributed()) {
    shares = from_local(shares, squares[0].layout());
  }
  return ops::cast(ops::sqrt(ops::mul(squares[0], shares)), dtype);
}

/// The same of any layouts: a sum over ranks for each of them.
Tensor root_mean_squares(const std::vector<Tensor>& list, DType dtype) {
  std::vector<SpecHandle> layouts;               // one tensor's of each
  std::vector<std::vector<std::size_t>> places;  // of the tensors in each
  for (std::size_t i = 0; i < list.size(); ++i) {
    const auto same = std::ranges::find_if(layouts, [&](const SpecHandle& one) {
      const SpecHandle& own = list[i].spec();
      return one == own || (one != nullptr && own != nullptr && one->layout == own->layout);
    });
    const auto place = static_cast<std::size_t>(same - layouts.begin());
    if (place == layouts.size()) {
      layouts.push_back(list[i].spec());
      places.emplace_back();
    }
    places[place].push_back(i);
  }
  std::vector<Tensor> parts;
  std::vector<std::int64_t> order(list.size());  // where each tensor's is in the joined parts
  std::int64_t at = 0;
  for (const std::vector<std::size_t>& some : places) {
    std::vector<Tensor> tensors;
    for (const std::size_t i : some) {
      tensors.push_back(list[i]);
      order[i] = at++;
    }
    parts.push_back(root_mean_squares_of_one_layout(tensors, dtype));
  }
  if (parts.size() == 1) {
    return parts[0];
  }
  std::vector<Tensor> rows;
  const Tensor all = ops::cat(parts, 0);
  for (const std::int64_t place : order) {
    rows.push_back(ops::narrow(all, 0, place, 1));
  }
  return ops::cat(rows, 0);
}

class Adafactor final : public optim::UpdateRule {
 public:
  explicit Adafactor(PluginOptions& options)
      : beta2_decay_(options.number("beta2_decay", -0.8, "a number of at most 0",
                                    [](double x) { return x <= 0; })),
        eps_(options.numbers("eps", {0, 1e-3}, "two numbers of at least 0",
                             [](double x) { return x >= 0; })),
        d_(options.number("d", 1, "a number of at least 1", [](double x) { return x >= 1; })),
        maximize_(options.flag("maximize", false)) {}

  std::vector<optim::StateTensor> states() const override {
    return {{.name = "row_var", .make = [](const Tensor& p) { return factor(p, 1); }},
            {.name = "col_var", .make = [](const Tensor& p) { return factor(p, 2); }},
            {.name = "variance",
             .make = [](const Tensor& p) { return p.dims() < 2 ? ops::zeros_like(p) : Tensor(); }}};
  }

  void update(const optim::UpdateGroup& group) override {
    const Number step = group.step.number();
    const Number scale = maximize_ ? -group.grad_scale : group.grad_scale;
    const DType dtype = group.parameters[0].dtype();
    std::vector<Tensor> gradients;
    std::vector<Tensor> rows;
    std::vector<Tensor> columns;
    for (const Tensor& gradient : group.gradients) {
      gradients.push_back(ops::mul_scalar(ops::cast(gradient, dtype), scale));
    }
    const Tensor sizes = root_mean_squares(group.parameters, dtype);  // before the decay, as torch
    ops::foreach_mul_(group.parameters, 1 - group.lr * group.weight_decay);
    add_squares(group, gradients, pow(step, beta2_decay_));
    std::vector<Tensor> updates;
    const double eps = eps_[0] > 0 ? eps_[0] : precision(dtype);
    std::vector<Tensor> variances = estimates(group, eps);
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      updates.push_back(
          ops::mul(ops::rsqrt(ops::clamp(variances[i], eps * eps, HUGE_VAL)), gradients[i]));
    }
    const Tensor update_sizes = root_mean_squares(updates, dtype);
    const Number rate = min(group.lr, 1 / sqrt(step));
    const Tensor factors = ops::div(ops::mul_scalar(ops::clamp(sizes, eps_[1], HUGE_VAL), rate),
                                    ops::clamp(ops::mul_scalar(update_sizes, 1 / d_), 1, HUGE_VAL));
    for (std::size_t i = 0; i < updates.size(); ++i) {
      updates[i] = ops::mul(updates[i], ops::select(factors, 0, static_cast<std::int64_t>(i)));
    }
    ops::foreach_add_(group.parameters, updates, -1);
  }

 private:
  static double precision(DType dtype) {
    return dtype == DType::f64 ? std::numeric_limits<double>::epsilon()
                               : static_cast<double>(std::numeric_limits<float>::epsilon());
  }

  /// Moves the states towards the squares of the gradients.
  static void add_squares(const optim::UpdateGroup& group, const std::vector<Tensor>& gradients,
                          const Number& weight) {
    std::vector<std::size_t> of;  // the state's list and place, of each mean
    std::vector<Tensor> sums;
    for (std::size_t i = 0; i < gradients.size(); ++i) {
      const Tensor square = ops::square(gradients[i]);
      if (!group.states[0][i]) {
        ops::lerp_scalar_(group.states[2][i], square, weight);
        continue;
      }
      for (const std::int64_t dim : {-1, -2}) {
        of.push_back(i);
        sums.push_back(ops::sum(square, {dim}, true));
      }
    }
    complete(sums);
    for (std::size_t k = 0; k < sums.size(); ++k) {
      const std::size_t list = k % 2;
      const Dims& shape = gradients[of[k]].shape();
      const auto extent = static_cast<double>(shape[shape.size() - 1 - list]);
      ops::lerp_scalar_(group.states[list][of[k]], ops::mul_scalar(sums[k], 1 / extent), weight);
    }
  }

  /// The second moment of each gradient.
  static std::vector<Tensor> estimates(const optim::UpdateGroup& group, double eps) {
    std::vector<Tensor> sums;
    for (const Tensor& row : group.states[0]) {
      if (row) {
        sums.push_back(ops::sum(row, {-2}, true));
      }
    }
    complete(sums);
    std::vector<Tensor> all;
    std::size_t next = 0;
    for (std::size_t i = 0; i < group.parameters.size(); ++i) {
      const Tensor& row = group.states[0][i];
      if (!row) {
        all.push_back(group.states[2][i]);
        continue;
      }
      const auto rows = static_cast<double>(row.shape()[row.dims() - 2]);
      const Tensor mean = ops::clamp(ops::mul_scalar(sums[next++], 1 / rows), eps, HUGE_VAL);
      all.push_back(ops::div(ops::mul(row, group.states[1][i]), mean));
    }
    return all;
  }

  double beta2_decay_;
  std::vector<double> eps_;
  double d_;
  bool maximize_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<optim::UpdateRule>(
      "adafactor", [](PluginOptions& options) { return std::make_unique<Adafactor>(options); });
}
