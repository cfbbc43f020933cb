// Messages between two ranks of a group: send, receive_.
module;
#include <fmt/format.h>

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

using collective::CallKind;

/// Of the call's arguments. Error: the peer is no other rank of the group.
MessageArgs checked(const Call& call) {
  const auto args = call.args<MessageArgs>();
  check_given(args.group);
  if (args.peer < 0 || args.peer >= args.group.size() || args.peer == args.group.rank()) {
    refuse(call, fmt::format("rank {} is not another rank of the group of {}; give one of 0 to {} "
                             "that is not the calling one",
                             args.peer, args.group.size(), args.group.size() - 1));
  }
  return args;
}

/// It has no result, and what is sent stays as it is: so it can be computed again, to save memory.
void send_infer(const Call&, ResultShapes&) {}

void send_cpu(const Call& call, std::span<Tensor>) {
  const MessageArgs args = checked(call);
  const Tensor x = contiguous_operand(call.in[0]);
  if (x.numel() != 0) {
    args.group.communicator().send(data_of(x), x.numel(), x.dtype(), static_cast<int>(args.peer),
                                   static_cast<int>(args.tag));
  }
}

void receive_cpu(const Call& call, std::span<Tensor> out) {
  const MessageArgs args = checked(call);
  if (!out[0].is_contiguous()) {
    refuse(call, "x is not contiguous; pass a tensor that is");
  }
  if (out[0].numel() != 0) {
    args.group.communicator().receive(data_of(out[0]), out[0].numel(), out[0].dtype(),
                                      static_cast<int>(args.peer), static_cast<int>(args.tag));
  }
}

template <WriteAccess written>
void on_device(const Call& call, std::span<Tensor> out) {
  message_in_stream(call, out, checked(call), written);
}

const Op& send_op = register_op<MessageArgs>({
    .schema = "send(x)",
    .infer = send_infer,
    .cpu = send_cpu,
    .any_device = on_device<WriteAccess::and_read>,
    .communicates = CallKind::send,
    .moves_elements = true,
    .about = "Sends x to a rank of the group, which receives it with the same tag; does not wait "
             "for it; local tensors.",
});

const Op& receive_op = register_op<MessageArgs>({
    .schema = "receive_(x)",
    .cpu = receive_cpu,
    .any_device = on_device<WriteAccess::only>,
    .in_place = true,
    .communicates = CallKind::receive,
    .moves_elements = true,
    .about = "Fills x with what a rank of the group has sent with this tag; local tensors.",
});

}  // namespace

void send(const Tensor& x, int to, std::int64_t tag, Ranks group) {
  call(send_op, {x}, MessageArgs{to, tag, group});
}

void receive_(const Tensor& x, int from, std::int64_t tag, Ranks group) {
  call_one(receive_op, {x}, MessageArgs{from, tag, group});
}

}  // namespace tessera::ops
