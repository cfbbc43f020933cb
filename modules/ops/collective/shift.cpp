// Around a ring of ranks: shift, whose gradient goes the way back.
module;
#include <cstdint>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

struct ShiftArgs {
  std::int64_t by;
  GroupArgument group;
};

void infer(const Call& call, ResultShapes& out) {
  check_given(call.args<ShiftArgs>().group);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void cpu(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<ShiftArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() != 0) {
    args.group.communicator().shift(data_of(x), data_of(out[0]), x.numel(), x.dtype(),
                                    static_cast<int>(args.by % args.group.size()));
  }
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& shift_op = register_op<ShiftArgs>({
    .schema = "shift(x)",
    .infer = infer,
    .cpu = cpu,
    .any_device = in_stream<ShiftArgs>,
    .backward = backward,
    .communicates = Communicates::all_to_all,
    .moves_elements = true,
    .about =
        "The x of the rank that is by places before, around the ring of the group; local tensors.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const auto args = context.args<ShiftArgs>();
  out[0] = call_one(shift_op, {grads[0]}, ShiftArgs{-(args.by % args.group.size()), args.group});
}

}  // namespace

Tensor shift(const Tensor& x, std::int64_t by, Ranks group) {
  return call_one(shift_op, {x}, ShiftArgs{by, group});
}

}  // namespace tessera::ops
