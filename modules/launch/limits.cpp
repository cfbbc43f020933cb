// Limits of a machine, found out before any rank is started.
module;
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <tessera/limits.hpp>
#include <utility>
module tessera.launch;

import tessera.base;
import :start;
import :runner;

namespace tessera::collective {
namespace {

/// Bytes that a rank's process has of its own at least besides its tensors: page tables, stack,
/// heap, and what the products' library generates. Measured: 6 MiB.
constexpr std::uint64_t process_bytes = std::uint64_t{4} << 20;

/// Threads that a rank has besides those that compute: one waits for signals, one saves.
constexpr std::uint64_t own_threads = 2;

/// What a rank's process maps besides its tensors: shared memory, stacks of threads, and what
/// libraries map. With less, oneDNN has crashed instead of saying so.
constexpr std::uint64_t own_addresses = std::uint64_t{160} << 20;
constexpr std::uint64_t own_data = std::uint64_t{128} << 20;
constexpr std::uint64_t stack_bytes = std::uint64_t{8} << 20;

/// Error (input): a process may not map as much as a rank needs.
void check_mappings(const LaunchOptions& options) {
  const std::uint64_t of_run = stack_bytes * static_cast<std::uint64_t>(options.rank_threads) +
                               options.rank_bytes + options.needed_bytes;
  for (const auto& [limit, own] :
       {std::pair(limit_of_address_space(), own_addresses), std::pair(limit_of_data(), own_data)}) {
    if (own + of_run > limit.left()) {
      fail_input({.thing = "launch",
                  .wrong = fmt::format("a rank needs at least {} of memory, and {} leaves {} of {}",
                                       format_bytes(own + of_run), limit.name,
                                       format_bytes(limit.left()), format_bytes(limit.all)),
                  .advice = "raise it, or use a smaller model"});
    }
  }
}

}  // namespace

void check_limits(const LaunchOptions& options, bool runs_here) {
  const auto ranks = static_cast<std::uint64_t>(options.ranks);
  const std::uint64_t needed_tasks =
      ranks * (static_cast<std::uint64_t>(options.rank_threads) + own_threads) -
      (runs_here ? 1 : 0);
  if (const SystemLimit tasks = limit_of_tasks(); needed_tasks > tasks.left()) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("{} need{} {} processes and threads, and {} leaves {} "
                                     "({} of {} are in use)",
                                     count_text(options.ranks, "rank"), ranks == 1 ? "s" : "",
                                     needed_tasks, tasks.name, tasks.left(), tasks.used, tasks.all),
                .advice = "use fewer ranks or threads, or raise the limit"});
  }
  check_mappings(options);
  const std::uint64_t own = process_bytes + options.rank_bytes;
  const std::uint64_t needed_bytes = ranks * own + options.needed_bytes;
  if (const SystemLimit memory = limit_of_memory(); needed_bytes > memory.left()) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("{} ranks need at least {}, {} each and {} together, and {} "
                                     "is {}",
                                     ranks, format_bytes(needed_bytes), format_bytes(own),
                                     format_bytes(options.needed_bytes), memory.name,
                                     format_bytes(memory.all)),
                .advice = "use fewer ranks, or shard the model over more machines"});
  }
}

void allow_open_files(int needed) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return;
  }
  const std::filesystem::directory_iterator files("/proc/self/fd");
  const auto open = static_cast<rlim_t>(std::distance(begin(files), end(files)));
  const rlim_t wanted = open + static_cast<rlim_t>(needed);
  if (wanted <= limit.rlim_cur) {
    return;
  }
  limit.rlim_cur = std::min(wanted, limit.rlim_max);
  if (wanted > limit.rlim_max || setrlimit(RLIMIT_NOFILE, &limit) != 0) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("rank 0 needs {} open files to meet the others", wanted),
                .expected = fmt::format("at most {}", limit.rlim_max),
                .advice = "raise `ulimit -n`, or start fewer ranks"});
  }
}

}  // namespace tessera::collective
