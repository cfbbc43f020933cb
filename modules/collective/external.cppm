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

}  // namespace tessera::collective
