// The operator that unpacks weights in NF4 codes (see tessera.nf4). Include it after the imports.
#pragma once
#include <cstdint>

namespace qlora {

using tessera::nf4::block_size;
using tessera::nf4::scale_block_size;

/// Blocks of a weight [out, in], row by row; in is a multiple of block_size.
inline std::int64_t blocks_of(std::int64_t elements) { return elements / block_size; }
inline std::int64_t scale_blocks_of(std::int64_t elements) {
  return (blocks_of(elements) + scale_block_size - 1) / scale_block_size;
}

/// The weight's part with these codes [rows, columns / 2]: f32 [rows, columns]. scales [rows,
/// columns / 64], factors and mean of the whole weight. `first_block` is the place of the part's
/// first block among the blocks of the whole weight, of which a row has `row_blocks`. Local
/// tensors; an operator, without a gradient.
tessera::Tensor dequantize(const tessera::Tensor& codes, const tessera::Tensor& scales,
                           const tessera::Tensor& factors, const tessera::Tensor& mean,
                           std::int64_t first_block, std::int64_t row_blocks);
/// The operator, for register_plugin.
tessera::Op dequantize_op();

}  // namespace qlora
