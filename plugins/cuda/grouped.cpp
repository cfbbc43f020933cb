// Products of groups of rows. How many rows a group has is in a tensor, which the host does not
// read.
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
#include "kernels/grouped.hpp"
#include "kernels/tile_size.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

constexpr std::int64_t most_blocks = 65535;

/// The last dims of a tensor: rows and columns, and groups before them.
GroupedMatrix matrix_of(const Tensor& x) {
  const int last = x.dims() - 1;
  return {.data = x.device_address(),
          .group = last > 1 ? x.strides()[0] : 0,
          .row = x.strides()[last - 1],
          .column = x.strides()[last],
          .type = x.dtype()};
}

GroupedArguments arguments_of(const Call& call, const Tensor& y) {
  const Tensor& counts = call.in[2];
  auto& driver = static_cast<CudaDriver&>(driver_of(y.device()));
  GroupedArguments a = {};
  a.groups = counts.shape()[0];
  a.rows = call.in[0].shape()[0];
  a.a = matrix_of(call.in[0]);
  a.b = matrix_of(call.in[1]);
  a.y = matrix_of(y);
  a.counts = static_cast<const std::int64_t*>(counts.device_address());
  a.step_of_counts = counts.strides()[0];
  a.problem = driver.problem();
  a.op = call.op.id;
  return a;
}

/// Whether elements are one after the other along the last dim (`turned`: the one before it), and
/// can be copied in pieces of 16 bytes.
bool in_pieces(const Tensor& x, bool turned = false) {
  constexpr std::int64_t piece = 8;
  const int along = x.dims() - (turned ? 2 : 1);
  const auto fits = [&](int dim) {
    return dim == along ? x.strides()[dim] == 1 && x.shape()[dim] % piece == 0
                        : x.shape()[dim] <= 1 || x.strides()[dim] % piece == 0;
  };
  bool all = reinterpret_cast<std::uintptr_t>(x.device_address()) % 16 == 0;
  for (int dim = 0; dim < x.dims(); ++dim) {
    all = all && fits(dim);
  }
  return all && (x.dtype() == DType::bf16 || x.dtype() == DType::f16);
}

/// Queues the kernel with a thread for some tiles, or, `by_tensor_cores`, a block for each. It
/// looks at the counts too, so it runs without tiles.
void launch_tiles(const Tensor& y, const std::string& kernel, std::int64_t tiles,
                  bool by_tensor_cores, const GroupedArguments& a) {
  if (by_tensor_cores) {
    launch(y, kernel + "_" + std::string(name_of(y.dtype())), static_cast<unsigned>(tiles),
           mma_threads, a, mma_memory);
  } else if (y.numel() > 0 || a.groups > 0) {
    const auto blocks = static_cast<unsigned>(std::clamp<std::int64_t>(tiles, 1, most_blocks));
    launch(y, with_type(kernel, y.dtype()), blocks, threads_per_block, a);
  }
}

void grouped_mm(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  GroupedArguments a = arguments_of(call, y);
  a.k = call.in[1].shape()[1];
  a.n = call.in[1].shape()[2];
  const bool turned = a.b.column != 1;
  const bool mma =
      y.numel() > 0 && in_pieces(call.in[0]) && in_pieces(call.in[1], turned) && in_pieces(y);
  const int rows = mma ? mma_rows : product_tile;
  const int columns = mma ? mma_columns : product_tile;
  launch_tiles(y, mma && turned ? "grouped_product_turned" : "grouped_product",
               (product_tiles(a.rows, rows) + a.groups) * product_tiles(a.n, columns), mma, a);
}

void grouped_outer(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  GroupedArguments a = arguments_of(call, y);
  a.m = y.shape()[1];
  a.n = y.shape()[2];
  const bool mma = y.numel() > 0 && in_pieces(call.in[0]) && in_pieces(call.in[1]) && in_pieces(y);
  const int rows = mma ? mma_rows : product_tile;
  const int columns = mma ? mma_columns : product_tile;
  launch_tiles(y, "grouped_outer",
               a.groups * product_tiles(a.m, rows) * product_tiles(a.n, columns), mma, a);
}

}  // namespace

void add_groups(KernelTable& table) {
  table["grouped_mm"] = {grouped_mm};
  table["grouped_outer"] = {grouped_outer};
}

}  // namespace tessera::cuda
