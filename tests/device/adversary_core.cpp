// A device as hard to use as the interface allows: the host cannot touch its memory
// (which is mapped twice: without any access at the addresses that the host knows, and for the
// kernels at others), and its queues run as late as they can, in as odd an order as events permit.
// Nothing runs before somebody waits for it. Device 0 then runs the least that is needed, the queue
// that is waited for first; device 1 runs everything else before; further devices draw the order
// from their number.
//
// An operator's kernel is that of the CPU, queued: it runs on views of the kernels' mapping, which
// keep nothing alive.
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <deque>
#include <exception>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.tensor;

#include "adversary.hpp"

namespace {

using namespace tessera;

/// The memory of all these devices.
class Arena {
 public:
  static constexpr std::size_t size = std::size_t{4} << 30;

  static Arena& instance() {
    static auto* arena = new Arena;
    return *arena;
  }

  void* allocate(std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const std::size_t wanted = (bytes + step - 1) / step * step;
    for (auto hole = holes_.begin(); hole != holes_.end(); ++hole) {
      if (hole->second >= wanted) {
        const auto [begin, length] = *hole;
        holes_.erase(hole);
        if (length > wanted) {
          holes_[begin + wanted] = length - wanted;
        }
        std::memset(hidden_ + begin, 0xff, bytes);  // NaN, where somebody reads it too early
        return closed_ + begin;
      }
    }
    return nullptr;
  }

  void free(void* data, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    const auto begin = static_cast<std::size_t>(static_cast<std::byte*>(data) - closed_);
    const std::size_t length = (bytes + step - 1) / step * step;
    madvise(hidden_ + begin, length, MADV_REMOVE);
    const auto [here, fresh] = holes_.emplace(begin, length);
    const auto after = std::next(here);
    if (after != holes_.end() && here->first + here->second == after->first) {
      here->second += after->second;
      holes_.erase(after);
    }
    if (here != holes_.begin()) {
      const auto before = std::prev(here);
      if (before->first + before->second == here->first) {
        before->second += here->second;
        holes_.erase(here);
      }
    }
  }

  /// Where the kernels find what the host knows by this address.
  void* hidden(const void* data) const {
    return hidden_ + (static_cast<const std::byte*>(data) - closed_);
  }

 private:
  static constexpr std::size_t step = std::size_t{1} << 20;

  Arena() {
    const int file = memfd_create("adversary", MFD_CLOEXEC);
    if (file < 0 || ftruncate(file, static_cast<off_t>(size)) != 0) {
      fail("adversary: there is no memory for the device; check the limits of the process");
    }
    void* open = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    void* closed = mmap(nullptr, size, PROT_NONE, MAP_SHARED | MAP_NORESERVE, file, 0);
    close(file);
    if (open == MAP_FAILED || closed == MAP_FAILED) {
      fail("adversary: its memory cannot be mapped; check the limits of the process");
    }
    hidden_ = static_cast<std::byte*>(open);
    closed_ = static_cast<std::byte*>(closed);
    holes_[0] = size;
  }

  std::mutex mutex_;
  std::map<std::size_t, std::size_t> holes_;
  std::byte* hidden_ = nullptr;
  std::byte* closed_ = nullptr;
};

struct Place {
  std::uint64_t placed = 0;
  std::uint64_t reached = 0;
};

/// Work, a mark that is reached, or a mark that is waited for.
struct Task {
  std::function<bool()> work;  // called again until it is done
  std::shared_ptr<Place> reaches;
  std::shared_ptr<Place> awaits;
  std::uint64_t place = 0;

  bool can_run() const { return !awaits || awaits->reached >= place; }
};

struct WorkQueue {
  int device = 0;
  std::deque<Task> tasks;
  bool running = false;  // the first task, without the lock
  std::exception_ptr error;

