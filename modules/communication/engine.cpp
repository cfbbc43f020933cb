module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :engine;
import :group_view;
import :mailbox;
import :observer;
import :observers;
import :operation;
import :publisher;
import :puller;
import :remote_sender;
import :state;
import :work;

namespace tessera::collective {

Engine::Engine(WorldState& state, GroupBlock* group)
    : view_(state, group, this),
      publisher_(view_),
      puller_(view_),
      remote_(view_),
      mailbox_(view_, remote_) {}

Engine::~Engine() = default;

Work Engine::issue_now(Operation&& operation) {
  if (view_.is_fake()) {
    return {};
  }
  const std::lock_guard guard(mutex_);
  const std::uint64_t sequence = enter(std::move(operation));
  return view_.size() == 1 ? Work() : Work(this, sequence);
}

std::uint64_t Engine::enter(Operation&& operation) {
  view_.state().throw_if_failed();
  const std::uint64_t sequence = issued();
  if (view_.size() > 1 && sequence >= Member::ring && !peers_done(sequence + 1 - Member::ring)) {
    // Peers still read the entry of the ring: first complete what they need of this rank, then
    // wait.
    progress(sequence + 1 - Member::ring, true);
    view_.wait_until_done(sequence + 1 - Member::ring, operation.call, sequence);
  }
  Operation& op = queue_.emplace_back(std::move(operation));
  op.sequence = sequence;
  prepare(op, view_.size());
  if (op.announced) {
    op.read = nullptr;
    op.two_phase = false;
  }
  op.complete_before = completed_.load(std::memory_order_relaxed);
  op.record = &view_.state().record(view_.group_offset(), sequence, pack(op.call));
  issued_.store(sequence + 1, std::memory_order_relaxed);
  if (view_.size() == 1) {
    progress(issued(), true);
    return sequence;
  }
  publisher_.publish(op);
  if (!view_.other_machines().empty()) {
    remote_.send_call(op);
  }
  return sequence;
}

AnnouncedCall Engine::announce_now(Operation&& operation) {
  if (view_.is_fake()) {
    return {};
  }
  const std::lock_guard guard(mutex_);
  operation.announced = true;
  const std::uint64_t sequence = enter(std::move(operation));
  RecordedCall* const record = queue_.empty() ? nullptr : queue_.back().record;
  progress(issued(), false);
  return {true, sequence, view_.group_offset(), record};
}

AnnouncedCall Engine::announce(Operation&& operation) {
  if (!is_observed()) [[likely]] {
    return announce_now(std::move(operation));
  }
  Activity issue = activity(Activity::Kind::issue, operation.call, issued());
  issue.bytes = received_bytes(operation.call, operation.arrays(), view_.rank(), view_.size(),
                               operation.receive_begins.data());
  AnnouncedCall announced;
  Observers::perform(issue, [&] { announced = announce_now(std::move(operation)); });
  Observers::issued(this, issue.sequence, issue, false);
  return announced;
}

void Engine::finish_announced() {
  const std::lock_guard guard(mutex_);
  progress(issued(), true);
}

bool Engine::arrived(Operation& op, bool block) const {
  if (op.arrives == 0) {
    std::int64_t issued = 0;
    for (int r = 0; r < view_.size(); ++r) {
      issued = std::max(issued, view_.publication(r, op.sequence).time);
    }
    op.arrives = view_.state().slow_link->arrival(
        issued,
        received_bytes(op.call, op.arrays(), view_.rank(), view_.size(), op.receive_begins.data()));
  }
  const std::int64_t left = op.arrives - steady_nanoseconds();
  if (left > 0 && block) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }
  return left <= 0 || block;
}

void Engine::verify(const Operation& op) const {
  const PackedCall own = pack(op.call);
  for (int r = 0; r < view_.size(); ++r) {
    if (r == view_.rank() || view_.publication(r, op.sequence).call == own) {
      continue;
    }
    // Both ranks find it; the text is the same on both, with the lower rank first.
    const int low = std::min(r, view_.rank());
    const int high = std::max(r, view_.rank());
    const Call theirs = unpack(view_.publication(r, op.sequence).call);
    view_.state().fail_published(fmt::format(
        "collective: the ranks' calls differ: rank {} calls {} while rank {} calls {} (call {} of "
        "group {}); all ranks of a group must issue the same calls in the same order",
        view_.global_rank(low), to_string(low == view_.rank() ? op.call : theirs),
        view_.global_rank(high), to_string(high == view_.rank() ? op.call : theirs), op.sequence,
        describe_group(view_.group())));
  }
}

