// Handlers while products are computed. oneDNN's generated code uses the stack pointer as an
// ordinary register, so a handler that ran within it would run anywhere in memory.
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include "check.hpp"
#include "in_workspace.hpp"
#include "matmul/kernels/gemm.hpp"
#include "shared/kernels/parallel.hpp"

#if !__has_feature(thread_sanitizer)  // it ends a process that starts threads after a fork
using namespace tessera::kernels;
using namespace tessera::kernels::test;

namespace {

constexpr std::int64_t extent = 384;  // several pieces, which threads share

/// The stack that the thread which is interrupted must be on; [0, 0) before it is known.
struct Stack {
  std::uintptr_t begin = 0;
  std::uintptr_t end = 0;
};
thread_local Stack own_stack;
std::atomic<int> calls{0};
std::atomic<int> elsewhere{0};
std::atomic<int> workers_interrupted{0};

void find_own_stack() {
  pthread_attr_t attributes;
  void* begin = nullptr;
  std::size_t bytes = 0;
  pthread_getattr_np(pthread_self(), &attributes);
  pthread_attr_getstack(&attributes, &begin, &bytes);
  pthread_attr_destroy(&attributes);
  own_stack = {reinterpret_cast<std::uintptr_t>(begin),
               reinterpret_cast<std::uintptr_t>(begin) + bytes};
}

void on_tick(int /*signal*/) {
  calls.fetch_add(1);
  workers_interrupted.fetch_add(thread_number() > 0 ? 1 : 0);
  const auto here = reinterpret_cast<std::uintptr_t>(__builtin_frame_address(0));
  if (own_stack.end != 0 && (here < own_stack.begin || here >= own_stack.end)) {
    elsewhere.fetch_add(1);
  }
}

/// Exit code of a process of its own that does `body`; 128 + the signal that ended it. One that is
/// corrupt may hang, and is killed.
int in_process(const std::function<int()>& body) {
  const pid_t child = fork();
  if (child == 0) {
    try {
      _exit(body());
    } catch (...) {
      _exit(99);
    }
  }
  int status = 0;
  for (int looks = 0; waitpid(child, &status, WNOHANG) == 0; ++looks) {
    if (looks == 2000) kill(child, SIGKILL);
    usleep(10'000);
  }
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

Gemm square() {
  return {.m = extent, .n = extent, .k = extent, .lda = extent, .ldb = extent, .ldc = extent};
}

/// Products while a timer ticks: 0, or what was wrong.
int products_under_ticks(int timer, int signal, int threads) {
  set_threads(threads);
  parallel_for(0, 64, 1, [](std::int64_t, std::int64_t) { find_own_stack(); });
  find_own_stack();
  const auto a = values<float>(extent * extent, 1);
  const auto b = values<float>(extent * extent, 2);
  const Gemm shape = square();
  std::vector<float> expected(static_cast<std::size_t>(extent * extent));
  in_workspace::gemm(shape, a.data(), b.data(), expected.data());
  struct sigaction action = {};
  action.sa_handler = &on_tick;
  action.sa_flags = SA_RESTART;  // on the stack of whoever is interrupted, as most programs' are
  sigaction(signal, &action, nullptr);
  const itimerval often = {.it_interval = {0, 500}, .it_value = {0, 500}};
  setitimer(static_cast<__itimer_which_t>(timer), &often, nullptr);
  std::vector<float> got(expected.size());
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::seconds(5) && calls.load() < 60) {
    in_workspace::gemm(shape, a.data(), b.data(), got.data());
    if (got != expected) return 2;
  }
  if (elsewhere.load() != 0) return 3;
  return calls.load() >= 20 ? 0 : 4;
}

void on_bus_error(int /*signal*/) { _exit(7); }

/// A product of an operand whose file has lost its pages.
int product_of_lost_pages(bool handled) {
  char name[] = "/tmp/tessera-lost-XXXXXX";
  const int file = mkstemp(name);
  unlink(name);
  constexpr std::size_t bytes = extent * extent * sizeof(float);
  if (ftruncate(file, static_cast<off_t>(bytes)) != 0) return 2;
  void* const mapped = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, file, 0);
  const auto b = values<float>(extent * extent, 2);
  std::vector<float> got(static_cast<std::size_t>(extent * extent));
  in_workspace::gemm(square(), static_cast<const float*>(mapped), b.data(), got.data());
  struct sigaction action = {};
  action.sa_handler = handled ? &on_bus_error : SIG_DFL;
  sigaction(SIGBUS, &action, nullptr);
  if (ftruncate(file, 0) != 0) return 3;
  in_workspace::gemm(square(), static_cast<const float*>(mapped), b.data(), got.data());
  return 4;
}

}  // namespace

TEST_CASE("no handler of the program runs within a product") {
  for (const int threads : {1, 2}) {
    // A profiler's timer interrupts the threads that compute, the other one the program's thread.
    CHECK(in_process([&] { return products_under_ticks(ITIMER_REAL, SIGALRM, threads); }) == 0);
    CHECK(in_process([&] { return products_under_ticks(ITIMER_PROF, SIGPROF, threads); }) == 0);
  }
}

TEST_CASE("threads of the library take no signals of the program but a profiler's") {
  CHECK(in_process([] {
          const int wrong = products_under_ticks(ITIMER_REAL, SIGALRM, 3);
          return wrong != 0 ? wrong : workers_interrupted.load() == 0 ? 0 : 5;
        }) == 0);
}

TEST_CASE("a fault within a product ends the process without a handler") {
  CHECK(in_process([] { return product_of_lost_pages(false); }) == 128 + SIGBUS);
  CHECK(in_process([] { return product_of_lost_pages(true); }) == 128 + SIGBUS);
}
#endif
