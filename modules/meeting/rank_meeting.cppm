export module tessera.meeting:rank_meeting;

import tessera.base;
import tessera.machines;

export namespace tessera::collective {

/// A rank that meets the others of its run.
struct MeetingRank {
  std::string transport;  ///< its name, which all ranks must have, and which errors begin with
  int version = 1;        ///< of what the transport sends
  int rank = -1;
  int size = 0;
  std::string_view text{};  ///< that all ranks are told
};

/// The ranks of a run that have met.
struct RunRanks {
  int rank = -1;
  std::vector<std::string> texts{};   ///< by rank
  std::vector<Endpoint> addresses{};  ///< by rank: where its gate listens
  Gate gate{};                        ///< of this rank; lets in who comes for messages
  bool all_here = false;              ///< TESSERA_MEET is an address of this machine alone
  RunKey key;                         ///< of the run
  std::string purpose{};              ///< which connections for messages prove
  std::size_t purpose_number = 0;     ///< that of the gate, see ProvenLink
};

/// Meets all ranks at TESSERA_MEET, where rank 0 listens. All prove that they have the run's key.
/// Whoever calls has a limit of time. Errors (input): TESSERA_MEET is missing or none; there is no
/// key, or another one; the ranks are those of several runs, transports or versions. Error (run):
/// a rank ended meanwhile.
RunRanks meet_ranks(const MeetingRank& self);

}  // namespace tessera::collective
