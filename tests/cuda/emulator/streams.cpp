#include "streams.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <thread>
#include <utility>

#include "fault.hpp"
#include "modes.hpp"

namespace emulator {
namespace {

std::uint64_t number_of(const char* variable, std::uint64_t otherwise) {
  const char* value = std::getenv(variable);
  return value == nullptr ? otherwise : std::strtoull(value, nullptr, 10);
}

}  // namespace

Executor& Executor::instance() {
  static auto* executor = new Executor;
  return *executor;
}

Executor::Executor() {
  set_seed(number_of("TESSERA_EMULATOR_SEED", 2));
  idle_microseconds_ = static_cast<std::int64_t>(number_of("TESSERA_EMULATOR_IDLE", 2000));
  std::thread([this] { run(); }).detach();
}

void Executor::set_seed(std::uint64_t seed) {
  const std::lock_guard lock(mutex_);
  seed_ = seed;
  numbers_.seed(seed);
}

void Executor::set_idle_microseconds(std::int64_t time) {
  const std::lock_guard lock(mutex_);
  idle_microseconds_ = time;
}

std::shared_ptr<Stream> Executor::make(int device) {
  const std::lock_guard lock(mutex_);
  std::erase_if(streams_, [](const auto& s) { return s->destroyed && s->tasks.empty(); });
  auto stream = std::make_shared<Stream>();
  stream->device = device;
  stream->number = ++made_;
  streams_.push_back(stream);
  return stream;
}

void Executor::destroy(Stream& stream) {
  const std::lock_guard lock(mutex_);
  stream.destroyed = true;
}

/// Of the executor's own thread nothing waits: it would wait for itself.
void Executor::await_room(Stream& stream, std::unique_lock<std::mutex>& lock) {
  const std::size_t most = Modes::instance().places - 1;
  if (stream.tasks.size() <= most || std::this_thread::get_id() == runner_) {
    return;
  }
  const auto held = std::ranges::find(streams_, &stream, [](const auto& one) { return one.get(); });
  await(Demand{.stream = *held, .event = {}, .left = most}, lock);
}

void Executor::push(Stream& stream, Task task) {
  if (Modes::instance().only_lists && !task.of_host) {
    task.work = {};
  }
  std::unique_lock lock(mutex_);
  if (stream.recording) {
    stream.recording->tasks.push_back(std::move(task));
    return;
  }
  await_room(stream, lock);
  stream.tasks.push_back(std::move(task));
  wanted_.notify_all();
}

/// A graph has one place.
void Executor::push_all(Stream& stream, const std::vector<Task>& tasks) {
  std::unique_lock lock(mutex_);
  await_room(stream, lock);
  stream.tasks.insert(stream.tasks.end(), tasks.begin(), tasks.end());
  wanted_.notify_all();
}

void Executor::record(Stream& stream, const std::shared_ptr<Event>& event) {
  std::unique_lock lock(mutex_);
  await_room(stream, lock);
  event->queries = 0;
  stream.tasks.push_back({.reaches = event, .place = ++event->placed});
  wanted_.notify_all();
}

void Executor::wait(Stream& stream, const std::shared_ptr<Event>& event) {
  std::unique_lock lock(mutex_);
  const std::uint64_t place = event->placed;
  await_room(stream, lock);
  stream.tasks.push_back({.awaits = event, .place = place});
  wanted_.notify_all();
}

bool Executor::has_room(Stream& stream) {
  const std::lock_guard lock(mutex_);
  const std::size_t most = Modes::instance().places - 1;
  if (stream.tasks.size() <= most) {
    return true;
  }
  const auto held = std::ranges::find(streams_, &stream, [](const auto& one) { return one.get(); });
  if (std::ranges::none_of(polled_, [&](const Demand& d) { return d.stream == *held; })) {
    polled_.push_back({.stream = *held, .event = {}, .left = most});
    wanted_.notify_all();
  }
  return fault_.has_value();
}

bool Executor::idle(Stream& stream) {
  const std::lock_guard lock(mutex_);
  return stream.tasks.empty();
}

bool Executor::reached(const std::shared_ptr<Event>& event) {
  const std::lock_guard lock(mutex_);
  if (event->reached >= event->placed) {
    return true;
  }
  constexpr int queries_of_a_wait = 64;
  if (++event->queries == queries_of_a_wait) {
    polled_.push_back({.stream = {}, .event = event, .place = event->placed});
    wanted_.notify_all();
  }
  return false;
}

void Executor::synchronize(const std::shared_ptr<Stream>& stream) {
  await(Demand{.stream = stream, .event = {}});
}

void Executor::synchronize(const std::shared_ptr<Event>& event) {
  std::uint64_t place = 0;
  {
    const std::lock_guard lock(mutex_);
    place = event->placed;
  }
  await(Demand{.stream = {}, .event = event, .place = place});
}

void Executor::synchronize_device(int device) {
  std::vector<std::shared_ptr<Stream>> all;
  {
    const std::lock_guard lock(mutex_);
    all = streams_;
  }
  for (const std::shared_ptr<Stream>& stream : all) {
    if (stream->device == device) synchronize(stream);
  }
}

void Executor::await(const Demand& demand) {
  std::unique_lock lock(mutex_);
  await(demand, lock);
}

void Executor::await(const Demand& demand, std::unique_lock<std::mutex>& lock) {
  demands_.push_back(&demand);
  wanted_.notify_all();
  changed_.wait(lock, [&] { return demand.met() || fault_.has_value(); });
  std::erase(demands_, &demand);
}

std::optional<std::string> Executor::fault() {
  const std::lock_guard lock(mutex_);
  return fault_;
}

void Executor::set_fault(const std::string& text) {
  const std::lock_guard lock(mutex_);
  if (!fault_) {
    fault_ = text;
  }
  changed_.notify_all();
}

void Executor::restart() {
  const std::lock_guard lock(mutex_);
  for (const std::shared_ptr<Stream>& stream : streams_) {
    for (const Task& task : stream->tasks) {
      if (task.reaches) task.reaches->reached = std::max(task.reaches->reached, task.place);
    }
    stream->tasks.clear();
  }
  polled_.clear();
  fault_.reset();
  changed_.notify_all();
}

/// The stream whose first task must run so that the demand is met; null: none of them can run.
std::shared_ptr<Stream> Executor::needed(const Demand& demand) {
  const auto holder = [&](const Event& event, std::uint64_t place) -> std::shared_ptr<Stream> {
    for (const std::shared_ptr<Stream>& stream : streams_) {
      if (std::ranges::any_of(stream->tasks, [&](const Task& task) {
            return task.reaches.get() == &event && task.place >= place;
          })) {
        return stream;
      }
    }
    return nullptr;
  };
  std::shared_ptr<Stream> stream =
      demand.stream ? demand.stream : holder(*demand.event, demand.place);
  // A cycle of waits ends in a stream that was seen before.
  for (std::size_t steps = 0; stream && steps <= streams_.size(); ++steps) {
    if (stream->can_run()) {
      return stream;
    }
    if (stream->tasks.empty() || !stream->tasks.front().awaits) {
      return nullptr;
    }
    const Task& waiting = stream->tasks.front();
    stream = holder(*waiting.awaits, waiting.place);
  }
  return nullptr;
}

std::shared_ptr<Stream> Executor::any_other_than(const std::shared_ptr<Stream>& stream) {
  std::vector<std::shared_ptr<Stream>> ready;
  for (const std::shared_ptr<Stream>& other : streams_) {
    if (other != stream && other->can_run()) ready.push_back(other);
  }
  return ready.empty() ? nullptr : ready[numbers_() % ready.size()];
}

/// One of those that are waited for; null: there is none.
const Executor::Demand* Executor::draw_demand() {
  std::erase_if(polled_, [](const Demand& demand) { return demand.met(); });
  const std::size_t all = demands_.size() + polled_.size();
  if (all == 0) {
    return nullptr;
  }
  const std::size_t drawn = numbers_() % all;
  return drawn < demands_.size() ? demands_[drawn] : &polled_[drawn - demands_.size()];
}

/// The stream whose first task runs next; null: nothing that somebody waits for can run.
std::shared_ptr<Stream> Executor::choose() {
  const Demand* const drawn = draw_demand();
  if (drawn == nullptr) {
    return nullptr;
  }
  const Demand& demand = *drawn;
  const bool others_first = seed_ == 1 || (seed_ > 1 && numbers_() % 2 == 0);
  const std::shared_ptr<Stream> wanted = needed(demand);
  const std::shared_ptr<Stream> other = others_first || !wanted ? any_other_than(wanted) : nullptr;
  return other ? other : wanted;
}

void Executor::run_first(const std::shared_ptr<Stream>& stream,
                         std::unique_lock<std::mutex>& lock) {
  Task task = std::move(stream->tasks.front());
  // The task stays in the queue, so that the stream is not idle while it runs.
  stream->tasks.front() = {};
  if (task.work && !fault_) {
    lock.unlock();
    std::optional<std::string> found;
    try {
      task.work();
    } catch (const Fault& fault) {
      found = fault.what();
    }
    task.work = {};
    lock.lock();
    if (found && !fault_) {
      fault_ = found;
    }
  }
  if (task.reaches) {
    task.reaches->reached = std::max(task.reaches->reached, task.place);
  }
  if (!stream->tasks.empty()) {  // restart() may have emptied it
    stream->tasks.pop_front();
  }
  changed_.notify_all();
}

void Executor::run() {
  std::unique_lock lock(mutex_);
  runner_ = std::this_thread::get_id();
  while (true) {
    if (const std::shared_ptr<Stream> stream = choose()) {
      run_first(stream, lock);
      continue;
    }
    // A number in memory changes without a notice.
    const bool work =
        std::ranges::any_of(streams_, [](const auto& s) { return !s->tasks.empty(); });
    if (!work) {
      wanted_.wait(lock);
      continue;
    }
    const bool demanded = !demands_.empty() || !polled_.empty();
    const std::int64_t idle = idle_microseconds_;
    wanted_.wait_for(lock, std::chrono::microseconds(demanded || idle == 0 ? 200 : idle));
    if (!demanded && idle != 0) {
      if (const std::shared_ptr<Stream> stream = any_other_than(nullptr)) {
        run_first(stream, lock);
      }
    }
  }
}

}  // namespace emulator
