module;
#include <array>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <tessera/limits.hpp>
#include <tessera/signals.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.device;

import tessera.base;
import :cpu_driver;

namespace tessera {
namespace {

/// A queue and the thread that runs it. The thread keeps it alive, so that what is queued still
/// runs when nobody else holds the queue.
class Worker {
 public:
  static std::shared_ptr<Worker> start() {
    auto worker = std::make_shared<Worker>();
    const ThreadsWithoutSignals quiet;
    start_thread("a stream", [worker] { worker->run(); }).detach();
    return worker;
  }

  void push(std::function<void()> work) {
    const std::lock_guard lock(mutex_);
    work_.push_back(std::move(work));
    changed_.notify_all();
  }

  void finish() {
    const std::lock_guard lock(mutex_);
    finishing_ = true;
    changed_.notify_all();
  }

  /// Returns when all is done that was queued. Raises the first error of it.
  void synchronize() {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [this] { return work_.empty() && !busy_; });
    if (std::exception_ptr error = std::exchange(error_, nullptr)) {
      std::rethrow_exception(error);
    }
  }

 private:
  void run() {
    std::unique_lock lock(mutex_);
    while (true) {
      changed_.wait(lock, [this] { return !work_.empty() || finishing_; });
      if (work_.empty()) {
        return;
      }
      std::function<void()> work = std::move(work_.front());
      work_.pop_front();
      busy_ = true;
      lock.unlock();
      std::exception_ptr error;
      try {
        work();
      } catch (...) {
        error = std::current_exception();
      }
      work = nullptr;  // what it holds goes away before the work counts as done
      lock.lock();
      busy_ = false;
      if (error != nullptr && error_ == nullptr) {
        error_ = error;
      }
      changed_.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::deque<std::function<void()>> work_;
  std::exception_ptr error_;
  bool busy_ = false;
  bool finishing_ = false;
};

/// How often a mark was placed, and which of its places is reached.
class EventCount {
 public:
  std::uint64_t placed() {
    const std::lock_guard lock(mutex_);
    return placed_;
  }
  std::uint64_t place() {
    const std::lock_guard lock(mutex_);
    return ++placed_;
  }
  void reach(std::uint64_t place) {
    const std::lock_guard lock(mutex_);
    reached_ = place > reached_ ? place : reached_;
    changed_.notify_all();
  }
  bool is_reached() {
    const std::lock_guard lock(mutex_);
    return reached_ >= placed_;
  }
  void await(std::uint64_t place) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return reached_ >= place; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint64_t placed_ = 0;
  std::uint64_t reached_ = 0;
};

class CpuDriver final : public DeviceDriver {
 public:
  DeviceProperties properties() const override { return {"the processor", 0}; }

  void* allocate(std::size_t bytes) override {
    return std::aligned_alloc(alignment, (bytes + alignment - 1) / alignment * alignment);
  }
  void free(void* data, std::size_t) noexcept override { std::free(data); }

  Queue make_queue() override { return new std::shared_ptr<Worker>(Worker::start()); }
  void free_queue(Queue queue) noexcept override {
    worker(queue).finish();
    delete static_cast<std::shared_ptr<Worker>*>(queue);
  }
  // Functions of the host end by themselves, and write memory of whoever waits: no check.
  void synchronize(Queue queue, const WaitCheck&) override {
    if (queue != nullptr) {
      worker(queue).synchronize();
    }
  }

  Mark make_mark() override {
    return new std::shared_ptr<EventCount>(std::make_shared<EventCount>());
  }
  void free_mark(Mark mark) noexcept override {
    delete static_cast<std::shared_ptr<EventCount>*>(mark);
  }
  void record(Mark mark, Queue queue) override {
    launch(queue, [place = place(mark), at = place(mark)->place()] { place->reach(at); });
  }
  void wait(Queue queue, Mark mark) override {
    launch(queue, [place = place(mark), at = place(mark)->placed()] { place->await(at); });
  }
  bool reached(Mark mark) override { return place(mark)->is_reached(); }
  void await(Mark mark, const WaitCheck&) override { place(mark)->await(place(mark)->placed()); }

  void copy(Queue queue, void* to, const void* from, std::size_t bytes, CopyKind kind) override {
    if (kind == CopyKind::to_device && queue != nullptr) {
      // The source may be overwritten as soon as this function has returned.
      const auto* first = static_cast<const std::byte*>(from);
      launch(queue, [to, held = std::vector<std::byte>(first, first + bytes)] {
        std::memcpy(to, held.data(), held.size());
      });
      return;
    }
    launch(queue, [to, from, bytes] { std::memmove(to, from, bytes); });
  }

  void fill(Queue queue, void* to, const void* element, std::size_t width,
            std::int64_t count) override {
    std::array<std::byte, 8> held{};
    std::memcpy(held.data(), element, width);
    launch(queue, [to, held, width, count] {
      auto* next = static_cast<std::byte*>(to);
      for (std::int64_t i = 0; i < count; ++i, next += width) {
        std::memcpy(next, held.data(), width);
      }
    });
  }

  void launch(Queue queue, std::function<void()> function) override {
    if (queue == nullptr) {
      function();
    } else {
      worker(queue).push(std::move(function));
    }
  }

 private:
  static constexpr std::size_t alignment = 512;
  static Worker& worker(Queue queue) { return **static_cast<std::shared_ptr<Worker>*>(queue); }
  static std::shared_ptr<EventCount> place(Mark mark) {
    return *static_cast<std::shared_ptr<EventCount>*>(mark);
  }
};

}  // namespace

std::unique_ptr<DeviceDriver> make_cpu_driver() { return std::make_unique<CpuDriver>(); }

}  // namespace tessera
