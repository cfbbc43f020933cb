#include "shared/kernels/parallel.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <thread>
#include <vector>

#include "check.hpp"
#include "in_workspace.hpp"
#include "matmul/kernels/gemm.hpp"

using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

/// The threads of this test; one thread again at its end.
class Threads {
 public:
  explicit Threads(int count) { set_threads(count); }
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;
  ~Threads() { set_threads(1); }
};

/// How often each of `count` elements was visited by loops of pieces of `grain`.
std::vector<int> visits(std::int64_t count, std::int64_t grain) {
  std::vector<int> times(static_cast<std::size_t>(count));
  parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) ++times[static_cast<std::size_t>(i)];
  });
  return times;
}

bool all_once(const std::vector<int>& times) {
  return std::all_of(times.begin(), times.end(), [](int n) { return n == 1; });
}

std::ptrdiff_t threads_of_process() {
  // A thread that was joined stays for a moment: the smallest number of some looks.
  std::ptrdiff_t least = std::numeric_limits<std::ptrdiff_t>::max();
  for (int look = 0; look < 20; ++look) {
    least =
        std::min(least, std::distance(std::filesystem::directory_iterator("/proc/self/task"), {}));
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return least;
}

}  // namespace

TEST_CASE("a parallel loop visits every element once", "[parallel]") {
  for (const int count : {1, 2, 3, 8}) {
    const Threads threads(count);
    for (int round = 0; round < 200; ++round) {
      for (const std::int64_t size : {1, 2, 7, 1000}) {
        for (const std::int64_t grain : {1, 3, 2000}) CHECK(all_once(visits(size, grain)));
      }
    }
  }
}

TEST_CASE("a loop within a parallel loop runs in its thread", "[parallel]") {
  const Threads threads(3);
  std::vector<std::vector<int>> times(50);
  std::atomic<int> foreign{0};
  std::atomic<int> many{0};
  parallel_for(0, 50, 1, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto self = std::this_thread::get_id();
      if (tessera::kernels::threads() != 1) ++many;
      parallel_for(0, 100, 1, [&](std::int64_t, std::int64_t) {
        if (std::this_thread::get_id() != self) ++foreign;
      });
      times[static_cast<std::size_t>(i)] = visits(100, 1);
    }
  });
  CHECK(foreign == 0);
  CHECK(many == 0);
  CHECK(std::all_of(times.begin(), times.end(), all_once));
  CHECK(tessera::kernels::threads() == 3);
}

TEST_CASE("an error of a parallel loop reaches the caller, and the next loop works", "[parallel]") {
  const Threads threads(3);
  for (int round = 0; round < 50; ++round) {
    CHECK_THROWS_AS(parallel_for(0, 12, 1,
                                 [](std::int64_t begin, std::int64_t) {
                                   if (begin % 2 == 0) throw std::out_of_range("one piece");
                                 }),
                    std::out_of_range);
    CHECK(all_once(visits(1000, 1)));
  }
  CHECK_THROWS_AS(parallel_for(0, 2, 1, [](std::int64_t, std::int64_t) { set_threads(2); }),
                  std::logic_error);
  CHECK(all_once(visits(1000, 1)));
}

TEST_CASE("ranks that are threads of one process have pools of their own", "[parallel]") {
  std::atomic<int> wrong{0};
  std::vector<std::thread> ranks;
  for (int rank = 0; rank < 4; ++rank) {
    ranks.emplace_back([&wrong, rank] {
      if (threads() != 1) ++wrong;
      set_threads(1 + rank);
      for (int round = 0; round < 300; ++round) {
        if (!all_once(visits(257, 1))) ++wrong;
      }
      if (threads() != 1 + rank) ++wrong;
    });
  }
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == 0);
}

#if !__has_feature(thread_sanitizer)  // it ends a process that starts threads after a fork
// The launcher forks the ranks.
TEST_CASE("a forked process makes workers of its own", "[parallel]") {
  const Threads threads(2);
  CHECK(all_once(visits(1000, 1)));
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);  // a loop that waits for the parent's workers ends the child
    const bool once = all_once(visits(1000, 1));
    set_threads(3);
    _exit(once && all_once(visits(1000, 1)) && threads_of_process() == 3 ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  CHECK(status == 0);
  CHECK(all_once(visits(1000, 1)));
}
#endif

