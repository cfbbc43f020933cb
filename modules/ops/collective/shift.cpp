// Around a ring of ranks: shift, whose gradient goes the way back; and across it: mirror.
module;
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

using collective::CallKind;

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

std::unique_ptr<IssuedCollective> start_shift(const Call& call, const Tensor& out) {
  const auto args = call.args<ShiftArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() == 0) {
    return std::make_unique<IssuedCollective>();
  }
  collective::Work work =
      args.group.communicator().shift_async(data_of(x), data_of(out), x.numel(), x.dtype(),
                                            static_cast<int>(args.by % args.group.size()));
  return std::make_unique<IssuedCollective>(std::move(work), std::vector{x});
}

void backward(const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out);

const Op& shift_op = register_op<ShiftArgs>({
    .schema = "shift(x)",
    .infer = infer,
    .cpu = cpu,
    .any_device = in_stream<ShiftArgs>,
    .backward = backward,
    .communicates = CallKind::shift,
    .moves_elements = true,
    .about =
        "The x of the rank that is by places before, around the ring of the group; local tensors.",
});

const Op& shift_async_op = register_op<ShiftArgs>({
    .schema = "shift_async(x)",
    .infer = infer,
    .cpu = issued_on_host<ShiftArgs, start_shift>,
    .any_device = issued_in_stream<ShiftArgs>,
    .communicates = CallKind::shift,
    .issues = true,
    .moves_elements = true,
    .about = "Issues a shift; wait() completes its result; local tensors.",
});

void backward(const BackwardContext& context, std::span<const Tensor> grads,
              std::span<Tensor> out) {
  const auto args = context.args<ShiftArgs>();
  out[0] = call_one(shift_op, {grads[0]}, ShiftArgs{-(args.by % args.group.size()), args.group});
}

struct MirrorArgs {
  std::int64_t by;
  GroupArgument group;
};

void mirror_infer(const Call& call, ResultShapes& out) {
  check_given(call.args<MirrorArgs>().group);
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

/// The member whose x this rank gets.
std::size_t mirrored(std::int64_t by, std::int64_t rank, std::int64_t ranks) {
  return static_cast<std::size_t>((ranks - 1 + by % ranks - rank + 2 * ranks) % ranks);
}

std::int64_t mirror_received(const CollectiveContext& context) {
  const ResultShape& x = context.made[0];
  std::vector<std::int64_t> counts(context.ranks.size());
  counts[mirrored(context.args<MirrorArgs>().by, context.rank, context.size())] = x.shape.product();
  return collective::received_bytes(x.dtype, counts, context.rank);
}

std::unique_ptr<IssuedCollective> start_mirror(const Call& call, const Tensor& out) {
  const auto args = call.args<MirrorArgs>();
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() == 0) {
    return std::make_unique<IssuedCollective>();
  }
  std::vector<std::int64_t> counts(static_cast<std::size_t>(args.group.size()));
  counts[mirrored(args.by, args.group.rank(), args.group.size())] = x.numel();
  collective::Work work = args.group.communicator().all_to_all_async(
      data_of(x), counts, data_of(out), counts, x.dtype());
  return std::make_unique<IssuedCollective>(std::move(work), std::vector{x});
}

void mirror_cpu(const Call& call, std::span<Tensor> out) {
  start_mirror(call, out[0])->complete(out[0]);
}

void mirror_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out);

const Op& mirror_op = register_op<MirrorArgs>({
    .schema = "mirror(x)",
    .infer = mirror_infer,
    .cpu = mirror_cpu,
    .any_device = in_stream<MirrorArgs>,
    .backward = mirror_backward,
    .communicates = CallKind::all_to_all,
    .received = mirror_received,
    .moves_elements = true,
    .about = "The x of the rank that is as far from the group's last one as this rank is from its "
             "first one, and by places further around the ring; local tensors.",
});

const Op& mirror_async_op = register_op<MirrorArgs>({
    .schema = "mirror_async(x)",
    .infer = mirror_infer,
    .cpu = issued_on_host<MirrorArgs, start_mirror>,
    .any_device = issued_in_stream<MirrorArgs>,
    .communicates = CallKind::all_to_all,
    .received = mirror_received,
    .issues = true,
    .moves_elements = true,
    .about = "Issues a mirror; wait() completes its result; local tensors.",
});

void mirror_backward(const BackwardContext& context, std::span<const Tensor> grads,
                     std::span<Tensor> out) {
  out[0] = call_one(mirror_op, {grads[0]}, context.attributes);
}

}  // namespace

Tensor shift(const Tensor& x, std::int64_t by, Ranks group) {
  return call_one(shift_op, {x}, ShiftArgs{by, group});
}

PendingTensor shift_async(const Tensor& x, std::int64_t by, Ranks group) {
  return issue(shift_async_op, {x}, ShiftArgs{by, group});
}

Tensor mirror(const Tensor& x, std::int64_t by, Ranks group) {
  return call_one(mirror_op, {x}, MirrorArgs{by, group});
}

PendingTensor mirror_async(const Tensor& x, std::int64_t by, Ranks group) {
  return issue(mirror_async_op, {x}, MirrorArgs{by, group});
}

}  // namespace tessera::ops
