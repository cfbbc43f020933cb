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
module tessera.collective;

import tessera.base;
import :call;
import :communicator;
import :control;
import :engine;
import :observer;
import :point_to_point;
import :region;
import :state;
import :work;
import :world;

namespace tessera::collective {

Engine::Engine(WorldState& state, GroupBlock* group)
    : state_(state),
      group_(group),
      members_(reinterpret_cast<Member*>(state.region->at(group->members))),
      ranks_(group->ranks(), group->ranks() + group->size),
      rank_(static_cast<int>(std::find(ranks_.begin(), ranks_.end(), state.rank) - ranks_.begin())),
      size_(static_cast<int>(group->size)),
      staging_(state),
      slot_memory_(static_cast<std::size_t>(size_)),
      sources_(static_cast<std::size_t>(size_)) {
  find_machines();
}

Engine::~Engine() = default;

std::string_view Engine::name() const { return {group_->name, group_->name_bytes}; }

std::uint64_t Engine::all_done() {
  std::uint64_t minimum = ~std::uint64_t{0};
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      minimum = std::min(minimum, done_counter(r).load());
    }
  }
  return minimum;
}

bool Engine::peers_done(std::uint64_t calls) { return all_done() >= calls; }

Work Engine::issue_now(Operation&& operation) {
  if (state_.transport == Transport::fake) {
    return {};
  }
  const std::lock_guard guard(mutex_);
  state_.throw_if_failed();
  const std::uint64_t sequence = issued();
  if (size_ > 1 && sequence >= Member::ring && !peers_done(sequence + 1 - Member::ring)) {
    // Peers still read the entry of the ring: first complete what they need of this rank, then
    // wait.
    progress(sequence + 1 - Member::ring, true);
    for (int r = 0; r < size_; ++r) {
      if (r != rank_) {
        state_.wait(done_counter(r), sequence + 1 - Member::ring,
                    {.group = group_,
                     .call = &operation.call,
                     .sequence = sequence,
                     .peer = ranks_[static_cast<std::size_t>(r)],
                     .self = this,
                     .sent = !is_here(r)});
      }
    }
  }
  Operation& op = queue_.emplace_back(std::move(operation));
  op.sequence = sequence;
  op.form = &form_of(op.call.kind);
  op.complete_before = completed_.load(std::memory_order_relaxed);
  op.record = &state_.record(state_.region->offset_of(group_), sequence, pack(op.call));
  issued_.store(sequence + 1, std::memory_order_relaxed);
  const std::size_t bytes = static_cast<std::size_t>(op.call.count) * size_of(op.call.dtype);
  op.two_phase = size_ > 1 && op.form->gather != nullptr &&
                 (op.form->at_once == nullptr || bytes > symmetric_bytes);
  op.read = op.two_phase || op.form->at_once == nullptr ? op.form->read : op.form->at_once;
  if (size_ == 1) {
    progress(issued(), true);
    return {};
  }
  publish(op);
  if (!remotes_.empty()) {
    send_call(op);
  }
  return {this, sequence};
}

bool Engine::all_reached(Counter Member::* counter, const Operation& op, bool block) {
  const std::uint64_t target = op.sequence + 1;
  for (int i = 1; i < size_; ++i) {
    const int r = (rank_ + i) % size_;
    const bool done = counter == &Member::done;
    Counter& watched = done ? done_counter(r) : members_[r].*counter;
    if (watched.load() >= target) {
      continue;
    }
    if (!block) {
      return false;
    }
    state_.wait(watched, target,
                {.group = group_,
                 .call = &op.call,
                 .sequence = op.sequence,
                 .peer = ranks_[static_cast<std::size_t>(r)],
                 .self = this,
                 .sent = done && !is_here(r)});
  }
  return true;
}

bool Engine::arrived(Operation& op, bool block) {
  if (op.arrives == 0) {
    std::int64_t issued = 0;
    for (int r = 0; r < size_; ++r) {
      issued = std::max(issued, publication(r, op.sequence).time);
    }
    op.arrives = state_.slow_link->arrival(
        issued, received_bytes(op.call, op.arrays(), rank_, size_, op.receive_begins.data()));
  }
  const std::int64_t left = op.arrives - steady_nanoseconds();
  if (left > 0 && block) {
    std::this_thread::sleep_for(std::chrono::nanoseconds(left));
  }
  return left <= 0 || block;
}

void Engine::verify(const Operation& op) {
  const PackedCall own = pack(op.call);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_ || publication(r, op.sequence).call == own) {
      continue;
    }
    // Both ranks find it; the text is the same on both, with the lower rank first.
    const int low = std::min(r, rank_);
    const int high = std::max(r, rank_);
    const Call theirs = unpack(publication(r, op.sequence).call);
    state_.fail_published(fmt::format(
        "collective: the ranks' calls differ: rank {} calls {} while rank {} calls {} (call {} of "
        "group {}); all ranks of a group must issue the same calls in the same order",
        ranks_[static_cast<std::size_t>(low)], to_string(low == rank_ ? op.call : theirs),
        ranks_[static_cast<std::size_t>(high)], to_string(high == rank_ ? op.call : theirs),
        op.sequence, describe_group(*group_)));
  }
}

