export module tessera.launch:start;

import tessera.base;
import tessera.calls;
import tessera.communication;

export namespace tessera::collective {

/// A state of one machine's ranks, as launchers send it to each other.
struct StateGeneration {
  std::int64_t step = -1;
  std::vector<std::uint64_t> head = {};                 ///< what the blocks are
  std::vector<std::span<const std::byte>> blocks = {};  ///< in the memory in which it is kept
};

/// Memory in which the ranks of one machine keep states of the run, by their steps: two at least,
/// so that one is whole at any time. It belongs to a launcher and outlives the ranks. The functions
/// may be called by any thread, and while ranks keep the next state.
class StateStore {
 public:
  StateStore() = default;
  StateStore(const StateStore&) = delete;
  StateStore& operator=(const StateStore&) = delete;
  virtual ~StateStore() = default;
  /// The steps of the states that are whole.
  virtual std::vector<std::int64_t> whole() const = 0;
  /// The state of this step: it stays as it is until set_copied(step). Nothing: it is not whole.
  virtual std::optional<StateGeneration> generation(std::int64_t step) const = 0;
  /// Waits for at most `seconds`, until the newest whole state is one after `step`; its step, or
  /// -1.
  virtual std::int64_t wait_for_newer(std::int64_t step, double seconds) const = 0;
  /// Makes room for a state that comes from another launcher, in place of the oldest: where its
  /// blocks belong. Error: there is no room, or the head is of other ranks.
  virtual std::vector<std::span<std::byte>> begin_copy(std::span<const std::uint64_t> head) = 0;
  /// What begin_copy made room for is there.
  virtual void end_copy(std::int64_t step) = 0;
  /// A second machine has all states up to this one.
  virtual void set_copied(std::int64_t step) = 0;
};

/// Ranks that `launch` has started and that have all ended, because of an error.
struct FailedAttempt {
  FirstError error;
  std::int64_t step = -1;  ///< in which it was, as set_progress says; -1: before the first
  std::string calls;       ///< the last calls of each rank where they explain it, a line each
  /// A rank was killed, as from outside, or did not move. Otherwise a rank has thrown the error, or
  /// has crashed (SIGSEGV, SIGABRT, ...).
  bool from_outside = false;
  int number = 1;          ///< of the attempt, from 1
  std::int64_t kept = -1;  ///< the newest step that all launchers can continue from; -1: none
  bool decided = false;    ///< the launcher of machine 0 starts them again: so must this one
  bool joins = false;      ///< this launcher takes the place of one that was lost
};

/// This process as one of several launchers, one on each machine, which start the ranks of a run
/// together. The ranks are numbered by machine.
struct LauncherPlace {
  int machine = 0;  ///< number of this machine; 0 is the one that the others connect to
  int machines = 1;
  std::string meet;  ///< HOST:PORT: machine 0, and the port at which its launcher listens
  int ranks = 0;     ///< that this launcher starts; 0: on all machines as many

