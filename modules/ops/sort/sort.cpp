// Order along one dim: sort, argsort.
module;
#include <cstdint>
#include <span>
#include <utility>

#include "shared/kernels/workspace.hpp"
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :kernel_call;
import :sort_call;

namespace tessera::ops {
namespace {

using namespace sorting;

struct SortArgs {
  std::int64_t dim;
  bool descending;
};

void sort_infer(const Call& call, ResultShapes& out) {
  sorted_dim<SortArgs>(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
  out.push_back({call.in[0].shape(), DType::i64});
}

void sort_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  sort_lines(w, call.in[0], sorted_dim<SortArgs>(call), call.args<SortArgs>().descending, out);
}

void rule(const RuleContext& context, Strategies& strategies) {
  other_dims(context, strategies, sorted_dim<SortArgs>(context.call));
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = to_sources(context, grads[0], context.args<SortArgs>().dim);
}

const Op& sort_op =
    register_op<SortArgs>({.schema = "sort(x)",
                           .infer = sort_infer,
                           .cpu = in_workspace<sort_cpu>,
                           .workspace = workspace_of<sort_cpu>,
                           .rule = rule,
                           .backward = backward,
                           .saves_inputs = saves_all,
                           .saves_outputs = 0b10,
                           .about = "x sorted along dim, and the position of each element in x."});

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  operands::given("sort", "x", x);
  Tensors sorted =
      call(sort_op, {x},
           SortArgs{.dim = operands::front_dim("sort", dim, x.dims()), .descending = descending});
  return {std::move(sorted[0]), std::move(sorted[1])};
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  return sort(x, dim, descending).indices;
}

}  // namespace tessera::ops
