module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import :buffer;
import :communicator;
import :device_mover;
import :engine;
import :group_view;
import :operation;
import :state;
import :work;

namespace tessera::collective {
namespace {

/// Where parts of these lengths begin, and where the last one ends.
std::vector<std::int64_t> begins_of(std::span<const std::int64_t> counts) {
  std::vector<std::int64_t> begins(counts.size() + 1, 0);
  std::partial_sum(counts.begin(), counts.end(), begins.begin() + 1);
  return begins;
}

/// Checks of the arguments that need no other rank.
void check(const Call& call, int size) {
  if (call.count < 0) {
    fail({.thing = std::string(name_of(call.kind)),
          .wrong = "the count must be 0 or more",
          .got = fmt::format("{}", call.count)});
  }
  if (call.root < -1 || call.root >= size) {
    fail({.thing = std::string(name_of(call.kind)),
          .wrong = fmt::format("no rank {} in the group", call.root),
          .expected = fmt::format("0 to {}", size - 1)});
  }
  if (form_of(call.kind).combine == Combine::reduce && is_stored_only(call.dtype)) {
    fail({.thing = std::string(name_of(call.kind)),
          .wrong = fmt::format("elements of {} are only stored and cannot be reduced",
                               tessera::name_of(call.dtype)),
          .advice = "cast them to f32 first"});
  }
  if (call.reduce == ReduceOp::avg && !is_floating(call.dtype)) {
    fail({.thing = std::string(name_of(call.kind)),
          .wrong = "avg needs a floating type",
          .got = fmt::format("{}", tessera::name_of(call.dtype)),
          .advice = "use sum and divide"});
  }
}

/// Waits for what is queued in a stream of a run that has failed: functions of the host end, as
/// they see the failure, and they use the world. Work that does not end is left behind.
void leave(const Stream& stream) noexcept {
  const auto until = std::chrono::steady_clock::now() + std::chrono::seconds(2);
  const WaitCheck check = [until] {
    if (std::chrono::steady_clock::now() > until) {
      fail("stream: its work does not end");
    }
  };
  for (int errors = 0; errors < 100 && std::chrono::steady_clock::now() < until; ++errors) {
    try {
      driver_of(stream.device()).synchronize(stream.native(), check);
      return;
    } catch (const std::exception&) {  // NOLINT(bugprone-empty-catch): a consequence of the first
    }
  }
}

Operation make(const Call& call, const void* source, void* destination, int size) {
  check(call, size);
  return {.call = call,
          .array = {source, destination, call.count, call.count},
          .form = &form_of(call.kind)};
}

/// A call of which the counts are compared pair by pair: ranks may send different numbers of
/// elements.
Operation make_counted(const Call& call, const void* source,
                       std::span<const std::int64_t> send_counts, void* destination,
                       std::span<const std::int64_t> receive_counts, int size) {
  const auto ranks = static_cast<std::size_t>(size);
  if (send_counts.size() != ranks || receive_counts.size() != ranks) {
    fail({.thing = std::string(name_of(call.kind)),
          .wrong = fmt::format("expected {} counts to send and to receive, got {} and {}", ranks,
                               send_counts.size(), receive_counts.size())});
  }
  if (std::any_of(send_counts.begin(), send_counts.end(), [](auto c) { return c < 0; }) ||
      std::any_of(receive_counts.begin(), receive_counts.end(), [](auto c) { return c < 0; })) {
    fail({.thing = std::string(name_of(call.kind)),
          .wrong = "a count is negative",
          .expected = "0 or more"});
  }
  Operation op = make(call, source, destination, size);
  op.send_begins = begins_of(send_counts);
  op.receive_begins = begins_of(receive_counts);
  return op;
}

Operation make_segments(CallKind kind, std::span<const Segment> segments, DType dtype,
                        const ReduceSegmentsOptions& options, int size) {
  Call call{.kind = kind, .dtype = dtype, .reduce = options.reduce};
  call.shape = hash_combine(segments.size(), 0);
  for (const Segment& s : segments) {
    if (s.chunk < 0 || s.total < 0 || s.chunk * size < s.total) {
      fail({.thing = std::string(name_of(kind)),
            .wrong = fmt::format("{} elements do not fit into {} pieces of {}", s.total, size,
                                 s.chunk)});
    }
    call.count += s.total;
    call.shape = hash_combine(hash_combine(call.shape, static_cast<std::uint64_t>(s.chunk)),
                              static_cast<std::uint64_t>(s.total));
  }
  const MemberRange& terms = options.terms;
  if (terms.first < 0 || terms.count < 0 || terms.first + terms.count > size) {
    fail({.thing = std::string(name_of(kind)),
          .wrong = "no such members in the group",
          .expected = fmt::format("some of 0 to {}", size - 1),
          .got = fmt::format("{} from {} on", terms.count, terms.first)});
  }
  if (terms.count > 0) {
    call.shape = hash_combine(hash_combine(call.shape, static_cast<std::uint64_t>(terms.first)),
                              static_cast<std::uint64_t>(terms.count));
  }
  if (options.moved) {
    call.shape = hash_combine(call.shape, static_cast<std::uint64_t>(options.moved->identity));
    note_call(call.shape, *options.moved);
  }
  const bool half = dtype == DType::bf16 || dtype == DType::f16;
  if (options.destination_f32 && !half && dtype != DType::f32) {
    fail({.thing = std::string(name_of(kind)),
          .wrong = "an f32 destination needs a bf16, f16 or f32 source",
          .got = fmt::format("{}", tessera::name_of(dtype))});
  }
  Operation op = make(call, nullptr, nullptr, size);
  op.segments.assign(segments.begin(), segments.end());
  op.options = options;
  return op;
}

}  // namespace

Communicator::Communicator(std::unique_ptr<Engine> engine) : engine_(std::move(engine)) {}
Communicator::~Communicator() = default;

Work Communicator::issue(Operation&& operation) {
  if (mover_ != nullptr) {
    mover_->issue(operation);
    return {};
  }
  return engine_->issue(std::move(operation));
}

void Communicator::attach(std::unique_ptr<DeviceMover> mover) {
  streams_.push_back(mover->stream());
  mover_ = std::move(mover);
}

Stream Communicator::stream(Device device) {
  const auto found =
      std::ranges::find_if(streams_, [&](const Stream& s) { return s.device() == device; });
  return found != streams_.end() ? *found : streams_.emplace_back(Stream::make(device));
}

void Communicator::finish_streams() noexcept {
  for (const Stream& stream : streams_) {
    try {
      stream.synchronize();
    } catch (const std::exception&) {  // published to the world
      leave(stream);
    }
  }
  if (mover_ != nullptr) {
    try {
      engine_->finish_announced();
    } catch (const Error&) {  // NOLINT(bugprone-empty-catch): likewise
    }
  }
}

int Communicator::rank() const { return engine_->view().rank(); }
int Communicator::size() const { return engine_->view().size(); }
std::span<const int> Communicator::global_ranks() const { return engine_->view().ranks(); }
std::string_view Communicator::name() const { return engine_->view().name(); }

SharedBuffer Communicator::allocate(std::size_t size_in_bytes) {
  return engine_->view().state().allocate_buffer(size_in_bytes);
}

Work Communicator::all_reduce_async(const void* source, void* destination, std::int64_t count,
                                    DType dtype, ReduceOp reduce) {
  return issue(
      make({CallKind::all_reduce, dtype, reduce, -1, count, 0}, source, destination, size()));
}
Work Communicator::all_gather_async(const void* source, void* destination, std::int64_t count,
                                    DType dtype) {
  return issue(make({CallKind::all_gather, dtype, ReduceOp::sum, -1, count, 0}, source, destination,
                    size()));
}
Work Communicator::reduce_scatter_async(const void* source, void* destination, std::int64_t count,
                                        DType dtype, ReduceOp reduce) {
  return issue(
      make({CallKind::reduce_scatter, dtype, reduce, -1, count, 0}, source, destination, size()));
}
Work Communicator::all_to_all_async(const void* source, void* destination, std::int64_t count,
                                    DType dtype) {
  return issue(make({CallKind::all_to_all, dtype, ReduceOp::sum, -1, count, 0}, source, destination,
                    size()));
}
Work Communicator::all_to_all_async(const void* source, std::span<const std::int64_t> send_counts,
                                    void* destination, std::span<const std::int64_t> receive_counts,
                                    DType dtype) {
  return issue(make_counted({CallKind::all_to_all_counts, dtype, ReduceOp::sum, -1, 0, 0}, source,
                            send_counts, destination, receive_counts, size()));
}
Work Communicator::scatter_async(const void* source, std::span<const std::int64_t> counts,
                                 void* destination, std::int64_t count, DType dtype, int root) {
  const auto ranks = static_cast<std::size_t>(size());
  const Call call{CallKind::scatter_counts, dtype, ReduceOp::sum, root, 0, 0};
  check(call, size());
  require(root >= 0, "scatter with counts: the root must be a rank of the group");
  const std::vector<std::int64_t> none(ranks, 0);
  std::vector<std::int64_t> received = none;
  received[static_cast<std::size_t>(root)] = count;
  return issue(
      make_counted(call, source, root == rank() ? counts : none, destination, received, size()));
}
Work Communicator::broadcast_async(void* data, std::int64_t count, DType dtype, int root) {
  return issue(
      make({CallKind::broadcast, dtype, ReduceOp::sum, root, count, 0}, data, data, size()));
}
Work Communicator::scatter_async(const void* source, void* destination, std::int64_t count,
                                 DType dtype, int root) {
  return issue(
      make({CallKind::scatter, dtype, ReduceOp::sum, root, count, 0}, source, destination, size()));
}
Work Communicator::gather_async(const void* source, void* destination, std::int64_t count,
                                DType dtype, int root) {
  return issue(
      make({CallKind::gather, dtype, ReduceOp::sum, root, count, 0}, source, destination, size()));
}
Work Communicator::reduce_async(const void* source, void* destination, std::int64_t count,
                                DType dtype, ReduceOp reduce, int root) {
  return issue(
      make({CallKind::reduce, dtype, reduce, root, count, 0}, source, destination, size()));
}
Work Communicator::shift_async(const void* source, void* destination, std::int64_t count,
                               DType dtype, int by) {
  const int places = (by % size() + size()) % size();
  return issue(
      make({CallKind::shift, dtype, ReduceOp::sum, places, count, 0}, source, destination, size()));
}
Work Communicator::barrier_async() { return issue(Operation{}); }

Work Communicator::issue(CallKind kind, const void* source, void* destination, std::int64_t count,
                         DType dtype, ReduceOp reduce, int number) {
  const CallForm& form = form_of(kind);
  require(form.read != nullptr && !form.list && !form.counts,
          "issue: a call of tensors of one length; the others have a function each");
  return issue(make({kind, dtype, reduce, number, count, 0}, source, destination, size()));
}

Work Communicator::all_gather_async(std::span<const Segment> segments, DType dtype,
                                    std::optional<PayloadIdentity> moved) {
  return issue(
      make_segments(CallKind::all_gather_segments, segments, dtype, {.moved = moved}, size()));
}
Work Communicator::reduce_scatter_async(std::span<const Segment> segments, DType dtype,
                                        const ReduceSegmentsOptions& options) {
  return issue(make_segments(CallKind::reduce_scatter_segments, segments, dtype, options, size()));
}

Work Communicator::all_reduce_async(std::span<const Segment> segments, DType dtype,
                                    const ReduceSegmentsOptions& options) {
  std::vector<Segment> whole(segments.begin(), segments.end());
  for (Segment& s : whole) {
    require(s.source == s.destination,
            "all_reduce of segments: it is in place; pass each tensor "
            "as source and destination");
    s.chunk = s.total;
  }
  return issue(make_segments(
      CallKind::all_reduce_segments, whole, dtype,
      {.reduce = options.reduce, .terms = options.terms, .moved = options.moved}, size()));
}

Work Communicator::send_async(const void* source, std::int64_t count, DType dtype, int to,
                              int tag) {
  send(source, count, dtype, to, tag);
  return {};
}
Work Communicator::receive_async(void* destination, std::int64_t count, DType dtype, int from,
                                 int tag) {
  const Call call{CallKind::receive, dtype, ReduceOp::sum, from, count, 0};
  check(call, size());
  require(from >= 0, "receive: the sender must be a rank of the group");
  if (mover_ != nullptr) {
    mover_->receive(call, destination, tag);
    return {};
  }
  return engine_->receive(destination, count, dtype, from, tag);
}
void Communicator::send(const void* source, std::int64_t count, DType dtype, int to, int tag) {
  const Call call{CallKind::send, dtype, ReduceOp::sum, to, count, 0};
  check(call, size());
  require(to >= 0, "send: the receiver must be a rank of the group");
  if (mover_ != nullptr) {
    mover_->send(call, source, tag);
    return;
  }
  engine_->send(source, count, dtype, to, tag);
}
void Communicator::receive(void* destination, std::int64_t count, DType dtype, int from, int tag) {
  receive_async(destination, count, dtype, from, tag).wait();
}

void Communicator::all_reduce(const void* source, void* destination, std::int64_t count,
                              DType dtype, ReduceOp reduce) {
  all_reduce_async(source, destination, count, dtype, reduce).wait();
}
void Communicator::all_gather(const void* source, void* destination, std::int64_t count,
                              DType dtype) {
  all_gather_async(source, destination, count, dtype).wait();
}
void Communicator::reduce_scatter(const void* source, void* destination, std::int64_t count,
                                  DType dtype, ReduceOp reduce) {
  reduce_scatter_async(source, destination, count, dtype, reduce).wait();
}
void Communicator::all_to_all(const void* source, void* destination, std::int64_t count,
                              DType dtype) {
  all_to_all_async(source, destination, count, dtype).wait();
}
void Communicator::all_to_all(const void* source, std::span<const std::int64_t> send_counts,
                              void* destination, std::span<const std::int64_t> receive_counts,
                              DType dtype) {
  all_to_all_async(source, send_counts, destination, receive_counts, dtype).wait();
}
void Communicator::broadcast(void* data, std::int64_t count, DType dtype, int root) {
  broadcast_async(data, count, dtype, root).wait();
}
void Communicator::shift(const void* source, void* destination, std::int64_t count, DType dtype,
                         int by) {
  shift_async(source, destination, count, dtype, by).wait();
}
void Communicator::scatter(const void* source, void* destination, std::int64_t count, DType dtype,
                           int root) {
  scatter_async(source, destination, count, dtype, root).wait();
}
void Communicator::scatter(const void* source, std::span<const std::int64_t> counts,
                           void* destination, std::int64_t count, DType dtype, int root) {
  scatter_async(source, counts, destination, count, dtype, root).wait();
}
void Communicator::gather(const void* source, void* destination, std::int64_t count, DType dtype,
                          int root) {
  gather_async(source, destination, count, dtype, root).wait();
}
void Communicator::reduce(const void* source, void* destination, std::int64_t count, DType dtype,
                          ReduceOp reduce, int root) {
  reduce_async(source, destination, count, dtype, reduce, root).wait();
}
void Communicator::barrier() { barrier_async().wait(); }
void Communicator::all_gather(std::span<const Segment> segments, DType dtype) {
  all_gather_async(segments, dtype).wait();
}
void Communicator::reduce_scatter(std::span<const Segment> segments, DType dtype,
                                  const ReduceSegmentsOptions& options) {
  reduce_scatter_async(segments, dtype, options).wait();
}

// The sources of a device's collectives are free in the order of its stream. What it sends is kept
// until it has left, as a stream that waited for that would wait for the receiver.
void Communicator::wait_sources_free() {
  if (mover_ == nullptr) {
    engine_->wait_sources_free();
  }
}
bool Communicator::sources_free() { return mover_ != nullptr || engine_->sources_free(); }
void Communicator::keep_until_read(std::shared_ptr<void> sources) {
  if (mover_ != nullptr) {
    mover_->keep(std::move(sources));
  } else {
    engine_->keep_until_read(std::move(sources));
  }
}
void Communicator::drop_read() {
  if (mover_ == nullptr) {
    engine_->drop_read();
  }
}

}  // namespace tessera::collective
