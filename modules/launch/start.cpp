module;
#include <fmt/format.h>
#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tessera/limits.hpp>
#include <tuple>
#include <utility>
#include <vector>
module tessera.launch;

import tessera.base;
import tessera.plugin;
import tessera.calls;
import tessera.mesh;
import tessera.ranks;
import tessera.machines;
import tessera.communication;
import :start;
import :black_box;
import :external;
import :introduction;
import :launchers;
import :messages;
import :rank_processes;
import :runner;
import :second_home;

namespace tessera::collective {
namespace {

/// How the ranks of this launcher reach those of other machines.
struct MachineLinks {
  Launchers& launchers;
  Bridge::MakeTransport make_transport;
  RankMeeting meeting{};       // of this attempt
  std::vector<Socket> home{};  // where the launcher before connects to, with second homes
};

/// One of the ranks that several launchers have started.
int run_connected(const std::shared_ptr<Region>& region, int rank, const LaunchOptions& options,
                  const RankFunction& run, MachineLinks& others) {
  const std::string machine = others.launchers.name();
  others.launchers.leave();
  others.home.clear();
  others.meeting.enter(rank);
  const double timeout = options.timeout_seconds > 0 ? options.timeout_seconds : wait_limit();
  Bridge bridge(others.make_transport, rank, options.ranks);
  bridge.meet(protocol_number(), machine, timeout,
              rank == others.launchers.first() ? options.report_seconds : timeout);
  bridge.attach(region, false);  // the launcher watches the ranks here
  const int code = run_rank(region, rank, options, Transport::shm, run, &bridge);
  bridge.finish();
  return code;
}

[[noreturn]] void run_child(const std::shared_ptr<Region>& region, int rank,
                            const LaunchOptions& options, const RankFunction& run, pid_t parent,
                            SignalQueue& signals, MachineLinks* others) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  if (getppid() != parent) {
    _exit(1);  // the parent died before the line above
  }
  signals.leave();
  // A terminal or `timeout` sends its signal to the whole group: in a rank it is a request too. The
  // parent decides what a second one does.
  std::optional<SignalThread> thread;
  int code = 0;
  try {
    thread.emplace();
    code = others == nullptr ? run_rank(region, rank, options, Transport::shm, run)
                             : run_connected(region, rank, options, run, *others);
  } catch (const Error& error) {
    reinterpret_cast<Control*>(region->base())->publish_error(rank, error.what(), error.kind());
    code = exit_code_of(error.kind());
  }
  std::fflush(nullptr);
  _exit(code);
}

/// Forks the ranks. Error (run): one of them cannot be started; there are none then.
void start_ranks(const std::shared_ptr<Region>& region, const LaunchOptions& options,
                 const RankFunction& run, HeldSignals& held, SignalQueue& signals,
                 RankProcesses& children, MachineLinks* others) {
  std::fflush(nullptr);  // or every child would write what is in the buffers
  const pid_t parent = getpid();
  const int first = others == nullptr ? 0 : others->launchers.first();
  const int here = others == nullptr ? options.ranks : others->launchers.here();
  for (int rank = first; rank < first + here; ++rank) {
    const pid_t process = held.fork_rank();
    if (process == 0) {
      run_child(region, rank, options, run, parent, signals, others);
    }
    if (process < 0) {
      const int error = errno;
      const std::string reason = reason_of(error);
      children.kill_all();
      while (children.any_alive()) {
        signals.wait(0.05);
        children.reap(true);
      }
      fail({.thing = "launch",
            .wrong = fmt::format("cannot start rank {} of {} ({})", rank, options.ranks, reason),
            .advice = error == ENOMEM ? "use fewer ranks, or free memory"
                                      : "use fewer ranks, or raise the limit on processes "
                                        "(`ulimit -u`, or that of the control group)"});
    }
    children.add(process);
  }
}

/// Returns when all ranks have ended; whether a second request has ended them. `launchers`: those
/// of other machines; null: there are none.
bool wait_for_ranks(Control& control, const LaunchOptions& options, const ServedSignals& served,
                    SignalQueue& signals, RankProcesses& children, Launchers* launchers,
                    const SecondHome* home) {
  bool killed = false;
  bool forced = false;
  auto failed_at = std::chrono::steady_clock::time_point::max();
  while (children.any_alive()) {
    signals.wait(0.1);
    if (served.asked_again() && !forced) {
      forced = killed = true;
      children.kill_all();
    }
    children.reap(killed);
    if (launchers != nullptr) {
      launchers->serve(control);
    }
    if (const std::string why = home == nullptr ? "" : home->failure(); !why.empty()) {
      control.publish_error(-1, why, ErrorKind::run, true);
    }
    children.report_stopped(options.report_seconds);
    if (options.stuck_seconds > 0) {
      children.end_stuck(options.stuck_seconds);
    }
    const auto now = std::chrono::steady_clock::now();
    if (control.failed.load() != 0 && failed_at > now) {
      failed_at = now;
    }
    if (failed_at <= now && !killed &&
        std::chrono::duration<double>(now - failed_at).count() > options.grace_seconds) {
      killed = true;
      children.kill_all();
    }
  }
  return forced;
}

/// Writes what the ranks of a run that has failed did last, where that is wanted.
void keep_last_calls(Control& control, const Region& region, const LaunchOptions& options,
                     const FirstError& error) {
  if (!options.black_box.empty() && error.kind != ErrorKind::interrupted) {
    write_black_box(options.black_box, control, region);
  }
}

/// How the ranks of this launcher have ended.
EndedRanks ended_ranks(Control& control, const LaunchOptions& options,
                       const RankProcesses& children) {
  EndedRanks ended{.code = children.code(),
                   .from_outside = children.failed_from_outside(),
                   .interrupted = control.interrupts.load() != 0,
                   .step = control.first_error().step};
  for (std::uint32_t rank = 0; ended.step < 0 && rank < control.size; ++rank) {
    ended.step = std::max(ended.step, control.ranks()[rank].step.load());
  }
  if (options.kept != nullptr) {
    ended.held.own = options.kept->whole();
  }
  if (options.kept_of_other != nullptr) {
    ended.held.of_other = options.kept_of_other->whole();
  }
  return ended;
}

/// Whether the caller starts the ranks again; after a request to stop too, which the new ranks then
/// follow with their step saved. `decided`: machine 0 does.
bool starts_again(Control& control, Region& region, const LaunchOptions& options,
                  const EndedRanks& ended, int number, bool decided) {
  const FirstError error = control.first_error();
  if (!options.restart || error.text.empty() || (!decided && error.kind != ErrorKind::run)) {
    return false;
  }
  keep_last_calls(control, region, options, error);
  return options.restart(
      {.error = error,
       .step = ended.step,
       .calls = control.failed_in_calls.load() != 0 ? control.recent_calls(region, 4) : "",
       .from_outside = ended.from_outside,
       .number = number,
       .kept = ended.kept,
       .decided = decided});
}

/// One rank runs in this process: easy to debug, and nothing to share.
int launch_lone(const LaunchOptions& options, const RankFunction& run) {
  check_limits(options, true);
  const auto region = Region::create(arena_bytes(options), false);
  Control* control = Control::create(*region, 1);
  check_room(*region, options);
  int code = 0;
  {
    const HeldSignals held;
    const ServedSignals served(*control, true);
    const SignalThread thread;
    code = run_rank(region, 0, options, Transport::single, run);
  }
  return finish(*control, *region, options, code);
}

/// All launchers begin an attempt; this one fetches the state of the step that it continues from,
/// where it is in the memory of the next one only. Nothing: a machine is lost.
std::optional<HomeLink> begin_together(const LaunchOptions& options, MachineLinks& others,
                                       std::int64_t from) {
  others.home = options.kept_of_other != nullptr ? listen_at(others.launchers.addresses(), 0)
                                                 : std::vector<Socket>();
  std::optional<RankMeeting> meeting =
      others.launchers.begin(others.home.empty() ? 0 : others.home.front().own_end().port);
  if (!meeting) {
    return std::nullopt;
  }
  others.meeting = std::move(*meeting);
  const LauncherPlace& place = options.place.value();
  HomeLink link{
      .machine = place.machine,
      .machines = place.machines,
      .key = others.meeting.key,
      .next = others.meeting.homes[static_cast<std::size_t>((place.machine + 1) % place.machines)]};
  const bool fetches =
      from >= 0 && options.kept_of_other != nullptr && !options.kept->generation(from);
  const auto go_on = [&] { return others.launchers.idle(); };
  return fetches && !fetch_state(*options.kept, from, link, go_on) ? std::nullopt
                                                                   : std::optional(link);
}

/// This launcher takes the place of one that is lost. Returns the step that its ranks continue
/// from.
std::int64_t join_attempts(const LaunchOptions& options, const JoinedAttempt& joined) {
  require(static_cast<bool>(options.restart),
          "launch: only a run that starts ranks again can be joined");
  options.restart({.error = {},
                   .calls = {},
                   .number = joined.number,
                   .kept = joined.kept,
                   .decided = true,
                   .joins = true});
  return joined.kept;
}

/// How the ranks have ended, and whether all launchers start theirs again.
std::pair<EndedRanks, bool> end_together(Control& control, Region& region,
                                         const LaunchOptions& options,
                                         const RankProcesses& children, int number,
                                         Launchers& launchers, SignalQueue& signals) {
  EndedRanks ended = ended_ranks(control, options, children);
  bool again = launchers.agree(
      control, ended, [&] { signals.wait(0.005); },
      [&](const EndedRanks& all) {
        return starts_again(control, region, options, all, number, false);
      });
  again = again &&
          (launchers.is_first() || starts_again(control, region, options, ended, number, true));
  return {ended, again};
}

/// Starts the ranks of this launcher until they need not be started again. `here`: the limits of
/// this machine.
int run_attempts(const LaunchOptions& options, const LaunchOptions& here, const RankFunction& run,
                 MachineLinks* others) {
  HeldSignals held;
  SignalQueue signals;
  Launchers* const launchers = others == nullptr ? nullptr : &others->launchers;
  int number = 1;
  std::int64_t from = -1;  // the step that is kept and that ranks continue from
  if (others != nullptr && launchers->joined()) {
    from = join_attempts(options, *launchers->joined());
    number = launchers->joined()->number + 1;
  }
  bool asked = false;  // to stop, in an attempt before
  for (;; ++number) {
    const auto region = Region::create(arena_bytes(here), true);
    Control* control = Control::create(*region, options.ranks);
    check_room(*region, here);
    control->interrupts.store(asked ? 1 : 0);
    const ServedSignals served(*control, false);
    RankProcesses children(*control, *region, others == nullptr ? 0 : launchers->first());
    const std::optional<HomeLink> link =
        others == nullptr ? std::optional(HomeLink()) : begin_together(options, *others, from);
    bool forced = false;
    std::optional<SecondHome> home;
    if (link) {
      start_ranks(region, options, run, held, signals, children, others);
      if (others != nullptr) {
        others->meeting.listeners.clear();  // rank 0 has them
        if (options.kept_of_other != nullptr) {
          home.emplace(options, *link, std::move(others->home));
        }
      }
      forced = wait_for_ranks(*control, options, served, signals, children, launchers,
                              home ? &*home : nullptr);
    } else {
      control->publish_error(-1, launchers->failure(), ErrorKind::run, true);
    }
    home.reset();
    if (forced && others != nullptr) {
      control->publish_error(-1, "a second request ended the ranks", ErrorKind::interrupted);
    }
    EndedRanks ended;
    bool again = false;
    if (others != nullptr) {
      std::tie(ended, again) =
          end_together(*control, *region, options, children, number, *launchers, signals);
    } else {
      ended = ended_ranks(*control, options, children);
      ended.kept = newest_common({ended.held});
      again = !forced && starts_again(*control, *region, options, ended, number, false);
    }
    from = ended.kept;
    asked = ended.interrupted || control->interrupts.load() != 0;
    if (again && asked) {
      log(LogLevel::warning, "the run was asked to stop: its ranks take one step and save it");
    }
    if (!again) {
      return forced ? exit_code_of(ErrorKind::interrupted)
                    : finish(*control, *region, options, ended.code);
    }
  }
}

/// The ranks of this launcher, which is one of several.
int launch_together(const LaunchOptions& options, const RankFunction& run) {
  if (options.transport == "shm") {
    fail_input({.thing = "launch",
                .wrong = "the transport 'shm' connects ranks of one machine, and these are on "
                         "several",
                .advice = "set `mesh.transport` to \"auto\""});
  }
  LaunchOptions own = options;
  own.transport = transport_for(options.transport, true);
  own.agreed.emplace_back("transport", own.transport);
  LaunchOptions here = own;
  here.ranks = options.place->ranks_of(options.ranks);
  here.needed_bytes = options.needed_bytes / static_cast<std::size_t>(options.ranks) *
                      static_cast<std::size_t>(here.ranks);
  check_limits(here);
  const Bridge::MakeTransport make = plugin::host().find<MessageTransport>(own.transport);
  Launchers launchers(own);
  MachineLinks others{launchers, make};
  return run_attempts(own, here, run, &others);
}

}  // namespace

