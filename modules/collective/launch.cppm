export module tessera.collective:launch;

import tessera.base;
import :world;

export namespace tessera::collective {

struct LaunchOptions {
  int ranks = 1;
  double timeout_seconds = 0;   ///< of every wait; 0: TESSERA_TIMEOUT, else 300
  std::size_t arena_bytes = 0;  ///< address space for shared buffers; 0: the machine's memory
  bool print_error = true;      ///< write the first error to stderr
  double grace_seconds = 4;     ///< from the first error to killing ranks that do not end
};

/// What a rank runs: the exit code it wants, or an exception.
using RankFunction = std::function<int(World&)>;

/// Forks one process for each rank and waits for all (one rank runs in this process). Call it
/// before any thread exists. Returns the exit code: 0; 1 or 2 by the first error's kind; 130 when
/// interrupted; else the first non-zero code of a rank. SIGINT or SIGTERM sets
/// World::interrupt_requested on all ranks, a second one kills them. A rank that dies, or a parent
/// that dies, takes the others along; no shared memory is left behind.
int launch(const LaunchOptions& options, const RankFunction& run);

/// Whether another launcher (mpirun, srun, torchrun) started this process as one of several ranks:
/// RANK and WORLD_SIZE, or what OpenMPI, PMI or Slurm set.
bool launched_by_other();

/// Runs this rank of such a launch: meets the others through shared memory named after TESSERA_JOB
/// or MASTER_PORT and the user. All ranks must be on this machine: LOCAL_WORLD_SIZE other than
/// WORLD_SIZE is an error (input). The rank that failed first prints the error. Returns the exit
/// code, as launch.
int join_launch(const LaunchOptions& options, const RankFunction& run);

/// Runs `ranks` ranks as threads of this process and rethrows the first error.
void run_threads(int ranks, const std::function<void(World&)>& run,
                 const LaunchOptions& options = {});

}  // namespace tessera::collective
