#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.nf4;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

#include "nf4.hpp"

namespace qlora {

using namespace tessera;

namespace {

struct DequantizeArgs {
  std::int64_t first_block;
  std::int64_t row_blocks;
};

void infer(const Call& call, ResultShapes& out) {
  const Dims& codes = call.in[0].shape();
  const bool types = call.in[0].dtype() == DType::u8 && call.in[1].dtype() == DType::i8 &&
                     call.in[2].dtype() == DType::f32 && call.in[3].dtype() == DType::f32;
  if (!types || codes.size() != 2 || 2 * codes[1] % block_size != 0 ||
      !(call.in[1].shape() == Dims{codes[0], 2 * codes[1] / block_size})) {
    fail({.thing = call.op.name,
          .wrong = "the operands do not fit",
          .expected = "codes u8 [rows, columns / 2], scales i8 [rows, columns / 64], factors and "
                      "mean f32",
          .got = fmt::format("codes {} {}, scales {} {}", name_of(call.in[0].dtype()),
                             to_string(codes), name_of(call.in[1].dtype()),
                             to_string(call.in[1].shape()))});
  }
  out.push_back({{codes[0], 2 * codes[1]}, DType::f32});
}

void dequantize_cpu(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<DequantizeArgs>();
  const Tensor codes = operands::contiguous(call.in[0]);
  const Tensor scales = operands::contiguous(call.in[1]);
  const Tensor factors = operands::contiguous(call.in[2]);
  const float mean = operands::contiguous(call.in[3]).data<float>()[0];
  tessera::nf4::decode({.codes = codes.data<std::uint8_t>(),
                        .scales = scales.data<std::int8_t>(),
                        .factors = factors.data<float>(),
                        .mean = mean,
                        .rows = codes.shape()[0],
                        .row_blocks = scales.shape()[1],
                        .first_block = args.first_block,
                        .whole_row_blocks = args.row_blocks},
                       out[0].data<float>());
}

}  // namespace

Op dequantize_op() {
  return with_arguments<DequantizeArgs>(
      {.schema = "nf4_dequantize(codes, scales, factors, mean)",
       .infer = infer,
       .cpu = dequantize_cpu,
       .moves_elements = true,  // 8-bit scales are only stored and converted
       .about = "The f32 weight [rows, columns] of NF4 codes [rows, columns / 2]."});
}

Tensor dequantize(const Tensor& codes, const Tensor& scales, const Tensor& factors,
                  const Tensor& mean, std::int64_t first_block, std::int64_t row_blocks) {
  static const Op& op = load_operator("nf4_dequantize");
  return call_one(op, {codes, scales, factors, mean}, DequantizeArgs{first_block, row_blocks});
}

}  // namespace qlora
