#include "grid.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "fault.hpp"
#include "matrix.hpp"
#include "races.hpp"
#include "text.hpp"

// What kernels see by these names (kernel.hpp).
extern "C" {
emulator::Extent threadIdx, blockIdx, blockDim, gridDim;
}

namespace emulator {
namespace {

constexpr unsigned warp_size = 32;

enum class State : std::uint8_t { ready, at_barrier, in_warp, ended };

/// An operation of a warp: `meet` moves nothing; `matrix` is one of MatrixOperation, which is then
/// the thread's value.
enum class WarpOperation : std::uint8_t { meet, shuffle, ballot, matrix };

/// A copy to shared memory that its thread has begun and not waited for.
struct AsyncCopy {
  std::byte* to = nullptr;
  const std::byte* from = nullptr;
  bool exists = true;  // or zeros
  unsigned group = 0;
  std::size_t bytes = 0;
};

struct Thread {
  State state = State::ended;
  const void* site = nullptr;  // of the barrier or the warp's operation that it waits in
  WarpOperation operation = WarpOperation::meet;
  unsigned mask = 0;
  std::uint64_t value = 0;
  unsigned from_lane = 0;
  std::uint64_t result = 0;
  LaneWords* words = nullptr;  // of an operation on matrices
  std::vector<AsyncCopy> copies;
  unsigned groups = 0;  // of copies that are complete
};

/// The running launch.
struct Grid {
  const Launch* launch = nullptr;
  std::mt19937_64 numbers;
  std::vector<Thread> threads;
  std::vector<std::uint32_t> warp_barriers;
  Fibers* fibers = nullptr;
  std::optional<std::string> fault;
};

Fibers& fibers() {
  static auto* all = new Fibers;
  return *all;
}

Grid* current = nullptr;

std::string place(const Extent& all, std::size_t index) {
  const std::size_t x = index % all.x, y = index / all.x % all.y, z = index / all.x / all.y;
  return all.y == 1 && all.z == 1 ? text(x) : text("(", x, ", ", y, ", ", z, ")");
}

std::string describe(const Launch& launch, std::uint32_t block) {
  return text("kernel ", launch.kernel->name, ", block ", place(launch.grid, block), ", ",
              launch.stream);
}

/// "0-31, 40": what holds of the threads.
template <class Holds>
std::string threads_that(const Grid& grid, Holds holds) {
  std::string all;
  const std::size_t count = grid.threads.size();
  for (std::size_t i = 0; i < count; ++i) {
    if (!holds(grid.threads[i])) continue;
    const std::size_t first = i;
    while (i + 1 < count && holds(grid.threads[i + 1])) ++i;
    all += (all.empty() ? "" : ", ") + text(first) + (i > first ? text("-", i) : "");
  }
  return all;
}

void show_place(const Launch& launch, std::uint32_t thread) {
  const Extent& b = launch.block;
  threadIdx = {thread % b.x, thread / b.x % b.y, thread / b.x / b.y};
}

/// Gives control back to the host until the thread may continue.
void leave() { current->fibers->leave(running.thread); }

[[noreturn]] void fail_here(const std::string& what) {
  current->fault = describe(*current->launch, running.block) + ", thread " +
                   place(current->launch->block, running.thread) + ": " + what;
  leave();
  __builtin_unreachable();
}

void thread_ended() {
  if (!current->threads[running.thread].copies.empty()) {
    fail_here("it ends with copies to shared memory that it has not waited for");
  }
  current->threads[running.thread].state = State::ended;
  leave();
}

/// Lets a thread run until it waits or ends.
void continue_thread(Grid& grid, std::uint32_t thread) {
  running.thread = thread;
  running.warp_barriers = grid.warp_barriers[thread / warp_size];
  show_place(*grid.launch, thread);
  grid.fibers->run(thread);
  if (grid.fault) {
    throw Fault(*grid.fault);
  }
}

/// Why no thread can continue, though some have not ended.
std::string stuck(const Grid& grid) {
  const auto at = [](State state) { return [state](const Thread& t) { return t.state == state; }; };
  const std::string ended = threads_that(grid, at(State::ended));
  const std::string waiting = threads_that(grid, at(State::at_barrier));
  const std::string in_warp = threads_that(grid, at(State::in_warp));
  std::string what = describe(*grid.launch, running.block) + ": ";
  if (!in_warp.empty()) {
    what += text("threads ", in_warp,
                 " wait in an operation of their warp that others of its mask never reach");
  } else {
    what += text("threads ", waiting, " wait at a barrier");
  }
  what +=
      !in_warp.empty() && !waiting.empty() ? text("; threads ", waiting, " wait at a barrier") : "";
  what += ended.empty() ? "" : text("; threads ", ended, " have ended");
  return what + "; look for a barrier or an operation of a warp inside of a condition";
}

/// Releases a barrier at which all threads are.
void pass_barrier(Grid& grid) {
  const void* site = grid.threads[0].site;
  for (const Thread& thread : grid.threads) {
    if (thread.state != State::at_barrier) {
      throw Fault(stuck(grid));
    }
    if (thread.site != site) {
      throw Fault(describe(*grid.launch, running.block) + ": threads " +
                  threads_that(grid, [&](const Thread& t) { return t.site == site; }) +
                  " are at another barrier than threads " +
                  threads_that(grid, [&](const Thread& t) { return t.site != site; }) +
                  "; look for barriers in different branches of a condition");
    }
  }
  ++running.barriers;
  for (Thread& thread : grid.threads) {
    thread.state = State::ready;
  }
}

void run_block(Grid& grid, std::uint32_t block) {
  const Launch& launch = *grid.launch;
  const Extent& g = launch.grid;
  blockIdx = {block % g.x, block / g.x % g.y, block / g.x / g.y};
  running.block = block;
  running.barriers = 0;
  std::ranges::fill(grid.warp_barriers, 0U);
  const std::span<std::byte> shared = launch.kernel->library->shared;
  std::memset(shared.data(), 0xff, shared.size());  // NaN, where it is read before it is written
  std::ranges::fill(launched_memory().first(launch.memory), std::byte{0xff});
  const std::size_t count = grid.threads.size();
  for (std::size_t i = 0; i < count; ++i) {
    grid.threads[i] = {};
    grid.threads[i].state = State::ready;
    grid.fibers->begin(i, launch.kernel->entry, launch.structure.data(), launch.structure.size(),
                       thread_ended);
  }
  while (true) {
    // Another order for each stretch between barriers: from a drawn thread on, up or down.
    const std::size_t first = grid.numbers() % count;
    const bool down = grid.numbers() % 2 == 1;
    bool ran = false;
    for (std::size_t k = 0; k < count; ++k) {
      const std::size_t i = (first + (down ? count - k : k)) % count;
      if (grid.threads[i].state == State::ready) {
        continue_thread(grid, static_cast<std::uint32_t>(i));
        ran = true;
      }
    }
    if (ran) continue;
    if (std::ranges::all_of(grid.threads,
                            [](const Thread& t) { return t.state == State::ended; })) {
      return;
    }
    pass_barrier(grid);
  }
}

std::uint64_t lane_result(const Grid& grid, std::size_t first, std::size_t lane) {
  const Thread& own = grid.threads[first + lane];
  switch (own.operation) {
    case WarpOperation::meet:
      return 0;
    case WarpOperation::shuffle:
      return grid.threads[first + own.from_lane].value;
    case WarpOperation::ballot: {
      std::uint64_t votes = 0;
      for (unsigned other = 0; other < warp_size; ++other) {
        const bool takes_part = ((own.mask >> other) & 1U) != 0;
        votes |=
            takes_part && grid.threads[first + other].value != 0 ? std::uint64_t{1} << other : 0;
      }
      return votes;
    }
    case WarpOperation::matrix:
      return own.value;
  }
  return 0;
}

/// An operation on matrices that all lanes of a warp are in.
void apply_matrices(const Grid& grid, std::size_t first) {
  std::array<LaneWords*, warp_size> lanes = {};
  const std::uint64_t operation = grid.threads[first].value;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    const Thread& thread = grid.threads[first + lane];
    if (thread.value != operation) {
      fail_here(text("thread ", first + lane,
                     " of its warp is in another operation on matrices than thread ", first));
    }
    lanes[lane] = thread.words;
  }
  compute_matrices(static_cast<MatrixOperation>(operation), lanes);
}

/// Whether all threads of the mask are in the operation of thread `own`.
bool warp_is_complete(const Grid& grid, std::size_t first, const Thread& own) {
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    if (((own.mask >> lane) & 1U) == 0) continue;
    const Thread& other = grid.threads[first + lane];
    if (other.state != State::in_warp) {
      return false;
    }
    if (other.operation != own.operation || other.mask != own.mask) {
      fail_here(text("thread ", first + lane,
                     " of its warp is in another operation or has the mask ", std::hex, other.mask,
                     " instead of ", own.mask,
                     "; all threads of a mask must call the operation with it"));
    }
  }
  return true;
}

