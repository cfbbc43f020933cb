// The root's tensor on every rank: broadcast.
module;
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

using collective::Communicator;

void same_infer(const Call& call, ResultShapes& out) {
  out.push_back({call.in[0].shape(), call.in[0].dtype()});
}

void broadcast_cpu(const Call& call, std::span<Tensor> out) {
  AttributeReader attributes = call.read();
  const int root = attributes.dim();
  Communicator& group = group_at(attributes);
  if (out[0].numel() == 0) {
    return;
  }
  if (group.rank() == root) {
    copy_into(out[0], call.in[0]);
  }
  group.broadcast(out[0].raw_data(), out[0].numel(), out[0].dtype(), root);
}

const Op& broadcast_op = register_op({
    .schema = "broadcast(x; root: int, group: communicator)",
    .infer = same_infer,
    .cpu = broadcast_cpu,
    .about = "The root's x on every rank of the group; local tensors.",
});

}  // namespace

Tensor broadcast(const Tensor& x, int root, Communicator& group) {
  return call_one(broadcast_op, {x}, Attributes().add(root).add_pointer(&group));
}

}  // namespace tessera::ops
