export module tessera.calls:segments;

import tessera.base;
import :call;

export namespace tessera::collective {

/// One tensor of a call that moves many. Its `total` elements are cut into pieces of `chunk`; rank
/// r has [min(total, r*chunk), min(total, (r+1)*chunk)), so trailing pieces may be short or empty.
/// All ranks pass the same number of segments with the same extents.
/// - all_gather: `source` is this rank's piece, `destination` has room for `total` elements.
/// - reduce_scatter: `source` has `total` elements, `destination` has room for this rank's piece.
/// Pointers to empty pieces may be null. Source and destination must not overlap.
struct Segment {
  const void* source = nullptr;
  void* destination = nullptr;
  std::int64_t chunk = 0;
  std::int64_t total = 0;
};

/// Neighbouring members of a group; none: all of it.
struct MemberRange {
  std::int32_t first = 0;
  std::int32_t count = 0;
  friend bool operator==(const MemberRange&, const MemberRange&) = default;
};

/// Options of a reduction of several tensors.
struct ReduceSegmentsOptions {
  ReduceOp reduce = ReduceOp::sum;
  /// Type of the destination: the source's (the default) or f32 for a bf16 or f16 source.
  /// The sum is always formed in f32 (f64 for f64) and rounded once.
  bool destination_f32 = false;
  /// Add the result to the destination instead of overwriting it.
  bool accumulate = false;
  /// The members whose sources are reduced, along a binary tree over them. The others take part in
  /// the call and get its result, and nothing of their sources goes into it. Compared by the ranks.
  MemberRange terms = {};
  /// Compared by the ranks, where it is given.
  std::optional<PayloadIdentity> moved = {};
};

}  // namespace tessera::collective
