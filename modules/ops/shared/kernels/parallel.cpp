#include "parallel.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

// libgomp's, where oneDNN brings it; its setting belongs to the calling thread, as ours does.
extern "C" void omp_set_num_threads(int count) __attribute__((weak));

namespace tessera::kernels {
namespace {

/// Workers of one calling thread. They sleep on a condition variable between jobs.
class Pool {
 public:
  explicit Pool(int workers) {
    threads_.reserve(static_cast<std::size_t>(workers));
    for (int i = 0; i < workers; ++i) threads_.emplace_back([this] { work(); });
  }

  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  ~Pool() {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_all();
    for (std::thread& thread : threads_) thread.join();
  }

  void run(std::int64_t pieces, FunctionRef<void(std::int64_t)> body) {
    next_.store(0, std::memory_order_relaxed);
    {
      const std::lock_guard lock(mutex_);
      body_ = &body;
      pieces_ = pieces;
      running_ = static_cast<int>(threads_.size());
      ++generation_;
    }
    wake_.notify_all();
    take_pieces(body, pieces);
    std::unique_lock lock(mutex_);
    done_.wait(lock, [this] { return running_ == 0; });
    body_ = nullptr;
    if (error_) std::rethrow_exception(std::exchange(error_, nullptr));
  }

 private:
  void work();

  void take_pieces(FunctionRef<void(std::int64_t)> body, std::int64_t pieces) {
    try {
      for (std::int64_t piece = next_.fetch_add(1); piece < pieces; piece = next_.fetch_add(1)) {
        body(piece);
      }
    } catch (...) {
      next_.store(pieces);
      const std::lock_guard lock(mutex_);
      if (!error_) error_ = std::current_exception();
    }
  }

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::condition_variable done_;
  const FunctionRef<void(std::int64_t)>* body_ = nullptr;
  std::int64_t pieces_ = 0;
  int running_ = 0;
  std::uint64_t generation_ = 0;
  bool stop_ = false;
  std::exception_ptr error_;
  std::atomic<std::int64_t> next_{0};
};

thread_local int thread_count = 1;
thread_local bool inside_parallel = false;
thread_local std::unique_ptr<Pool> pool;

void Pool::work() {
  inside_parallel = true;
  std::uint64_t seen = 0;
  std::unique_lock lock(mutex_);
  while (true) {
    wake_.wait(lock, [&] { return stop_ || generation_ != seen; });
    if (stop_) return;
    seen = generation_;
    const FunctionRef<void(std::int64_t)> body = *body_;
    const std::int64_t pieces = pieces_;
    lock.unlock();
    take_pieces(body, pieces);
    lock.lock();
    if (--running_ == 0) done_.notify_one();
  }
}

}  // namespace

void set_threads(int count) {
  const int wanted = std::max(1, count);
  if (wanted != thread_count) pool.reset();
  thread_count = wanted;
  if (omp_set_num_threads != nullptr) omp_set_num_threads(wanted);
}

int threads() { return inside_parallel ? 1 : thread_count; }

void detail::parallel_for(std::int64_t begin, std::int64_t end, std::int64_t grain,
                          FunctionRef<void(std::int64_t, std::int64_t)> body) {
  const std::int64_t step = std::max<std::int64_t>(1, grain);
  const std::int64_t grains = (end - begin + step - 1) / step;
  // A few pieces a thread even out unequal work.
  const std::int64_t pieces = std::min<std::int64_t>(grains, std::int64_t{4} * thread_count);
  if (!pool) pool = std::make_unique<Pool>(thread_count - 1);
  inside_parallel = true;
  const auto piece_body = [&](std::int64_t piece) {
    const std::int64_t first = begin + grains * piece / pieces * step;
    const std::int64_t last = std::min(end, begin + grains * (piece + 1) / pieces * step);
    body(first, last);
  };
  try {
    pool->run(pieces, piece_body);
  } catch (...) {
    inside_parallel = false;
    throw;
  }
  inside_parallel = false;
}

}  // namespace tessera::kernels