TEST_CASE("each thread has a part of the workspace of its own", "[parallel]") {
  constexpr int count = 3;
  const Threads threads(count);
  Workspace counting;
  const auto take = [](Workspace& part) { return part.take<int>(1); };
  counting.per_thread(take);
  CHECK(counting.bytes() == count * Workspace::kAlignment);
  std::vector<std::byte> memory(counting.bytes());
  Workspace workspace(memory.data(), memory.size());
  const Workspace::Parts parts = workspace.per_thread(take);
  std::atomic<int> inside{0};
  std::atomic<int> own{0};
  // No piece ends before all have begun, so each thread has one.
  parallel_for(0, count, 1, [&](std::int64_t begin, std::int64_t) {
    Workspace part = parts.mine();
    int* const mine = take(part);
    *mine = static_cast<int>(begin);
    ++inside;
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (inside < count && std::chrono::steady_clock::now() < end) std::this_thread::yield();
    own += *mine == static_cast<int>(begin) ? 1 : 0;
    // Within the body loops run inline, in the thread's part.
    Workspace inner(reinterpret_cast<std::byte*>(mine), 0);
    if (inner.per_thread([](Workspace&) {}).mine().bytes() != 0) own = -count;
  });
  CHECK(inside == count);
  CHECK(own == count);
  CHECK_THROWS_AS(take(workspace), std::logic_error);  // all is taken
}

TEST_CASE("matrix products start no threads besides the pool's", "[parallel][gemm]") {
  const std::ptrdiff_t before = threads_of_process();
  const Threads threads(2);
  CHECK(all_once(visits(1000, 1)));
  CHECK(threads_of_process() == before + 1);
  const auto a = values<float>(512 * 512, 1);
  std::vector<float> c(a.size());
  in_workspace::gemm(Gemm{.m = 512, .n = 512, .k = 512, .lda = 512, .ldb = 512, .ldc = 512},
                     a.data(), a.data(), c.data());
  CHECK(threads_of_process() == before + 1);
}

TEMPLATE_TEST_CASE("a product's bits do not depend on the number of threads", "[parallel][gemm]",
                   float, double, BFloat16, Half) {
  const bool accumulate = GENERATE(false, true);
  const auto check = [&](Gemm s) {
    s.lda = s.trans_a ? s.m : s.k;
    s.ldb = s.trans_b ? s.k : s.n;
    s.ldc = s.n;
    s.stride_a = s.m * s.k;
    s.stride_b = s.k * s.n;
    s.stride_c = s.m * s.n;
    s.accumulate = accumulate;
    const auto a = values<TestType>(s.batch * s.stride_a, 1);
    const auto b = values<TestType>(s.batch * s.stride_b, 2);
    const auto start = values<TestType>(s.batch * s.stride_c, 3);
    const auto run = [&](int count) {
      const Threads threads(count);
      auto c = start;
      in_workspace::gemm(s, a.data(), b.data(), c.data());
      return as_double(c);
    };
    const auto one = run(1);
    // Against the rows alone, each of which is one piece.
    for (const std::int64_t row : {std::int64_t{0}, s.m / 2, s.m - 1}) {
      Gemm single = s;
      single.batch = 1;
      single.m = 1;
      std::vector<TestType> c(start.begin() + row * s.n, start.begin() + (row + 1) * s.n);
      in_workspace::gemm(single, a.data() + row * (s.trans_a ? 1 : s.lda), b.data(), c.data());
      const std::vector<double> expected(one.begin() + row * s.n, one.begin() + (row + 1) * s.n);
      CHECK(worst(c, expected) < 50 * tolerance<TestType>());
    }
    CHECK(run(2) == one);
    CHECK(run(3) == one);
  };
  check({.m = 700, .n = 300, .k = 257});
  check({.trans_a = true, .m = 300, .n = 301, .k = 900});
  check({.trans_b = true, .m = 3, .n = 2100, .k = 515});
  check({.m = 130, .n = 140, .k = 150, .batch = 20});
}