std::uint64_t meet_in_warp(WarpOperation operation, unsigned mask, std::uint64_t value,
                           unsigned from_lane) {
  Grid& grid = *current;
  const std::size_t index = running.thread;
  const std::size_t first = index / warp_size * warp_size;
  const auto lane = static_cast<unsigned>(index - first);
  if (((mask >> lane) & 1U) == 0) {
    fail_here(text("its lane ", lane, " is not in the mask ", std::hex, mask,
                   " of the warp's operation that it calls"));
  }
  if (operation == WarpOperation::shuffle && ((mask >> (from_lane % warp_size)) & 1U) == 0) {
    fail_here(text("it reads lane ", from_lane, ", which is not in the mask ", std::hex, mask,
                   " of the shuffle; its value would be undefined"));
  }
  for (unsigned other = 0; other < warp_size; ++other) {
    if (((mask >> other) & 1U) != 0 && (first + other >= grid.threads.size() ||
                                        grid.threads[first + other].state == State::ended)) {
      fail_here(text("the mask ", std::hex, mask, std::dec, " of a warp's operation names lane ",
                     other, ", which has ended or does not exist"));
    }
  }
  Thread& own = grid.threads[index];
  own.state = State::in_warp;
  own.operation = operation;
  own.mask = mask;
  own.value = value;
  own.from_lane = from_lane % warp_size;
  if (!warp_is_complete(grid, first, own)) {
    leave();
    return own.result;
  }
  ++grid.warp_barriers[first / warp_size];
  running.warp_barriers = grid.warp_barriers[first / warp_size];
  if (operation == WarpOperation::matrix) {
    apply_matrices(grid, first);
  }
  for (unsigned other = 0; other < warp_size; ++other) {
    if (((mask >> other) & 1U) != 0) {
      grid.threads[first + other].result = lane_result(grid, first, other);
    }
  }
  for (unsigned other = 0; other < warp_size; ++other) {
    if (((mask >> other) & 1U) != 0) {
      grid.threads[first + other].state = State::ready;
    }
  }
  return own.result;
}

