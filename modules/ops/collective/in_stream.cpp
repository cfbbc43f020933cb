// Collectives in a stream: what a device without collectives of its own runs, and the CPU when the
// world communicates in the background.
module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.ops;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.collective;
import :kernel_call;
import :group_call;

namespace tessera::ops {
namespace {

struct ThreadState {
  bool within_stream = false;
  /// The communicator of the device for which the thread queues the work of a collective.
  collective::Communicator* of_device = nullptr;
};
thread_local constinit ThreadState thread_state;

/// Within it the stream's thread makes a call of the rank that has queued it.
class InStream {
 public:
  InStream(const collective::RankContext& rank, bool observed) : as_rank_(rank) {
    if (observed) {
      observing_.emplace(record_);
    }
  }
  InStream(const InStream&) = delete;
  InStream& operator=(const InStream&) = delete;
  ~InStream() { thread_state.within_stream = before_; }

  /// Calls that the communicators have made; empty where nobody observes.
  const std::vector<collective::StreamedActivity>& calls() const { return record_.calls(); }

 private:
  collective::RankContext::Scope as_rank_;
  NoGrad constant_;
  bool before_ = std::exchange(thread_state.within_stream, true);
  collective::StreamRecord record_;
  std::optional<collective::ObserverScope> observing_;
};

/// Completes what a kernel has only issued.
void complete_issued(std::span<Tensor> out) {
  for (const Tensor& x : out) {
    const std::unique_ptr<PendingWork> pending = x.storage().take_pending();
    if (auto* const issued = dynamic_cast<PendingCollective*>(pending.get())) {
      issued->complete(x);
    }
  }
}

/// What a call in a stream tells the observers of the thread that has queued it.
struct ObservedCall {
  const bool observed = collective::is_observed();
  const std::int64_t queued = observed ? collective::steady_nanoseconds() : 0;
  std::vector<collective::StreamedActivity> record = {};  // complete after the call's event
};

/// A call that waits in a stream: its operands and results as the CPU's kernel sees them.
struct QueuedCall : ObservedCall {
  const Op& op;
  Attributes attributes;
  collective::RankContext rank = {};
  std::vector<Tensor> in = {};
  std::vector<Tensor> out = {};
  /// Written in the stream, read after its event.
  std::shared_ptr<std::exception_ptr> error = std::make_shared<std::exception_ptr>();

  QueuedCall(const Op& of, const Attributes& arguments) : op(of), attributes(arguments) {}

  /// In the stream. Raises what it has kept, so that the stream raises it too.
  void run() {
    const InStream scope(rank, observed);
    try {
      execute();
      record = scope.calls();
    } catch (...) {
      *error = std::current_exception();
      publish();
      throw;
    }
  }

 private:
  void execute() {
    op.cpu({op, in, attributes}, out);
    complete_issued(out);
  }

  /// Stops the other ranks, which wait for this one, before anybody waits for the stream.
  void publish() const noexcept {
    try {
      std::rethrow_exception(*error);
    } catch (const Error& failure) {
      collective::World::current().publish_error(failure.what(), failure.kind());
    } catch (const std::exception& failure) {
      collective::World::current().publish_error(failure.what());
    } catch (...) {
      collective::World::current().publish_error("unknown exception");
    }
  }
};

/// Calls on devices that the thread has queued under an observer, for which it does not wait.
struct UnreportedCall {
  std::shared_ptr<const ObservedCall> call;
  Event done;
};
thread_local std::vector<UnreportedCall> unreported;

void report(const ObservedCall& call, std::int64_t waited_from, std::int64_t waited_until) {
  for (collective::StreamedActivity activity : call.record) {
    activity.queued = call.queued;
    activity.waited_from = waited_from;
    activity.waited_until = waited_until;
    collective::report_streamed(activity);
  }
}

/// Tensors over other memory than theirs: views of one memory stay views of one memory.
class HostViews {
 public:
  /// The operands' values are to be copied from the device's memory through pinned memory.
  explicit HostViews(const Stream& stream) : stream_(stream) {}

  Tensor of(const Tensor& x) {
    return from_storage(storage_of(x), x.shape(), x.strides(), x.offset(), x.dtype());
  }
  /// Queues the copy of the tensor's values to its twin.
  void fetch(const Tensor& x) { copy(x, CopyKind::to_host); }
  /// And back.
  void store(const Tensor& x) { copy(x, CopyKind::from_pinned); }

 private:
  IntrusivePointer<Storage> storage_of(const Tensor& x) {
    Storage& own = x.storage();
    const auto found =
        std::ranges::find_if(known_, [&](const auto& pair) { return pair.first == &own; });
    if (found != known_.end()) {
      return found->second;
    }
    void* data = own.data();
    std::shared_ptr<void> keep;
    if (!(x.device() == cpu)) {
      own.used_on(stream_);
      if (own.bytes() > 0) {
        const auto pinned = std::make_shared<PinnedMemory>(stream_, own.bytes());
        data = pinned->data();
        keep = pinned;
      }
    }
    known_.emplace_back(&own, Storage::borrow(data, own.bytes(), std::move(keep)));
    return known_.back().second;
  }

