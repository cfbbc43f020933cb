// Sums and means over dims; sums, products and recurrences along one.
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
#include "kernels/reduce.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

struct ReducedDims {  // the arguments; no dims: all
  Dims dims;
  bool keepdim;
};

struct DimArgs {  // the arguments of scans
  std::int64_t dim;
};

struct Extremum {  // the arguments of amax and amin
  Dims dims;
  bool keepdim;
  bool across_ranks;
  SpecArgument whole{};
};

/// The dims that are summed over, counted from the first one, and the others.
struct SplitDims {
  Dims summed, kept;
};
SplitDims split(const Tensor& x, const Dims& named) {
  SplitDims all;
  for (int dim = 0; dim < x.dims(); ++dim) {
    const bool summed = named.empty() || named.contains(dim) || named.contains(dim - x.dims());
    (summed ? all.summed : all.kept).push_back(dim);
  }
  return all;
}

// ---- a number for each row ----

Parts parts_of(const Tensor& x, std::int64_t rows) {
  return parts_of_rows(rows, rows == 0 ? 0 : x.numel() / rows, x.dtype());
}

/// What parts need, whose results have so many bytes each.
std::size_t bytes_of_parts(const Tensor& x, std::int64_t rows, std::size_t bytes) {
  const std::int64_t parts = parts_of(x, rows).count;
  return parts == 1 ? 0 : static_cast<std::size_t>(rows * parts) * bytes;
}

/// Kernels of one way to reduce rows: where rows are pieces of 16 bytes, by the element's type; of
/// anything else, and of the parts' results, by the type that is computed in.
struct RowKernels {
  std::string pieces;  // empty: none
  std::string rows;
  std::string parts;
  DType computed;
  std::string parts_in_pieces = {};  // of one row's parts, whose memory is aligned; empty: none
};

void launch_parts(const RowArguments& a, const std::string& kernel, const Tensor& on) {
  constexpr std::int64_t warp = 32, most_blocks = 65535;
  const std::int64_t pieces = (std::min(a.integers[0], a.length) + a.piece - 1) / a.piece;
  const std::int64_t threads =
      std::clamp<std::int64_t>((pieces + warp - 1) / warp * warp, warp, threads_per_block);
  if (a.rows > 0) {
    launch(on, kernel, static_cast<unsigned>(std::min(a.rows * a.integers[1], most_blocks)),
           static_cast<unsigned>(threads), a);
  }
}

/// Queues the reduction of a view with arrays x and y; of long rows, each part on its own.
void reduce_rows(Rows& rows, const RowKernels& kernels, const Tensor& y, std::byte* memory) {
  RowArguments a = rows.finish();
  const RowArray result = a.arrays[1];
  const Parts parts = parts_of_rows(a.rows, a.length, a.arrays[0].type);
  a.integers[0] = parts.each;
  a.integers[1] = parts.count;
  if (parts.count > 1) {
    a.arrays[1] = partials_at(memory, kernels.computed);
  }
  const bool has_pieces = !kernels.pieces.empty() && rows.has_pieces();
  launch_parts(a, has_pieces ? kernels.pieces : kernels.rows, y);
  if (parts.count == 1) {
    return;
  }
  RowArray& x = a.arrays[0];
  x = partials_at(memory, kernels.computed);
  std::int64_t stride = parts.count;
  for (int dim = a.kept_dims - 1; dim >= 0; --dim) {
    x.kept[dim] = stride;
    stride *= a.kept_extents[dim];
  }
  x.along[0] = 1;
  a.arrays[1] = result;
  a.length = a.along_extents[0] = a.integers[0] = parts.count;
  a.along_dims = 1;
  a.integers[1] = 1;
  a.piece = elements_of_piece(x.type);
  const bool parts_in_pieces = !kernels.parts_in_pieces.empty() && a.rows == 1;
  launch_parts(a, parts_in_pieces ? kernels.parts_in_pieces : kernels.parts, y);
}

