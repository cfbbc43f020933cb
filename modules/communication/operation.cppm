module tessera.communication:operation;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import :communicator;

namespace tessera::collective {

/// A call that this rank has issued and not completed.
struct Operation {
  enum class Phase : std::uint8_t { gathering_peers, second_phase, held, complete };

  Call call;
  Segment array{};                          ///< what moves, where the call is not of a list
  std::vector<Segment> segments{};          ///< of a list
  std::vector<std::int64_t> send_begins{};  ///< with counts: see Pair
  std::vector<std::int64_t> receive_begins{};
  ReduceSegmentsOptions options{};

  const CallForm* form = nullptr;       ///< null: the engine looks it up when it issues the call
  Read (*read)(const Pair&) = nullptr;  ///< of the first phase; null: nothing moves

  Phase phase = Phase::gathering_peers;
  bool two_phase = false;
  bool direct = false;          ///< peers read the source itself
  std::byte* result = nullptr;  ///< two-phase: base of what peers gather; own piece at its offset
  std::uint64_t sequence = 0;
  std::uint64_t complete_before = 0;  ///< calls that were complete when this one was issued
  RecordedCall* record = nullptr;
  std::int64_t arrives = 0;  ///< over a slow link; 0: not known yet

  std::span<const Segment> arrays() const {
    return form != nullptr && form->list ? std::span<const Segment>(segments)
                                         : std::span<const Segment>(&array, 1);
  }
};

}  // namespace tessera::collective
