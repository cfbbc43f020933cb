module;
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <iterator>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :device_group;
import :device_mover;
import :engine;
import :group_view;
import :mailbox;
import :operation;

namespace tessera::collective {
namespace {

/// Pieces of memory for messages begin at multiples of this.
constexpr std::size_t alignment = 512;
std::size_t aligned(std::size_t bytes) { return (bytes + alignment - 1) / alignment * alignment; }

/// Element number `elements` at `base`; null where a rank has nothing there.
std::byte* place(const void* base, std::int64_t elements, std::size_t element) {
  if (base == nullptr) {
    return nullptr;
  }
  return static_cast<std::byte*>(const_cast<void*>(base)) +
         elements * static_cast<std::int64_t>(element);
}

bool overlap(const DeviceMessage& a, const DeviceMessage& b) {
  const auto* const first = static_cast<const std::byte*>(a.data);
  const auto* const second = static_cast<const std::byte*>(b.data);
  return first < second + b.bytes && second < first + a.bytes;
}

}  // namespace

class DeviceMover::Registration final : public SegmentObserver {
 public:
  explicit Registration(DeviceGroup& group) : group_(&group) {}
  void taken(void* data, std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (group_ != nullptr) {
      group_->register_memory(data, bytes);
    }
  }
  void given_back(void* data, std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    if (group_ != nullptr) {
      group_->unregister_memory(data, bytes);
    }
  }
  void end() {
    const std::lock_guard lock(mutex_);
    group_ = nullptr;
  }