void Engine::finish_reading(Operation& op) {
  view_.own().done.raise(op.sequence + 1);
  // Peers read the destinations of a list that is reduced in two phases, and so in place.
  const bool peers_read_memory =
      op.two_phase ? op.form->list || op.result == op.array.destination : op.direct;
  op.phase = peers_read_memory ? Operation::Phase::held : Operation::Phase::complete;
}

bool Engine::advance(Operation& op, bool block) {
  if (op.phase == Operation::Phase::gathering_peers) {
    if (!view_.all_reached(&Member::published, op, block)) {
      return false;
    }
    if (view_.state().slow_link != nullptr && !op.announced && !arrived(op, block)) {
      return false;
    }
    verify(op);
    puller_.pull(op);
    if (op.two_phase) {
      view_.own().reduced.raise(op.sequence + 1);
      if (!view_.other_machines().empty()) {
        remote_.send_result(op);
      }
      op.phase = Operation::Phase::second_phase;
    } else {
      finish_reading(op);
    }
  }
  if (op.phase == Operation::Phase::second_phase) {
    if (!view_.all_reached(&Member::reduced, op, block)) {
      return false;
    }
    puller_.gather_results(op);
    finish_reading(op);
  }
  if (op.phase == Operation::Phase::held) {
    if (!view_.all_reached(&Member::done, op, block)) {
      return false;
    }
    op.phase = Operation::Phase::complete;
  }
  if (!read_before(op, block)) {
    return false;
  }
  if (!op.announced) {
    op.record->done.store(1, std::memory_order_relaxed);
  }
  return true;
}

bool Engine::read_before(const Operation& op, bool block) const {
  if (view_.size() == 1 || op.complete_before == 0 || peers_done(op.complete_before)) {
    return true;
  }
  Operation last;
  last.call = op.call;
  last.sequence = op.complete_before - 1;
  return view_.all_reached(&Member::done, last, block);
}

bool Engine::progress(std::uint64_t until, bool block) {
  while (completed_.load(std::memory_order_relaxed) < until) {
    if (!advance(queue_.front(), block)) {
      return false;
    }
    const std::uint64_t ticket = queue_.front().sequence;
    queue_.pop_front();
    completed_.store(completed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (is_observed()) {
      Observers::completed(this, ticket);
    }
  }
  return true;
}

void Engine::wait_now(std::uint64_t ticket) {
  if (ticket >= Mailbox::first_ticket) {
    const std::lock_guard guard(mutex_);
    mailbox_.wait(ticket);
    return;
  }
  if (completed_.load(std::memory_order_acquire) > ticket) {
    return;
  }
  const std::lock_guard guard(mutex_);
  progress(ticket + 1, true);
}

bool Engine::done(std::uint64_t ticket) {
  try_progress();
  if (ticket >= Mailbox::first_ticket) {
    const std::lock_guard guard(mutex_);
    return mailbox_.done(ticket);
  }
  return completed_.load(std::memory_order_acquire) > ticket;
}

bool Engine::try_progress() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return false;
  }
  const bool collectives = progress(issued(), false);
  const bool messages = mailbox_.progress();
  return !collectives || !messages;
}

void Engine::wait_sources_free_now() {
  const std::lock_guard guard(mutex_);
  if (view_.size() == 1 || view_.is_fake() || issued() == 0) {
    return;
  }
  progress(issued(), true);
  view_.wait_until_done(issued(), {}, issued() - 1);
}

bool Engine::sources_free() {
  if (view_.size() == 1 || view_.is_fake()) {
    return true;
  }
  try_progress();
  return completed_.load(std::memory_order_acquire) == issued() && peers_done(issued());
}

