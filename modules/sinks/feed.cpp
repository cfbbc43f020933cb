module;
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <mutex>
#include <string>
#include <tessera/limits.hpp>
#include <tessera/shown.hpp>
#include <tessera/signals.hpp>
#include <thread>
#include <utility>
#include <variant>
#include <vector>
module tessera.sinks;

import tessera.base;

namespace tessera::sinks {
namespace {

using Clock = std::chrono::steady_clock;

std::chrono::duration<double> seconds(double count) { return std::chrono::duration<double>(count); }

Clock::time_point after(double count) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(seconds(count));
}

/// Whether an event may be dropped: what is left has a meaning without it.
bool may_drop(const Event& event) {
  return !std::holds_alternative<RunStart>(event.content) &&
         !std::holds_alternative<RunEnd>(event.content);
}

}  // namespace

/// What the thread uses: it may outlive the feed.
class SinkFeed::State {
 public:
  State(std::string name, std::unique_ptr<Sink> sink, const FeedLimits& limits)
      : name_(std::move(name)),
        limits_(limits),
        patience_(sink->patience()),
        sink_(std::move(sink)) {}

  void tell(const std::shared_ptr<const Event>& event) {
    const std::size_t bytes = bytes_of(*event);
    bool first = false;
    {
      const std::lock_guard lock(mutex_);
      ++counts_.told;
      const std::uint64_t before = counts_.dropped;
      if (ending_ || (may_drop(*event) && bytes > limits_.bytes / 4)) {
        ++counts_.dropped;
      } else {
        queue_.push_back({event, bytes});
        bytes_ += bytes;
        make_room();
      }
      first = !ending_ && before == 0 && counts_.dropped > 0;
    }
    if (first) {
      say("does not keep up with the run, and loses events");
    }
  }

  void end(double most) {
    {
      const std::lock_guard lock(mutex_);
      if (ending_) {
        return;
      }
      ending_ = true;
      deadline_ = after(std::min({patience_, most, longest_patience}));
    }
    wake_.notify_all();
  }

  /// Whether the thread has ended.
  bool wait_for_thread() {
    std::unique_lock lock(mutex_);
    // What the sink still does when its time is over may return by itself.
    ended_.wait_until(lock, deadline_ + std::chrono::milliseconds(500), [&] { return is_over_; });
    if (!is_over_) {
      counts_.hangs = true;
      counts_.undelivered += in_hand_ + queue_.size();
    }
    return is_over_;
  }

  void run() {
    while (next_batch()) {
      deliver();
    }
    guarded(nullptr, [&] { sink_->finish(std::max(0.0, time_left())); });
    guarded(nullptr, [&] { sink_.reset(); });
    const std::lock_guard lock(mutex_);
    is_over_ = true;
    ended_.notify_all();
  }

  FeedCounts counts() const {
    const std::lock_guard lock(mutex_);
    return counts_;
  }

  void report() const {
    const FeedCounts all = counts();
    if (all.lost() == 0 && !all.hangs) {
      return;
    }
    std::string text = fmt::format("{}: {} of {} events were lost", name_, all.lost(), all.told);
    const auto add = [&](std::uint64_t count, const char* why) {
      text += count > 0 ? fmt::format(", {} {}", count, why) : std::string();
    };
    add(all.dropped, "as its queue was full");
    add(all.refused, "as it failed");
    add(all.undelivered, "as the run has ended");
    log(LogLevel::warning, text + (all.hangs ? "; it does not return" : ""));
  }

 private:
  static constexpr double longest_patience = 3600;
  static constexpr int most_warnings = 5;

  struct QueuedEvent {
    std::shared_ptr<const Event> event;
    std::size_t bytes = 0;
  };

  /// Drops the oldest ones. Called with the lock.
  void make_room() {
    while (queue_.size() > limits_.events || bytes_ > limits_.bytes) {
      const auto oldest = std::ranges::find_if(
          queue_, [](const QueuedEvent& queued) { return may_drop(*queued.event); });
      if (oldest == queue_.end()) {
        return;
      }
      bytes_ -= oldest->bytes;
      queue_.erase(oldest);
      ++counts_.dropped;
    }
  }

