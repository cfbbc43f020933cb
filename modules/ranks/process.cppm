export module tessera.ranks:process;

import tessera.base;

export namespace tessera::collective {

/// A process by its number and its start: the system uses numbers again.
struct Process {
  std::int32_t id = 0;
  std::uint64_t start = 0;  ///< clock ticks since the machine's start; 0: not known
};

/// States of another process.
enum class ProcessState : std::uint8_t { running, stopped, gone };

/// The calling process.
Process this_process();
/// `start` is 0 where /proc does not tell.
Process process_of(std::int32_t id);
/// A process that has ended and that its parent has not waited for (a zombie) is gone; so is one
/// whose number another process has taken over.
ProcessState state_of(const Process& process);
/// For how many seconds the threads of a process have used a processor, in all; 0 where /proc does
/// not tell.
double processor_seconds(std::int32_t id);

}  // namespace tessera::collective