 private:
  std::mutex mutex_;
  DeviceGroup* group_;
};

DeviceMover::DeviceMover(Engine& engine, Stream stream, std::unique_ptr<DeviceGroup> group,
                         bool own_order)
    : engine_(engine),
      view_(engine.view()),
      stream_(std::move(stream)),
      group_(std::move(group)),
      own_order_(own_order),
      registration_(std::make_shared<Registration>(*group_)) {
  observe_segments(stream_.device(), registration_);
}

DeviceMover::~DeviceMover() { registration_->end(); }

void DeviceMover::abort() noexcept {
  if (!aborted_.exchange(true)) {
    group_->abort();
  }
}

std::string DeviceMover::failure() { return aborted_ ? std::string() : group_->failure(); }

void DeviceMover::forget_completed() {
  while (!in_flight_.empty() && in_flight_.front().done && in_flight_.front().done->reached()) {
    in_flight_.front().announced.complete();
    if (in_flight_.front().kept != nullptr) {
      // Not released here: the allocator may be who waits, with its lock.
      sent_.push_back(std::move(in_flight_.front().kept));
    }
    in_flight_.pop_front();
  }
}

std::optional<DeviceMover::PendingCall> DeviceMover::oldest() {
  const std::lock_guard lock(mutex_);
  forget_completed();
  if (in_flight_.empty() || view_.size() == 1) {
    return std::nullopt;
  }
  const InFlight& first = in_flight_.front();
  const int peer = first.peer >= 0 ? first.peer : view_.missing(first.announced.sequence);
  return PendingCall{first.call, first.announced.sequence, view_.global_rank(peer)};
}

void DeviceMover::send(const Call& call, const void* source, int tag) {
  engine_.carry_out(call, [&] {
    engine_.announce_message(call, tag);
    queue_message(call, const_cast<void*>(source));
  });
}

void DeviceMover::receive(const Call& call, void* destination, int tag) {
  engine_.carry_out(call, [&] {
    const StreamScope scope(stream_);
    const auto known = std::ranges::find_if(
        early_, [&](const EarlyMessage& m) { return m.from == call.root && m.tag == tag; });
    if (known != early_.end()) {
      engine_.check_fits(call, known->call, tag);
      stream_.copy(destination, known->memory->data(),
                   static_cast<std::size_t>(call.count) * size_of(call.dtype), CopyKind::on_device);
      early_.erase(known);
      return;
    }
    while (true) {
      const Mailbox::MessageHeader next = engine_.next_message(call);
      if (next.tag == tag) {
        engine_.check_fits(call, next.call, tag);
        queue_message(call, destination);
        return;
      }
      Call other = call;
      other.dtype = next.call.dtype;
      other.count = next.call.count;
      auto memory = std::make_unique<DeviceMemory>(
          stream_.device(), static_cast<std::size_t>(other.count) * size_of(other.dtype),
          MemoryOwner{.category = MemoryCategory::communication});
      queue_message(other, memory->data());
      early_.push_back({call.root, next.tag, other, std::move(memory)});
    }
  });
}

void DeviceMover::keep(std::shared_ptr<void> memory) {
  const std::lock_guard lock(mutex_);
  if (!in_flight_.empty() && in_flight_.back().call.kind == CallKind::send) {
    in_flight_.back().kept = std::move(memory);
  }
}

void DeviceMover::queue_message(const Call& call, void* data) {
  decltype(sent_) released;
  {
    const std::lock_guard lock(mutex_);
    forget_completed();
    released.swap(sent_);
    in_flight_.push_back({.call = call,
                          .announced = {.issued = true, .sequence = messages_++},
                          .done = std::nullopt,
                          .peer = call.root});
  }
  const StreamScope scope(stream_);
  const DeviceMessage message{call.root, data,
                              static_cast<std::size_t>(call.count) * size_of(call.dtype)};
  const std::span<const DeviceMessage> one(&message, 1);
  const bool sends = call.kind == CallKind::send;
  group_->exchange(stream_.native(), sends ? one : std::span<const DeviceMessage>(),
                   sends ? std::span<const DeviceMessage>() : one);
  Event done = record_event(stream_);
  const std::lock_guard lock(mutex_);
  in_flight_.back().done = std::move(done);
}

void DeviceMover::issue(const Operation& operation) {
  Operation op = operation;
  prepare(op, view_.size());
  require(op.form->read != nullptr,
          "barrier: the communicator of a device has none; use one of the host");
  const AnnouncedCall announced = engine_.announce(Operation(op));
  if (!announced.issued) {
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    forget_completed();
    in_flight_.push_back({.call = op.call, .announced = announced, .done = std::nullopt});
  }
  const StreamScope scope(stream_);
  if (op.form->combine != Combine::reduce) {
    copy(op, op.read, op.form->for_all, false);
  } else if (!own_order_ || !reduce_in_own_order(op)) {
    reduce(op);
    if (op.two_phase) {
      copy(op, op.form->gather, true, true);
    }
  }
  Event done = record_event(stream_);
  const std::lock_guard lock(mutex_);
  in_flight_.back().done = std::move(done);
}

bool DeviceMover::copy_whole(const Operation& op, const Segment& array,
                             Read (*read)(const ReadRequest&), bool results) {
  const std::size_t element = size_of(op.call.dtype);
  const void* const from = results ? array.destination : array.source;
  std::int64_t count = 0;
  int sources = 0;
  int root = 0;
  bool rows = true;
  for (int member = 0; member < view_.size(); ++member) {
    const Read part = read(view_.reads_of(op, array, member));
    if (part.count > 0) {
      rows = rows && sources == member && (member == 0 || part.count == count) &&
             part.to == part.count * member;
      count = part.count;
      root = member;
      ++sources;
    }
  }
  const auto bytes = static_cast<std::size_t>(count) * element;
  const Read own = read(view_.reads_of(op, array, view_.rank()));
  if (rows && sources == view_.size() && sources > 0) {
    return group_->all_gather(stream_.native(), place(from, own.from, element), array.destination,
                              bytes);
  }
  if (sources == 1) {
    const Read part = read(view_.reads_of(op, array, root));
    return group_->broadcast(stream_.native(),
                             root == view_.rank() ? place(from, part.from, element) : nullptr,
                             place(array.destination, part.to, element), bytes, root);
  }
  return sources == 0;
}

std::unique_ptr<DeviceMemory> DeviceMover::stage_overwritten(std::vector<DeviceMessage> written) {
  // Nothing is written twice: of what begins before the end of a message, only the last can reach
  // into it.
  std::ranges::sort(written, std::less<>(), &DeviceMessage::data);
  const auto is_overwritten = [&](const DeviceMessage& sent) {
    const void* const end = static_cast<const std::byte*>(sent.data) + sent.bytes;
    const auto after = std::ranges::lower_bound(written, end, std::less<>(), &DeviceMessage::data);
    return after != written.begin() && overlap(sent, *std::prev(after));
  };
  std::vector<DeviceMessage*> staged;
  std::size_t bytes = 0;
  for (DeviceMessage& sent : sends_) {
    if (is_overwritten(sent)) {
      staged.push_back(&sent);
      bytes += aligned(sent.bytes);
    }
  }
  if (staged.empty()) {
    return nullptr;
  }
  auto memory = std::make_unique<DeviceMemory>(
      stream_.device(), bytes, MemoryOwner{.category = MemoryCategory::communication});
  auto* next = static_cast<std::byte*>(memory->data());
  for (DeviceMessage* sent : staged) {
    stream_.copy(next, sent->data, sent->bytes, CopyKind::on_device);
    sent->data = next;
    next += aligned(sent->bytes);
  }
  return memory;
}

void DeviceMover::copy(const Operation& op, Read (*read)(const ReadRequest&), bool for_all,
                       bool results) {
  const std::size_t element = size_of(op.call.dtype);
  sends_.clear();
  receives_.clear();
  own_.clear();
  own_sources_.clear();
  for (const Segment& array : op.arrays()) {
    if (for_all && copy_whole(op, array, read, results)) {
      continue;
    }
    const void* const from = results ? array.destination : array.source;
    for (int i = 0; i < view_.size(); ++i) {
      const int member = (view_.rank() + i) % view_.size();
      const Read in = read(view_.reads_of(op, array, member));
      std::byte* const to = place(array.destination, in.to, element);
      const auto bytes = static_cast<std::size_t>(in.count) * element;
      if (member == view_.rank()) {
        if (in.count > 0 && to != place(from, in.from, element)) {
          own_.push_back({member, to, bytes});
          own_sources_.push_back(place(from, in.from, element));
        }
        continue;
      }
      if (in.count > 0) {
        receives_.push_back({member, to, bytes});
      }
      const Read out = read(view_.read_by(op, array, member));
      if (out.count > 0) {
        sends_.push_back({member, place(from, out.from, element),
                          static_cast<std::size_t>(out.count) * element});
      }
    }
  }
  std::vector<DeviceMessage> written = receives_;
  written.insert(written.end(), own_.begin(), own_.end());
  const std::unique_ptr<DeviceMemory> staged = stage_overwritten(std::move(written));
  for (std::size_t i = 0; i < own_.size(); ++i) {
    stream_.copy(own_[i].data, own_sources_[i], own_[i].bytes, CopyKind::on_device);
  }
  if (!sends_.empty() || !receives_.empty()) {
    group_->exchange(stream_.native(), sends_, receives_);
  }
}

bool DeviceMover::reduce_in_own_order(const Operation& op) {
  if (op.options.destination_f32 || op.options.accumulate) {
    return false;
  }
  if (op.options.terms.count > 0) {
    return false;  // the plugin's library knows none
  }
  std::vector<GroupReduction> reductions;
  for (const Segment& array : op.arrays()) {
    const Read first = op.read(view_.read_by(op, array, 0));
    bool whole = true;
    bool rows = true;
    for (int reader = 0; reader < view_.size(); ++reader) {
      const Read part = op.read(view_.read_by(op, array, reader));
      whole = whole && part.count == first.count && part.from == 0 && part.to == 0;
      rows = rows && part.count == first.count && part.from == first.count * reader && part.to == 0;
    }
    if (!op.two_phase && !whole && !rows) {
      return false;
    }
    const std::int64_t count = op.two_phase ? array.total : first.count;
    if (count > 0) {
      reductions.push_back({array.source, array.destination, count, !op.two_phase && !whole});
    }
  }
  return group_->reduce_in_own_order(stream_.native(), reductions, op.call.dtype, op.call.reduce);
}

void DeviceMover::reduce(const Operation& op) {
  const std::size_t element = size_of(op.call.dtype);
  const std::size_t written = op.options.destination_f32 ? sizeof(float) : element;
  const std::span<const Segment> arrays = op.arrays();
  const auto received = [&](const Segment& array) {
    return op.read(view_.reads_of(op, array, view_.rank())).count;
  };
  std::size_t bytes = 0;
  for (const Segment& array : arrays) {
    bytes += aligned(static_cast<std::size_t>(received(array)) * element) *
             static_cast<std::size_t>(view_.size() - 1);
  }
  std::optional<DeviceMemory> memory;
  if (bytes > 0) {
    memory.emplace(stream_.device(), bytes, MemoryOwner{.category = MemoryCategory::communication});
  }
  sends_.clear();
  receives_.clear();
  std::byte* next = memory ? static_cast<std::byte*>(memory->data()) : nullptr;
  std::vector<const void*> sources;  // of each array by member, of the terms
  for (const Segment& array : arrays) {
    const std::int64_t count = received(array);
    for (int member = 0; member < view_.size(); ++member) {
      const Read in = op.read(view_.reads_of(op, array, member));
      if (member == view_.rank()) {
        if (op.is_term(member)) {
          sources.push_back(place(array.source, in.from, element));
        }
        continue;
      }
      const Read out = op.read_of(view_.read_by(op, array, member));
      if (out.count > 0) {
        sends_.push_back({member, place(array.source, out.from, element),
                          static_cast<std::size_t>(out.count) * element});
      }
      if (!op.is_term(member)) {
        continue;
      }
      sources.push_back(next);
      if (count > 0) {
        receives_.push_back({member, next, static_cast<std::size_t>(count) * element});
        next += aligned(static_cast<std::size_t>(count) * element);
      }
    }
  }
  if (!sends_.empty() || !receives_.empty()) {
    group_->exchange(stream_.native(), sends_, receives_);
  }
  const std::size_t terms = sources.size() / std::max<std::size_t>(arrays.size(), 1);
  for (std::size_t a = 0; a < arrays.size(); ++a) {
    const Read own = op.read(view_.reads_of(op, arrays[a], view_.rank()));
    if (own.count > 0 && (view_.size() > 1 || arrays[a].source != arrays[a].destination)) {
      group_->combine(stream_.native(),
                      {.destination = place(arrays[a].destination, own.to, written),
                       .sources = std::span(sources).subspan(a * terms, terms),
                       .count = own.count,
                       .type = op.call.dtype,
                       .reduce = op.call.reduce,
                       .destination_f32 = op.options.destination_f32,
                       .accumulate = op.options.accumulate});
    }
  }
}

}  // namespace tessera::collective
