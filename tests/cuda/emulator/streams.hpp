// Streams and events: work that runs late, and in as odd an order as events permit.
#pragma once
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <vector>

namespace emulator {

/// Times that an event was recorded, and which of them is reached.
struct Event {
  std::uint64_t placed = 0;
  std::uint64_t reached = 0;
  int queries = 0;  // that did not find it reached, since it was last placed
};

/// One of: work, an event that is reached, an event that is waited for, a number in memory that is
/// waited for.
struct Task {
  std::function<void()> work = {};
  std::shared_ptr<Event> reaches = {};
  std::shared_ptr<Event> awaits = {};
  std::uint64_t place = 0;
  std::function<bool()> ready = {};
  bool of_host = false;  // a function of the host

  bool can_run() const { return awaits ? awaits->reached >= place : ready ? ready() : true; }
};

/// Tasks that were recorded instead of queued.
struct Recording {
  std::vector<Task> tasks;
  bool invalid = false;  // something was called that a recording does not take
};

struct Stream {
  int device = 0;
  int number = 0;
  int priority = 0;
  std::deque<Task> tasks;
  bool destroyed = false;                // its tasks still run
  std::shared_ptr<Recording> recording;  // null: what is pushed is queued

  bool can_run() const { return !tasks.empty() && tasks.front().can_run(); }
};

/// Runs the tasks of all streams, on one thread. A stream takes so many tasks (Modes::places); who
/// adds another one waits until there is room. While nobody waits, a task begins only after
/// TESSERA_EMULATOR_IDLE microseconds (2000; 0: never). Who asks for an event again and again waits
/// for it too. Where somebody waits, the seed
/// (TESSERA_EMULATOR_SEED) says which stream is next: 0: the one that is needed, 1: any other one
/// first, else drawn.
class Executor {
 public:
  static Executor& instance();

  std::shared_ptr<Stream> make(int device);
  void destroy(Stream& stream);
  /// Queues work, or adds it to the stream's recording.
  void push(Stream& stream, Task task);
  void push_all(Stream& stream, const std::vector<Task>& tasks);
  void record(Stream& stream, const std::shared_ptr<Event>& event);
  void wait(Stream& stream, const std::shared_ptr<Event>& event);

  /// Whether all tasks of the stream are done.
  bool idle(Stream& stream);
  /// Whether the stream takes another task now. Who asks again and again waits for it.
  bool has_room(Stream& stream);
  bool reached(const std::shared_ptr<Event>& event);
  /// Blocks until they are done, or a fault was found.
  void synchronize(const std::shared_ptr<Stream>& stream);
  void synchronize(const std::shared_ptr<Event>& event);
  void synchronize_device(int device);

  /// The first fault that was found. From then on, tasks do nothing.
  std::optional<std::string> fault();
  void set_fault(const std::string& text);
  /// Drops all work and forgets the fault, as a new process would.
  void restart();
  std::uint64_t seed() const { return seed_; }
  void set_seed(std::uint64_t seed);
  void set_idle_microseconds(std::int64_t time);

 private:
  /// What a thread of the host waits for: that a stream has no more tasks than `left`, or an
  /// event's place.
  struct Demand {
    std::shared_ptr<Stream> stream;
    std::shared_ptr<Event> event;
    std::uint64_t place = 0;
    std::size_t left = 0;
    bool met() const { return stream ? stream->tasks.size() <= left : event->reached >= place; }
  };

  Executor();
  void run();
  void await(const Demand& demand);
  void await(const Demand& demand, std::unique_lock<std::mutex>& lock);
  void await_room(Stream& stream, std::unique_lock<std::mutex>& lock);
  const Demand* draw_demand();
  std::shared_ptr<Stream> choose();
  std::shared_ptr<Stream> needed(const Demand& demand);
  std::shared_ptr<Stream> any_other_than(const std::shared_ptr<Stream>& stream);
  void run_first(const std::shared_ptr<Stream>& stream, std::unique_lock<std::mutex>& lock);

  std::mutex mutex_;
  std::condition_variable changed_, wanted_;
  std::thread::id runner_;
  std::vector<std::shared_ptr<Stream>> streams_;
  std::vector<const Demand*> demands_;
  std::vector<Demand> polled_;  // by queries
  std::optional<std::string> fault_;
  std::mt19937_64 numbers_;
  std::uint64_t seed_ = 2;
  std::int64_t idle_microseconds_ = 2000;
  int made_ = 0;
};

}  // namespace emulator
