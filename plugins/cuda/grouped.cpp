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
  if (a.groups > 0) {
    launch(y, "find_wrong_group", 1, 32, a);
  }
  return a;
}

void launch_tiles(const Tensor& y, const std::string& kernel, std::int64_t tiles,
                  const GroupedArguments& a) {
  if (y.numel() > 0) {
    launch(y, with_type(kernel, y.dtype()), static_cast<unsigned>(std::min(tiles, most_blocks)),
           threads_per_block, a);
  }
}

void grouped_mm(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  GroupedArguments a = arguments_of(call, y);
  a.k = call.in[1].shape()[1];
  a.n = call.in[1].shape()[2];
  launch_tiles(y, "grouped_product", (product_tiles(a.rows) + a.groups) * product_tiles(a.n), a);
}

void grouped_outer(const Call& call, std::span<Tensor> out) {
  const Tensor& y = out[0];
  GroupedArguments a = arguments_of(call, y);
  a.m = y.shape()[1];
  a.n = y.shape()[2];
  launch_tiles(y, "grouped_outer", a.groups * product_tiles(a.m) * product_tiles(a.n), a);
}

}  // namespace

void add_groups(KernelTable& table) {
  table["grouped_mm"] = {grouped_mm};
  table["grouped_outer"] = {grouped_outer};
}

}  // namespace tessera::cuda
