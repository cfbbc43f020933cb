module;
#include <fmt/format.h>
#include <signal.h>
#include <sys/wait.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <system_error>
module tessera.launch;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :rank_processes;

namespace tessera::collective {
namespace {

/// Whether a process gets this signal by what it does itself.
bool is_fault(int signal) {
  return signal == SIGSEGV || signal == SIGBUS || signal == SIGFPE || signal == SIGILL ||
         signal == SIGABRT || signal == SIGTRAP || signal == SIGSYS;
}

/// Whether a thread of the process could run, and other processes have the cores, or waits for a
/// disk, as a save does that takes long.
bool waits_for_machine(int process) {
  std::error_code ignored;
  const std::filesystem::directory_iterator none;
  std::filesystem::directory_iterator thread(fmt::format("/proc/{}/task", process), ignored);
  for (; !ignored && thread != none; thread.increment(ignored)) {
    std::string line;
    std::getline(std::ifstream(thread->path() / "stat"), line);
    const std::size_t name_end = line.rfind(')');  // the state follows: see proc(5)
    if (name_end != std::string::npos && name_end + 2 < line.size() &&
        (line[name_end + 2] == 'D' || line[name_end + 2] == 'R')) {
      return true;
    }
  }
  return false;
}

}  // namespace

void RankProcesses::add(int process) {
  processes_.push_back(process);
  stopped_.emplace_back();
  lives_.emplace_back();
}

bool RankProcesses::any_alive() const {
  return std::any_of(processes_.begin(), processes_.end(), [](int p) { return p > 0; });
}

void RankProcesses::kill_all() const {
  for (const int process : processes_) {
    if (process > 0) {
      kill(process, SIGKILL);
    }
  }
}

void RankProcesses::reap(bool killed_by_parent) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    for (int status = 0; processes_[rank] > 0;) {
      const pid_t got = waitpid(processes_[rank], &status, WNOHANG | WUNTRACED | WCONTINUED);
      if (got == 0 || (got < 0 && errno == EINTR)) {
        break;
      }
      if (got > 0 && WIFSTOPPED(status)) {
        stopped_[rank].emplace();
      } else if (got > 0 && WIFCONTINUED(status)) {
        stopped_[rank].reset();
        std::int32_t reporter = number(rank);
        control_.wait_reporter.compare_exchange_strong(reporter, -1);
      } else {
        processes_[rank] = 0;
        note_end(rank, got < 0 ? 0 : status, killed_by_parent);
      }
    }
  }
}

void RankProcesses::report_stopped(double after) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    std::optional<Stopwatch>& stopped = stopped_[rank];
    std::int32_t nobody = -1;
    // A rank that waits for it knows more: it is given time to report first.
    if (processes_[rank] > 0 && stopped && stopped->waited() > after + 2 &&
        control_.wait_reporter.compare_exchange_strong(nobody, number(rank))) {
      log(LogLevel::warning,
          fmt::format("{} has been stopped for {:.0f} s; `kill -CONT {}` lets it run",
                      control_.describe_rank(number(rank)), stopped->waited(), processes_[rank]));
    }
  }
}

void RankProcesses::end_stuck(double after) {
  for (std::size_t rank = 0; rank < processes_.size(); ++rank) {
    const RankRecord& record = control_.ranks()[number(rank)];
    LastSigns& life = lives_[rank];
    const Signs now = {processor_seconds(processes_[rank]), record.recorded.load(),
                       record.step.load()};
    const bool waits = !stopped_[rank] && record.waiting_for.load() >= 0;
    if (processes_[rank] <= 0 || waits || now != life.signs) {
      life = {now, Stopwatch()};
    } else if (life.since.waited() > after && control_.failed.load() == 0 &&
               !waits_for_machine(processes_[rank])) {
      from_outside_ = true;
      control_.publish_error(
          -1,
          fmt::format("rank {} {} for {:.3g} s{}; its last call: {}", number(rank),
                      stopped_[rank] ? "has been stopped" : "has not moved", life.since.waited(),
                      place_of(rank), control_.last_call(region_, number(rank))),
          ErrorKind::run, true);
      kill(processes_[rank], SIGKILL);
    }
  }
}

std::string RankProcesses::place_of(std::size_t rank) const {
  const std::int64_t step = control_.ranks()[number(rank)].step.load();
  const std::string where = control_.ranks()[number(rank)].where.load();
  return fmt::format("{}{}{}", step >= 0 ? fmt::format(" at step {}", step) : "",
                     where.empty() ? "" : " in ", where);
}

void RankProcesses::note_end(std::size_t rank, int status, bool killed_by_parent) {
  if (WIFEXITED(status)) {
    control_.ranks()[number(rank)].ended.store(1);
    code_ = code_ != 0 ? code_ : WEXITSTATUS(status);
  } else if (WIFSIGNALED(status) && !killed_by_parent) {
    const bool first = control_.publish_error(
        -1,
        fmt::format("rank {} was killed by signal {} ({}){}; its last call: {}", number(rank),
                    WTERMSIG(status), strsignal(WTERMSIG(status)), place_of(rank),
                    control_.last_call(region_, number(rank))),
        ErrorKind::run, true);
    from_outside_ = from_outside_ || (first && !is_fault(WTERMSIG(status)));
  }
}

}  // namespace tessera::collective
