module tessera.collective:external;

import tessera.base;

namespace tessera::collective {

/// This process as a rank of a launch by another program, as its environment says.
struct ExternalRank {
  int rank;
  int size;
  std::string job;  ///< the same for all ranks, different for other jobs of this user
};

/// Error (input) when the variables do not fit each other or `expected_ranks`, when the ranks are
/// on several machines, or when nothing names the job.
ExternalRank external_rank(int expected_ranks);

/// The same without errors, for a process that has failed already: nothing when it could not meet
/// the other ranks anyway.
std::optional<ExternalRank> reachable_rank();

/// Whether this process prints an error that every rank of this machine has: rank 0, or the first
/// rank of a machine without it.
bool speaks_for_machine();

}  // namespace tessera::collective