RowKernels kernels_of(const std::string& name, DType type) {
  const std::string rows = with_summed_type(name + "_rows", type);
  const DType computed = summed_type(type);
  return {name + "_pieces_" + std::string(name_of(type)), rows, rows, computed,
          computed == DType::f32 ? name + "_pieces_f32" : ""};
}

/// Whether neighbouring threads should read neighbouring elements of several columns, not of a row.
bool by_columns(const Tensor& x, const SplitDims& dims) {
  return !dims.kept.empty() && !dims.summed.empty() && x.numel() > 0 &&
         x.strides()[static_cast<int>(dims.kept.back())] <
             x.strides()[static_cast<int>(dims.summed.back())];
}

void reduce(const Call& call, const Tensor& y, bool mean) {
  const Tensor& x = call.in[0];
  const SplitDims dims = split(x, call.args<ReducedDims>().dims);
  double divisor = 1;
  for (const std::int64_t dim : dims.summed) {
    divisor *= mean ? static_cast<double>(x.shape()[static_cast<int>(dim)]) : 1;
  }
  if (by_columns(x, dims)) {
    Rows rows(x.shape(), dims.kept);
    sum_columns(rows.whole(x).shared(y).number(divisor), y, call.workspace);
  } else {
    Rows rows(x.shape(), dims.summed);
    reduce_rows(rows.whole(x).per_row(y).number(divisor), kernels_of("sum", x.dtype()), y,
                call.workspace.data());
  }
}

std::size_t workspace_of_sum(const Call& call, std::span<const Tensor> out) {
  const Tensor& x = call.in[0];
  const SplitDims dims = split(x, call.args<ReducedDims>().dims);
  const std::int64_t results = out[0].numel();
  return by_columns(x, dims) ? bytes_of_groups(x.numel() / results, results, x.dtype())
                             : bytes_of_parts(x, results, size_of(summed_type(x.dtype())));
}

/// amax, amin.
template <bool largest>
void extremum(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  Rows rows(x.shape(), split(x, call.args<Extremum>().dims).summed);
  reduce_rows(rows.whole(x).per_row(out[0]).number(1),
              kernels_of(largest ? "largest" : "smallest", x.dtype()), out[0],
              call.workspace.data());
}

std::size_t workspace_of_extremum(const Call& call, std::span<const Tensor> out) {
  const Tensor& x = call.in[0];
  return bytes_of_parts(x, out[0].numel(), size_of(summed_type(x.dtype())));
}

void logsumexp(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  Rows(x.shape(), split(x, call.args<ReducedDims>().dims).summed)
      .whole(x)
      .per_row(out[0])
      .launch_rows(out[0], with_type("log_sum_of_rows", x.dtype()));
}

Dims dim_of_scan(const Call& call) {
  const int dims = call.in[0].dims();
  const std::int64_t dim = call.args<DimArgs>().dim;
  return dims == 0 ? Dims{} : Dims{dim < 0 ? dim + dims : dim};
}

/// In f64 or i64, as on the CPU.
void scan(const Call& call, const Tensor& y, const std::string& kernel, bool from_end) {
  const Tensor& x = call.in[0];
  if (x.numel() != 0) {
    Rows(x.shape(), dim_of_scan(call))
        .whole(x)
        .whole(y)
        .integer(from_end ? 1 : 0)
        .launch_rows(y, kernel + (is_floating(x.dtype()) ? "_f64" : "_i64"));
  }
}

template <bool from_end>
void cumsum(const Call& call, std::span<Tensor> out) {
  scan(call, out[0], "sums_along_rows", from_end);
}
void cumprod(const Call& call, std::span<Tensor> out) {
  scan(call, out[0], "products_along_rows", false);
}
void logcumsumexp(const Call& call, std::span<Tensor> out) {
  scan(call, out[0], "log_sums_along_rows", false);
}

template <bool from_end>
void linear_recurrence(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  if (x.numel() != 0) {
    Rows(x.shape(), dim_of_scan(call))
        .whole(x)
        .whole(call.in[1])
        .whole(out[0])
        .integer(from_end ? 1 : 0)
        .launch_each_row(out[0], "recurrence_along_rows_f64");
  }
}

