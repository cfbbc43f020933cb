module;
#include <cstdint>
export module tessera.ops:collective;

import tessera.base;
import tessera.tensor;
import tessera.collective;

export namespace tessera::ops {

// Collectives on LOCAL tensors as operators, so that every listener below distribution sees them.
// Shards of a dim of `extent` elements over k ranks have ceil(extent / k) each, the last ones fewer
// or none.
/// Shards along `dim` -> the whole, on every rank of the group.
Tensor all_gather(const Tensor& shard, std::int64_t dim, std::int64_t extent,
                  collective::Communicator& group);
/// The sum (or op) over the ranks, of which this rank keeps its shard along `dim`.
Tensor reduce_scatter(const Tensor& x, std::int64_t dim, ReduceOp op,
                      collective::Communicator& group);
Tensor all_reduce(const Tensor& x, ReduceOp op, collective::Communicator& group);
/// From shards along `from_dim` to shards along `to_dim`; extents are the whole's.
Tensor all_to_all(const Tensor& shard, std::int64_t from_dim, std::int64_t from_extent,
                  std::int64_t to_dim, collective::Communicator& group);
Tensor broadcast(const Tensor& x, int root, collective::Communicator& group);

}  // namespace tessera::ops
