export module tessera.ranks:member;

import tessera.base;
import :control;

export namespace tessera::collective {

/// Publication of a rank to its peers when it issues a call. Entry n % ring is rewritten only when
/// every peer is done with call n.
struct alignas(64) Publication {
  PackedCall call;
  std::uint64_t source = 0;  ///< offset of the data, or of a table of offsets
  std::uint64_t result = 0;  ///< where the second phase of all_reduce finds this rank's piece, or
                             ///< a table of offsets
  std::int64_t time = 0;     ///< of the issue, on this machine's steady clock
};

/// One rank's side of a group, in shared memory. All numbers count calls.
struct Member {
  static constexpr std::uint64_t ring = 64;

  Counter published;  ///< calls whose source peers may read
  Counter reduced;    ///< two-phase calls: this rank's piece is ready; the call's number + 1
  Counter done;       ///< calls in which this rank reads nothing of its peers any more
  std::atomic<std::uint64_t> channels{0};  ///< offset of the first of those that end here
  Publication publications[ring];
};

}  // namespace tessera::collective
