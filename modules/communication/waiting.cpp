module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <iterator>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.device;
import tessera.calls;
import tessera.ranks;
import :communicator;
import :device_communicators;
import :engine;
import :state;

namespace tessera::collective {
namespace {

inline void pause_briefly() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#endif
}

}  // namespace

/// A wait that has become a long one: finds out that the other rank is gone, reports the wait once
/// on stderr, and ends it at the time limit. The same for calls and for the shared lock.
class WorldState::LongWait {
 public:
  LongWait(WorldState& state, double report_after)
      : state_(state), control_(*state.control), patience_(state.timeout, report_after) {}
  LongWait(const LongWait&) = delete;
  LongWait& operator=(const LongWait&) = delete;
  ~LongWait() {
    if (std::uncaught_exceptions() == exceptions_) {  // else it says for whom this rank waited last
      state_.own_record().waiting_for.store(-1, std::memory_order_relaxed);
    }
    if (reports_) {
      control_.wait_reporter.store(-1);
    }
  }

  /// Call it in every round of the wait for `peer`, at least every half second; `what` is evaluated
  /// only for a message. Throws when the wait is in vain.
  template <class What>
  void look(int peer, const What& what) {
    state_.own_record().waiting_for.store(peer, std::memory_order_relaxed);
    const double waited = patience_.waited();
    if (waited > next_check_) {
      next_check_ = waited + 0.25;
      check_alive(peer);
    }
    if (waited > patience_.limit()) {
      state_.fail_published(describe(peer, waited, what()));
    }
    if (patience_.is_due(waited)) {
      std::int32_t nobody = -1;  // one rank speaks for all
      if (control_.wait_reporter.compare_exchange_strong(nobody, state_.rank)) {
        patience_.reported();
        reports_ = true;
        log(LogLevel::warning,
            fmt::format("{}; the run continues when rank {} does, or fails after {:.0f} s",
                        describe(peer, waited, what()), culprit(peer), patience_.limit()));
      }
    }
  }

 private:
  /// The rank at the end of the chain of those that wait for each other.
  int culprit(int peer) const {
    int last = peer;
    for (int hops = 0; hops < state_.size; ++hops) {
      const std::int32_t next = control_.ranks()[last].waiting_for.load(std::memory_order_relaxed);
      if (next < 0) {
        return last;
      }
      last = next;
    }
    return peer;  // they wait in a circle
  }

  Process process_of_rank(int number) const {
    const RankRecord& record = control_.ranks()[number];
    return {record.process.load(), record.process_start.load()};
  }

  std::string describe(int peer, double waited, const std::string& what) const {
    const int last = culprit(peer);
    std::string text =
        fmt::format("{}: {} has waited {:.1f} s for {}", what, control_.describe_rank(state_.rank),
                    waited, control_.describe_rank(peer));
    if (last != peer) {
      text += fmt::format(", and that one for {}", control_.describe_rank(last));
    }
    text += fmt::format("; the last call of rank {}: {}", last,
                        control_.last_call(*state_.region, last));
    const Process process = process_of_rank(last);
    if (process.id > 0 && state_of(process) == ProcessState::stopped) {
      text += fmt::format("; rank {} is stopped: `kill -CONT {}` lets it run", last, process.id);
    }
    return text;
  }

  /// A launcher that is not ours may not tell that a rank has died; our own does it better.
  void check_alive(int peer) {
    if (control_.joined == 0) {
      return;
    }
    const Process process = process_of_rank(peer);
    if (process.id > 0 && state_of(process) == ProcessState::gone &&
        control_.ranks()[peer].ended.load() == 0) {
      // In this rank's name: the dead one cannot print it.
      state_.fail_published(fmt::format(
          "rank {}, for which this rank waits, has died at step {}; its last call: {}", peer,
          control_.ranks()[peer].step.load(), control_.last_call(*state_.region, peer)));
    }
  }

  WorldState& state_;
  Control& control_;
  Patience patience_;
  double next_check_ = 0.25;
  bool reports_ = false;
  int exceptions_ = std::uncaught_exceptions();
};

/// A wait of the host for a device: what ends a wait for a rank ends it too.
class WorldState::WatchedWait final : public DeviceWait {
 public:
  explicit WatchedWait(WorldState& state) : state_(state) {}

