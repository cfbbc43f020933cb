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

constexpr std::int64_t most_blocks = 65535;
constexpr std::int64_t most_quantizing_blocks = 1024;  // each looks at all parts' magnitudes
constexpr std::int64_t most_elements = std::int64_t{1} << 32;  // that are counted in pieces
constexpr std::int64_t codes_of_piece = 16;

bool is_piece(const void* data) {
  return reinterpret_cast<std::uintptr_t>(data) % codes_of_piece == 0;
}

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
  constexpr std::int64_t each = 8;
  const bool pieces = a.columns % each == 0 && a.codes_strides[1] == 1 && a.y_strides[1] == 1 &&
                      a.codes_strides[0] % 4 == 0 && a.y_strides[0] % 4 == 0 && is_piece(a.y) &&
                      reinterpret_cast<std::uintptr_t>(a.codes) % 4 == 0 &&
                      y.numel() <= most_elements;
  launch(y, pieces ? "nf4_pieces" : "nf4_values", blocks_for(pieces ? y.numel() / each : y.numel()),
         threads_per_block, a);
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
struct RowParts {
  std::int64_t rows = 1;
  Parts parts = {};
};
RowParts parts_of(const Tensor& x, const Dims& sharing) {
  RowParts all;
  std::int64_t length = 1;
  for (int d = 0; d < x.dims(); ++d) {
    (sharing.contains(d) ? length : all.rows) *= x.shape()[d];
  }
  all.parts = parts_of_rows(all.rows, length, x.dtype());
  return all;
}

/// Scales, and the magnitudes of parts.
std::size_t quantize_workspace(const Call& call, std::span<const Tensor>) {
  const Tensor& x = call.in[0];
  const RowParts all = parts_of(x, sharing_dims(x, call.args<QuantizeArgs>().scales));
  return static_cast<std::size_t>(all.rows * (all.parts.count + 1)) * sizeof(float);
}

/// Queues the largest magnitudes, and the scales of several rows; `x_in_pieces`: rows of x are.
void queue_scales(const Tensor& x, const QuantizeArguments& a, bool x_in_pieces) {
  const auto blocks = static_cast<unsigned>(std::min(a.scale.rows * a.scale.parts, most_blocks));
  if (a.scale.given == nullptr) {
    launch(x,
           x_in_pieces ? "largest_magnitudes_" + std::string(name_of(x.dtype()))
                       : "largest_magnitudes",
           blocks, threads_per_block, a);
  }
  if (a.scale.rows > 1 && a.scale.parts > 1) {
    launch(x, "scales_of_rows", blocks_for(a.scale.rows), threads_per_block, a);
  }
}

/// Where rows along the last dim begin, if pieces of 16 elements of them do so at multiples of 16
/// bytes; else -1.
std::int64_t step_of_pieces(const RowArguments& a, const RowArray& array) {
  const std::int64_t step = a.kept_dims == 0 ? a.length : array.kept[0];
  const bool fits = a.kept_dims <= 1 && a.along_dims == 1 && array.along[0] == 1 &&
                    step * static_cast<std::int64_t>(size_of(array.type)) % codes_of_piece == 0 &&
                    is_piece(array.data);
  return fits ? step : -1;
}

/// Queues the codes, if all arrays are in pieces; else nothing, and false.
bool queue_pieces(const Tensor& x, const QuantizeTilesArguments& t, DType code_type) {
  const RowArguments& rows = t.rows;
  const RowArray& codes = rows.arrays[1];
  const RowArray& turned = rows.arrays[2];
  QuantizePiecesArguments a = {
      .scale = t.scale,
      .rows = rows.rows,
      .columns = rows.length,
      .x = rows.arrays[0].data,
      .codes = codes.data,
      .turned = turned.data,
      .x_step = step_of_pieces(rows, rows.arrays[0]),
      .codes_step = codes.data == nullptr ? 0 : step_of_pieces(rows, codes),
      .turned_step = turned.data == nullptr ? 0 : turned.along[0],
      .row_scales = t.row_scales,
      .column_scales = t.column_scales,
      .code_type = code_type};
  const bool turns = turned.data != nullptr;
  const bool turned_fits = !turns || (a.rows % codes_of_piece == 0 && turned.kept[0] == 1 &&
                                      a.turned_step % codes_of_piece == 0 && is_piece(turned.data));
  const DType type = x.dtype();
  const bool loaded = type == DType::f32 || type == DType::bf16 || type == DType::f16;
  if (!loaded || a.x_step < 0 || a.codes_step < 0 || !turned_fits ||
      a.columns % codes_of_piece != 0 || a.rows * a.columns > most_elements) {
    return false;
  }
  const std::int64_t pieces = a.rows * a.columns / codes_of_piece;
  const std::int64_t blocks =
      turns ? codes_tiles(a.rows, a.columns) : (pieces + threads_per_block - 1) / threads_per_block;
  launch(x, "quantize_pieces_" + std::string(name_of(type)),
         static_cast<unsigned>(std::clamp<std::int64_t>(blocks, 1, most_quantizing_blocks)),
         threads_per_block, a);
  return true;
}

void quantize_f8(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<QuantizeArgs>();
  const Tensor& x = call.in[0];
  const Dims sharing = sharing_dims(x, args.scales);
  const RowParts all = parts_of(x, sharing);
  if (all.rows == 0) {
    return;
  }
  QuantizeArguments a = {};
  const Tensor codes = args.order == CodesOrder::turned ? Tensor() : out[0];
  const bool x_in_pieces = Rows(x.shape(), sharing).whole(x).has_pieces();
  a.rows = Rows(x.shape(), sharing).whole(x).whole(codes).per_row(out[1]).finish();
  a.scale = {.rows = all.rows,
             .parts = all.parts.count,
             .each = all.parts.each,
             .largest = reinterpret_cast<std::uint32_t*>(call.workspace.data()) + all.rows,
             .scales = reinterpret_cast<float*>(call.workspace.data()),
             .given = call.in[1] ? static_cast<const float*>(call.in[1].device_address()) : nullptr,
             .factor = static_cast<float*>(out[1].device_address()),
             .most = args.dtype == DType::f8e4m3 ? 448.0F : 57344.0F,
             .powers_of_two = args.powers_of_two};
  queue_scales(x, a, x_in_pieces);
  QuantizeTilesArguments t = {};
  const Tensor turned = args.order == CodesOrder::as_x     ? Tensor()
                        : args.order == CodesOrder::turned ? out[0]
                                                           : out[2];
  t.rows = Rows::of_last_dim(x.shape()).whole(x).whole(codes).turned(turned).finish();
  t.scale = a.scale;
  t.row_scales = args.scales == Scales::rows ? 1 : 0;
  t.column_scales = args.scales == Scales::columns ? 1 : 0;
  if (queue_pieces(x, t, args.dtype)) {
    return;
  }
  if (args.order == CodesOrder::as_x) {
    launch(x, "quantize_rows",
           static_cast<unsigned>(std::min(all.rows * all.parts.count, most_blocks)),
           threads_per_block, a);
    return;
  }
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
