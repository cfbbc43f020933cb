#include "parallel.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <tessera/limits.hpp>
#include <tessera/signals.hpp>
#include <utility>

namespace tessera::kernels {
namespace {

using Body = FunctionRef<void(std::int64_t)>;

/// For how long who waits spins before it sleeps. The loops of a training step follow each other
/// sooner, and a thread that is woken may have to wait for a core.
constexpr std::chrono::milliseconds kSpin{2};

struct ThreadState {
  int threads = 1;      // that its loops use
  bool inside = false;  // of a parallel loop
  int number = 0;       // of a worker, from 1 on
};
thread_local constinit ThreadState thread_state;

[[gnu::always_inline]] inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

enum class Spin : std::uint8_t { keep_core, yield_core };

/// Spins until ready() or for kSpin.
template <class Ready>
bool spin_until(Spin how, Ready ready) {
  const auto start = std::chrono::steady_clock::now();
  for (int round = 0;; ++round) {
    for (int i = 0; i < 64; ++i) {
      if (ready()) return true;
      pause();
    }
    if (std::chrono::steady_clock::now() - start > kSpin) return false;
    if (how == Spin::yield_core && round >= 8) sched_yield();
  }
}

/// The cores that the calling thread may use.
int usable_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof(cores), &cores) == 0 ? CPU_COUNT(&cores) : 1;
}

/// Workers of one calling thread. A job is a number of pieces. The caller and whichever workers
/// are awake take pieces until none is left, so the caller waits only for pieces that a worker has
/// begun, never for a worker that sleeps or that has lost its core.
class Pool {
 public:
  explicit Pool(int workers) : spin_(workers < usable_cores()) {
    const ThreadsWithoutSignals quiet;
    try {
      for (int i = 0; i < workers; ++i)
        threads_.start("kernels", [this, i] {
          thread_state.number = i + 1;
          work();
        });
    } catch (...) {
      end();
      throw;
    }
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() { end(); }

  void run(std::uint32_t pieces, Body body) {
    body_ = &body;
    pieces_ = pieces;
    finished_.store(0, std::memory_order_relaxed);
    failed_.store(false, std::memory_order_relaxed);
    job_.store((job_.load(std::memory_order_relaxed) & ~kLeft) + kNextJob + pieces);
    if (sleeping_.load() > 0) {
      {
        const std::lock_guard lock(mutex_);
      }
      wake_.notify_all();
    }
    take_pieces();
    const auto finished = [&] { return finished_.load() == pieces; };
    // A worker with the last piece may share the caller's core.
    if (!finished() && !(spin_ && spin_until(Spin::yield_core, finished))) {
      std::unique_lock lock(mutex_);
      caller_sleeps_.store(true);
      done_.wait(lock, finished);
      caller_sleeps_.store(false);
    }
    if (failed_.load(std::memory_order_relaxed)) std::rethrow_exception(std::exchange(error_, {}));
  }

 private:
  // A job's number in the upper half of a word, the pieces that nobody has taken in the lower half:
  // a piece is taken by a compare-and-swap, which fails where the job has changed meanwhile.
  static constexpr std::uint64_t kNextJob = std::uint64_t{1} << 32;
  static constexpr std::uint64_t kLeft = kNextJob - 1;

  void end() {
    {
      const std::lock_guard lock(mutex_);
      stop_.store(true);
    }
    wake_.notify_all();
    threads_.join();
  }

  void work() {
    thread_state.inside = true;
    std::uint64_t seen = 0;
    while (true) {
      const auto called = [&] { return (job_.load() & ~kLeft) != seen || stop_.load(); };
      if (!(spin_ && spin_until(Spin::keep_core, called))) {
        std::unique_lock lock(mutex_);
        sleeping_.fetch_add(1);
        wake_.wait(lock, called);
        sleeping_.fetch_sub(1);
      }
      if (stop_.load()) return;
      seen = job_.load() & ~kLeft;
      take_pieces();
    }
  }

  void take_pieces() {
    std::uint64_t job = job_.load();
    while ((job & kLeft) != 0) {
      if (!job_.compare_exchange_weak(job, job - 1)) continue;
      // The job ends only after this piece, so body_ and pieces_ stay.
      const std::uint32_t pieces = pieces_;
      try {
        if (!failed_.load(std::memory_order_relaxed)) {
          (*body_)(static_cast<std::int64_t>(pieces - (job & kLeft)));
        }
      } catch (...) {
        const std::lock_guard lock(mutex_);
        if (!failed_.exchange(true)) error_ = std::current_exception();
      }
      if (finished_.fetch_add(1) + 1 == pieces && caller_sleeps_.load()) {
        {
          const std::lock_guard lock(mutex_);
        }
        done_.notify_one();
      }
      job = job_.load();
    }
  }

  Threads threads_;
  const bool spin_;  // with more threads than cores, who spins keeps others from working
  const Body* body_ = nullptr;
  std::uint32_t pieces_ = 0;
  alignas(64) std::atomic<std::uint64_t> job_{0};
  alignas(64) std::atomic<std::uint32_t> finished_{0};
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;
  alignas(64) std::atomic<int> sleeping_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
};

thread_local std::unique_ptr<Pool> pool;

/// A forked process has no workers: it forgets the pool (whose locks they may have held) and makes
/// its own.
void forget_pool_after_fork() {
  static_cast<void>(pool.release());  // NOLINT(bugprone-unused-return-value): see above
}

Pool& own_pool() {
  static const int registered = pthread_atfork(nullptr, nullptr, &forget_pool_after_fork);
  static_cast<void>(registered);
  if (!pool) pool = std::make_unique<Pool>(thread_state.threads - 1);
  return *pool;
}

class InsideScope {
 public:
  InsideScope() { thread_state.inside = true; }
  InsideScope(const InsideScope&) = delete;
  InsideScope& operator=(const InsideScope&) = delete;
  ~InsideScope() { thread_state.inside = false; }
};

}  // namespace

void set_threads(int count) {
  const int wanted = std::max(1, count);
  if (thread_state.inside) {
    throw std::logic_error("set_threads: cannot be called by the body of a parallel loop");
  }
  if (wanted != thread_state.threads) pool.reset();
  thread_state.threads = wanted;
}

int threads() { return thread_state.inside ? 1 : thread_state.threads; }

int thread_number() { return thread_state.number; }

void detail::parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                          FunctionRef<void(std::int64_t, std::int64_t)> body) {
  const std::int64_t step = std::max<std::int64_t>(1, grain);
  const std::int64_t grains = (end - begin + step - 1) / step;
  // A few pieces a thread even out unequal work, and cores that others use as well.
  const std::int64_t pieces =
      std::min<std::int64_t>(grains, std::int64_t{4} * thread_state.threads);
  Pool& workers = own_pool();
  const InsideScope inside;
  workers.run(static_cast<std::uint32_t>(pieces), [&](std::int64_t piece) {
    const std::int64_t first = begin + grains * piece / pieces * step;
    const std::int64_t last = std::min(end, begin + grains * (piece + 1) / pieces * step);
    body(first, last);
  });
}

}  // namespace tessera::kernels
