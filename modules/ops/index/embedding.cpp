module;
#include <fmt/format.h>

#include <cstdint>
#include <span>
#include <utility>

#include "index/kernels/indexing.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops {
namespace {

using rules::strategy;

struct EmbeddingArgs {
  SpecArgument whole;  // of a local call: the Spec of the table that weight is part of
};

/// Which rows of the whole table the local one holds.
struct Rows {
  std::int64_t offset = 0;
  std::int64_t whole = 0;
};

Rows rows_of(const Call& call, const Tensor& table) {
  const SpecArgument whole = call.args<EmbeddingArgs>().whole;
  return whole ? Rows{local_offset(*whole)[0], whole->shape[0]} : Rows{0, table.shape()[0]};
}

/// Calls f with a pointer to the indices, of their own type.
template <class F>
void visit_indices(const Call& call, const Tensor& indices, F f) {
  kernels::visit<kernels::IndexTypes>(
      indices.dtype(), [&]<class I>(I) { f(pointer<I>(indices)); },
      [&] {
        refuse(call, {.wrong = "indices must be i64 or i32",
                      .got = std::string(name_of(indices.dtype()))});
      });
}

void infer(const Call& call, ResultShapes& out) {
  check_dims(call, 0, 2);
  Dims shape = call.in[1].shape();
  shape.push_back(call.in[0].shape()[1]);
  out.push_back({shape, call.in[0].dtype()});
}

void cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor table = contiguous_operand(w, call.in[0]);
  const Tensor indices = contiguous_operand(w, call.in[1]);
  if (w.counts()) {
    return;
  }
  const Rows rows = rows_of(call, table);
  visit_indices(call, indices, [&]<class Index>(const Index* index) {
    const std::int64_t count = indices.numel();
    for (std::int64_t i = 0; i < count; ++i) {
      if (index[i] < 0 || index[i] >= rows.whole) {
        refuse(call, {.wrong = fmt::format("index {} is out of range", index[i]),
                      .expected = fmt::format("0 to {}", rows.whole - 1)});
      }
    }
    visit_floating(table.dtype(), call.op.name, [&]<class T>(T) {
      kernels::embedding_forward(count, table.shape()[1], rows.offset, table.shape()[0],
                                 pointer<T>(table), index, pointer<T>(out[0]));
    });
  });
}

void rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[1].dims();
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Replicate(), Shard(d)}, {Shard(d)}));
  }
  strategies.push_back(strategy({Shard(1), Replicate()}, {Shard(last)}));
  // Every rank adds the rows that it has, and zeros for the others.
  strategies.push_back(strategy({Shard(0), Replicate()}, {Partial()}));
  pass_partial(context, strategies, 0b01);
}

Attributes localize(const LocalContext& context) { return EmbeddingArgs{.whole = {context.in[0]}}; }

/// Of the table, the rows at the indices.
std::int64_t used_elements(const Call& call, std::size_t operand) {
  const Tensor& indices = call.in[1];
  return operand == 0 ? indices.numel() * call.in[0].shape()[1] : call.in[operand].numel();
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& embedding_op = register_op<EmbeddingArgs>({
    .schema = "embedding(weight, indices)",
    .infer = infer,
    .cpu = in_workspace<cpu>,
    .workspace = workspace_of<cpu>,
    .rule = rule,
    .localize = localize,
    .used_elements = used_elements,
    .backward = backward,
    .saves_inputs = saves_all,
    .gradients_apart = true,
    .same_bits_by_features = true,
    .about = "The rows of weight at indices of any shape.",
});

// The gradient takes weight for its shape and its placement; it reads no value of it.

void grad_infer(const Call& call, ResultShapes& out) {
  Dims shape = call.in[1].shape();
  shape.push_back(call.in[2].shape()[1]);
  check_shape(call, 0, shape);
  check_type(call, 0, call.in[2].dtype());
  out.push_back({call.in[2].shape(), call.in[0].dtype()});
}

/// Adds the rows of dy to those of `sums` at the indices; both are contiguous.
void add_rows(const Call& call, const Tensor& dy, const Tensor& indices, const Tensor& sums) {
  const Rows rows = rows_of(call, sums);
  visit_indices(call, indices, [&]<class Index>(const Index* index) {
    visit_floating(dy.dtype(), call.op.name, [&]<class T>(T) {
      kernels::embedding_backward(indices.numel(), sums.shape()[1], rows.offset, sums.shape()[0],
                                  pointer<T>(dy), index, pointer<kernels::Summed<T>>(sums));
    });
  });
}

void grad_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor dy = contiguous_operand(w, call.in[0]);
  const Tensor indices = contiguous_operand(w, call.in[1]);
  if (out[0].numel() != 0) {
    sum_into(w, out[0], [&](const Tensor& sums) { add_rows(call, dy, indices, sums); });
  }
}

