// Products of matrices.
#include <algorithm>
#include <array>
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
#include "kernels/tile_size.hpp"
#include "product.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

constexpr std::int64_t most_blocks = 65535;

/// Dims [first, last) of a tensor as an axis of a product.
struct Part {
  const Tensor& x;
  int first;
  int last;
};

/// Fills an axis, and the strides of its arrays. Joins dims that all of them allow. `parts` have
/// the same extents; where one has 1 instead, or fewer dims, it repeats.
void set_axis(Axis& axis, std::span<const Part> parts, std::span<std::int64_t* const> strides) {
  const auto size_of_part = [](const Part& part) { return part.last - part.first; };
  const int dims = size_of_part(*std::ranges::max_element(parts, {}, size_of_part));
  axis.size = 1;
  for (int dim = 0; dim < dims; ++dim) {
    std::int64_t extent = 1;
    std::vector<std::int64_t> of_dim;
    for (const Part& part : parts) {
      const int at = part.first + dim - (dims - size_of_part(part));
      const bool has = at >= part.first;
      const std::int64_t own = has ? part.x.shape()[at] : 1;
      extent = own == 1 ? extent : own;
      of_dim.push_back(own == 1 ? 0 : part.x.strides()[at]);
    }
    axis.size *= extent;
    if (extent == 1) {
      continue;
    }
    bool joins = axis.dims > 0;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      joins = joins && strides[i][axis.dims - 1] == of_dim[i] * extent;
    }
    const int at = joins ? axis.dims - 1 : axis.dims++;
    axis.extents[at] = joins ? axis.extents[at] * extent : extent;
    for (std::size_t i = 0; i < parts.size(); ++i) {
      strides[i][at] = of_dim[i];
    }
  }
}

/// The call's product, without the matrices' addresses.
using ArgumentsOf = ProductArguments (*)(const Call& call, const Tensor& y);

/// cuBLASLt's, where it can be asked; else our own kernel's.
template <ArgumentsOf arguments_of>
void multiply(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  if (y.numel() == 0) {
    return;
  }
  ProductArguments p = arguments_of(call, y);
  const std::size_t first = p.accumulate ? 1 : 0;  // the operand after y itself
  p.a.data = call.in[first].device_address();
  p.b.data = call.in[first + 1].device_address();
  p.y.data = y.device_address();
  if (p.accumulate) {
    p.bias.data = p.y.data;
  } else if (call.in.size() > 2 && call.in[2]) {
    p.bias.data = call.in[2].device_address();
  }
  auto& driver = static_cast<CudaDriver&>(driver_of(y.device()));
  if (Blas* blas = Blas::takes(p) ? driver.blas() : nullptr) {
    const StreamHandle stream = driver.handle_of(current_stream(y.device()).native());
    if (blas->multiply(stream, p, call.workspace.data(), call.workspace.size())) {
      return;
    }
  }
  const std::int64_t tiles = p.batch.size * product_tiles(p.m.size) * product_tiles(p.n.size);
  launch(y, is_floating(y.dtype()) ? with_type("product", y.dtype()) : "product_i64",
         static_cast<unsigned>(std::min(tiles, most_blocks)), threads_per_block, p);
}

template <ArgumentsOf arguments_of>
std::size_t workspace_of(const Call& call, std::span<const Tensor> out) {
  const Tensor& y = out.empty() ? call.in[0] : out[0];  // empty: planned, in place
  return Blas::takes(arguments_of(call, y)) ? Blas::workspace_bytes : 0;
}

template <ArgumentsOf arguments_of>
constexpr DeviceKernel product = {.run = multiply<arguments_of>,
                                  .workspace = workspace_of<arguments_of>};

ProductArguments with_types(const Tensor& a, const Tensor& b, const Tensor& y) {
  ProductArguments p = {};
  p.a.type = a.dtype();
  p.b.type = b.dtype();
  p.y.type = y.dtype();
  return p;
}

void set_axis_of(Axis& axis, const Part& one, std::int64_t* of_one, const Part& other,
                 std::int64_t* of_other) {
  set_axis(axis, std::array{one, other}, std::array{of_one, of_other});
}