void meet_with_matrices(MatrixOperation operation, LaneWords& words) {
  current->threads[running.thread].words = &words;
  meet_in_warp(WarpOperation::matrix, ~0U, static_cast<std::uint64_t>(operation), 0);
}

constexpr std::size_t matrix_row_bytes = 16;

/// A row of a matrix, or what is copied: in shared memory, where its size divides addresses.
void check_shared(const std::byte* at, std::size_t bytes) {
  const auto is_in = [=](std::span<std::byte> memory) {
    return at >= memory.data() && at + bytes <= memory.data() + memory.size();
  };
  const bool is_shared = is_in(current->launch->kernel->library->shared) ||
                         is_in(launched_memory().first(current->launch->memory));
  if (!is_shared || std::bit_cast<std::uintptr_t>(at) % bytes != 0) {
    fail_here(text("the address of ", bytes == matrix_row_bytes ? "a row of a matrix" : "a number",
                   " is not a multiple of ", bytes, " in shared memory"));
  }
}

/// Begins a copy of the thread.
void begin_copy(void* to, const void* from, bool exists, std::size_t bytes) {
  auto* const target = static_cast<std::byte*>(to);
  check_shared(target, bytes);
  if (exists) {
    check_load(from, bytes);
  }
  check_store(to, bytes);
  std::memset(target, 0xff, bytes);  // NaN until it is waited for
  Thread& thread = current->threads[running.thread];
  thread.copies.push_back(
      {target, static_cast<const std::byte*>(from), exists, thread.groups, bytes});
}

/// Finishes the thread's copies of the groups before `end`.
void finish_copies(Thread& thread, unsigned end) {
  std::erase_if(thread.copies, [end](const AsyncCopy& copy) {
    if (copy.group >= end) {
      return false;
    }
    check_store(copy.to, copy.bytes);
    if (copy.exists) {
      std::memcpy(copy.to, copy.from, copy.bytes);
    } else {
      std::memset(copy.to, 0, copy.bytes);
    }
    return true;
  });
}

void check_launch(const Launch& launch) {
  const std::size_t threads = launch.block.count();
  if (threads == 0 || threads > 1024 || launch.grid.count() == 0) {
    throw Fault(text("kernel ", launch.kernel->name, ": a launch of ", launch.grid.count(),
                     " blocks of ", threads, " threads (expected 1 to 1024 threads)"));
  }
  if (launch.structure.size() <= 16) {
    throw Fault(text("kernel ", launch.kernel->name, ": its structure has ",
                     launch.structure.size(),
                     " bytes (expected more than 16, so that it is passed in memory)"));
  }
}

}  // namespace