  bool can_run() const { return !running && !tasks.empty() && tasks.front().can_run(); }
};

/// The queues of all devices of the kind, run by whoever waits for one.
class Queues {
 public:
  static Queues& instance() {
    static auto* queues = new Queues;
    return *queues;
  }

  std::shared_ptr<WorkQueue> make(int device) {
    const std::lock_guard lock(mutex_);
    std::erase_if(all_, [](const auto& q) { return q.use_count() == 1 && q->tasks.empty(); });
    all_.push_back(std::make_shared<WorkQueue>());
    all_.back()->device = device;
    return all_.back();
  }
  void push(WorkQueue& queue, Task task) {
    const std::lock_guard lock(mutex_);
    queue.tasks.push_back(std::move(task));
  }
  void record(WorkQueue& queue, const std::shared_ptr<Place>& mark) {
    const std::lock_guard lock(mutex_);
    queue.tasks.push_back({.work = {}, .reaches = mark, .awaits = {}, .place = ++mark->placed});
  }
  void wait(WorkQueue& queue, const std::shared_ptr<Place>& mark) {
    const std::lock_guard lock(mutex_);
    queue.tasks.push_back({.work = {}, .reaches = {}, .awaits = mark, .place = mark->placed});
  }
  bool reached(const Place& mark) {
    const std::lock_guard lock(mutex_);
    return mark.reached >= mark.placed;
  }

  void synchronize(const std::shared_ptr<WorkQueue>& queue, int device, const WaitCheck& check) {
    run({.done = [queue] { return queue->tasks.empty(); }, .wanted = [queue] { return queue; }},
        device, check);
    raise(*queue);
  }
  void await(const std::shared_ptr<Place>& mark, int device, const WaitCheck& check) {
    std::uint64_t place = 0;
    {
      const std::lock_guard lock(mutex_);
      place = mark->placed;
    }
    const auto last = std::make_shared<std::shared_ptr<WorkQueue>>();
    run({.done = [mark, place] { return mark->reached >= place; },
         .wanted = [this, mark, place, last] { return *last = holder(mark, place); }},
        device, check);
    if (*last != nullptr) {
      raise(**last);
    }
  }
  /// Runs one task of the device, if one can run, on a thread that has nothing of the caller's. A
  /// task may wait for other ranks, of which the caller may be one, so nobody waits for its end.
  /// Whether there are more.
  bool poll(int device) {
    std::unique_lock lock(mutex_);
    const auto of_device = [&](const auto& q) { return q->device == device; };
    const std::vector<std::shared_ptr<WorkQueue>> queues = all_;  // kept while tasks run
    for (const std::shared_ptr<WorkQueue>& queue : queues) {
      if (of_device(queue) && queue->can_run() && begin_first(queue, lock) != Begun::waits) {
        break;
      }
    }
    return std::ranges::any_of(all_,
                               [&](const auto& q) { return of_device(q) && !q->tasks.empty(); });
  }

 private:
  /// The queue in which the mark's place is still to be reached; null: it has just been.
  std::shared_ptr<WorkQueue> holder(const std::shared_ptr<Place>& mark, std::uint64_t place) {
    for (const std::shared_ptr<WorkQueue>& queue : all_) {
      for (const Task& task : queue->tasks) {
        if (task.reaches == mark && task.place >= place) {
          return queue;
        }
      }
    }
    if (mark->reached >= place) {
      return nullptr;
    }
    fail("adversary: nobody will ever reach an event that is waited for");
  }

  void raise(WorkQueue& queue) {
    const std::lock_guard lock(mutex_);
    if (std::exception_ptr error = std::exchange(queue.error, nullptr)) {
      std::rethrow_exception(error);
    }
  }

  /// Of the same device: a collective of another one waits for what its rank has not queued yet.
  std::shared_ptr<WorkQueue> any_that_can_run(std::mt19937& numbers, int device) {
    std::vector<std::shared_ptr<WorkQueue>> ready;
    for (const std::shared_ptr<WorkQueue>& queue : all_) {
      if (queue->device == device && queue->can_run()) {
        ready.push_back(queue);
      }
    }
    return ready.empty() ? nullptr : ready[numbers() % ready.size()];
  }