void sum(const Call& call, std::span<Tensor> out) { reduce(call, out[0], false); }
void mean(const Call& call, std::span<Tensor> out) { reduce(call, out[0], true); }

// ---- sums of squares in f64 ----

/// Sums of squares of the operands of a call, one after the other in its result.
class SumsOfSquares {
 public:
  explicit SumsOfSquares(const Call& call, const Tensor& y)
      : call_(call), y_(y), memory_(reinterpret_cast<double*>(call.workspace.data())) {}

  /// A launch has as many tensors of one type as it can.
  void queue_contiguous(DType type) {
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      const Tensor& x = call_.in[i];
      if (x.dtype() == type && x.is_contiguous()) {
        const Parts parts = parts_of(x, 1);
        list_.tensors[list_.count++] = {x.device_address(), x.numel(), parts.each, list_.parts,
                                        static_cast<std::int32_t>(i)};
        list_.parts += static_cast<int>(parts.count);
      }
      if (list_.count == most_listed) {
        launch_list(type);
      }
    }
    launch_list(type);
  }

  void queue_strided() {
    for (std::size_t i = 0; i < call_.in.size(); ++i) {
      const Tensor& x = call_.in[i];
      if (!x.is_contiguous()) {
        const Tensor sum = alias(y_, {}, {}, y_.offset() + static_cast<std::int64_t>(i));
        Rows rows(x.shape(), split(x, {}).summed);
        reduce_rows(rows.whole(x).per_row(sum).number(1),
                    {"", "sum_squares_f64", "sum_rows_f64", DType::f64}, y_,
                    reinterpret_cast<std::byte*>(memory_));
        memory_ += parts_of(x, 1).count;
      }
    }
  }

 private:
  void launch_list(DType type) {
    if (list_.count > 0) {
      list_.results = static_cast<double*>(y_.device_address());
      list_.partials = memory_;
      launch(y_, "sum_squares_of_list_" + std::string(name_of(type)),
             static_cast<unsigned>(list_.parts), threads_per_block, list_);
      if (list_.parts > list_.count) {
        launch(y_, "join_sums_of_list", static_cast<unsigned>(list_.count), threads_per_block,
               list_);
      }
    }
    memory_ += list_.parts;
    list_.count = list_.parts = 0;
  }

  const Call& call_;
  const Tensor& y_;
  double* memory_;  // of parts that no launch has yet
  ListArguments list_ = {};
};

void sum_squares(const Call& call, std::span<Tensor> out) {
  SumsOfSquares sums(call, out[0]);
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    sums.queue_contiguous(type);
  }
  sums.queue_strided();
}

std::size_t workspace_of_squares(const Call& call, std::span<const Tensor>) {
  std::int64_t parts = 0;
  for (const Tensor& x : call.in) {
    parts += parts_of(x, 1).count;
  }
  return static_cast<std::size_t>(parts) * sizeof(double);
}

}  // namespace

void add_reductions(KernelTable& table) {
  table["sum"] = {.run = sum, .workspace = workspace_of_sum};
  table["mean"] = {.run = mean, .workspace = workspace_of_sum};
  table["amax"] = {.run = extremum<true>, .workspace = workspace_of_extremum};
  table["amin"] = {.run = extremum<false>, .workspace = workspace_of_extremum};
  table["squared_norm"] = {.run = sum_squares, .workspace = workspace_of_squares};
  table["foreach_squared_norm"] = {.run = sum_squares, .workspace = workspace_of_squares};
  table["logsumexp"] = {logsumexp};
  table["cumsum"] = {cumsum<false>};
  table["cumsum_from_end"] = {cumsum<true>};
  table["cumprod"] = {cumprod};
  table["logcumsumexp"] = {logcumsumexp};
  table["linear_recurrence"] = {linear_recurrence<false>};
  table["linear_recurrence_from_end"] = {linear_recurrence<true>};
}

}  // namespace tessera::cuda
