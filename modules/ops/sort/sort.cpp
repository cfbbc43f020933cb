// Order along one dim: sort, argsort.
module;
#include <cstdint>
#include <span>
#include <utility>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import :sort_call;

namespace tessera::ops {
namespace {

using namespace sorting;

SortArguments sort_arguments(const Call& call) {
  AttributeReader read = call.read();
  const Dims dim = operands::sorted_dims("sort", {read.integer()}, call.in[0].dims());
  return {dim, read.flag()};
}

void sort_infer(const Call& call, ResultShapes& out) {
  sort_arguments(call);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
  out.push_back({call.in[0].shape(), DType::i64});
}

void sort_cpu(const Call& call, std::span<Tensor> out) {
  const SortArguments a = sort_arguments(call);
  sort_lines(call.in[0], a.dim, a.flag, out);
}

void rule(const RuleContext& context, Strategies& strategies) {
  other_dims(context, strategies, sort_arguments(context.call).dim);
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = to_sources(context, grads[0], context.read().integer());
}

const Op& sort_op = register_op({.schema = "sort(x; dim: int, descending: bool)",
                                 .infer = sort_infer,
                                 .cpu = sort_cpu,
                                 .rule = rule,
                                 .backward = backward,
                                 .saves_inputs = saves_all,
                                 .saves_outputs = 0b10,
                                 .about = "x in order along dim, and where each element was."});

}  // namespace

ValuesAndIndices sort(const Tensor& x, std::int64_t dim, bool descending) {
  operands::given("sort", "x", x);
  Tensors sorted = call(
      sort_op, {x}, Attributes().add(operands::front_dim("sort", dim, x.dims())).add(descending));
  return {std::move(sorted[0]), std::move(sorted[1])};
}

Tensor argsort(const Tensor& x, std::int64_t dim, bool descending) {
  return sort(x, dim, descending).indices;
}

}  // namespace tessera::ops
