module;
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <utility>
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;

namespace tessera::rules {
namespace {

/// The dim of `operand` that lines up with dim `dim` of the result when shapes are aligned at their
/// ends; -1 when the operand repeats along it.
int aligned_dim(const Tensor& operand, const Dims& result, int dim) {
  const int d = dim - (result.size() - operand.dims());
  return d >= 0 && operand.shape()[d] == result[dim] ? d : -1;
}

void sharded(const RuleContext& context, Strategies& strategies) {
  const Dims& result = context.out[0].shape;
  for (int dim = 0; dim < result.size(); ++dim) {
    Strategy s;
    for (const Tensor& operand : context.call.in) {
      const int d = operand ? aligned_dim(operand, result, dim) : -1;
      s.in.push_back(d >= 0 ? Shard(d) : Replicate());
    }
    for (std::size_t i = 0; i < context.out.size(); ++i) {
      s.out.push_back(Shard(dim));
    }
    strategies.push_back(std::move(s));
  }
}

/// Operand `i` (all operands for i < 0) and every result `partial`, the others Replicate.
void partial_in(const RuleContext& context, Strategies& strategies, int i, Placement partial) {
  Strategy s;
  for (std::size_t k = 0; k < context.call.in.size(); ++k) {
    s.in.push_back(i < 0 || static_cast<int>(k) == i ? partial : Replicate());
  }
  for (std::size_t k = 0; k < context.out.size(); ++k) {
    s.out.push_back(partial);
  }
  strategies.push_back(std::move(s));
}

void linear_in(const RuleContext& context, Strategies& strategies, int i) {
  partial_in(context, strategies, i, Partial());
  partial_in(context, strategies, i, Partial(ReduceOp::avg));
}

}  // namespace

void pointwise(const RuleContext& context, Strategies& strategies) { sharded(context, strategies); }

void pointwise_linear(const RuleContext& context, Strategies& strategies) {
  sharded(context, strategies);
  linear_in(context, strategies, -1);
}

void pointwise_multilinear(const RuleContext& context, Strategies& strategies) {
  sharded(context, strategies);
  for (std::size_t i = 0; i < context.call.in.size(); ++i) {
    linear_in(context, strategies, static_cast<int>(i));
  }
}

void pointwise_linear_in_first(const RuleContext& context, Strategies& strategies) {
  sharded(context, strategies);
  linear_in(context, strategies, 0);
}

Strategy strategy(std::initializer_list<Placement> in, std::initializer_list<Placement> out) {
  Strategy s;
  for (const Placement& p : in) {
    s.in.push_back(p);
  }
  for (const Placement& p : out) {
    s.out.push_back(p);
  }
  return s;
}

void same_dim(const RuleContext& context, Strategies& strategies, int dim) {
  Strategy s;
  for (std::size_t i = 0; i < context.call.in.size(); ++i) {
    s.in.push_back(Shard(dim));
  }
  for (std::size_t i = 0; i < context.out.size(); ++i) {
    s.out.push_back(Shard(dim));
  }
  strategies.push_back(std::move(s));
}

void moves_elements(const RuleContext& context, Strategies& strategies) {
  for (int op = 0; op < reduce_op_count; ++op) {
    partial_in(context, strategies, -1, Partial(static_cast<ReduceOp>(op)));
  }
  // A norm's has an order, of which there are too many to list.
  for (const Tensor& x : context.call.in) {
    if (x && x.is_distributed() && x.layout().placement(context.axis).is_norm()) {
      partial_in(context, strategies, -1, x.layout().placement(context.axis));
      return;
    }
  }
}

void linear(const RuleContext& context, Strategies& strategies) {
  linear_in(context, strategies, -1);
}

void kept_dims(const RuleContext& context, Strategies& strategies, const Dims& dims, bool keepdim) {
  int removed = 0;
  for (int d = 0; d < context.call.in[0].dims(); ++d) {
    if (dims.contains(d)) {
      ++removed;
    } else {
      Strategy s = strategy({Shard(d)}, {});
      for (std::size_t i = 0; i < context.out.size(); ++i) {
        s.out.push_back(Shard(keepdim ? d : d - removed));
      }
      strategies.push_back(std::move(s));
    }
  }
}

Placement placement_of(const RuleContext& context, const Tensor& operand) {
  return operand.is_distributed() ? operand.layout().placement(context.axis) : Replicate();
}

void rows_of_lists(const RuleContext& context, Strategies& strategies, std::size_t lists,
                   bool linear) {
  const std::span<const Tensor> in = context.call.in;
  const std::size_t count = in.size() / lists;
  Strategy s;
  for (std::size_t i = 0; i < in.size(); ++i) {
    const Placement p = placement_of(context, in[i % count]);
    const bool term = p == Partial() || p == Partial(ReduceOp::avg);
    s.in.push_back(p.is_shard() || (linear && term) ? p : Replicate());
  }
  s.out.push_back(s.in[0]);
  strategies.push_back(std::move(s));
}

}  // namespace tessera::rules