  /// The queue whose first task must run so that the wanted one can go on; null: another thread
  /// runs it.
  std::shared_ptr<WorkQueue> needed(std::shared_ptr<WorkQueue> wanted) {
    while (wanted != nullptr && !wanted->running && !wanted->tasks.empty() &&
           !wanted->tasks.front().can_run()) {
      const Task& waiting = wanted->tasks.front();
      wanted = holder(waiting.awaits, waiting.place);
    }
    return wanted == nullptr || !wanted->can_run() ? nullptr : wanted;
  }

  /// The task runs without the lock: it may be a collective, which waits for tasks of other ranks.
  /// Whether it is done.
  bool run_first(WorkQueue& queue, std::unique_lock<std::mutex>& lock) {
    Task& first = queue.tasks.front();  // stays at its place while others push
    bool done = true;
    queue.running = true;
    if (first.work) {
      lock.unlock();
      std::exception_ptr error;
      try {
        done = first.work();
        if (done) {
          first.work = nullptr;  // what it holds goes away without the lock
        }
      } catch (...) {
        error = std::current_exception();
      }
      lock.lock();
      if (queue.error == nullptr) {
        queue.error = error;
      }
    }
    queue.running = false;
    if (done) {
      if (first.reaches) {
        first.reaches->reached = std::max(first.reaches->reached, first.place);
      }
      queue.tasks.pop_front();
    }
    changed_.notify_all();
    return done;
  }

  enum class Begun { runs, waits, ends };
  /// Begins the first task on a thread of its own. Returns when the task has ended, has to be
  /// called again, or runs for a while.
  Begun begin_first(const std::shared_ptr<WorkQueue>& queue, std::unique_lock<std::mutex>& lock) {
    const auto begun = std::make_shared<Begun>(Begun::runs);
    queue->running = true;  // nobody else takes it until the thread has it
    std::thread([this, queue, begun] {
      const NoGrad constant;
      std::unique_lock own(mutex_);
      *begun = run_first(*queue, own) ? Begun::ends : Begun::waits;
      changed_.notify_all();
    }).detach();
    changed_.wait_for(lock, std::chrono::milliseconds(1), [&] { return *begun != Begun::runs; });
    return *begun;
  }

  /// A wait of the host: owns what it looks at, as its thread may outlive it.
  struct Wait {
    std::function<bool()> done;
    std::function<std::shared_ptr<WorkQueue>()> wanted;
    bool left = false;      // the host does not wait any more
    bool finished = false;  // nor does the thread work
    std::exception_ptr error = nullptr;
  };

  /// Runs tasks until the wait is done, on a thread of its own, which is left behind with a task
  /// that does not end when `check` raises an error.
  void run(Wait wait, int device, const WaitCheck& check) {
    {
      const std::lock_guard lock(mutex_);
      if (wait.done()) {
        return;
      }
    }
    const auto state = std::make_shared<Wait>(std::move(wait));
    std::thread worker([this, state, device] {
      const NoGrad constant;
      std::unique_lock lock(mutex_);
      try {
        work(*state, device, lock);
      } catch (...) {
        state->error = std::current_exception();
      }
      state->finished = true;
      changed_.notify_all();
    });
    std::unique_lock lock(mutex_);
    while (!state->finished) {
      changed_.wait_for(lock, std::chrono::milliseconds(5));
      if (state->finished) {
        break;
      }
      lock.unlock();
      try {
        check();
      } catch (...) {
        lock.lock();
        state->left = true;
        changed_.notify_all();
        worker.detach();
        throw;
      }
      lock.lock();
    }
    lock.unlock();
    worker.join();
    if (state->error != nullptr) {
      std::rethrow_exception(state->error);
    }
  }