std::size_t arena_bytes(const LaunchOptions& options) {
  if (options.arena_bytes != 0) {
    return options.arena_bytes;
  }
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

void check_room(const Region& region, const LaunchOptions& options) {
  if (options.needed_bytes > region.bytes()) {
    fail_input({.thing = "launch",
                .wrong = fmt::format("{} ranks need {} of shared memory and there is room for {}",
                                     options.ranks, format_bytes(options.needed_bytes),
                                     format_bytes(region.bytes())),
                .advice = "use fewer parameters, a machine with more memory, or raise `ulimit -v` "
                          "and `ulimit -f`"});
  }
}

RankIdentity::RankIdentity(int rank) : before_(current_rank()) { set_current_rank(rank); }

RankIdentity::~RankIdentity() { set_current_rank(before_); }

int run_rank(const std::shared_ptr<Region>& region, int rank, const LaunchOptions& options,
             Transport transport, const RankFunction& run, Bridge* bridge) {
  auto* control = reinterpret_cast<Control*>(region->base());
  const RankIdentity identity(rank);
  if (transport != Transport::threads) {
    set_log_rank(rank);
  }
  ErrorKind kind = ErrorKind::run;
  try {
    World world({.region = region,
                 .rank = rank,
                 .size = static_cast<int>(control->size),
                 .transport = transport,
                 .bridge = bridge,
                 .report_seconds = options.report_seconds});
    if (options.timeout_seconds > 0) {
      world.set_timeout(options.timeout_seconds);
    }
    // Published before the world ends: peers must not see an ended rank first.
    try {
      return run(world);
    } catch (const Error& error) {
      kind = error.kind();
      world.publish_error(error.what(), kind);
    } catch (const std::exception& error) {
      world.publish_error(reason_of(error), kind);
    } catch (...) {
      world.publish_error("unknown exception", kind);
    }
  } catch (const Error& error) {
    kind = error.kind();
    control->publish_error(rank, error.what(), kind);
  } catch (const std::exception& error) {
    control->publish_error(rank, reason_of(error), kind);
  }
  return exit_code_of(kind);
}

int finish(Control& control, Region& region, const LaunchOptions& options, int code,
           Bridge* bridge) {
  const FirstError error = control.first_error();
  if (error.text.empty()) {
    return code;
  }
  keep_last_calls(control, region, options, error);
  if (options.print_error && error.kind != ErrorKind::interrupted &&
      (bridge == nullptr || bridge->prints_error()) && control.printed.exchange(1) == 0) {
    std::string text = fmt::format("error: {}\n", to_string(error));
    const std::string calls = control.recent_calls(region, 4);
    if (control.failed_in_calls.load() != 0 && !calls.empty()) {
      text += fmt::format("last calls of each rank:\n{}", calls);
    }
    std::fputs(text.c_str(), stderr);
  }
  return exit_code_of(error.kind);
}

int launch(const LaunchOptions& options, const RankFunction& run) {
  if (options.ranks < 1) {
    fail_input({.thing = "launch",
                .wrong = "needs at least one rank",
                .got = fmt::format("{}", options.ranks)});
  }
  use_interface(options.interface);
  if (options.place) {
    return launch_together(options, run);
  }
  if (options.transport != "auto" && options.transport != "shm") {
    fail_input({.thing = "launch",
                .wrong = fmt::format("the transport '{}' connects ranks of several machines, and "
                                     "this program starts all ranks on this one",
                                     options.transport),
                .advice = "start it with --machines, mpirun or srun, or set `mesh.transport` to "
                          "\"auto\""});
  }
  if (options.ranks == 1 && !options.restart) {
    return launch_lone(options, run);
  }
  check_limits(options);
  return run_attempts(options, options, run, nullptr);
}

}  // namespace tessera::collective
