// Elements in order along a dim.
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
#include <utility>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"
#include "rows.hpp"
#include "sort.hpp"

namespace tessera::cuda {
namespace {

struct TopkArgs {
  std::int64_t k;
  std::int64_t dim;
  bool largest;
};
struct SortArgs {
  std::int64_t dim;
  bool descending;
};

constexpr unsigned warp = 32;
constexpr std::int64_t most_blocks = 65535;

std::int64_t tiles_of(std::int64_t length) { return (length + sorted_tile - 1) / sorted_tile; }

std::size_t bytes_of(std::int64_t lines, std::int64_t length, std::int64_t buffers) {
  return static_cast<std::size_t>(lines * length * buffers) * sizeof(SortedEntry);
}

/// The dim as a list; none of a tensor without dims.
Dims listed(const Tensor& x, std::int64_t dim, const char* name) {
  return x.dims() == 0 ? Dims{} : Dims{wrap_dim(dim, x.dims(), name)};
}

/// Sorts tiles and merges them, between two buffers of entries. Returns where the entries are;
/// `keeps`: nothing else is written.
const SortedEntry* sort_lines(const Tensor& on, SortArguments a, bool keeps,
                              std::span<std::byte> workspace) {
  const std::int64_t all = a.rows.rows * a.rows.length;
  if (all == 0) {
    return nullptr;
  }
  const std::int64_t tiles = tiles_of(a.rows.length);
  auto* to = reinterpret_cast<SortedEntry*>(workspace.data());
  SortedEntry* other = tiles > 1 ? to + all : nullptr;
  a.to = keeps || tiles > 1 ? to : nullptr;
  const std::int64_t pairs = std::min<std::int64_t>(sorted_tile, a.rows.length) / 2;
  const auto needed = static_cast<unsigned>(std::min<std::int64_t>(pairs, threads_per_block));
  launch(on, "sort_tiles", static_cast<unsigned>(std::min(a.rows.rows * tiles, most_blocks)),
         std::max(warp, (needed + warp - 1) / warp * warp), a);
  for (a.run = sorted_tile; a.run < a.rows.length; a.run *= 2) {
    a.from = std::exchange(to, other);
    other = const_cast<SortedEntry*>(a.from);
    a.to = keeps || 2 * a.run < a.rows.length ? to : nullptr;
    launch(on, "merge_runs", blocks_for(all), threads_per_block, a);
  }
  return to;
}

void sort_along(const Call& call, const Dims& dim, bool descending, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  Rows rows(x.shape(), dim);
  rows.whole(x).whole(out[0]).whole(out[1]);
  SortArguments a = {};
  a.rows = rows.finish();
  a.count = dim.empty() ? 1 : out[0].shape()[static_cast<int>(dim[0])];
  a.descending = descending;
  a.bytes = static_cast<int>(size_of(x.dtype()));
  if (out[0].numel() > 0) {
    sort_lines(out[0], a, false, call.workspace);
  }
}

void topk(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<TopkArgs>();
  sort_along(call, listed(call.in[0], args.dim, "topk"), args.largest, out);
}

void sort(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<SortArgs>();
  sort_along(call, listed(call.in[0], args.dim, "sort"), args.descending, out);
}

template <class Args>
std::size_t workspace_of(const Call& call, std::span<const Tensor>) {
  const Tensor& x = call.in[0];
  const Dims dim = listed(x, call.args<Args>().dim, "sort");
  const std::int64_t length = dim.empty() ? 1 : x.shape()[static_cast<int>(dim[0])];
  return tiles_of(length) > 1 ? bytes_of(x.numel(), 1, 2) : 0;
}

}  // namespace

std::size_t bytes_to_order(std::int64_t lines, std::int64_t length) {
  return bytes_of(lines, length, tiles_of(length) > 1 ? 2 : 1);
}

const SortedEntry* order_of_indices(const Tensor& indices, const Dims& along,
                                    std::span<std::byte> workspace) {
  SortArguments a = {};
  a.rows = Rows(indices.shape(), along).whole(indices).finish();
  return sort_lines(indices, a, true, workspace);
}

void add_sorting(KernelTable& table) {
  table["topk"] = {.run = topk, .workspace = workspace_of<TopkArgs>};
  table["sort"] = {.run = sort, .workspace = workspace_of<SortArgs>};
}

}  // namespace tessera::cuda
