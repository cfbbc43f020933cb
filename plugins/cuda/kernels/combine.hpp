// The structure of a reduction over ranks.
#pragma once
#include <cstdint>
#include <tessera/dtype.hpp>

namespace tessera::cuda {

enum class RankReduce : std::uint8_t { sum, avg, max, min, product };

/// destination[i] = the reduction over r of sources[r][i], along the binary tree of
/// kernels::reduce_ranks. The destination is
/// one of the sources, or apart from them. There are two sizes of it, as each launch passes it.
template <int most>
struct CombineArguments {
  static constexpr int most_sources = most;
  void* destination;
  const void* sources[most];
  std::int64_t count;
  int ranks;
  DType type;  // of the sources
  DType destination_type;
  RankReduce reduce;  // of bools, sum, avg and max are "or", min and product "and"
  bool accumulate;    // add to the destination
};
using CombineFew = CombineArguments<16>;
using CombineMany = CombineArguments<1024>;

}  // namespace tessera::cuda
