// Lines in order. Include it after kernels.hpp.
#pragma once
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/sort.hpp"

namespace tessera::cuda {

/// Bytes for the entries of the indices of some lines, each of `length`.
std::size_t bytes_to_order(std::int64_t lines, std::int64_t length);
/// Queues the sorting of the indices along some dims: for each line, which are in the order of
/// the other dims, an entry for each index, by index and then by place. They are in the workspace,
/// which has bytes_to_order.
const SortedEntry* order_of_indices(const Tensor& indices, const Dims& along,
                                    std::span<std::byte> workspace);

}  // namespace tessera::cuda
