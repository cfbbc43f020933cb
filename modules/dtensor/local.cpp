// Local tensors into distributed ones and back. What a rank's part contributes to the gradient
// depends on how the parts make up the whole.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
module tessera.dtensor;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import :redistribution_steps;
import :agree;

namespace tessera {

void require_distributed(const Tensor& x, const char* what) {
  if (!x || !x.is_distributed()) {
    fail({.thing = what,
          .wrong = "x is a plain tensor",
          .expected = "a distributed tensor",
          .advice = "use distribute() or from_local()"});
  }
}

void require_plain(const Tensor& x, const char* what) {
  if (!x || x.is_distributed()) {
    fail({.thing = what,
          .wrong = "x is a distributed tensor",
          .expected = "a plain tensor",
          .advice = "use redistribute() to change its layout"});
  }
}

namespace {

struct ToLocalArgs {
  SpecArgument gradient;
};
struct FromLocalArgs {
  SpecArgument to;
};

const Op& to_local_op = register_op<ToLocalArgs>({
    .schema = "to_local(x)",
    .infer =
        [](const Call& call, ResultShapes& out) {
          out.push_back({local_shape(*call.in[0].spec()), call.in[0].dtype()});
        },
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Spec& gradient = *context.args<ToLocalArgs>().gradient;
          out[0] = from_local(grads[0], gradient.layout, gradient.shape);
        },
    .aliasing = Aliasing::always,
    .moves_elements = true,
    .distributed = [](const Call& call,
                      Tensors& out) { out.push_back(detached(call.in[0].local())); },
    .about = "This rank's part as a plain tensor; the gradient has the layout that the caller "
             "specifies.",
});

/// The part of a gradient that belongs to this rank's local tensor, before the reduction's own
/// share.
Tensor local_gradient(const Tensor& gradient, const Layout& layout) {
  const Layout natural = gradient_layout(layout);
  return to_local(redistribute(gradient, natural), natural);
}

void make_from_local(const Call& call, Tensors& out) {
  out.push_back(make_distributed(detached(call.in[0]), call.args<FromLocalArgs>().to.spec));
}

void from_local_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.args<FromLocalArgs>().to->shape, call.in[0].dtype()});
}

const Op& from_local_op = register_op<FromLocalArgs>({
    .schema = "from_local(x)",
    .infer = from_local_infer,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Layout& layout = context.args<FromLocalArgs>().to->layout;
          double share = 1;
          for (int axis = 0; axis < layout.ndim(); ++axis) {
            share *= layout.placement(axis) == Partial(ReduceOp::avg)
                         ? layout.mesh().axis_size(axis)
                         : 1;
          }
          out[0] = local_gradient(grads[0], layout);
          if (share != 1) {
            out[0] = ops::mul_scalar(out[0], 1 / share);
          }
        },
    .aliasing = Aliasing::always,
    .moves_elements = true,
    .distributed = make_from_local,
    .about = "The distributed tensor whose local part on this rank is the operand.",
});

/// Slope of the norm of all terms with respect to one term: sign(x) (|x| / norm)^(p-1), 0 at 0.
Tensor norm_slope(const Tensor& x, const Tensor& whole, double order) {
  const Tensor zero = ops::eq(x, ops::zeros_like(x));
  const Tensor share = ops::abs(ops::div(x, ops::masked_fill(whole, zero, 1)));
  const Tensor slope = ops::pow_scalar(ops::masked_fill(share, zero, 1), order - 1);
  return ops::masked_fill(ops::mul(ops::sign(x), slope), zero, 0);
}

/// Terms of a maximum, minimum, product or norm: the gradient depends on their values, so they are
/// kept.
const Op& from_local_terms_op = register_op<FromLocalArgs>({
    .schema = "from_local_terms(x)",
    .infer = from_local_infer,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Spec& spec = *context.args<FromLocalArgs>().to;
          const Tensor& x = context.in[0];
          const Layout natural = gradient_layout(spec.layout);
          const Tensor gradient = local_gradient(grads[0], spec.layout);
          const auto reduced = [&](const Tensor& terms, const Layout& layout) {
            return local_gradient(from_local(terms, layout, spec.shape), natural);
          };
          const Tensor whole = reduced(x, spec.layout);
          Layout sums = spec.layout;
          bool product = false;
          double order = 0;
          for (int axis = 0; axis < sums.ndim(); ++axis) {
            if (sums.placement(axis).is_partial()) {
              product |= sums.placement(axis) == Partial(ReduceOp::product);
              order = std::max(order, sums.placement(axis).norm_order());
              sums = sums.with_placement(axis, Partial());
            }
          }
          if (product) {
            out[0] = ops::mul(gradient, ops::div(whole, x));
            return;
          }
          if (order != 0) {
            out[0] = ops::mul(gradient, norm_slope(x, whole, order));
            return;
          }
          // Ranks that share the extremum share its gradient, as amax does.
          const Tensor mine = ops::cast(ops::eq(x, whole), x.dtype());
          out[0] = ops::mul(gradient, ops::div(mine, reduced(mine, sums)));
        },
    .saves_inputs = saves_all,
    .aliasing = Aliasing::always,
    .moves_elements = true,
    .distributed = make_from_local,
    .about = "The distributed tensor with a Partial maximum, minimum, product or norm whose term "
             "on this rank is the operand.",
});