  void look() override {
    // Looks of one wait are near together: a later one is of another wait.
    const auto now = std::chrono::steady_clock::now();
    if (now - last_look_ > std::chrono::seconds(5)) {
      long_.reset();
    }
    last_look_ = now;
    look_for_failures();
    if (const std::string failure = state_.devices->failure(); !failure.empty()) {
      // Calls that differ say more than what a device makes of them, but may be known later.
      for (int ms = 0; ms < 1000 && state_.progress_others(nullptr); ++ms) {
        look_for_failures();
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      state_.fail_published(failure);
    }
    state_.progress_others(nullptr);  // compares calls that devices carry out
    const std::optional<DeviceCommunicators::PendingCall> pending = state_.devices->oldest();
    if (!pending) {
      long_.reset();
      return;
    }
    if (!long_) {
      long_.emplace(state_, state_.report_after);
    }
    long_->look(pending->peer, [&] {
      return fmt::format("{} on a device, call {} of group {}", to_string(pending->call),
                         pending->sequence, pending->group);
    });
  }

 private:
  void look_for_failures() {
    if (state_.control->failed.load(std::memory_order_acquire) != 0) {
      state_.devices->abort();
      state_.throw_peer_failed();
    }
  }

  WorldState& state_;
  std::optional<LongWait> long_;
  std::chrono::steady_clock::time_point last_look_ = {};
};

/// A wait for members of a group of devices that have not joined it. Which ones is not known, so
/// one after the other is looked at.
class WorldState::WatchedJoin final : public DeviceWait {
 public:
  WatchedJoin(WorldState& state, std::vector<int> members, std::string what)
      : usual_(state), long_(state, state.report_after), what_(std::move(what)) {
    std::ranges::copy_if(members, std::back_inserter(others_),
                         [&](int member) { return member != state.rank; });
  }

  void look() override {
    usual_.look();
    if (!others_.empty()) {
      next_ = (next_ + 1) % others_.size();
      long_.look(others_[next_], [&] { return what_; });
    }
  }

 private:
  WatchedWait usual_;
  LongWait long_;
  std::string what_;
  std::vector<int> others_;
  std::size_t next_ = 0;
};

std::unique_ptr<DeviceWait> WorldState::watch_device_wait() {
  return std::make_unique<WatchedWait>(*this);
}

std::unique_ptr<DeviceWait> WorldState::watch_device_join(std::vector<int> members,
                                                          std::string what) {
  return std::make_unique<WatchedJoin>(*this, std::move(members), std::move(what));
}

void WorldState::lock() {
  if (control->lock.try_lock(rank)) {
    return;
  }
  LongWait wait(*this, std::min(report_after, Patience::reported_after));
  control->lock.lock(rank, [&](int owner) {
    throw_if_failed();
    wait.look(owner, [] { return std::string("the lock of the shared memory"); });
  });
}

void WorldState::wait_slow(Counter& counter, std::uint64_t target, const WaitReason& reason) {
  const std::int64_t begin = steady_nanoseconds();
  const auto waited_until = [&](std::int64_t end) {
    if (!works_beside_steps()) {
      waited_nanoseconds.fetch_add(end - begin, std::memory_order_relaxed);
    }
  };
  if (spin_) {
    for (int i = 0; i < 800; ++i) {  // some 40 microseconds
      pause_briefly();
      if (counter.load() >= target) {
        waited_until(steady_nanoseconds());
        return;
      }
    }
  }
  const auto what = [&] {
    return fmt::format("{}, call {} of group {}", to_string(*reason.call), reason.sequence,
                       describe_group(*reason.group));
  };
  LongWait wait(*this, report_after);
  RankRecord& peer = control->ranks()[reason.peer];
  std::int64_t slept = std::numeric_limits<std::int64_t>::max();  // when the last sleep began
  while (true) {
    throw_if_failed();
    const bool ended = peer.ended.load(std::memory_order_acquire) != 0;
    bool others = progress_others(reason.self);
    others |= poll_devices();
    if (reason.idle != nullptr) {
      others |= reason.idle->progress_held();
    }
    const std::uint64_t seen = counter.load();
    if (seen >= target) {
      // Time in which this rank could run again but did not, stopped or without a core, is its own.
      const std::int64_t woken = counter.woken.load(std::memory_order_relaxed);
      waited_until(woken > slept ? woken : steady_nanoseconds());
      return;
    }
    if (ended && !reason.sent) {
      fail_published(fmt::format(
          "{}: rank {} waits for rank {}, which has ended; the last call of rank {}: "
          "{}",
          what(), rank, reason.peer, reason.peer, control->last_call(*region, reason.peer)));
    }
    wait.look(reason.peer, what);
    slept = steady_nanoseconds();
    counter.sleep(seen, others ? look_others_ : look_failed_);
  }
}

}  // namespace tessera::collective
