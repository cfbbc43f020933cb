// Weights and activations in codes.
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
#include "kernels/codes.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

// ---- NF4 ----

struct DequantizeArgs {
  std::int64_t first_block;
  std::int64_t row_blocks;
};

/// Operands: codes, scales, factors, mean.
void nf4_dequantize(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  const Tensor& factors = call.in[2];
  if (y.numel() == 0) {
    return;
  }
  if (factors.dims() > 1) {
    fail({.thing = call.op.name,
          .wrong = "factors are a list on this device",
          .expected = "at most one dim",
          .got = to_string(factors.shape())});
  }
  const auto args = call.args<DequantizeArgs>();
  Nf4Arguments a = {};
  a.rows = y.shape()[0];
  a.columns = y.shape()[1];
  a.codes = static_cast<const std::uint8_t*>(call.in[0].device_address());
  a.scales = static_cast<const std::int8_t*>(call.in[1].device_address());
  a.factors = static_cast<const float*>(factors.device_address());
  a.mean = static_cast<const float*>(call.in[3].device_address());
  a.y = static_cast<float*>(y.device_address());
  std::ranges::copy(call.in[0].strides(), a.codes_strides);
  std::ranges::copy(call.in[1].strides(), a.scales_strides);
  std::ranges::copy(y.strides(), a.y_strides);
  a.factors_stride = factors.dims() == 1 ? factors.strides()[0] : 0;
  a.first_block = args.first_block;
  a.row_blocks = args.row_blocks;
  launch(y, "nf4_values", blocks_for(y.numel()), threads_per_block, a);
}

// ---- 8-bit floating codes ----

enum class Scales : std::uint8_t { whole, rows, columns };  // which elements share one
enum class CodesOrder : std::uint8_t { as_x, turned, both };
struct QuantizeArgs {
  DType dtype;
  Scales scales;
  bool powers_of_two;
  CodesOrder order;
};

constexpr std::int64_t most_blocks = 65535;
constexpr std::int64_t most_parts = 512;              // of a row
constexpr std::int64_t elements_of_part = 16 * 1024;  // at least

/// The dims whose elements share a scale.
Dims sharing_dims(const Tensor& x, Scales scales) {
  Dims sharing;
  for (int d = 0; d < x.dims(); ++d) {
    const bool last = d == x.dims() - 1;
    if (scales == Scales::whole || last == (scales == Scales::rows)) {
      sharing.push_back(d);
    }
  }
  return sharing;
}

/// Rows, and parts of each.
struct Parts {
  std::int64_t rows = 1;
  std::int64_t parts = 1;
};
Parts parts_of(const Tensor& x, const Dims& sharing) {
  Parts all;
  std::int64_t length = 1;
  for (int d = 0; d < x.dims(); ++d) {
    (sharing.contains(d) ? length : all.rows) *= x.shape()[d];
  }
  all.parts = std::clamp<std::int64_t>(length / elements_of_part, 1, most_parts);
  return all;
}

/// Scales, and the magnitudes of parts.
std::size_t quantize_workspace(const Call& call, std::span<const Tensor>) {
  const Tensor& x = call.in[0];
  const Parts all = parts_of(x, sharing_dims(x, call.args<QuantizeArgs>().scales));
  return static_cast<std::size_t>(all.rows * (all.parts + 1)) * sizeof(float);
}

void quantize_f8(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<QuantizeArgs>();
  const Tensor& x = call.in[0];
  const Dims sharing = sharing_dims(x, args.scales);
  const Parts all = parts_of(x, sharing);
  if (all.rows == 0) {
    return;
  }
  QuantizeArguments a = {};
  const Tensor codes = args.order == CodesOrder::turned ? Tensor() : out[0];
  a.rows = Rows(x.shape(), sharing).whole(x).whole(codes).per_row(out[1]).finish();
  a.scale = {.rows = all.rows,
             .parts = all.parts,
             .largest = reinterpret_cast<std::uint32_t*>(call.workspace.data()) + all.rows,
             .scales = reinterpret_cast<float*>(call.workspace.data()),
             .given = call.in[1] ? static_cast<const float*>(call.in[1].device_address()) : nullptr,
             .factor = static_cast<float*>(out[1].device_address()),
             .most = args.dtype == DType::f8e4m3 ? 448.0F : 57344.0F,
             .powers_of_two = args.powers_of_two};
  const auto blocks = static_cast<unsigned>(std::min(all.rows * all.parts, most_blocks));
  if (a.scale.given == nullptr) {
    launch(x, "largest_magnitudes", blocks, threads_per_block, a);
  }
  if (all.rows > 1 && all.parts > 1) {
    launch(x, "scales_of_rows", blocks_for(all.rows), threads_per_block, a);
  }
  if (args.order == CodesOrder::as_x) {
    launch(x, "quantize_rows", blocks, threads_per_block, a);
    return;
  }
  QuantizeTilesArguments t = {};
  t.rows = Rows::of_last_dim(x.shape())
               .whole(x)
               .whole(codes)
               .turned(out.size() == 3 ? out[2] : out[0])
               .finish();
  t.scale = a.scale;
  t.row_scales = args.scales == Scales::rows ? 1 : 0;
  t.column_scales = args.scales == Scales::columns ? 1 : 0;
  const std::int64_t tiles = codes_tiles(t.rows.rows, t.rows.length);
  launch(x, "quantize_tiles",
         static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, most_blocks)), threads_per_block,
         t);
}

}  // namespace

void add_codes(KernelTable& table) {
  table["nf4_dequantize"] = {nf4_dequantize};
  table["quantize_f8"] = {quantize_f8, quantize_workspace};
}

}  // namespace tessera::cuda
