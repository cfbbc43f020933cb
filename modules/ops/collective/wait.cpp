// Order between a rank's calls and those of others: wait, wait_readers.
module;
#include <cstdint>
#include <memory>
#include <span>
module tessera.ops;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

/// Serves every device: it orders streams, and touches no memory.
void wait_cpu(const Call& call, std::span<Tensor>) {
  const Tensor& x = call.in[0];
  const std::unique_ptr<PendingWork> pending = x.storage().take_pending();
  auto* const issued = dynamic_cast<PendingCollective*>(pending.get());
  if (issued == nullptr) {
    refuse(call,
           "no collective was issued for x; pass the result of an operator that issues one, "
           "once");
  }
  issued->complete(x);
}

const Op& wait_op = register_op({
    .schema = "wait(x)",
    .cpu = wait_cpu,
    .any_device = wait_cpu,
    .in_place = true,
    .keeps_versions = true,
    .completes = true,
    .moves_elements = true,
    .about = "Completes the collective that was issued for x; local tensors.",
});

struct WaitReadersArgs {
  GroupArgument group;
};

void wait_readers_cpu(const Call& call, std::span<Tensor> out) {
  const GroupArgument group = call.args<WaitReadersArgs>().group;
  if (in_background()) {
    communicate_in_stream(call, out, group);  // where the calls were issued
    group.stream_communicator().drop_read();
  } else {
    group.communicator().wait_sources_free();
    group.communicator().drop_read();
  }
}

const Op& wait_readers_op = register_op<WaitReadersArgs>({
    .schema = "wait_readers(sources...)",
    .cpu = wait_readers_cpu,
    .any_device = in_stream<WaitReadersArgs>,
    .in_place = true,
    .keeps_versions = true,
    .communicates = Communicates::waits,
    .moves_elements = true,
    .about = "Waits until no other rank reads the sources of all_gather_into and "
             "reduce_scatter_into; they may be written then; local tensors.",
});

}  // namespace

void wait(const Tensor& x) { call_one(wait_op, {x}); }

void wait_readers(std::span<const Tensor> sources, Ranks group) {
  call(wait_readers_op, sources, WaitReadersArgs{group});
}

}  // namespace tessera::ops
