module tessera.ops;

import tessera.base;
import tessera.tensor;
import :reduce_call;

namespace tessera::ops::reductions {

void infer_floating_reduction(const Call& call, ResultShapes& out) {
  const Tensor& x = call.in[0];
  operands::check_floating(call.op.name, x);
  const operands::ReducedDims a = operands::reduced_dims(call);
  out.push_back({operands::reduced_shape(x.shape(), a.dims, a.keepdim), x.dtype()});
}

void kept_dims_rule(const RuleContext& context, Strategies& strategies) {
  const operands::ReducedDims a = operands::reduced_dims(context.call);
  rules::kept_dims(context, strategies, a.dims, a.keepdim);
}

Tensor without_dims(const Tensor& x, const Dims& dims, bool keepdim) {
  Tensor result = x;
  for (int i = dims.size() - 1; i >= 0 && !keepdim; --i) {
    result = squeeze(result, dims[i]);
  }
  return result;
}

Tensor products_before(const Tensor& x, int dim) {
  Dims one_in_front = Dims::filled(2 * (x.dims() - dim), 0);
  one_in_front[one_in_front.size() - 2] = 1;
  return pad(narrow(cumprod(x, dim), dim, 0, x.shape()[dim] - 1), one_in_front, PadMode::constant,
             1);
}

}  // namespace tessera::ops::reductions