  /// Copies from the first to the last of the tensor's elements.
  void copy(const Tensor& x, CopyKind kind) {
    if (x.device() == cpu || x.numel() == 0) {
      return;
    }
    std::int64_t last = 0;
    for (int d = 0; d < x.dims(); ++d) {
      last += (x.shape()[d] - 1) * x.strides()[d];
    }
    const std::size_t bytes = static_cast<std::size_t>(last + 1) * size_of(x.dtype());
    const auto begin =
        static_cast<std::ptrdiff_t>(static_cast<std::size_t>(x.offset()) * size_of(x.dtype()));
    auto* const there = static_cast<std::byte*>(x.storage().data()) + begin;
    auto* const here = static_cast<std::byte*>(storage_of(x)->data()) + begin;
    if (kind == CopyKind::to_host) {
      stream_.copy(here, there, bytes, kind);
    } else {
      stream_.copy(there, here, bytes, kind);
    }
  }

  Stream stream_;
  std::vector<std::pair<const Storage*, IntrusivePointer<Storage>>> known_;
};

/// A collective that was queued for a tensor's memory.
class QueuedCollective final : public PendingCollective {
 public:
  /// On the CPU, `written` stays until the call has ended, `sources` until nobody reads them.
  QueuedCollective(std::shared_ptr<QueuedCall> call, std::vector<Tensor> written,
                   CallSources sources, Stream stream)
      : call_(std::move(call)),
        written_(std::move(written)),
        sources_(std::move(sources)),
        stream_(std::move(stream)),
        done_(record_event(stream_)) {
    if (call_->observed && !(stream_.device() == cpu)) {
      report_streams();
      unreported.push_back({call_, done_});
    }
  }

  /// The stream still writes the CPU's memory; that of a device is freed in the streams' order.
  ~QueuedCollective() override {
    if (stream_.device() == cpu) {
      done_.synchronize();
    }
  }

  void complete(const Tensor&) override {
    if (!(stream_.device() == cpu)) {
      const Stream reader = current_stream(stream_.device());
      reader.wait(done_);
      // Whoever waits for what the reader computes from the result must see the error too.
      reader.launch([error = call_->error] {
        if (*error != nullptr) {
          std::rethrow_exception(*error);
        }
      });
      return;
    }
    const std::int64_t from = call_->observed ? collective::steady_nanoseconds() : 0;
    done_.synchronize();
    if (call_->observed) {
      report(*call_, from, collective::steady_nanoseconds());
    }
    written_.clear();
    if (*call_->error != nullptr) {
      std::rethrow_exception(*call_->error);
    }
    sources_.hand_over();
  }
  bool done() override { return done_.reached(); }

 private:
  std::shared_ptr<QueuedCall> call_;
  std::vector<Tensor> written_;
  CallSources sources_;
  Stream stream_;
  Event done_;
};

bool is_written(const Call& call, std::size_t operand) {
  return call.op.in_place && call.op.writes(call.op.place_of(operand, call.in.size()).operand);
}

/// Where the call's data is: of a message that is sent there is no result.
const Tensor& data_of_call(const Call& call, std::span<Tensor> out) {
  return out.empty() ? call.in[0] : out[0];
}

/// A collective whose data a device moves.
class DeviceCollective final : public PendingCollective {
 public:
  explicit DeviceCollective(Stream stream)
      : stream_(std::move(stream)), done_(record_event(stream_)) {}
  void complete(const Tensor&) override { current_stream(stream_.device()).wait(done_); }
  bool done() override { return done_.reached(); }
  const Event& event() const { return done_; }

 private:
  Stream stream_;
  Event done_;
};

/// Within it the thread queues the work of a collective in the communicator's stream.
class OnDevice {
 public:
  OnDevice(collective::Communicator& communicator, const Stream& stream)
      : before_(std::exchange(thread_state.of_device, &communicator)), scope_(stream) {}
  OnDevice(const OnDevice&) = delete;
  OnDevice& operator=(const OnDevice&) = delete;
  ~OnDevice() { thread_state.of_device = before_; }

