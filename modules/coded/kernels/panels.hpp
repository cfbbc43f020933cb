#pragma once
// One loop over the threads for several products.

#include <algorithm>
#include <cstdint>
#include <span>

#include "shared/kernels/parallel.hpp"

namespace tessera::kernels {

/// Calls body(task, first, last) for pieces of all tasks' panels, which are columns of a result.
/// `panels(task)`: how many panels it has; `work(task)`: of one of them. A piece has at least so
/// much work, as less is not worth waking a thread.
template <class Task, class Panels, class Work, class Body>
void for_panels(std::span<const Task> tasks, std::int64_t least, const Panels& panels,
                const Work& work, const Body& body) {
  std::int64_t all = 0;
  std::int64_t sum = 0;
  for (const Task& task : tasks) {
    all += panels(task);
    sum += panels(task) * work(task);
  }
  const std::int64_t mean = sum / std::max<std::int64_t>(all, 1);
  parallel_for(0, all, 1 + least / (1 + mean), [&](std::int64_t begin, std::int64_t end) {
    std::int64_t before = 0;
    for (const Task& task : tasks) {
      const std::int64_t own = panels(task);
      const std::int64_t first = std::max<std::int64_t>(begin - before, 0);
      const std::int64_t last = std::min(end - before, own);
      if (first < last) body(task, first, last);
      before += own;
    }
  });
}

}  // namespace tessera::kernels