/// Whether a term's gradient depends on the terms. Error: reductions that have no gradient
/// together.
bool needs_terms(const Layout& layout) {
  bool linear = false;
  bool mixed = false;
  Placement other;
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement placement = layout.placement(axis);
    if (!placement.is_partial() || layout.mesh().axis_size(axis) == 1) {
      continue;
    }
    if (placement == Partial() || placement == Partial(ReduceOp::avg)) {
      linear = true;
    } else {
      mixed |= other.is_partial() && !(other == placement);
      other = placement;
    }
  }
  if (other.is_partial() && (linear || mixed)) {
    fail(
        {.thing = "from_local",
         .wrong = fmt::format("a gradient is not supported for {} with several kinds of reductions",
                              to_string(layout)),
         .advice = "reduce one of the axes first"});
  }
  return other.is_partial();
}

/// In which layout the gradients of x's local parts make up x's gradient, where that follows.
Layout default_gradient(const Tensor& x) {
  const Layout& layout = x.layout();
  Layout gradient = layout;
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement placement = layout.placement(axis);
    const bool matters = x.requires_grad() && grad_enabled() && layout.mesh().axis_size(axis) > 1;
    if (placement.is_replicate() && matters) {
      fail(
          {.thing = "to_local",
           .wrong = fmt::format("x is Replicate on axis '{}' and needs a gradient, whose layout "
                                "depends on how the ranks use the value",
                                layout.mesh().axis_name(axis)),
           .advice =
               "pass it: Replicate if all use it alike, Partial if each uses it for its own part"});
    }
    if ((placement == Partial(ReduceOp::product) || placement.is_norm()) && matters) {
      fail(
          {.thing = "to_local",
           .wrong = fmt::format(
               "x is {} on axis '{}' and needs a gradient, which cannot be computed from its terms",
               to_string(placement), layout.mesh().axis_name(axis)),
           .advice = "redistribute x first"});
    }
    if (placement.is_partial()) {
      gradient = gradient.with_placement(axis, placement == Partial() ? Replicate() : Partial());
    }
  }
  return gradient;
}

}  // namespace

Layout gradient_layout(const Layout& layout) {
  Layout result = layout;
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (layout.placement(axis).is_partial()) {
      result = result.with_placement(axis, Replicate());
    }
  }
  return result;
}

Tensor from_local(const Tensor& local, const Layout& layout, std::optional<Dims> shape,
                  bool run_check) {
  require_plain(local, "from_local");
  check_layout_fits(layout, local.dims(), "from_local");
  if (run_check) {
    shape = agree_on_parts(local, layout, shape);
  }
  if (!shape) {
    shape = local.shape();
    for (int dim = 0; dim < local.dims(); ++dim) {
      (*shape)[dim] = checked_multiply((*shape)[dim], layout.shard_count(dim), "from_local");
    }
  }
  const SpecHandle spec = Spec::make(layout, *shape, local.dtype());
  const Dims expected = local_shape(*spec);
  if (!(local.shape() == expected)) {
    fail({.thing = "from_local",
          .wrong =
              fmt::format("this rank's part of {} is {}", to_string(*spec), to_string(expected)),
          .got = fmt::format("a local tensor of {}", to_string(local.shape())),
          .advice = "pass the global shape"});
  }
  const bool terms = local.requires_grad() && grad_enabled() && needs_terms(layout);
  return call_one(terms ? from_local_terms_op : from_local_op, {local}, FromLocalArgs{{spec}});
}

Tensor to_local(const Tensor& x, std::optional<Layout> gradient) {
  require_distributed(x, "to_local");
  return call_one(
      to_local_op, {x},
      ToLocalArgs{{with_layout(*x.spec(), gradient ? *gradient : default_gradient(x))}});
}

Tensor full_tensor(const Tensor& x, std::optional<Layout> gradient) {
  require_distributed(x, "full_tensor");
  static const std::string name = "full_tensor";
  const OperationScope operation(name);
  const Layout whole = Layout::replicated(x.layout().mesh());
  return to_local(redistribute(x, whole), gradient ? *gradient : whole);
}

Tensor deep_copy(const Tensor& x) {
  const NoGrad no_grad;
  const auto copied = [](const Tensor& t) {
    if (!t.is_distributed()) {
      return t.is_meta() ? detached(t) : ops::clone(detached(t));
    }
    const Tensor& local = t.local();
    return make_distributed(local.is_meta() ? detached(local) : ops::clone(detached(local)),
                            t.spec());
  };
  require(static_cast<bool>(x), "deep_copy: x is an undefined tensor (expected a tensor)");
  Tensor copy = copied(x);
  if (x.requires_grad()) {
    copy.set_requires_grad();
  }
  if (x.grad()) {
    copy.grad() = copied(x.grad());
  }
  return copy;
}

}  // namespace tessera
