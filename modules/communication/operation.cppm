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
  std::vector<std::int64_t> send_begins{};  ///< with counts: see ReadRequest
  std::vector<std::int64_t> receive_begins{};
  ReduceSegmentsOptions options{};

  const CallForm* form = nullptr;              ///< null: prepare() looks it up
  Read (*read)(const ReadRequest&) = nullptr;  ///< of the first phase; null: nothing moves
  bool announced = false;  ///< devices move its data; it is compared and recorded

  Phase phase = Phase::gathering_peers;
  bool two_phase = false;
  bool direct = false;          ///< peers read the source itself
  std::byte* result = nullptr;  ///< two-phase: base of what peers gather; own piece at its offset
  std::uint64_t sequence = 0;
  std::uint64_t complete_before = 0;  ///< calls that were complete when this one was issued
  RecordedCall* record = nullptr;
  std::int64_t arrives = 0;  ///< over a slow link; 0: not known yet

  /// Whether the source of a member goes into a reduction.
  bool is_term(int member) const {
    return options.terms.count == 0 ||
           (member >= options.terms.first && member < options.terms.first + options.terms.count);
  }
  /// What is read in the first phase: of a reduction, of its terms only.
  Read read_of(const ReadRequest& pair) const { return is_term(pair.member) ? read(pair) : Read{}; }

  std::span<const Segment> arrays() const {
    return form != nullptr && form->list ? std::span<const Segment>(segments)
                                         : std::span<const Segment>(&array, 1);
  }
};

/// Larger reductions are cut into one piece per rank; for smaller ones every rank reduces all.
inline constexpr std::size_t symmetric_bytes = std::size_t{256} << 10;

/// Finds the form of a call in a group of `size` ranks, and in how many phases it moves.
inline void prepare(Operation& op, int size) {
  op.form = &form_of(op.call.kind);
  const std::size_t bytes = static_cast<std::size_t>(op.call.count) * size_of(op.call.dtype);
  op.two_phase = size > 1 && op.form->gather != nullptr &&
                 (op.form->at_once == nullptr || bytes > symmetric_bytes);
  op.read = op.two_phase || op.form->at_once == nullptr ? op.form->read : op.form->at_once;
}

/// A call that a group was told of, and whose data devices move.
struct AnnouncedCall {
  bool issued = false;  ///< an observer may have decided otherwise
  std::uint64_t sequence = 0;
  std::uint64_t group = 0;  ///< offset of its block
  RecordedCall* record = nullptr;

  /// Marks it in the flight recorder, if that still has it.
  void complete() const {
    if (record != nullptr && record->group.load(std::memory_order_relaxed) == group &&
        record->sequence.load(std::memory_order_relaxed) == sequence) {
      record->done.store(1, std::memory_order_relaxed);
    }
  }
};

}  // namespace tessera::collective