void Engine::keep_until_read(std::shared_ptr<void> sources) {
  drop_read();
  const std::lock_guard guard(kept_mutex_);
  kept_.emplace_back(issued(), std::move(sources));
}

void Engine::drop_read() {
  decltype(kept_) read;  // dropped without the lock
  const std::lock_guard guard(kept_mutex_);
  const bool alone = view_.size() == 1 || view_.is_fake();
  while (!kept_.empty() && (alone || peers_done(kept_.front().first))) {
    read.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

void Engine::send_now(const void* source, std::int64_t count, DType dtype, int to, int tag) {
  const std::lock_guard guard(mutex_);
  view_.state().throw_if_failed();
  mailbox_.send(source, count, dtype, to, tag);
}

Work Engine::receive_now(void* destination, std::int64_t count, DType dtype, int from, int tag) {
  const std::lock_guard guard(mutex_);
  view_.state().throw_if_failed();
  return {this, mailbox_.receive(destination, count, dtype, from, tag)};
}

Activity Engine::activity(Activity::Kind kind, const Call& call, std::uint64_t sequence) const {
  return {.kind = kind,
          .call = call,
          .ranks = view_.ranks(),
          .group = view_.name(),
          .sequence = sequence};
}

Work Engine::issue_observed(Operation&& operation) {
  Activity issue = activity(Activity::Kind::issue, operation.call, issued());
  issue.bytes = received_bytes(operation.call, operation.arrays(), view_.rank(), view_.size(),
                               operation.receive_begins.data());
  Work work;
  bool pending = false;
  Observers::perform(issue, [&] {
    work = issue_now(std::move(operation));
    pending = view_.size() > 1 && !view_.is_fake();
  });
  Observers::issued(this, issue.sequence, issue, pending);
  return work;
}

void Engine::send(const void* source, std::int64_t count, DType dtype, int to, int tag) {
  carry_out({CallKind::send, dtype, ReduceOp::sum, to, count, 0},
            [&] { send_now(source, count, dtype, to, tag); });
}

void Engine::carry_out(const Call& call, const std::function<void()>& run) {
  if (!is_observed()) [[likely]] {
    run();
    return;
  }
  Activity issue = activity(Activity::Kind::issue, call, 0);
  if (call.kind == CallKind::receive) {
    issue.bytes = received_bytes(call, {}, view_.rank(), view_.size(), nullptr);
  }
  Observers::perform(issue, run);
  Observers::issued(this, 0, issue, false);
}

void Engine::announce_message(const Call& call, int tag) {
  send_now(nullptr, call.count, call.dtype, call.root, tag);
}

Mailbox::MessageHeader Engine::next_message(const Call& wanted) {
  const std::lock_guard guard(mutex_);
  view_.state().throw_if_failed();
  return mailbox_.next(wanted);
}

Work Engine::receive(void* destination, std::int64_t count, DType dtype, int from, int tag) {
  if (!is_observed()) [[likely]] {
    return receive_now(destination, count, dtype, from, tag);
  }
  const std::uint64_t ticket = mailbox_.next_ticket();
  const Call call{CallKind::receive, dtype, ReduceOp::sum, from, count, 0};
  Activity issue = activity(Activity::Kind::issue, call, ticket - Mailbox::first_ticket);
  issue.bytes = received_bytes(call, {}, view_.rank(), view_.size(), nullptr);
  Work work;
  bool pending = false;
  Observers::perform(issue, [&] {
    work = receive_now(destination, count, dtype, from, tag);
    pending = true;
  });
  Observers::issued(this, ticket, issue, pending);
  return work;
}

void Engine::wait_observed(std::uint64_t ticket) {
  const Activity wait = Observers::waited(
      this, ticket, activity(Activity::Kind::wait, {}, ticket & ~Mailbox::first_ticket));
  Observers::perform(wait, [&] { wait_now(ticket); });
  Observers::completed(this, ticket);
}

void Engine::wait_sources_free() {
  if (!is_observed()) [[likely]] {
    wait_sources_free_now();
    return;
  }
  Observers::perform(activity(Activity::Kind::wait_sources, {}, issued()),
                     [&] { wait_sources_free_now(); });
}

}  // namespace tessera::collective
