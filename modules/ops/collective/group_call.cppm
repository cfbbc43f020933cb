module tessera.ops:group_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import :collective;

// What the collectives of local tensors share.
namespace tessera::ops {

/// The group is an address among the attributes; calls of one communicator are one after another.
collective::Communicator& group_at(AttributeReader& attributes);
/// The part of `extent` elements that rank `rank` of the group holds.
ShardRange part_of(std::int64_t extent, const collective::Communicator& group, int rank);
Dims with_extent(const Dims& shape, int dim, std::int64_t extent);
/// Errors: the dim is not one of operand 0's.
void check_dim(const Call& call, int dim);
/// Errors: operand 0 is not this rank's part of `extent` along the dim.
void check_part(const Call& call, int dim, std::int64_t extent,
                const collective::Communicator& group);
/// Shapes are inferred and the result is made as on the operators' path; then `issue` is called.
PendingTensor start(const Op& op, const Tensor& x, const Attributes& attributes,
                    PendingTensor (*issue)(const Call&, const Tensor&));

}  // namespace tessera::ops
