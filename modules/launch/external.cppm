module tessera.launch:external;

import tessera.base;
import :start;

namespace tessera::collective {

/// This process as a rank of a launch by another program, as its environment says.
struct ExternalRank {
  int rank;
  int size;
  std::string job;       ///< the same for all ranks, different for other jobs of this user
  bool several = false;  ///< the ranks may be on several machines: they meet through a transport
  /// Ranks of one machine of several: their numbers in the world, which has `world` ranks.
  std::vector<int> mates{};
  int world = 0;
  inline int number(int other) const {
    return mates.empty() ? other : mates[static_cast<std::size_t>(other)];
  }
  inline int world_size() const { return mates.empty() ? size : world; }
};

/// Error (input) when the variables do not fit each other or `expected_ranks` (0: any number), when
/// the ranks are on several machines and `transport` is "shm", or when nothing names the job.
ExternalRank external_rank(int expected_ranks, std::string_view transport);

/// The transports with which ranks meet at an address, TESSERA_MEET: what "auto" takes the first of
/// that a plugin provides. The last one needs nothing but this program.
inline constexpr std::array<std::string_view, 2> meeting_transports = {"ucx", "tcp"};

/// The name of this machine: TESSERA_MACHINE, which lets one machine play several, or its host
/// name.
std::string machine_name();

/// Finds the rank without errors, for a process that has failed already: nothing when it could not
/// meet the other ranks anyway.
std::optional<ExternalRank> reachable_rank(const MachineOptions& said = {});

/// Whether this process prints an error that every rank of this machine has: rank 0, or the first
/// rank of a machine without it.
bool speaks_for_machine(const MachineOptions& said = {});

}  // namespace tessera::collective
