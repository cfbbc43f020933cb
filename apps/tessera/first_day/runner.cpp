module;
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <sstream>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <thread>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.conformance;
import tessera.app.base;
import :calls;
import :checks;
import :pack;
import :pack_runs;
import :results;
import :runner;

namespace tessera::app::first_day {
namespace {

using Clock = std::chrono::steady_clock;
using Items = std::vector<const Item*>;

/// The time that something has, from now on.
class Deadline {
 public:
  explicit Deadline(double seconds) : seconds_(seconds) {}
  double passed() const { return std::chrono::duration<double>(Clock::now() - start_).count(); }
  double left() const { return seconds_ - passed(); }

 private:
  double seconds_;
  Clock::time_point start_ = Clock::now();
};

constexpr double least = 0.5;  // seconds with which it is worth to begin

// ---- operators, in a process that is replaced where one ends it ----

/// Sends "late" and ends this process when something takes too long.
class Watchdog {
 public:
  explicit Watchdog(const SendReport& send) {
    std::thread([this, send] {
      while (true) {
        std::this_thread::sleep_for(std::chrono::milliseconds(50));
        const std::int64_t end = end_;
        if (end != 0 && now() > end) {
          send("late\n");
          _exit(EXIT_FAILURE);
        }
      }
    }).detach();
  }
  void watch(double seconds) { end_ = now() + static_cast<std::int64_t>(seconds * 1000); }

