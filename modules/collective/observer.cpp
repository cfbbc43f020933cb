// Observers of communicators: what the engine calls while the thread has one.
module;
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string_view>
#include <utility>
module tessera.collective;

import tessera.base;
import :call;
import :communicator;
import :control;
import :engine;
import :forms;
import :observer;
import :region;
import :state;
import :work;
import :world;

namespace tessera::collective {
namespace {

thread_local constinit Observer* innermost = nullptr;

}  // namespace

/// What the engine and the scopes do with the chain of observers of the calling thread.
struct Observers {
  static void perform(Observer* observer, const Activity& activity,
                      const std::function<void()>& run) {
    if (observer == nullptr) {
      run();
      return;
    }
    observer->perform(activity, [&] { perform(observer->outer_, activity, run); });
  }

  static void issued(const Engine* engine, std::uint64_t ticket, Activity activity, bool pending) {
    activity.kind = Activity::Kind::wait;
    for (Observer* o = innermost; o != nullptr; o = o->outer_) {
      if (pending) {
        o->in_flight_.insert_or_assign({engine, ticket}, activity);
      } else {
        o->completed(activity);
      }
    }
  }

  static void completed(const Engine* engine, std::uint64_t ticket) {
    for (Observer* o = innermost; o != nullptr; o = o->outer_) {
      const auto found = o->in_flight_.find({engine, ticket});
      if (found != o->in_flight_.end()) {
        const Activity activity = found->second;
        o->in_flight_.erase(found);
        o->completed(activity);
      }
    }
  }

  static void streamed(const StreamedActivity& activity) {
    for (Observer* o = innermost; o != nullptr; o = o->outer_) {
      o->streamed(activity);
    }
  }

  /// What was issued with this ticket under an observer; `otherwise` if nothing was.
  static Activity waited(const Engine* engine, std::uint64_t ticket, Activity otherwise) {
    for (Observer* o = innermost; o != nullptr; o = o->outer_) {
      const auto found = o->in_flight_.find({engine, ticket});
      if (found != o->in_flight_.end()) {
        return found->second;
      }
    }
    return otherwise;
  }
};

std::string_view name_of(Activity::Kind kind) {
  constexpr std::string_view names[] = {"issue", "wait", "wait_sources"};
  return names[static_cast<int>(kind)];
}

Observer::~Observer() = default;
void Observer::perform(const Activity&, const std::function<void()>& run) { run(); }
void Observer::completed(const Activity&) {}
void Observer::streamed(const StreamedActivity&) {}

std::int64_t steady_nanoseconds() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

bool is_observed() { return innermost != nullptr; }

void report_streamed(const StreamedActivity& activity) { Observers::streamed(activity); }

void StreamRecord::perform(const Activity& activity, const std::function<void()>& run) {
  if (activity.kind == Activity::Kind::issue) {
    calls_.push_back({.activity = activity, .began = steady_nanoseconds()});
  }
  run();
}

void StreamRecord::completed(const Activity& activity) {
  for (StreamedActivity& call : calls_) {
    if (call.activity.sequence == activity.sequence && call.activity.group == activity.group &&
        call.activity.ranks.data() == activity.ranks.data()) {
      call.ended = steady_nanoseconds();
    }
  }
}

ObserverScope::ObserverScope(Observer& observer) : observer_(observer) {
  observer.outer_ = std::exchange(innermost, &observer);
}
ObserverScope::~ObserverScope() {
  Observer** place = &innermost;
  while (*place != &observer_) {
    place = &(*place)->outer_;
  }
  *place = std::exchange(observer_.outer_, nullptr);
  observer_.in_flight_.clear();
}

bool Engine::observed() { return is_observed(); }

void Engine::note_completed(std::uint64_t ticket) const { Observers::completed(this, ticket); }

Work Engine::issue_observed(Operation&& operation) {
  const Activity activity{Activity::Kind::issue,
                          operation.call,
                          ranks_,
                          name(),
                          issued(),
                          received_bytes(operation.call, operation.arrays(), rank_, size_,
                                         operation.receive_begins.data())};
  Work work;
  bool pending = false;
  Observers::perform(innermost, activity, [&] {
    work = issue_now(std::move(operation));
    pending = size_ > 1 && state_.transport != Transport::fake;
  });
  Observers::issued(this, activity.sequence, activity, pending);
  return work;
}

void Engine::send(const void* source, std::int64_t count, DType dtype, int to, int tag) {
  if (!observed()) [[likely]] {
    send_now(source, count, dtype, to, tag);
    return;
  }
  const Activity activity{.call = {CallKind::send, dtype, ReduceOp::sum, to, count, 0},
                          .ranks = ranks_,
                          .group = name()};
  Observers::perform(innermost, activity, [&] { send_now(source, count, dtype, to, tag); });
  Observers::issued(this, 0, activity, false);
}

Work Engine::receive(void* destination, std::int64_t count, DType dtype, int from, int tag) {
  if (!observed()) [[likely]] {
    return receive_now(destination, count, dtype, from, tag);
  }
  const std::uint64_t ticket = next_receive_;
  const Operation operation{.call = {CallKind::receive, dtype, ReduceOp::sum, from, count, 0}};
  const Activity activity{Activity::Kind::issue,
                          operation.call,
                          ranks_,
                          name(),
                          ticket - receive_ticket,
                          received_bytes(operation.call, {}, rank_, size_, nullptr)};
  Work work;
  bool pending = false;
  Observers::perform(innermost, activity, [&] {
    work = receive_now(destination, count, dtype, from, tag);
    pending = true;
  });
  Observers::issued(this, ticket, activity, pending);
  return work;
}

void Engine::wait_observed(std::uint64_t ticket) {
  const Activity activity = Observers::waited(this, ticket,
                                              {.kind = Activity::Kind::wait,
                                               .ranks = ranks_,
                                               .group = name(),
                                               .sequence = ticket & ~receive_ticket});
  Observers::perform(innermost, activity, [&] { wait_now(ticket); });
  Observers::completed(this, ticket);
}

void Engine::wait_sources_free() {
  if (!observed()) [[likely]] {
    wait_sources_free_now();
    return;
  }
  const Activity activity{
      .kind = Activity::Kind::wait_sources, .ranks = ranks_, .group = name(), .sequence = issued()};
  Observers::perform(innermost, activity, [&] { wait_sources_free_now(); });
}

}  // namespace tessera::collective