void grad_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[1].dims();
  strategies.push_back(strategy({Shard(last), Replicate(), Shard(1)}, {Shard(1)}));
  strategies.push_back(strategy({Replicate(), Replicate(), Shard(0)}, {Shard(0)}));
  // Terms of a table have its shape, so they are treated like the whole table.
  for (const Placement table : {Replicate(), Partial(), Partial(ReduceOp::avg)}) {
    for (int d = 0; d < last; ++d) {
      strategies.push_back(strategy({Shard(d), Shard(d), table}, {Partial()}));
    }
    strategies.push_back(strategy({Replicate(), Replicate(), table}, {Replicate()}));
    for (const Placement terms : {Partial(), Partial(ReduceOp::avg)}) {
      strategies.push_back(strategy({terms, Replicate(), table}, {terms}));
    }
  }
}

Attributes grad_localize(const LocalContext& context) {
  return EmbeddingArgs{.whole = {context.in[2]}};
}

std::int64_t grad_used_elements(const Call& call, std::size_t operand) {
  return operand == 2 ? 0 : call.in[operand].numel();
}

const Op& embedding_backward_op = register_op<EmbeddingArgs>({
    .schema = "embedding_backward(dy, indices, weight)",
    .infer = grad_infer,
    .cpu = in_workspace<grad_cpu>,
    .workspace = workspace_of<grad_cpu>,
    .rule = grad_rule,
    .localize = grad_localize,
    .used_elements = grad_used_elements,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          out[0] = call_one(embedding_op, {grads[0], context.in[1]}, EmbeddingArgs{});
        },
    .saves_inputs = 0b010,
    .about = "The gradient of embedding with respect to weight: sums rows of dy by index.",
});

void grad_sum_infer(const Call& call, ResultShapes& out) {
  const Tensor& sum = call.in[0];
  check_dims(call, 0, 2);
  Dims shape = call.in[2].shape();
  shape.push_back(sum.shape()[1]);
  check_shape(call, 1, shape);
  if (sum.dtype() != call.in[1].dtype()) {
    check_type(call, 0, summed_type(call.in[1].dtype()));
  }
  out.push_back({sum.shape(), sum.dtype()});
}

void grad_sum_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  ResultShapes checked;
  grad_sum_infer(call, checked);
  const Tensor dy = contiguous_operand(w, call.in[1]);
  const Tensor indices = contiguous_operand(w, call.in[2]);
  if (out[0].numel() == 0) {
    return;
  }
  update_contiguous(w, out[0], [&](const Tensor& whole) {
    add_into(w, whole, [&](const Tensor& sums) { add_rows(call, dy, indices, sums); });
  });
}

void grad_sum_rule(const RuleContext& context, Strategies& strategies) {
  const int last = context.call.in[2].dims();
  strategies.push_back(strategy({Shard(1), Shard(last), Replicate()}, {Shard(1)}));
  strategies.push_back(strategy({Shard(0), Replicate(), Replicate()}, {Shard(0)}));
  for (int d = 0; d < last; ++d) {
    strategies.push_back(strategy({Partial(), Shard(d), Shard(d)}, {Partial()}));
  }
  pass_partial(context, strategies, 0b011);
}

/// Of the sum, the rows at the indices.
std::int64_t grad_sum_used_elements(const Call& call, std::size_t operand) {
  return call.in[operand == 0 ? 1 : operand].numel();
}

const Op& embedding_backward_sum_op = register_op<EmbeddingArgs>({
    .schema = "embedding_backward_(sum, dy, indices)",
    .infer = grad_sum_infer,
    .cpu = in_workspace<grad_sum_cpu>,
    .workspace = workspace_of<grad_sum_cpu>,
    .rule = grad_sum_rule,
    .localize = localize,
    .used_elements = grad_sum_used_elements,
    .in_place = true,
    .about =
        "Adds the gradient of embedding with respect to weight to a tensor: rows of dy to those "
        "at their indices.",
});

/// A table in the form of `weight`, which is all that is read of it: its own memory may have been
/// released before the second half of a backward, and a recorded step uses no memory that was.
Tensor form_of(const Tensor& weight) {
  const Tensor& local = local_of(weight);
  if (local.storage().has_memory()) {
    return weight;
  }
  const Tensor one = empty({1}, weight.dtype(), weight.device());
  Tensor form = alias(one, local.shape(), Dims::filled(local.dims(), 0), 0);
  return weight.is_distributed() ? make_distributed(std::move(form), weight.spec()) : form;
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = call_one(embedding_backward_op, {grads[0], context.in[1], form_of(context.in[0])},
                    EmbeddingArgs{});
}

}  // namespace

Tensor embedding(const Tensor& weight, const Tensor& indices) {
  return call_one(embedding_op, {weight, indices}, EmbeddingArgs{});
}

}  // namespace tessera::ops