 private:
  collective::Communicator* before_;
  StreamScope scope_;
  NoGrad constant_;
};

/// The memory of the call's tensors is used in the stream.
void use_on(const Stream& stream, const Call& call, std::span<Tensor> out) {
  for (const std::span<const Tensor> tensors : {call.in, std::span<const Tensor>(out)}) {
    for (const Tensor& x : tensors) {
      if (x) {
        x.storage().used_on(stream);
      }
    }
  }
}

/// Queues what `run` queues in the communicator's stream, of which observers are told.
std::unique_ptr<DeviceCollective> queue_observed(const Stream& stream,
                                                 const std::function<void()>& run) {
  if (!collective::is_observed()) {
    run();
    return std::make_unique<DeviceCollective>(stream);
  }
  const auto told = std::make_shared<ObservedCall>();
  collective::StreamRecord record;
  const auto began = std::make_shared<std::int64_t>(0);
  stream.launch([began] { *began = collective::steady_nanoseconds(); });
  {
    const collective::LoneObserverScope alone(record);
    run();
  }
  told->record = record.calls();
  stream.launch([began, told] {
    for (collective::StreamedActivity& activity : told->record) {
      activity.began = *began;
      activity.ended = collective::steady_nanoseconds();
    }
  });
  auto queued = std::make_unique<DeviceCollective>(stream);
  report_streams();
  unreported.push_back({told, queued->event()});
  return queued;
}

/// The CPU's kernel queues the call's work: see collective.cppm.
std::unique_ptr<DeviceCollective> queue_on_device(const Call& call, std::span<Tensor> out,
                                                  collective::Communicator& communicator) {
  const Device device = out[0].device();
  const Stream stream = communicator.stream(device);
  stream.wait(record_event(current_stream(device)));
  use_on(stream, call, out);
  return queue_observed(stream, [&] {
    const OnDevice scope(communicator, stream);
    call.op.cpu({call.op, call.in, call.attributes}, out);
    complete_issued(out);
  });
}

/// Whether ranks of the group may wait for each other until both make a first message. In a ring
/// of ranks that all send before they receive, all would wait; what a stage sends first follows
/// from what it has received.
bool may_connect(const CallGroup& group) {
  return group.ranks.size() == 2 || group.name == "stages";
}

/// The communicator of a device for messages between this rank and another one of the group, in
/// the direction of this one. Each direction has its own, with a stream: a message that waits for
/// its receiver holds up those after it, and two ranks that both send would wait in a circle.
/// Null: the host moves them.
collective::Communicator* message_communicator(Device device, const MessageArgs& args, bool sends) {
  if (!may_connect(*args.group.group)) {
    return nullptr;
  }
  const std::vector<int>& ranks = args.group.group->ranks;
  const int self = ranks[static_cast<std::size_t>(args.group.rank())];
  const int other = ranks[static_cast<std::size_t>(args.peer)];
  const std::array<int, 2> pair = {std::min(self, other), std::max(self, other)};
  collective::Communicator* found = nullptr;
  for (const int from : pair) {  // both ranks make both, in one order
    collective::Communicator* const one = collective::World::current().communicator_on(
        device, pair,
        fmt::format("messages of rank {}{}{}", from, args.group.group->name.empty() ? "" : " in ",
                    args.group.group->name));
    found = (from == self) == sends ? one : found;
  }
  return found;
}

std::size_t bytes_of(const Tensor& x) {
  return static_cast<std::size_t>(x.numel()) * size_of(x.dtype());
}

void send_on_device(const Tensor& x, collective::Communicator& communicator,
                    const MessageArgs& args) {
  const Device device = x.device();
  const Stream stream = communicator.stream(device);
  // A copy: the program goes on, and may write x before the receiver is ready for it.
  const auto copy = std::make_shared<Tensor>(contiguous_operand(x));
  const Stream current = current_stream(device);
  if (copy->same_as(x)) {
    *copy = empty(x.shape(), x.dtype(), device);
    current.copy(copy->device_address(), x.device_address(), bytes_of(x), CopyKind::on_device);
  }
  stream.wait(record_event(current));
  queue_observed(stream, [&] {
    communicator.send(copy->device_address(), copy->numel(), copy->dtype(), 1 - communicator.rank(),
                      static_cast<int>(args.tag));
    communicator.keep_until_read(copy);
  });
}

void receive_on_device(const Tensor& x, collective::Communicator& communicator,
                       const MessageArgs& args) {
  const Device device = x.device();
  const Stream stream = communicator.stream(device);
  // Into memory of its own: it may come while operators before this call still use the memory of x.
  Tensor arrived;
  const auto queued = queue_observed(stream, [&] {
    const StreamScope scope(stream);
    arrived = empty(x.shape(), x.dtype(), device);
    communicator.receive(arrived.device_address(), x.numel(), x.dtype(), 1 - communicator.rank(),
                         static_cast<int>(args.tag));
  });
  const Stream reader = current_stream(device);
  reader.wait(queued->event());
  arrived.storage().used_on(reader);
  reader.copy(x.device_address(), arrived.device_address(), bytes_of(x), CopyKind::on_device);
}

/// `carrier`: the storage that will hold the result of this function, and is not kept by it.
std::unique_ptr<QueuedCollective> queue_on_host(const Call& call, std::span<Tensor> out,
                                                const GroupArgument& group, WriteAccess written,
                                                const Storage* carrier) {
  const Device device = data_of_call(call, out).device();
  collective::Communicator& communicator = group.stream_communicator();
  const Stream stream = communicator.stream(device);
  if (!(device == cpu)) {
    stream.wait(record_event(current_stream(device)));
  }
  const bool moves = call.op.communicates != Communicates::waits;
  auto queued = std::make_shared<QueuedCall>(call.op, call.attributes);
  HostViews twins(stream);
  std::vector<Tensor> kept_written;
  std::vector<Tensor> sources;
  for (std::size_t i = 0; i < call.in.size(); ++i) {
    const Tensor& x = call.in[i];
    if (x && is_written(call, i) && !x.is_contiguous()) {
      refuse(call, fmt::format("'{}' is not contiguous; pass a contiguous tensor",
                               call.op.operand_name(i, call.in.size())));
    }
    queued->in.push_back(x ? twins.of(x) : x);
    if (x && moves && !(written == WriteAccess::only && is_written(call, i))) {
      twins.fetch(x);
    }
    if (x && device == cpu && &x.storage() != carrier) {
      (is_written(call, i) ? kept_written : sources).push_back(x);
    }
  }
  if (device == cpu && call.op.in_place && !call.op.keeps_versions) {
    std::vector<Tensor> list;  // their twins have versions of their own
    std::ranges::copy_if(call.in, std::back_inserter(list), [&](const Tensor& x) {
      return is_written(call, static_cast<std::size_t>(&x - call.in.data()));
    });
    bump_further_versions(list);
  }
  for (const Tensor& x : out) {
    queued->out.push_back(call.op.in_place ? queued->in[0] : twins.of(x));
  }
  stream.launch([queued] { queued->run(); });
  for (std::size_t i = 0; i < call.in.size() && moves; ++i) {
    if (call.in[i] && is_written(call, i)) {
      twins.store(call.in[i]);
    }
  }
  for (const Tensor& x : out) {
    if (!call.op.in_place) {
      twins.store(x);
    }
  }
  return std::make_unique<QueuedCollective>(std::move(queued), std::move(kept_written),
                                            CallSources(std::move(sources), communicator), stream);
}

std::unique_ptr<PendingCollective> queue(const Call& call, std::span<Tensor> out,
                                         const GroupArgument& group, WriteAccess written,
                                         const Storage* carrier) {
  collective::Communicator* const communicator =
      group.group == nullptr ? nullptr
                             : collective::World::current().communicator_on(
                                   out[0].device(), group.group->ranks, group.group->name);
  if (communicator != nullptr) {
    return queue_on_device(call, out, *communicator);
  }
  return queue_on_host(call, out, group, written, carrier);
}

}  // namespace

void report_streams() {
  std::erase_if(unreported, [](const UnreportedCall& queued) {
    const bool ended = queued.done.reached();
    if (ended) {
      report(*queued.call, 0, 0);
    }
    return ended;
  });
}

bool in_background() {
  return !thread_state.within_stream && thread_state.of_device == nullptr &&
         collective::World::current().background();
}

void communicate_in_stream(const Call& call, std::span<Tensor> out, GroupArgument group) {
  queue(call, out, group, WriteAccess::and_read, nullptr)->complete(out[0]);
}

void message_in_stream(const Call& call, std::span<Tensor> out, const MessageArgs& args,
                       WriteAccess written) {
  const Tensor& x = data_of_call(call, out);
  const bool sends = out.empty();
  collective::Communicator* const communicator = message_communicator(x.device(), args, sends);
  if (communicator == nullptr) {
    queue_on_host(call, out, args.group, written, nullptr)->complete(x);
  } else if (!sends && !x.is_contiguous()) {
    refuse(call, "x is not contiguous; pass a tensor that is");
  } else if (x.numel() != 0) {
    sends ? send_on_device(x, *communicator, args) : receive_on_device(x, *communicator, args);
  }
}

void issue_in_stream(const Call& call, std::span<Tensor> out, GroupArgument group,
                     WriteAccess written) {
  Storage& carrier = out[0].storage();
  carrier.set_pending(queue(call, out, group, written, &carrier));
}

collective::Communicator& GroupArgument::stream_communicator() const {
  check_given(*this);
  return collective::World::current().communicator(group->ranks, group->stream_name);
}

collective::Communicator& GroupArgument::communicator() const {
  check_given(*this);
  require(group->whole == nullptr,
          "group: not all of its ranks are terms, which this call does not know");
  if (thread_state.of_device != nullptr) {
    return *thread_state.of_device;
  }
  return collective::World::current().communicator(
      group->ranks, thread_state.within_stream ? group->stream_name : group->name);
}

}  // namespace tessera::ops
