// Observers of communicators: what the engine calls while the thread has one.
module;
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string_view>
#include <utility>
module tessera.communication;

import tessera.base;
import tessera.calls;
import :observer;
import :observers;

namespace tessera::collective {
namespace {

thread_local constinit Observer* innermost = nullptr;

}  // namespace

void Observers::perform(Observer* observer, const Activity& activity,
                        const std::function<void()>& run) {
  if (observer == nullptr) {
    run();
    return;
  }
  observer->perform(activity, [&] { perform(observer->outer_, activity, run); });
}

void Observers::perform(const Activity& activity, const std::function<void()>& run) {
  perform(innermost, activity, run);
}

void Observers::issued(const Engine* engine, std::uint64_t ticket, Activity activity,
                       bool pending) {
  activity.kind = Activity::Kind::wait;
  for (Observer* o = innermost; o != nullptr; o = o->outer_) {
    if (pending) {
      o->in_flight_.insert_or_assign({engine, ticket}, activity);
    } else {
      o->completed(activity);
    }
  }
}

void Observers::completed(const Engine* engine, std::uint64_t ticket) {
  for (Observer* o = innermost; o != nullptr; o = o->outer_) {
    const auto found = o->in_flight_.find({engine, ticket});
    if (found != o->in_flight_.end()) {
      const Activity activity = found->second;
      o->in_flight_.erase(found);
      o->completed(activity);
    }
  }
}

void Observers::streamed(const StreamedActivity& activity) {
  for (Observer* o = innermost; o != nullptr; o = o->outer_) {
    o->streamed(activity);
  }
}

Activity Observers::waited(const Engine* engine, std::uint64_t ticket, Activity otherwise) {
  for (Observer* o = innermost; o != nullptr; o = o->outer_) {
    const auto found = o->in_flight_.find({engine, ticket});
    if (found != o->in_flight_.end()) {
      return found->second;
    }
  }
  return otherwise;
}

std::string_view name_of(Activity::Kind kind) {
  constexpr std::string_view names[] = {"issue", "wait", "wait_sources"};
  return names[static_cast<int>(kind)];
}

Observer::~Observer() = default;
void Observer::perform(const Activity&, const std::function<void()>& run) { run(); }
void Observer::completed(const Activity&) {}
void Observer::streamed(const StreamedActivity&) {}

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

LoneObserverScope::LoneObserverScope(Observer& observer)
    : before_(std::exchange(innermost, &observer)) {}
LoneObserverScope::~LoneObserverScope() { innermost = before_; }

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

}  // namespace tessera::collective