  /// Waits for events, and takes some in hand. False: there are no further ones, or no time.
  bool next_batch() {
    std::unique_lock lock(mutex_);
    while (true) {
      if (queue_.size() < limits_.batch) {
        // Nobody wakes this thread for an event, which would cost who tells it.
        wake_.wait_for(lock, seconds(limits_.pause), [&] { return ending_; });
      }
      if (ending_ && Clock::now() > deadline_) {
        counts_.undelivered += queue_.size();
        queue_.clear();
        return false;
      }
      if (!queue_.empty()) {
        break;
      }
      if (ending_) {
        return false;
      }
    }
    hand_.clear();
    keeps_ = false;
    for (std::size_t bytes = 0;
         !queue_.empty() && hand_.size() < limits_.batch &&
         (hand_.empty() || bytes + queue_.front().bytes <= limits_.batch_bytes);
         queue_.pop_front()) {
      bytes += queue_.front().bytes;
      bytes_ -= queue_.front().bytes;
      keeps_ = keeps_ || !may_drop(*queue_.front().event);
      hand_.push_back(*queue_.front().event);
    }
    in_hand_ = hand_.size();
    return true;
  }

  /// Gives the sink what is in hand, until it is taken or lost.
  void deliver() {
    double pause = limits_.first_retry;
    for (int tries = 1;; ++tries) {
      double asked = 0;
      const Result result = guarded(&asked, [&] { sink_->take(hand_); });
      if (result == Result::taken && std::exchange(failing_, false)) {
        say("receives events again");
      }
      std::unique_lock lock(mutex_);
      if (result == Result::taken) {
        counts_.delivered += in_hand_;
        in_hand_ = 0;
        return;
      }
      if (result == Result::failed || (tries >= limits_.tries && !keeps_)) {
        counts_.refused += in_hand_;
        in_hand_ = 0;
        return;
      }
      const double wait = std::min(std::max(pause, asked), limits_.longest_retry);
      pause = std::min(pause * 2, limits_.longest_retry);
      if (!ending_) {
        wake_.wait_for(lock, seconds(wait), [&] { return ending_; });
      } else {
        ended_.wait_for(lock, seconds(std::min(wait, limits_.pause)));
      }
      if (ending_ && Clock::now() > deadline_) {
        counts_.undelivered += in_hand_;
        in_hand_ = 0;
        return;
      }
    }
  }

  enum class Result { taken, unavailable, failed };

  /// Calls the sink, whatever it throws.
  template <class Call>
  Result guarded(double* asked, const Call& call) {
    try {
      call();
      return Result::taken;
    } catch (const UnavailableError& error) {
      failed(error.what());
      if (asked != nullptr) {
        *asked = error.after();
      }
      return Result::unavailable;
    } catch (const std::exception& error) {
      failed(error.what());
    } catch (...) {
      failed("it throws what is not a std::exception");
    }
    return Result::failed;
  }

  /// One warning for failures in a row.
  void failed(const std::string& why) {
    if (!std::exchange(failing_, true)) {
      say(shown(why, 400));
    }
  }

  void say(const std::string& what) {
    if (warnings_.fetch_add(1) < most_warnings) {
      log(LogLevel::warning, fmt::format("{}: {}; the run goes on", name_, what));
    }
  }

  double time_left() const {
    const std::lock_guard lock(mutex_);
    return std::chrono::duration<double>(deadline_ - Clock::now()).count();
  }

  const std::string name_;
  const FeedLimits limits_;
  const double patience_;
  mutable std::mutex mutex_;
  std::condition_variable wake_;   // the thread: the end begins
  std::condition_variable ended_;  // who ends it: the thread has ended
  std::deque<QueuedEvent> queue_;
  std::size_t bytes_ = 0;  // of the queue
  std::size_t in_hand_ = 0;
  bool ending_ = false;
  bool is_over_ = false;
  Clock::time_point deadline_;
  FeedCounts counts_;
  std::atomic<int> warnings_{0};

  // The thread's own.
  std::unique_ptr<Sink> sink_;
  std::vector<Event> hand_;
  bool keeps_ = false;  // one of them must not be dropped
  bool failing_ = false;
};

SinkFeed::SinkFeed(std::string name, std::unique_ptr<Sink> sink, const FeedLimits& limits)
    : state_(std::make_shared<State>(std::move(name), std::move(sink), limits)) {
  const ThreadsWithoutSignals quiet;
  // Detached: nobody can end it where the sink does not return.
  start_thread("sinks", [state = state_] { state->run(); }).detach();
}

SinkFeed::~SinkFeed() { finish(); }

void SinkFeed::tell(const std::shared_ptr<const Event>& event) { state_->tell(event); }

void SinkFeed::end(double most) { state_->end(most); }

void SinkFeed::finish() {
  if (std::exchange(finished_, true)) {
    return;
  }
  end();
  static_cast<void>(state_->wait_for_thread());
  state_->report();
}

FeedCounts SinkFeed::counts() const { return state_->counts(); }

}  // namespace tessera::sinks
