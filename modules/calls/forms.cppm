export module tessera.calls:forms;

import tessera.base;
import :call;
import :segments;

export namespace tessera::collective {

/// Elements of one member's source that one rank reads, and where they go in what that rank writes.
struct Read {
  std::int64_t from = 0;   ///< first element in the member's source
  std::int64_t count = 0;  ///< 0: the rank reads nothing of this member
  std::int64_t to = 0;     ///< first element in the reader's destination
  friend bool operator==(const Read&, const Read&) = default;
};

/// Which read is asked for.
struct ReadRequest {
  const Call& call;
  const Segment& array;  ///< of lists: one of their tensors
  int size;              ///< of the group
  int reader;
  int member;
  /// With counts: where what the member sends to each rank begins in its source, and where what the
  /// reader receives from each begins in its destination (one more than ranks). Each rank knows its
  /// own only: null for others.
  const std::int64_t* send_begins = nullptr;
  const std::int64_t* receive_begins = nullptr;
};

/// Combination of the reads of all members.
enum class Combine : std::uint8_t {
  copy,    ///< each goes to its own place
  reduce,  ///< all have one length and go to one place, reduced along a binary tree over the
           ///< members
};

/// A kind of call as data: who reads what of whom. What is published, pulled and sent to other
/// machines, the bytes, the texts and the checks follow from it.
struct CallForm {
  CallKind kind;
  std::string_view name;
  /// The kind that this one is a variant of, as which operators and reports know it; none: itself.
  std::optional<CallKind> variant_of = {};
  /// Null: nothing moves.
  Read (*read)(const ReadRequest&) = nullptr;
  Combine combine = Combine::copy;
  /// What texts call Call::root: "root"; "": the kind has none.
  std::string_view root_name = {};
  /// What is read of a member is the same for all readers.
  bool for_all = false;
  /// A source has a row for each member: it is the whole that the call divides.
  bool divides = false;
  /// A destination has a row of each member: it is the whole that the call puts together.
  bool joins = false;
  /// A list of tensors, of which peers may continue to read the sources after the end of the call.
  bool list = false;
  /// How much a rank sends to another one differs from pair to pair, and is compared by pairs.
  bool counts = false;
  /// For a reduction in two phases: the part that each rank reads, in the second one, of those that
  /// each member has reduced in the first one. All readers read the same.
  Read (*gather)(const ReadRequest&) = nullptr;
  /// The reads of a reduction in one phase instead, where that is faster: of little data.
  Read (*at_once)(const ReadRequest&) = nullptr;
};

/// The form of the calls of a kind.
const CallForm& form_of(CallKind kind);
/// The kind of which this one is a variant, or itself: all_gather of all_gather_segments.
CallKind base_of(CallKind kind);
/// The form of a base's calls over lists of tensors, whose pieces may differ in length; null: none.
const CallForm* list_form_of(CallKind base);

/// First element of a rank's piece when `count` elements are cut for `size` ranks, at multiples of
/// a cache line.
std::int64_t piece_begin(std::int64_t count, std::size_t element, int size, int rank);

/// Bytes that `rank` must receive in the call; of a reduction in two phases, as many as where its
/// pieces are of equal length.
std::int64_t received_bytes(const Call& call, std::span<const Segment> arrays, int rank, int size,
                            const std::int64_t* receive_begins);
/// The same of one tensor, of `count` elements as the call counts them.
std::int64_t received_bytes(CallKind kind, std::int64_t count, DType dtype, int rank, int size);
/// The same of an all-to-all with counts: member m sends this rank counts[m] elements.
std::int64_t received_bytes(DType dtype, std::span<const std::int64_t> counts, int rank);
/// As many elements from each of `size` members as there can be, where who sends how many is not
/// known.
std::vector<std::int64_t> even_counts(std::int64_t elements, int size);

/// Machines of a group's members.
struct GroupSpread {
  int ranks = 0;
  int machines = 0;
  int together = 0;  ///< members on one machine, at the most
};
/// Of the bytes that a rank receives in a call, the share that comes from other machines: what all
/// readers get is sent to each machine once, what is for one reader is sent for each pair.
double share_between(CallKind kind, const GroupSpread& spread);
/// Messages one after the other until each of `members` has something of every other one.
int rounds_of(int members);

}  // namespace tessera::collective
