// Limits of a machine, found out before any rank is started.
module;
#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <sstream>
#include <string>
#include <system_error>
#include <vector>
module tessera.launch;

import tessera.base;
import :start;
import :runner;

namespace tessera::collective {
namespace {

/// Bytes that a rank's process has of its own at least besides its tensors: page tables, stack,
/// heap, and what the products' library generates. Measured: 6 MiB.
constexpr std::uint64_t process_bytes = std::uint64_t{4} << 20;

struct Limit {
  std::string name;  // "the limit on processes (`ulimit -u`)"
  std::uint64_t all = std::numeric_limits<std::uint64_t>::max();
  std::uint64_t used = 0;
  std::uint64_t left() const { return all > used ? all - used : 0; }
};

std::optional<std::uint64_t> number_in(const std::string& file) {
  std::string text;
  std::getline(std::ifstream(file) >> std::ws, text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::make_optional(value)
                                                                  : std::nullopt;  // "max"
}

void tighten(Limit& limit, const Limit& other) {
  if (other.left() < limit.left()) {
    limit = other;
  }
}

/// The limits of this process's control groups, of version 1 or 2, and of those around them.
/// `names`: of the file with the limit; `used`: of the file that says how much is in use, or "".
Limit of_control_groups(const std::vector<std::string>& names, const std::string& used,
                        const std::string& what) {
  Limit tightest;
  std::ifstream groups("/proc/self/cgroup");
  for (std::string line; std::getline(groups, line);) {  // "4:memory:/a/b", "0::/a/b"
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) {
      continue;
    }
    const std::string controller = line.substr(first + 1, second - first - 1);
    const std::string root = "/sys/fs/cgroup" + (controller.empty() ? "" : "/" + controller);
    for (std::filesystem::path at = line.substr(second + 1);; at = at.parent_path()) {
      const std::string folder = root + (at == "/" ? "" : at.string());
      for (const std::string& name : names) {
        if (const auto all = number_in(folder + "/" + name)) {
          tighten(tightest, {fmt::format("{} of the control group {}", what, folder), *all,
                             used.empty() ? 0 : number_in(folder + "/" + used).value_or(0)});
        }
      }
      if (at == at.parent_path()) {
        break;
      }
    }
  }
  return tightest;
}

/// Tasks of this user: processes and their threads.
std::uint64_t tasks_of_user() {
  std::uint64_t tasks = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator("/proc", ignored)) {
    struct stat status{};
    if (::stat(entry.path().c_str(), &status) != 0 || status.st_uid != getuid() ||
        entry.path().filename().string().find_first_not_of("0123456789") != std::string::npos) {
      continue;
    }
    std::ifstream lines(entry.path() / "status");
    for (std::string line; std::getline(lines, line);) {
      if (line.starts_with("Threads:")) {
        tasks += std::stoull(line.substr(8));
        break;
      }
    }
  }
  return tasks;
}

std::uint64_t all_tasks() {
  std::string running;  // "0.49 0.99 0.71 2/184 9027"
  std::ifstream load("/proc/loadavg");
  load >> running >> running >> running >> running;
  const std::size_t slash = running.find('/');
  return slash == std::string::npos ? 0 : std::strtoull(running.c_str() + slash + 1, nullptr, 10);
}

Limit of_tasks() {
  Limit tightest = of_control_groups({"pids.max"}, "pids.current", "the limit on processes");
  const std::uint64_t running = all_tasks();
  for (const char* name : {"pid_max", "threads-max"}) {
    if (const auto all = number_in(fmt::format("/proc/sys/kernel/{}", name))) {
      tighten(tightest, {fmt::format("the machine's limit on processes (sysctl kernel.{})", name),
                         *all, running});
    }
  }
  rlimit limit{};
  const bool limited = getuid() != 0 && getrlimit(RLIMIT_NPROC, &limit) == 0 &&
                       limit.rlim_cur != RLIM_INFINITY;  // root is exempt
  if (limited) {
    tighten(tightest,
            {"this user's limit on processes (`ulimit -u`)", limit.rlim_cur, tasks_of_user()});
  }
  return tightest;
}

Limit of_memory() {
  struct sysinfo machine{};
  Limit tightest = of_control_groups({"memory.max", "memory.limit_in_bytes"}, "", "the memory");
  if (sysinfo(&machine) == 0) {
    tighten(
        tightest,
        {"the machine's memory",
         static_cast<std::uint64_t>(machine.totalram + machine.totalswap) * machine.mem_unit, 0});
  }
  return tightest;
}

}  // namespace

void check_limits(const LaunchOptions& options) {
  const auto ranks = static_cast<std::uint64_t>(options.ranks);
  const std::uint64_t needed_tasks = ranks * static_cast<std::uint64_t>(options.rank_threads);
  if (const Limit tasks = of_tasks(); needed_tasks > tasks.left()) {
    fail_input(
        {.thing = "launch",
         .wrong = fmt::format("{} ranks need {} processes and threads, and {} leaves {} "
                              "({} of {} are in use)",
                              ranks, needed_tasks, tasks.name, tasks.left(), tasks.used, tasks.all),
         .advice = "use fewer ranks or threads, or raise the limit"});
  }
  const std::uint64_t own = process_bytes + options.rank_bytes;
  const std::uint64_t needed_bytes = ranks * own + options.needed_bytes;
  if (const Limit memory = of_memory(); needed_bytes > memory.left()) {
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