  void work(Wait& wait, int device, std::unique_lock<std::mutex>& lock) {
    std::mt19937& numbers = numbers_[static_cast<std::size_t>(device)];
    const bool others_first = device == 1 || (device > 1 && numbers() % 2 == 0);
    while (!wait.done() && !wait.left) {
      std::shared_ptr<WorkQueue> queue =
          others_first ? other_than(wait.wanted(), numbers, device) : nullptr;
      queue = queue != nullptr ? queue : needed(wait.wanted());
      if (queue == nullptr) {
        changed_.wait_for(lock, std::chrono::milliseconds(10));
      } else if (!run_first(*queue, lock)) {
        // It waits for other members of a group, which may wait for another queue of this device.
        if (const auto other = other_than(queue, numbers, device)) {
          run_first(*other, lock);
        }
        changed_.wait_for(lock, std::chrono::microseconds(50));
      }
    }
  }

  /// Another queue that can run; null: there is none.
  std::shared_ptr<WorkQueue> other_than(const std::shared_ptr<WorkQueue>& wanted,
                                        std::mt19937& numbers, int device) {
    for (int tries = 0; tries < 8; ++tries) {
      std::shared_ptr<WorkQueue> queue = any_that_can_run(numbers, device);
      if (queue != wanted) {
        return queue;
      }
    }
    return nullptr;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::shared_ptr<WorkQueue>> all_;
  std::array<std::mt19937, 64> numbers_ = [] {
    std::array<std::mt19937, 64> all;
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i].seed(static_cast<unsigned>(i));
    }
    return all;
  }();
};

class Adversary final : public DeviceDriver {
 public:
  explicit Adversary(int index) : index_(index), usual_(Queues::instance().make(index)) {}

  DeviceProperties properties() const override {
    return {"adversary " + std::to_string(index_), Arena::size};
  }

  void* allocate(std::size_t bytes) override { return Arena::instance().allocate(bytes); }
  void free(void* data, std::size_t bytes) noexcept override {
    Arena::instance().free(data, bytes);
  }

  Queue make_queue() override {
    return new std::shared_ptr<WorkQueue>(Queues::instance().make(index_));
  }
  void free_queue(Queue queue) noexcept override {
    delete static_cast<std::shared_ptr<WorkQueue>*>(queue);
  }
  void synchronize(Queue queue, const WaitCheck& check) override {
    Queues::instance().synchronize(of(queue), index_, check);
  }

  Mark make_mark() override { return new std::shared_ptr<Place>(std::make_shared<Place>()); }
  void free_mark(Mark mark) noexcept override { delete static_cast<std::shared_ptr<Place>*>(mark); }
  void record(Mark mark, Queue queue) override {
    Queues::instance().record(*of(queue), place_of(mark));
  }
  void wait(Queue queue, Mark mark) override {
    Queues::instance().wait(*of(queue), place_of(mark));
  }
  bool reached(Mark mark) override { return Queues::instance().reached(*place_of(mark)); }
  void await(Mark mark, const WaitCheck& check) override {
    Queues::instance().await(place_of(mark), index_, check);
  }

  void copy(Queue queue, void* to, const void* from, std::size_t bytes, CopyKind kind) override {
    const Arena& arena = Arena::instance();
    if (kind == CopyKind::to_device) {
      const auto* first = static_cast<const std::byte*>(from);
      launch(queue, [to = arena.hidden(to), held = std::vector<std::byte>(first, first + bytes)] {
        std::memcpy(to, held.data(), held.size());
      });
      return;
    }
    void* there = kind == CopyKind::to_host ? to : arena.hidden(to);
    const void* here = kind == CopyKind::from_pinned ? from : arena.hidden(from);
    launch(queue, [there, here, bytes] { std::memmove(there, here, bytes); });
  }
  void fill(Queue queue, void* to, const void* element, std::size_t width,
            std::int64_t count) override {
    std::array<std::byte, 8> held{};
    std::memcpy(held.data(), element, width);
    launch(queue, [to = Arena::instance().hidden(to), held, width, count] {
      auto* next = static_cast<std::byte*>(to);
      for (std::int64_t i = 0; i < count; ++i, next += width) {
        std::memcpy(next, held.data(), width);
      }
    });
  }
  bool poll() override { return Queues::instance().poll(index_); }
  void launch(Queue queue, std::function<void()> function) override {
    launch_steps(queue, [function = std::move(function)] {
      function();
      return true;
    });
  }
  void launch_steps(Queue queue, std::function<bool()> step) {
    Queues::instance().push(*of(queue),
                            {.work = std::move(step), .reaches = {}, .awaits = {}, .place = 0});
  }

