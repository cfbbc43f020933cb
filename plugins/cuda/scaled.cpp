// linear and its gradients for 8-bit floating codes with factors.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"
#include "kernels/scaled.hpp"
#include "kernels/tile_size.hpp"
#include "product.hpp"

namespace tessera::cuda {
namespace {

constexpr std::int64_t most_blocks = 65535;

/// Operands: codes, factors, of which dims [first, last) are summed over.
Factors factors_of(const Tensor& codes, const Tensor& factors, int first, int last) {
  Factors f = {};
  f.data = static_cast<const float*>(factors.device_address());
  f.first_summed = first;
  f.last_summed = last;
  f.first_kept = first == 0 ? last : 0;
  f.last_kept = first == 0 ? codes.dims() : first;
  for (int d = 0; d < codes.dims(); ++d) {
    const std::int64_t count = factors.dims() == 0 ? 1 : factors.shape()[d];
    f.extents[d] = codes.shape()[d];
    f.blocks[d] = count == 0 ? 1 : std::max<std::int64_t>(1, (f.extents[d] + count - 1) / count);
    f.strides[d] = count > 1 ? factors.strides()[d] : 0;
    f.vary = f.vary || (count > 1 && d >= first && d < last);
  }
  return f;
}

void multiply(const Tensor& a, const Tensor& b, const Tensor& y, ScaledArguments s) {
  ProductArguments& p = s.product;
  if (y.numel() == 0) {
    return;
  }
  p.a.data = a.device_address();
  p.b.data = b.device_address();
  p.y.data = y.device_address();
  p.bias.data = p.accumulate ? p.y.data : nullptr;
  const std::int64_t tiles = product_tiles(p.m.size) * product_tiles(p.n.size);
  launch(y, "scaled_product", static_cast<unsigned>(std::min(tiles, most_blocks)),
         threads_per_block, s);
}

/// Codes begin at operand `first`; operand 0 before them is added to.
template <std::size_t first>
void multiply_codes(const Call& call, const Tensor& y, ScaledArguments s) {
  if constexpr (first == 1) {
    check_in_place(call);
    add_to_result(s.product, y);
  }
  multiply(call.in[first], call.in[first + 2], y, s);
}

/// a [..., k] times b, whose dim `summed` is summed over.
template <std::size_t first, int summed>
void rows_product(const Call& call, std::span<Tensor> out) {
  const Tensor& a = call.in[first];
  const Tensor& b = call.in[first + 2];
  const int last = a.dims() - 1;
  multiply_codes<first>(call, out[0],
                        {.product = rows_times(a, b, summed, {}, out[0]),
                         .a = factors_of(a, call.in[first + 1], last, last + 1),
                         .b = factors_of(b, call.in[first + 3], summed, summed + 1)});
}

template <std::size_t first>
void grad_weight(const Call& call, std::span<Tensor> out) {
  const Tensor& dy = call.in[first];
  const Tensor& x = call.in[first + 2];
  const int last = dy.dims() - 1;
  multiply_codes<first>(call, out[0],
                        {.product = columns_times(dy, x, out[0]),
                         .a = factors_of(dy, call.in[first + 1], 0, last),
                         .b = factors_of(x, call.in[first + 3], 0, last)});
}

}  // namespace

void add_scaled_products(KernelTable& table) {
  table["scaled_linear"] = {rows_product<0, 1>};
  table["scaled_linear_grad_input"] = {rows_product<0, 0>};
  table["scaled_linear_grad_input_"] = {rows_product<1, 0>};
  table["scaled_linear_grad_weight"] = {grad_weight<0>};
  table["scaled_linear_grad_weight_"] = {grad_weight<1>};
}

}  // namespace tessera::cuda