  /// How many of a run's ranks this launcher starts, at least 1.
  inline int ranks_of(int all) const { return ranks > 0 ? ranks : std::max(1, all / machines); }
};

/// What a command line or a program says of this machine among those of a run. What it leaves out,
/// the environment says: TESSERA_MACHINES, TESSERA_MACHINE_NUMBER, TESSERA_MEET,
/// TESSERA_RANKS_HERE.
struct MachineOptions {
  std::optional<int> machines = {};      ///< how many there are
  std::optional<int> number = {};        ///< of this one, from 0
  std::optional<std::string> meet = {};  ///< HOST:PORT
  std::optional<int> ranks = {};         ///< that are started here
};

/// Options of starting ranks.
struct LaunchOptions {
  int ranks = 1;                 ///< join_launch: 0 for as many as the launcher has started
  double timeout_seconds = 0;    ///< limit of every wait; 0: TESSERA_TIMEOUT, else 300
  double report_seconds = 10;    ///< a wait that lasts longer is reported on stderr, once
  std::size_t arena_bytes = 0;   ///< address space for shared buffers; 0: the machine's memory
  std::size_t needed_bytes = 0;  ///< shared memory; an error (input) before any rank starts when
                                 ///< there is less
  std::size_t rank_bytes = 0;    ///< memory that each rank needs of its own at least, and
  int rank_threads = 1;          ///< its threads: an error (input) before any rank starts when the
                                 ///< machine cannot have so much
  int machines = 1;              ///< run_threads: machines that the ranks play
  /// How machines are connected: "auto", "shm" (all ranks are on one), or the name of a transport,
  /// which needs ranks of several launchers (join_launch, `place`).
  std::string transport = "auto";
  std::optional<LauncherPlace> place = {};  ///< launch: ranks on several machines
  /// The interface of the network, or the address, by which others reach the ranks of this machine,
  /// unless TESSERA_INTERFACE says so; "": that by which it meets them.
  std::string interface = {};
  /// launch with `place`: what must be the same on all machines, by name ("config"). Of a text of
  /// several lines, the error (input) quotes the first one that differs.
  std::vector<std::pair<std::string, std::string>> agreed = {};
  /// What must be the same too where all launchers begin, and not where one takes the place of
  /// another one.
  std::vector<std::pair<std::string, std::string>> agreed_at_start = {};
  bool print_error = true;     ///< write the first error to stderr
  std::string black_box = {};  ///< a folder for what the ranks did last, when they fail; "": none
  double grace_seconds = 4;    ///< from the first error to killing ranks that do not end
  /// launch: a rank that is stopped, or that neither waits for another rank nor uses a processor,
  /// for so many seconds fails the run and is killed. 0: it is only reported.
  double stuck_seconds = 0;
  /// launch: called in the launching process after an error that is neither an input's nor an
  /// interrupt, when all ranks have ended; true: all ranks are started again, by forks of this
  /// process as it is then. Null: the first error ends the launch.
  std::function<bool(const FailedAttempt&)> restart = {};
  /// With `restart`: the states from which this process could let its ranks continue; null: none.
  StateStore* kept = nullptr;
  /// With `kept` and `place`: this launcher's copies of what the one before it (the last one before
  /// the first) keeps. They are kept up to date while ranks run. Null: there are none.
  StateStore* kept_of_other = nullptr;
  /// With `restart` and `place`: for how many seconds the launchers wait for another one in the
  /// place of one that is lost. 0: it ends the run.
  double replace_seconds = 0;
};

/// The function of a rank: the exit code it wants, or an exception.
using RankFunction = std::function<int(World&)>;

/// Forks one process for each rank and waits for all (one rank runs in this process, unless it may
/// be started again). Call it before any thread exists. Returns the exit code: 0; 1 or 2 by the
/// first error's kind; 130 when interrupted; else the first non-zero code of a rank. A rank that
/// dies, or a parent that dies, takes the others along; no shared memory is left behind. In each
/// rank, current_rank() and the log have its number.
///
/// With `place`, the launchers meet first, and each forks its own ranks, which reach those of other
/// machines through the transport `tcp`. What ends the ranks of one ends those of all, with the
/// same exit code, and each prints the first error. Error (input), on all: they have different
/// versions of Tessera, numbers, ranks or texts (`agreed`); error (run): not all came within the
/// time limit.
///
/// SIGINT, SIGTERM, SIGHUP, SIGUSR1, SIGUSR2, SIGXCPU, or a write to a closed pipe in a rank's own
/// thread sets World::interrupt_requested on all ranks; a second one of the first three, half a
/// second later or more, ends them. Meanwhile the calling thread, and threads that it starts, have
/// these signals blocked, and a thread of each process waits for them. Left alone are signals that
/// this process was started to ignore (nohup), and SIGUSR1 and SIGUSR2 if the program handles them.
/// A process that a rank forks has its signals as the program had them; one that it starts without
/// a fork (posix_spawn, system, popen) has them blocked.
int launch(const LaunchOptions& options, const RankFunction& run);

/// The place of this launcher among several, as `said` and the environment say; nothing where they
/// name no number of machines, or it is 1. Error (input): they do not fit each other.
std::optional<LauncherPlace> launcher_place(const MachineOptions& said = {});

/// For a spare machine: waits at the launcher of machine 0 (`meet`, HOST:PORT) until a machine of
/// its run is lost. Returns the number of that one, whose place is free; nothing: the run has
/// ended. Errors: machine 0 cannot be reached within the time limit; it has another version or job.
std::optional<int> wait_as_spare(const std::string& meet);

/// How many of a run's ranks this process starts: 1 where another launcher started it as a rank.
/// Error (input): see launcher_place.
int ranks_started_here(int ranks, const MachineOptions& said = {});

/// Whether another launcher (mpirun, srun, torchrun) started this process as one of several ranks:
/// RANK and WORLD_SIZE, or what Open MPI, PMI or Slurm set. One task of one is not: it may launch
/// ranks itself.
bool launched_by_other(const MachineOptions& said = {});

/// Whether this process is the one that speaks for the run: rank 0 of another launcher, the
/// launcher of machine 0, or any process that no other launcher started as a rank.
bool is_first_process(const MachineOptions& said = {});

/// Runs this rank of such a launch: meets the others through a socket named after the user and the
/// job (TESSERA_JOB, or what the launcher set: several jobs and steps at a time are told apart) and
/// shares memory with those of its machine as launch does; nothing is left behind. Ranks of other
/// machines are reached through options.transport. One of the ranks prints the first error. Returns
/// the exit code, as launch. The signals are as for launch.
int join_launch(const LaunchOptions& options, const RankFunction& run);

/// Error (input): `name` is not "auto", "shm" or the name of a transport that a plugin provides.
void check_transport(std::string_view name);

/// Call it when a process that another launcher started as a rank ends with an error before it has
/// joined. The other ranks then end too, instead of waiting for this one, and the error is printed
/// once: `print` is called in rank 0; in another rank only when rank 0 has not failed before it
/// joined as well, or cannot be reached. Takes at most a few seconds. In any other process, and
/// after a rank has met the others, it calls `print` and returns.
void report_refusal(std::string_view text, ErrorKind kind, const std::function<void()>& print,
                    const MachineOptions& said = {});

/// Runs `ranks` ranks as threads of this process, each with its current_rank(), and rethrows the
/// first error. With several `machines` the ranks share memory in as many groups of consecutive
/// ranks, and everything else goes through the messages of a transport.
void run_threads(int ranks, const std::function<void(World&)>& run,
                 const LaunchOptions& options = {});

}  // namespace tessera::collective
