module;
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
module tessera.collective;

import tessera.base;
import :control;
import :launch;
import :region;
import :runner;
import :state;
import :world;

namespace tessera::collective {
namespace {

using Clock = std::chrono::steady_clock;

/// The first of several variables that is set, with its name.
std::optional<std::pair<std::string, std::string>> first_variable(
    std::initializer_list<const char*> names) {
  for (const char* name : names) {
    if (auto value = environment_variable(name)) {
      return std::pair{std::string(name), *value};
    }
  }
  return std::nullopt;
}

std::optional<int> number_from(std::initializer_list<const char*> names) {
  const auto found = first_variable(names);
  if (!found) {
    return std::nullopt;
  }
  int value = 0;
  const auto& [name, text] = *found;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    fail_input(fmt::format("{}: not a number of ranks (expected 0 or more, got '{}')", name, text));
  }
  return value;
}

std::optional<int> rank_given() {
  return number_from({"RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK", "SLURM_PROCID"});
}
std::optional<int> size_given() {
  return number_from({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"});
}
std::optional<int> local_size_given() {
  return number_from({"LOCAL_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"});
}

/// The same for all ranks of a job and different for the jobs of one user at one time.
std::string meeting_name() {
  const auto job = first_variable({"TESSERA_JOB", "MASTER_PORT", "PMIX_NAMESPACE",
                                   "OMPI_MCA_ess_base_jobid", "PMI_JOBID", "SLURM_JOB_ID"});
  if (!job) {
    fail_input(
        "launch: RANK and WORLD_SIZE are set, but nothing names the job; set TESSERA_JOB to the "
        "same word for all its ranks");
  }
  std::string name = fmt::format("/tessera-{}-{}", getuid(), job->second);
  std::replace(name.begin() + 1, name.end(), '/', '_');
  return name.substr(0, 200);
}

/// Waits between two looks; an error after the time-out.
class Patience {
 public:
  Patience(double seconds, std::string what) : seconds_(seconds), what_(std::move(what)) {}
  void wait() {
    if (std::chrono::duration<double>(Clock::now() - begin_).count() > seconds_) {
      fail(fmt::format("launch: {} after {:.0f} s; are all ranks started, with the same job?",
                       what_, seconds_));
    }
    usleep(1000);
  }

 private:
  Clock::time_point begin_ = Clock::now();
  double seconds_;
  std::string what_;
};

std::shared_ptr<Region> create_meeting(const std::string& name, int size, std::size_t bytes,
                                       double timeout) {
  shm_unlink(name.c_str());  // what a job that was killed may have left
  const int descriptor = shm_open(name.c_str(), O_RDWR | O_CREAT | O_EXCL, 0600);
  if (descriptor < 0 || ftruncate(descriptor, static_cast<off_t>(bytes)) != 0) {
    fail(fmt::format("launch: cannot make the shared memory {} ({})", name, std::strerror(errno)));
  }
  auto region = Region::map(descriptor, bytes);
  close(descriptor);
  Control* control = Control::create(*region, size);
  control->creator.store(getpid());
  control->attached.fetch_add(1);
  try {
    Patience patience(timeout, "not all ranks have come");
    while (control->attached.load() < static_cast<std::uint32_t>(size)) {
      patience.wait();
    }
  } catch (const Error&) {
    shm_unlink(name.c_str());
    throw;
  }
  shm_unlink(name.c_str());
  control->started.store(1);
  return region;
}

/// One try to join; null when rank 0 is not there yet or the memory is a dead job's.
std::shared_ptr<Region> try_join(const std::string& name, int size, double timeout) {
  const int descriptor = shm_open(name.c_str(), O_RDWR, 0);
  if (descriptor < 0) {
    return nullptr;
  }
  struct stat status = {};
  if (fstat(descriptor, &status) != 0 ||
      static_cast<std::size_t>(status.st_size) < sizeof(Control)) {
    close(descriptor);
    return nullptr;
  }
  auto region = Region::map(descriptor, static_cast<std::size_t>(status.st_size));
  close(descriptor);
  auto* control = reinterpret_cast<Control*>(region->base());
  const auto creator_lives = [&] {
    const std::int32_t creator = control->creator.load();
    return creator > 0 && (kill(creator, 0) == 0 || errno != ESRCH);
  };
  if (control->magic.load() != Control::expected_magic || !creator_lives() ||
      control->started.load() != 0) {
    return nullptr;
  }
  if (control->size != static_cast<std::uint32_t>(size)) {
    fail_input(fmt::format("launch: WORLD_SIZE differs among the ranks (rank 0 has {}, this {})",
                           control->size, size));
  }
  control->attached.fetch_add(1);
  Patience patience(timeout, "not all ranks have come");
  while (control->started.load() == 0) {
    if (!creator_lives()) {
      fail("launch: rank 0 has died while the ranks met");
    }
    patience.wait();
  }
  return region;
}

std::shared_ptr<Region> join_meeting(const std::string& name, int size, double timeout) {
  Patience patience(timeout, "rank 0 has not come");
  while (true) {
    if (auto region = try_join(name, size, timeout)) {
      return region;
    }
    patience.wait();
  }
}

std::atomic<Control*> joined_control{nullptr};

void interrupt_joined(int) {
  if (Control* control = joined_control.load()) {
    control->interrupts.fetch_add(1);
  }
}

}  // namespace

bool launched_by_other() { return rank_given().has_value() && size_given().has_value(); }

int join_launch(const LaunchOptions& options, const RankFunction& run) {
  const int rank = rank_given().value_or(-1);
  const int size = size_given().value_or(0);
  if (rank < 0 || rank >= size) {
    fail_input(
        fmt::format("launch: bad RANK and WORLD_SIZE (expected 0 <= RANK < WORLD_SIZE, got "
                    "{} and {})",
                    rank, size));
  }
  if (options.ranks != size) {
    fail_input(fmt::format(
        "launch: the run is one of {} ranks, but WORLD_SIZE is {}; start {} ranks or change the "
        "mesh",
        options.ranks, size, options.ranks));
  }
  if (const auto local = local_size_given(); local && *local != size) {
    fail_input(
        fmt::format("launch: all ranks must be on one machine (WORLD_SIZE is {}, "
                    "LOCAL_WORLD_SIZE {}); start the job on one node",
                    size, *local));
  }
  const double timeout = options.timeout_seconds > 0 ? options.timeout_seconds : default_timeout();
  const std::string name = meeting_name();
  const auto region = rank == 0 ? create_meeting(name, size, arena_bytes(options), timeout)
                                : join_meeting(name, size, timeout);
  auto* control = reinterpret_cast<Control*>(region->base());
  joined_control.store(control);
  struct sigaction action = {};
  action.sa_handler = interrupt_joined;
  sigaction(SIGINT, &action, nullptr);
  sigaction(SIGTERM, &action, nullptr);
  const int code = run_rank(region, rank, options, Transport::shm, run);
  joined_control.store(nullptr);
  // There is no parent: the rank that failed first speaks for all.
  LaunchOptions own = options;
  own.print_error = options.print_error && control->first_error().rank == rank;
  return finish(*control, *region, own, code);
}

}  // namespace tessera::collective