 private:
  static std::int64_t now() {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now().time_since_epoch())
        .count();
  }
  std::atomic<std::int64_t> end_ = 0;
};

Result compared(const StoredCalls& calls, const std::string& part, const Item& item,
                Device device) {
  const std::string& name = item.name;
  const Deadline deadline(item.seconds);
  Result result{.part = part, .item = name, .status = "passed", .problem = ""};
  try {
    const conformance::DeviceAccount account = calls.compare(name, device);
    const auto share = account.deviations.find(name);
    result.facts = json_text(nlohmann::ordered_json{
        {"calls", account.calls},
        {"share_of_tolerance", share == account.deviations.end() ? 0 : share->second}});
    for (const std::string& finding : account.findings) {
      result.problem += (result.problem.empty() ? "" : "; ") + finding;
    }
  } catch (const std::exception& error) {
    result.problem = error.what();
  }
  result.status = result.problem.empty() ? "passed" : "failed";
  result.seconds = deadline.passed();
  return result;
}

/// Whether the device still does anything; one that a kernel has broken refuses all further work.
bool still_works(Device device) {
  try {
    synchronize(device);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

/// The body of the process: tells of each operator when it begins and when its result is written.
void compare_operators(const MachineSetup& here, const std::string& part, const Items& todo,
                       ResultFile& file, const SendReport& send) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  Watchdog watchdog(send);
  constexpr double to_open = 40;
  watchdog.watch(to_open * here.scale);
  Device device;
  try {
    device = find_device("cuda:0");
    synchronize(device);
  } catch (const std::exception& error) {
    std::string text = error.what();
    std::ranges::replace(text, '\n', ' ');
    send("error " + text + "\n");
    return;
  }
  const StoredCalls calls(here.pack.path("reference/operators.safetensors"), device.type);
  for (const Item* item : todo) {
    send("begin " + item->name + "\n");
    watchdog.watch(item->seconds * here.scale);
    const Result result = compared(calls, part, *item, device);
    file.add(result);
    send("end " + item->name + "\n");
    if (result.status == "failed" && !still_works(device)) {
      _exit(EXIT_FAILURE);  // the next operator has another process
    }
  }
}

void run_operators(const MachineSetup& here, const Part& part, Items todo, ResultFile& file,
                   const Deadline& deadline) {
  while (!todo.empty() && deadline.left() > least) {
    const ChildResult child = run_in_child(
        "operators", std::chrono::milliseconds(static_cast<std::int64_t>(1000 * deadline.left())),
        [&](const SendReport& send) { compare_operators(here, part.name, todo, file, send); });
    std::istringstream lines(child.report);
    std::string begun;
    bool too_long = false;
    std::string error = child.report.find("begin ") == std::string::npos
                            ? fmt::format("its process {}", child.problem)
                            : "";
    for (std::string line; std::getline(lines, line);) {
      if (line == "late") {
        too_long = true;
        continue;
      }
      begun = line.starts_with("begin ") ? line.substr(6) : "";
      if (line.starts_with("end ")) {
        std::erase_if(todo, [&](const Item* item) { return item->name == line.substr(4); });
      } else if (line.starts_with("error ")) {
        error = line.substr(6);
      }
    }
    if (!error.empty()) {  // nothing can be compared
      file.add({.part = part.name,
                .item = todo.front()->name,
                .status = child.late ? "late" : "failed",
                .problem = "the device cannot be opened: " + error});
      return;
    }
    const auto guilty =
        std::ranges::find_if(todo, [&](const Item* item) { return item->name == begun; });
    if (guilty != todo.end()) {
      file.add({.part = part.name,
                .item = begun,
                .status = child.late || too_long ? "late" : "failed",
                .problem = too_long ? fmt::format("it did not end within {:.0f} s",
                                                  (*guilty)->seconds * here.scale)
                                    : fmt::format("it {}", child.problem)});
      todo.erase(guilty);
    }
  }
}

// ---- the others ----

Result result_of(const MachineSetup& here, const Part& part, const Item& item,
                 const Deadline& deadline) {
  const Deadline own(std::min(item.seconds * here.scale, deadline.left()));
  Outcome outcome;
  try {
    outcome = item.run(own.left());
  } catch (const std::exception& error) {
    outcome = {.status = "failed", .problem = error.what()};
  }
  return {.part = part.name,
          .item = item.name,
          .status = outcome.status,
          .seconds = own.passed(),
          .problem = outcome.problem,
          .facts = outcome.facts};
}

void run_items(const MachineSetup& here, const Part& part, const Items& todo, ResultFile& file,
               const Deadline& deadline) {
  std::atomic<std::size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr error;
  const auto work = [&] {
    for (std::size_t i = next++; i < todo.size() && deadline.left() > least; i = next++) {
      const Result result = result_of(here, part, *todo[i], deadline);
      const std::lock_guard lock(mutex);
      try {
        if (!error) {
          file.add(result);
        }
      } catch (...) {
        error = std::current_exception();
        next = todo.size();
      }
    }
  };
  std::vector<std::thread> others;
  for (int i = 1; i < part.together; ++i) {
    others.emplace_back(work);
  }
  work();
  for (std::thread& other : others) {
    other.join();
  }
  if (error) {
    std::rethrow_exception(error);
  }
}

/// The items to run: what was never tried comes first.
Items todo_of(const Part& part, const Results& before, const RunOptions& options) {
  Items fresh;
  Items again;
  for (const Item& item : part.items) {
    if (item.name.find(options.only) == std::string::npos) {
      continue;
    }
    const Result* const result = before.find(part.name, item.name);
    if (result == nullptr) {
      fresh.push_back(&item);
    } else if (options.again || !result->is_done()) {
      again.push_back(&item);
    }
  }
  fresh.insert(fresh.end(), again.begin(), again.end());
  return fresh;
}

std::string one_line(std::string text, std::size_t most) {
  std::ranges::replace(text, '\n', ' ');
  return text.size() > most ? text.substr(0, most) + "..." : text;
}

/// One line, and whether all of the part has passed.
bool print_part(const Part& part, const Results& results, double seconds) {
  std::size_t passed = 0;
  std::size_t absent = 0;
  std::size_t tried = 0;
  std::string first;
  std::size_t wrong = 0;
  for (const Item& item : part.items) {
    const Result* const result = results.find(part.name, item.name);
    tried += result != nullptr ? 1 : 0;
    passed += result != nullptr && result->status == "passed" ? 1 : 0;
    absent += result != nullptr && result->status == "absent" ? 1 : 0;
    if (result != nullptr && !result->is_done() && wrong++ == 0) {
      first = item.name + ": " + one_line(result->problem, 160);
    }
  }
  std::string line = fmt::format("{}: {} of {} passed", part.name, passed, part.items.size());
  line += absent > 0 ? fmt::format(", {} not possible here", absent) : "";
  line += tried < part.items.size() ? fmt::format(", {} not tried", part.items.size() - tried) : "";
  line += wrong > 0 ? fmt::format(", {} failed (first {})", wrong, first) : "";
  print_progress(fmt::format("{} ({:.0f} s)\n", line, seconds));
  return passed + absent == part.items.size();
}

void check_names(const std::vector<Part>& parts, const RunOptions& options) {
  std::vector<std::string> names;
  bool has_item = false;
  for (const Part& part : parts) {
    names.push_back(part.name);
    if (options.part.empty() || options.part == part.name) {
      has_item = has_item || std::ranges::any_of(part.items, [&](const Item& item) {
                   return item.name.find(options.only) != std::string::npos;
                 });
    }
  }
  if (!options.part.empty() && std::ranges::find(names, options.part) == names.end()) {
    fail_input({.thing = "part",
                .wrong = "there is no such part",
                .expected = join_words(names),
                .got = options.part});
  }
  if (!has_item) {
    fail_input(
        {.thing = "--only", .wrong = fmt::format("no item has '{}' in its name", options.only)});
  }
}

}  // namespace

bool run_parts(const MachineSetup& here, ResultFile& file, const RunOptions& options) {
  const std::vector<Part> parts = parts_of(here);
  check_names(parts, options);
  const Deadline end(options.seconds);
  bool all = true;
  for (const Part& part : parts) {
    if (!options.part.empty() && part.name != options.part) {
      continue;
    }
    const Items todo = todo_of(part, file.results(), options);
    const Deadline deadline(
        std::min(options.part.empty() ? part.seconds * here.scale : options.seconds, end.left()));
    if (!todo.empty() && deadline.left() > least) {
      if (todo.front()->run) {
        run_items(here, part, todo, file, deadline);
      } else {
        run_operators(here, part, todo, file, deadline);
      }
    }
    const bool passed = print_part(part, file.results(), deadline.passed());
    if (!options.only.empty()) {  // details of these
      const Results results = file.results();
      for (const Item* item : todo) {
        const Result* const result = results.find(part.name, item->name);
        if (result != nullptr) {
          print_progress(fmt::format("  {}: {} {} {}\n", item->name, result->status,
                                     result->problem, result->facts));
          all = all && result->is_done();
        }
      }
    } else {
      all = all && passed;
    }
  }
  return all;
}

}  // namespace tessera::app::first_day
