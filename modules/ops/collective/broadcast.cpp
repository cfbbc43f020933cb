// The root's tensor on every rank: broadcast.
module;
#include <fmt/format.h>

#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

using collective::CallKind;

struct BroadcastArgs {
  std::int64_t root;
  GroupArgument group;
};

void same_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void broadcast_cpu(const Call& call, std::span<Tensor> out) {
  const auto args = call.args<BroadcastArgs>();
  const GroupArgument group = args.group;
  const int me = group.rank();
  if (args.root < 0 || args.root >= group.size()) {
    refuse(call, fmt::format("root {} is not a rank of the group of {}; give one of 0 to {}",
                             args.root, group.size(), group.size() - 1));
  }
  const int root = static_cast<int>(args.root);
  if (out[0].numel() == 0) {
    return;
  }
  if (me == root) {
    copy_into(out[0], call.in[0]);
  }
  group.communicator().broadcast(data_of(out[0]), out[0].numel(), out[0].dtype(), root);
}

const Op& broadcast_op = register_op<BroadcastArgs>({
    .schema = "broadcast(x)",
    .infer = same_infer,
    .cpu = broadcast_cpu,
    .any_device = in_stream<BroadcastArgs>,
    .communicates = CallKind::broadcast,
    .moves_elements = true,
    .about = "The root's x on every rank of the group; local tensors.",
});

}  // namespace

Tensor broadcast(const Tensor& x, int root, Ranks group) {
  return call_one(broadcast_op, {x}, BroadcastArgs{root, group});
}

}  // namespace tessera::ops
