module;
#include "tessera/limits.hpp"

#include <dirent.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <new>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>
module tessera.base;

namespace tessera {
namespace {

std::optional<std::uint64_t> number_in(const std::string& file) {
  std::string text;
  std::getline(std::ifstream(file) >> std::ws, text);
  std::uint64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  return error == std::errc() && end == text.data() + text.size() ? std::make_optional(value)
                                                                  : std::nullopt;  // "max"
}

void tighten(SystemLimit& limit, const SystemLimit& other) {
  if (other.left() < limit.left()) {
    limit = other;
  }
}

/// The limits of this process's control groups, of version 1 or 2, and of those around them.
/// `names`: of the file with the limit; `used`: of the file that says how much is in use, or "".
SystemLimit of_control_groups(const std::vector<std::string>& names, const std::string& used,
                              const std::string& what) {
  SystemLimit tightest;
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

/// "; the limit of this process on open files (`ulimit -n`) is 1024", where there is one.
std::string limit_text(int resource, const char* what, bool in_bytes) {
  rlimit limit{};
  if (getrlimit(static_cast<__rlimit_resource>(resource), &limit) != 0 ||
      limit.rlim_cur == RLIM_INFINITY) {
    return "";
  }
  return fmt::format("; the limit on {} is {}", what,
                     in_bytes ? format_bytes(limit.rlim_cur) : std::to_string(limit.rlim_cur));
}

/// `used`: the line of /proc/self/status with what this process has, in KiB.
SystemLimit limit_of_process(__rlimit_resource resource, const char* name, std::string_view used) {
  SystemLimit all{name};
  rlimit limit{};
  if (getrlimit(resource, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return all;
  }
  all.all = limit.rlim_cur;
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(used)) {
      all.used = std::strtoull(line.c_str() + used.size(), nullptr, 10) << 10U;
    }
  }
  return all;
}

std::string memory_text() {
  const SystemLimit memory = limit_of_memory();
  return limit_text(RLIMIT_AS, "address space (`ulimit -v`)", true) +
         limit_text(RLIMIT_DATA, "data (`ulimit -d`)", true) +
         fmt::format("; {} is {}", memory.name, format_bytes(memory.all));
}

std::string tasks_text() {
  const SystemLimit tasks = limit_of_tasks();
  const std::string memory = limit_text(RLIMIT_AS, "address space (`ulimit -v`)", true) +
                             limit_text(RLIMIT_DATA, "data (`ulimit -d`)", true);
  constexpr std::uint64_t far = 1000;  // then it is the thread's stack that has no room
  return memory.empty() || tasks.left() < far
             ? fmt::format("; {} is {}, and {} are in use", tasks.name, tasks.all, tasks.used)
             : memory;
}

}  // namespace

extern "C++" {  // a plain header declares them

SystemLimit limit_of_tasks() {
  SystemLimit tightest = of_control_groups({"pids.max"}, "pids.current", "the limit on processes");
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

SystemLimit limit_of_memory() {
  struct sysinfo machine{};
  SystemLimit tightest =
      of_control_groups({"memory.max", "memory.limit_in_bytes"}, "", "the memory");
  if (sysinfo(&machine) == 0) {
    tighten(
        tightest,
        {"the machine's memory",
         static_cast<std::uint64_t>(machine.totalram + machine.totalswap) * machine.mem_unit, 0});
  }
  return tightest;
}

SystemLimit limit_of_address_space() {
  return limit_of_process(RLIMIT_AS, "the limit on address space (`ulimit -v`)", "VmSize:");
}

SystemLimit limit_of_data() {
  return limit_of_process(RLIMIT_DATA, "the limit on data (`ulimit -d`)", "VmData:");
}

std::string reason_of(int error) {
  std::string words = std::strerror(error);
  switch (error) {
    case EAGAIN:
      return words + tasks_text();
    case ENOMEM:
      return words + memory_text();
    case EMFILE:
      return words + limit_text(RLIMIT_NOFILE, "open files of a process (`ulimit -n`)", false);
    case ENFILE:
      return words + "; the machine's limit on open files (sysctl fs.file-max) is reached";
    case EFBIG:
      return words + limit_text(RLIMIT_FSIZE, "the size of a file (`ulimit -f`)", true);
    default:
      return words;
  }
}

std::string reason_of(const std::exception& error) {
  if (dynamic_cast<const std::bad_alloc*>(&error) != nullptr) {
    return "there is no memory left" + memory_text();
  }
  const auto* const system = dynamic_cast<const std::system_error*>(&error);
  if (system == nullptr || (system->code().category() != std::generic_category() &&
                            system->code().category() != std::system_category())) {
    return error.what();
  }
  const std::string words = system->code().message();
  const std::string reason = reason_of(system->code().value());
  return error.what() + (reason.starts_with(words) ? reason.substr(words.size()) : "");
}

std::thread start_thread(const std::string& what, std::function<void()> body) {
  try {
    return std::thread(std::move(body));
  } catch (const std::system_error& error) {
    fail({.thing = what,
          .wrong = fmt::format("a thread cannot be started ({})", reason_of(error.code().value())),
          .advice = "raise the limit, or use fewer threads or ranks"});
  }
}

void in_own_thread(const std::string& what, const std::function<void()>& body) {
  std::exception_ptr error;
  start_thread(what, [&] {
    try {
      body();
    } catch (...) {
      error = std::current_exception();
    }
  }).join();
  if (error) {
    std::rethrow_exception(error);
  }
}

}  // extern "C++"

}  // namespace tessera