 private:
  const std::shared_ptr<WorkQueue>& of(Queue queue) const {
    return queue == nullptr ? usual_ : *static_cast<std::shared_ptr<WorkQueue>*>(queue);
  }
  static std::shared_ptr<Place> place_of(Mark mark) {
    return *static_cast<std::shared_ptr<Place>*>(mark);
  }

  int index_;
  std::shared_ptr<WorkQueue> usual_;
};

/// The tensor as the CPU's kernel sees it, over the kernels' mapping.
Tensor seen_by_kernel(const Tensor& x) {
  const Storage& storage = x.storage();
  void* data = storage.data() == nullptr ? nullptr : Arena::instance().hidden(storage.data());
  return from_storage(Storage::borrow(data, storage.bytes()), x.shape(), x.strides(), x.offset(),
                      x.dtype());
}

/// A call that waits in a queue.
struct Queued {
  const Op& op;
  Attributes attributes;
  std::vector<Tensor> in;
  std::vector<Tensor> out;
  std::span<std::byte> workspace;
};

/// The kernel of every operator.
void queue_kernel(const Call& call, std::span<Tensor> out) {
  auto queued = std::make_shared<Queued>(Queued{call.op, call.attributes, {}, {}, {}});
  if (!call.workspace.empty()) {
    queued->workspace = {static_cast<std::byte*>(Arena::instance().hidden(call.workspace.data())),
                         call.workspace.size()};
  }
  for (const Tensor& x : call.in) {
    queued->in.push_back(x ? seen_by_kernel(x) : x);
  }
  for (const Tensor& x : out) {
    const auto same = std::ranges::find_if(call.in, [&](const Tensor& y) { return y.same_as(x); });
    queued->out.push_back(same == call.in.end()
                              ? seen_by_kernel(x)
                              : queued->in[static_cast<std::size_t>(same - call.in.begin())]);
  }
  current_stream(out[0].device()).launch([queued, rank = current_rank()] {
    set_current_rank(rank);  // random numbers follow from the rank's place in the mesh
    queued->op.cpu({queued->op, queued->in, queued->attributes, queued->workspace}, queued->out);
  });
}

DeviceKernel kernel_for(const Op& op) {
  if (op.cpu == nullptr || op.name.starts_with("no_kernel_")) {
    return {};  // tests of what is missing register such operators
  }
  if (op.name.starts_with("own_workspace_")) {
    return {queue_kernel, [](const Call&, std::span<const Tensor>) { return std::size_t{4096}; }};
  }
  // Collectives are left to Tessera; so is the wait for them, which must see the tensors of the
  // program.
  return op.any_device != nullptr ? DeviceKernel() : DeviceKernel{queue_kernel, op.workspace};
}

}  // namespace

namespace adversary {

DeviceOffer offer() {
  return {
      .count = 64,
      .open = [](int index) { return std::make_unique<Adversary>(index); },
      .kernel_of = kernel_for,
      .shared = true,
  };
}

void* kernel_address(const void* data) { return Arena::instance().hidden(data); }

void launch_steps(Device device, DeviceDriver::Queue queue, std::function<bool()> step) {
  static_cast<Adversary&>(driver_of(device)).launch_steps(queue, std::move(step));
}

}  // namespace adversary
