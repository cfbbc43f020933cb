// Sums and means over dims; sums, products and recurrences along one.
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

std::string with_summed_type(const std::string& kernel, DType type) {
  return is_floating(type) ? with_type(kernel, type) : kernel + "_i64";
}

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

void reduce(const Call& call, const Tensor& y, bool mean) {
  const Tensor& x = call.in[0];
  const SplitDims dims = split(x, call.args<ReducedDims>().dims);
  double divisor = 1;
  for (const std::int64_t dim : dims.summed) {
    divisor *= mean ? static_cast<double>(x.shape()[static_cast<int>(dim)]) : 1;
  }
  // Neighbouring threads should read neighbouring elements: of a row, or of several columns.
  const bool columns = !dims.kept.empty() && !dims.summed.empty() && x.numel() > 0 &&
                       x.strides()[static_cast<int>(dims.kept.back())] <
                           x.strides()[static_cast<int>(dims.summed.back())];
  if (columns) {
    Rows(x.shape(), dims.kept)
        .whole(x)
        .shared(y)
        .number(divisor)
        .launch_columns(y, with_summed_type("sum_columns", x.dtype()));
  } else {
    Rows(x.shape(), dims.summed)
        .whole(x)
        .per_row(y)
        .number(divisor)
        .launch_rows(y, with_summed_type("sum_rows", x.dtype()));
  }
}

/// amax, amin.
template <bool largest>
void extremum(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  Rows(x.shape(), split(x, call.args<Extremum>().dims).summed)
      .whole(x)
      .per_row(out[0])
      .launch_rows(out[0],
                   with_summed_type(largest ? "largest_of_rows" : "smallest_of_rows", x.dtype()));
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

/// In f64, by one block.
void squared_norm(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  Rows(x.shape(), split(x, {}).summed)
      .whole(x)
      .per_row(out[0])
      .number(1)
      .launch_rows(out[0], "sum_squares_f64");
}

/// The same for each tensor of a list.
void foreach_squared_norm(const Call& call, std::span<Tensor> out) {
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor& x = call.in[i];
    Rows rows(x.shape(), split(x, {}).summed);
    RowArguments a = rows.whole(x).per_row(out[0]).number(1).finish();
    a.arrays[1].data = static_cast<double*>(a.arrays[1].data) + i;
    launch(out[0], "sum_squares_f64", 1, threads_per_block, a);
  }
}

}  // namespace

void add_reductions(KernelTable& table) {
  table["sum"] = {sum};
  table["mean"] = {mean};
  table["amax"] = {extremum<true>};
  table["amin"] = {extremum<false>};
  table["squared_norm"] = {squared_norm};
  table["foreach_squared_norm"] = {foreach_squared_norm};
  table["logsumexp"] = {logsumexp};
  table["cumsum"] = {cumsum<false>};
  table["cumsum_from_end"] = {cumsum<true>};
  table["cumprod"] = {cumprod};
  table["logcumsumexp"] = {logcumsumexp};
  table["linear_recurrence"] = {linear_recurrence<false>};
  table["linear_recurrence_from_end"] = {linear_recurrence<true>};
}

}  // namespace tessera::cuda
