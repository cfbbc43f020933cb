// The k largest or smallest along one dim: topk.
module;
#include <fmt/format.h>

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

struct TopkArgs {
  std::int64_t k;
  std::int64_t dim;
  bool largest;
};

void topk_infer(const Call& call, ResultShapes& out) {
  const std::int64_t k = call.args<TopkArgs>().k;
  const Dims dim = sorted_dim<TopkArgs>(call);
  Dims shape = call.in[0].shape();
  const std::int64_t extent = dim.empty() ? 1 : shape[static_cast<int>(dim[0])];
  if (k < 0 || k > extent || (dim.empty() && k != 1)) {
    fail({.thing = "topk",
          .wrong = "k is out of range",
          .expected = fmt::format("0 to {} along this dim of {}", extent, to_string(shape)),
          .got = fmt::format("{}", k)});
  }
  if (!dim.empty()) {
    shape[static_cast<int>(dim[0])] = k;
  }
  out.push_back({shape, call.in[0].dtype()});
  out.push_back({shape, DType::i64});
}

void topk_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  sort_lines(w, call.in[0], sorted_dim<TopkArgs>(call), call.args<TopkArgs>().largest, out);
}

void rule(const RuleContext& context, Strategies& strategies) {
  other_dims(context, strategies, sorted_dim<TopkArgs>(context.call));
}

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  out[0] = to_sources(context, grads[0], context.args<TopkArgs>().dim);
}

const Op& topk_op = register_op<TopkArgs>(
    {.schema = "topk(x)",
     .infer = topk_infer,
     .cpu = in_workspace<topk_cpu>,
     .workspace = workspace_of<topk_cpu>,
     .rule = rule,
     .backward = backward,
     .saves_inputs = saves_all,
     .saves_outputs = 0b10,
     .about = "The k largest or smallest elements along dim, and their positions."});

}  // namespace

ValuesAndIndices topk(const Tensor& x, std::int64_t k, std::int64_t dim, bool largest,
                      bool across_ranks) {
  operands::given("topk", "x", x);
  if (across_ranks && x.is_distributed() && x.dims() > 0) {
    return topk_across_ranks(x, k, operands::front_dim("topk", dim, x.dims()), largest);
  }
  Tensors found =
      call(topk_op, {x},
           TopkArgs{.k = k, .dim = operands::front_dim("topk", dim, x.dims()), .largest = largest});
  return {std::move(found[0]), std::move(found[1])};
}

}  // namespace tessera::ops