/// a [batch..., m, k] times b [batch..., k, n]; a vector is a row on the left, a column on the
/// right.
ProductArguments matmul(const Call& call, const Tensor& y) {
  const Tensor& a = call.in[0];
  const Tensor& b = call.in[1];
  const int rows = a.dims() >= 2 ? 1 : 0;
  const int columns = b.dims() >= 2 ? 1 : 0;
  const int last_a = a.dims() - 1;
  const int row_b = b.dims() - 1 - columns;  // the dim of b that is summed over
  const int batch_y = y.dims() - rows - columns;
  ProductArguments p = with_types(a, b, y);
  set_axis(p.batch, std::array{Part{a, 0, last_a - rows}, Part{b, 0, row_b}, Part{y, 0, batch_y}},
           std::array<std::int64_t*, 3>{p.a.batch, p.b.batch, p.y.batch});
  set_axis_of(p.m, {a, last_a - rows, last_a}, p.a.rows, {y, batch_y, batch_y + rows}, p.y.rows);
  set_axis_of(p.n, {b, row_b + 1, row_b + 1 + columns}, p.b.columns, {y, batch_y + rows, y.dims()},
              p.y.columns);
  set_axis_of(p.k, {a, last_a, last_a + 1}, p.a.columns, {b, row_b, row_b + 1}, p.b.rows);
  return p;
}

ProductArguments linear(const Call& call, const Tensor& y) {
  return rows_times(call.in[0], call.in[1], 1, call.in[2], y);
}

ProductArguments linear_grad_input(const Call& call, const Tensor& y) {
  return rows_times(call.in[0], call.in[1], 0, {}, y);
}

ProductArguments linear_grad_weight(const Call& call, const Tensor& y) {
  return columns_times(call.in[0], call.in[1], y);
}

ProductArguments linear_grad_input_sum(const Call& call, const Tensor& y) {
  ProductArguments p = rows_times(call.in[1], call.in[2], 0, {}, y);
  add_to_result(p, y);
  return p;
}

ProductArguments linear_grad_weight_sum(const Call& call, const Tensor& y) {
  ProductArguments p = columns_times(call.in[1], call.in[2], y);
  add_to_result(p, y);
  return p;
}

}  // namespace

ProductArguments rows_times(const Tensor& x, const Tensor& weight, int summed, const Tensor& bias,
                            const Tensor& y) {
  const int last = x.dims() - 1;
  ProductArguments p = with_types(x, weight, y);
  p.batch.size = 1;
  set_axis_of(p.m, {x, 0, last}, p.a.rows, {y, 0, last}, p.y.rows);
  set_axis_of(p.n, {weight, 1 - summed, 2 - summed}, p.b.columns, {y, last, last + 1}, p.y.columns);
  set_axis_of(p.k, {x, last, last + 1}, p.a.columns, {weight, summed, summed + 1}, p.b.rows);
  if (bias) {
    p.bias.type = bias.dtype();
    p.bias.columns[0] = bias.strides()[0];
  }
  return p;
}

ProductArguments columns_times(const Tensor& dy, const Tensor& x, const Tensor& y) {
  const int last = x.dims() - 1;
  ProductArguments p = with_types(dy, x, y);
  p.batch.size = 1;
  set_axis_of(p.m, {dy, last, last + 1}, p.a.rows, {y, 0, 1}, p.y.rows);
  set_axis_of(p.n, {x, last, last + 1}, p.b.columns, {y, 1, 2}, p.y.columns);
  set_axis_of(p.k, {dy, 0, last}, p.a.columns, {x, 0, last}, p.b.rows);
  return p;
}

void add_to_result(ProductArguments& p, const Tensor& y) {
  p.accumulate = true;
  p.bias.type = y.dtype();
  std::ranges::copy(p.y.rows, p.bias.rows);
  std::ranges::copy(p.y.columns, p.bias.columns);
}

void add_products(KernelTable& table) {
  table["mm"] = product<matmul>;
  table["bmm"] = product<matmul>;
  table["matmul"] = product<matmul>;
  table["linear"] = product<linear>;
  table["linear_grad_input"] = product<linear_grad_input>;
  table["linear_grad_weight"] = product<linear_grad_weight>;
  table["linear_grad_input_"] = product<linear_grad_input_sum>;
  table["linear_grad_weight_"] = product<linear_grad_weight_sum>;
}

}  // namespace tessera::cuda
