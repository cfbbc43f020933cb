module;
#include <algorithm>
#include <barrier>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <thread>
#include <vector>
module tessera.app.bench;

import tessera.ops;
import :kernel_rows;

namespace tessera::app {
namespace {

/// Seconds from a common start until all threads have done body(thread).
double seconds_on_threads(int threads, const std::function<void(int)>& body) {
  std::barrier together(threads);
  const auto share = [&](int thread) {
    together.arrive_and_wait();
    body(thread);
    together.arrive_and_wait();
  };
  std::vector<std::jthread> others;
  others.reserve(static_cast<std::size_t>(threads));
  for (int thread = 1; thread < threads; ++thread) {
    others.emplace_back([&share, thread] { share(thread); });
  }
  together.arrive_and_wait();
  const auto start = std::chrono::steady_clock::now();
  body(0);
  together.arrive_and_wait();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Memory whose pages exist.
std::unique_ptr<char[]> touched(std::size_t bytes) {
  auto memory = std::make_unique_for_overwrite<char[]>(bytes);
  std::memset(memory.get(), 1, bytes);
  return memory;
}

/// Copies what is both read and written, and reads or fills the rest. The C library's functions
/// for this have been tuned for every machine.
double stream(std::size_t read, std::size_t written, int threads) {
  static std::unique_ptr<char[]> source;
  static std::unique_ptr<char[]> target;
  static std::size_t source_bytes = 0;
  static std::size_t target_bytes = 0;
  if (source_bytes < read) {
    source = touched(source_bytes = read);
  }
  if (target_bytes < written) {
    target = touched(target_bytes = written);
  }
  const std::size_t both = std::min(read, written);
  bool found = false;  // by a search for what is not there: the library's fastest loop that reads
  const double seconds = seconds_on_threads(threads, [&](int thread) {
    const auto part = [&](std::size_t bytes, auto use) {
      const auto count = static_cast<std::size_t>(threads);
      const auto index = static_cast<std::size_t>(thread);
      use(bytes * index / count, bytes * (index + 1) / count - bytes * index / count);
    };
    part(both, [&](std::size_t at, std::size_t bytes) {
      std::memcpy(target.get() + at, source.get() + at, bytes);
    });
    part(read - both, [&](std::size_t at, std::size_t bytes) {
      if (std::memchr(source.get() + both + at, 2, bytes) != nullptr) {
        found = true;
      }
    });
    part(written - both, [&](std::size_t at, std::size_t bytes) {
      std::memset(target.get() + both + at, 1, bytes);
    });
  });
  return found ? 0 : seconds;
}

double sort(const KernelRow& row, int threads) {
  std::vector<float> values = row.values;
  const std::int64_t lines = static_cast<std::int64_t>(values.size()) / row.line;
  // A single line is cut: each thread sorts a part, and joining the parts is not counted.
  const std::int64_t pieces = std::max<std::int64_t>(lines, threads);
  const auto begin_of = [&](std::int64_t piece) {
    return values.begin() + static_cast<std::ptrdiff_t>(values.size()) * piece / pieces;
  };
  return seconds_on_threads(threads, [&](int thread) {
    for (std::int64_t p = pieces * thread / threads; p < pieces * (thread + 1) / threads; ++p) {
      if (row.bound == KernelBound::sort) {
        std::sort(begin_of(p), begin_of(p + 1));
      } else {
        std::partial_sort(begin_of(p), begin_of(p) + row.wanted, begin_of(p + 1), std::greater<>());
      }
    }
  });
}

}  // namespace

BoundTime time_of_bound(const KernelRow& row, int threads) {
  if (row.bound == KernelBound::sort) return {sort(row, threads), "std::sort"};
  if (row.bound == KernelBound::partial) return {sort(row, threads), "std::partial_sort"};
  const double streaming =
      stream(static_cast<std::size_t>(row.read), static_cast<std::size_t>(row.written), threads);
  const auto computing = [&](ops::ComputeKind what, double count) {
    const auto share = static_cast<std::int64_t>(count) / threads;
    return count == 0 ? 0.0 : seconds_on_threads(threads, [&](int) { ops::compute(what, share); });
  };
  const double exponentials = computing(ops::ComputeKind::exponentials, row.exponentials);
  const double random = computing(ops::ComputeKind::random_words, row.random_words);
  if (exponentials + random <= streaming) return {streaming, "stream"};
  return {exponentials + random, random == 0         ? "exponentials"
                                 : exponentials == 0 ? "random words"
                                                     : "random words and logarithms"};
}

}  // namespace tessera::app
