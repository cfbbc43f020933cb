// The gradients of silu(gate) up.
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

/// Operands dy, gate, up.
void swiglu_backward(const Call& call, std::span<Tensor> out) {
  constexpr std::int64_t most = std::int64_t{1} << 31;  // numbers of pieces are 32 bits
  const Tensor& dy = call.in[0];
  const std::int64_t count = dy.numel();
  if (count == 0) {
    return;
  }
  Rows rows = dy.dims() == 0 ? Rows({}, {}) : Rows::of_last_dim(dy.shape());
  rows.whole(dy).whole(call.in[1]).whole(call.in[2]).whole(out[0]).whole(out[1]);
  const RowArguments& a = rows.finish();
  if (rows.has_pieces() && a.length % a.piece == 0 && count < most) {
    launch(dy, "swiglu_backward_pieces_" + std::string(name_of(dy.dtype())),
           blocks_for(count / a.piece * elements_per_thread), threads_per_block, a);
  } else {
    launch(dy, with_type("swiglu_backward", dy.dtype()), blocks_for(count), threads_per_block, a);
  }
}

}  // namespace

void add_gates(KernelTable& table) { table["swiglu_backward"] = {swiglu_backward}; }

}  // namespace tessera::cuda