void run_launch(const Launch& launch, std::uint64_t seed) {
  check_launch(launch);
  Grid grid;
  grid.launch = &launch;
  grid.numbers.seed(seed);
  grid.threads.resize(launch.block.count());
  grid.warp_barriers.resize(launch.block.count() / warp_size + 1);
  grid.fibers = &fibers();
  running.launch = &launch;
  blockDim = {launch.block.x, launch.block.y, launch.block.z};
  gridDim = {launch.grid.x, launch.grid.y, launch.grid.z};
  current = &grid;
  struct Reset {
    ~Reset() {
      current = nullptr;
      running = {};
    }
  } reset;
  begin_race_check(launch);
  // All blocks, by steps that have no common divisor with their number.
  const std::size_t blocks = launch.grid.count();
  const std::size_t first = grid.numbers() % blocks;
  std::size_t step = grid.numbers() % blocks | 1U;
  while (std::gcd(step, blocks) != 1) step += 2;
  for (std::size_t k = 0; k < blocks; ++k) {
    run_block(grid, static_cast<std::uint32_t>((first + k % blocks * step) % blocks));
  }
}

std::span<std::byte> launched_memory() {
  alignas(128) static std::array<std::byte, most_launched_bytes> memory;
  return memory;
}

std::span<const std::byte> fiber_stacks() { return fibers().stacks(); }

void fault_in_kernel(const std::string& what) { fail_here(what); }

}  // namespace emulator

using emulator::current;
using emulator::running;

extern "C" {

[[gnu::noinline]] void emulator_barrier() {
  emulator::Thread& thread = current->threads[running.thread];
  thread.state = emulator::State::at_barrier;
  thread.site = __builtin_return_address(0);
  emulator::leave();
}

void emulator_warp_barrier(unsigned mask) {
  emulator::meet_in_warp(emulator::WarpOperation::meet, mask, 0, 0);
}

std::uint64_t emulator_shuffle(unsigned mask, std::uint64_t value, unsigned from_lane) {
  return emulator::meet_in_warp(emulator::WarpOperation::shuffle, mask, value, from_lane);
}

unsigned emulator_ballot(unsigned mask, int truth) {
  return static_cast<unsigned>(
      emulator::meet_in_warp(emulator::WarpOperation::ballot, mask, truth != 0 ? 1 : 0, 0));
}

unsigned emulator_lane() { return running.thread % 32; }

void emulator_load_matrices(std::uint32_t* words, const void* row, bool transposed) {
  const auto* at = static_cast<const std::byte*>(row);
  emulator::check_shared(at, emulator::matrix_row_bytes);
  emulator::check_load(at, emulator::matrix_row_bytes);
  emulator::LaneWords lane;
  std::memcpy(lane.in, at, emulator::matrix_row_bytes);
  emulator::meet_with_matrices(
      transposed ? emulator::MatrixOperation::load_transposed : emulator::MatrixOperation::load,
      lane);
  std::memcpy(words, lane.out, sizeof(lane.out));
}

void emulator_multiply_matrices(float* sums, const std::uint32_t* a, const std::uint32_t* b,
                                bool bf16) {
  emulator::LaneWords lane;
  std::copy_n(a, 4, lane.in);
  std::copy_n(b, 2, lane.in + 4);
  std::memcpy(lane.in + 6, sums, sizeof(lane.out));
  emulator::meet_with_matrices(
      bf16 ? emulator::MatrixOperation::multiply_bf16 : emulator::MatrixOperation::multiply_f16,
      lane);
  std::memcpy(sums, lane.out, sizeof(lane.out));
}

void emulator_copy_async(void* to, const void* from, bool exists) {
  emulator::begin_copy(to, from, exists, emulator::matrix_row_bytes);
}

void emulator_copy_number_async(void* to, const void* from, bool exists) {
  emulator::begin_copy(to, from, exists, sizeof(float));
}

void emulator_wait_for_copies() {
  emulator::Thread& thread = current->threads[running.thread];
  emulator::finish_copies(thread, ++thread.groups);
}

void emulator_end_group_of_copies() { ++current->threads[running.thread].groups; }

void emulator_wait_for_groups(unsigned left) {
  emulator::Thread& thread = current->threads[running.thread];
  emulator::finish_copies(thread, thread.groups < left ? 0 : thread.groups - left);
}

void* emulator_launched_memory() { return emulator::launched_memory().data(); }

}  // extern "C"