void Engine::finish_reading(Operation& op) {
  members_[rank_].done.raise(op.sequence + 1);
  // Of a list that is reduced in two phases, and so in place, peers read the destinations.
  const bool peers_read_memory =
      op.two_phase ? op.form->list || op.result == op.array.destination : op.direct;
  op.phase = peers_read_memory ? Operation::Phase::held : Operation::Phase::complete;
}

bool Engine::advance(Operation& op, bool block) {
  if (op.phase == Operation::Phase::gathering_peers) {
    if (!all_reached(&Member::published, op, block)) {
      return false;
    }
    if (state_.slow_link != nullptr && !arrived(op, block)) {
      return false;
    }
    verify(op);
    pull(op);
    if (op.two_phase) {
      members_[rank_].reduced.raise(op.sequence + 1);
      if (!remotes_.empty()) {
        send_result(op);
      }
      op.phase = Operation::Phase::second_phase;
    } else {
      finish_reading(op);
    }
  }
  if (op.phase == Operation::Phase::second_phase) {
    if (!all_reached(&Member::reduced, op, block)) {
      return false;
    }
    gather_results(op);
    finish_reading(op);
  }
  if (op.phase == Operation::Phase::held) {
    if (!all_reached(&Member::done, op, block)) {
      return false;
    }
    op.phase = Operation::Phase::complete;
  }
  if (!read_before(op, block)) {
    return false;
  }
  op.record->done.store(1, std::memory_order_relaxed);
  return true;
}

bool Engine::read_before(const Operation& op, bool block) {
  if (size_ == 1 || op.complete_before == 0 || peers_done(op.complete_before)) {
    return true;
  }
  Operation last;
  last.call = op.call;
  last.sequence = op.complete_before - 1;
  return all_reached(&Member::done, last, block);
}

bool Engine::progress(std::uint64_t until, bool block) {
  while (completed_.load(std::memory_order_relaxed) < until) {
    if (!advance(queue_.front(), block)) {
      return false;
    }
    const std::uint64_t ticket = queue_.front().sequence;
    queue_.pop_front();
    completed_.store(completed_.load(std::memory_order_relaxed) + 1, std::memory_order_release);
    if (observed()) {
      note_completed(ticket);
    }
  }
  return true;
}

void Engine::wait_now(std::uint64_t ticket) {
  if (ticket >= receive_ticket) {
    const std::lock_guard guard(mutex_);
    wait_receive(ticket);
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
  if (ticket >= receive_ticket) {
    const std::lock_guard guard(mutex_);
    return std::none_of(receives_.begin(), receives_.end(),
                        [&](const PendingReceive& r) { return r.ticket == ticket; });
  }
  return completed_.load(std::memory_order_acquire) > ticket;
}

bool Engine::try_progress() {
  std::unique_lock lock(mutex_, std::try_to_lock);
  if (!lock.owns_lock()) {
    return false;
  }
  const bool collectives = progress(issued(), false);
  const bool messages = progress_receives();
  return !collectives || !messages;
}

void Engine::wait_sources_free_now() {
  const std::lock_guard guard(mutex_);
  if (size_ == 1 || state_.transport == Transport::fake || issued() == 0) {
    return;
  }
  progress(issued(), true);
  const Call last{};
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      state_.wait(done_counter(r), issued(),
                  {.group = group_,
                   .call = &last,
                   .sequence = issued() - 1,
                   .peer = ranks_[static_cast<std::size_t>(r)],
                   .self = this,
                   .sent = !is_here(r)});
    }
  }
}

bool Engine::sources_free() {
  if (size_ == 1 || state_.transport == Transport::fake) {
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
  const bool alone = size_ == 1 || state_.transport == Transport::fake;
  while (!kept_.empty() && (alone || peers_done(kept_.front().first))) {
    read.push_back(std::move(kept_.front()));
    kept_.pop_front();
  }
}

Work& Work::operator=(Work&& other) noexcept {
  if (this != &other) {
    Work finished(std::move(*this));
    engine_ = std::exchange(other.engine_, nullptr);
    ticket_ = other.ticket_;
  }
  return *this;
}

Work::~Work() {
  try {
    wait();
  } catch (const Error&) {  // NOLINT(bugprone-empty-catch): published to the world, seen by the
                            // next call
  }
}

void Work::wait() {
  if (Engine* engine = std::exchange(engine_, nullptr)) {
    engine->wait(ticket_);
  }
}

bool Work::done() {
  if (engine_ != nullptr && engine_->done(ticket_)) {
    engine_ = nullptr;
  }
  return engine_ == nullptr;
}

}  // namespace tessera::collective
