module tessera.ops:group_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :collective;
import :kernel_call;

// Shared parts of the collectives of local tensors.
namespace tessera::ops {

/// Moves the versions that the dispatcher leaves to an operator that writes lists: those of all of
/// a list but its first tensor.
inline void bump_further_versions(std::span<const Tensor> written) {
  for (std::size_t i = 1; i < written.size(); ++i) {
    if (written[i].device() == cpu) {  // of others it moves all
      written[i].storage().bump_version();
    }
  }
}

/// Arguments of messages between two ranks of a group.
struct MessageArgs {
  std::int64_t peer;
  std::int64_t tag;
  GroupArgument group;
};
/// Op::any_device of messages: between the devices where they have collectives, in a stream for
/// each of the two ranks' directions; else through the host's memory.
void message_in_stream(const Call& call, std::span<Tensor> out, const MessageArgs& args,
                       WriteAccess written);

/// Errors: the call has no group.
void check_given(const GroupArgument& group);
/// The part of `extent` elements that rank `rank` of the group holds.
ShardRange part_of(std::int64_t extent, const GroupArgument& group, int rank);
Dims with_extent(const Dims& shape, int dim, std::int64_t extent);
/// The dim. Errors: it is not one of operand 0's.
int checked_dim(const Call& call, std::int64_t dim);
/// The dim. Errors: operand 0 is not this rank's part of `extent` along it.
int checked_part(const Call& call, std::int64_t dim, std::int64_t extent,
                 const GroupArgument& group);
/// Whether the parts of `dim` are contiguous, one after another.
bool is_outermost(const Dims& shape, int dim);
/// Whether a tensor of `shape` is equal parts of `dim`, contiguous, in the group's rank order;
/// false for a tensor without elements.
bool in_rank_order(const Dims& shape, int dim, const GroupArgument& group);

/// The parts of a tensor of `shape` cut along `dim`, each in one piece, one after the other by
/// rank; none is padded. All but the last ones are of one length, so they are a Segment's pieces.
struct Parts {
  Dims shape;
  int dim;
  Tensor memory;  // of all elements; the tensor itself where its parts lie so already
  GroupArgument group;

  std::int64_t extent() const { return shape[dim]; }
  std::int64_t chunk() const {
    return with_extent(shape, dim, chunk_size(extent(), group.size())).product();
  }
  /// Rank `rank`'s part, and the same part of a tensor of the whole shape.
  Tensor at(int rank) const {
    const Dims part = with_extent(shape, dim, part_of(extent(), group, rank).length);
    const std::int64_t first = std::min(memory.numel(), chunk() * rank);
    return alias(memory, part, contiguous_strides(part), memory.offset() + first);
  }
  Tensor of(const Tensor& whole, int rank) const {
    const ShardRange range = part_of(extent(), group, rank);
    return narrowed_operand(whole, dim, range.begin, range.length);
  }
};

}  // namespace tessera::ops
