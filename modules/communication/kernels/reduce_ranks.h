// Reduction of the same elements of several ranks; a plain source, so that it may use target
// attributes.
#pragma once
#include <cstdint>
#include <tessera/dtype.hpp>

namespace tessera::kernels {

enum class RankReduce : std::uint8_t { sum, avg, max, min, product };

/// destination[i] = reduce over r of sources[r][i], along a binary tree: ((0 1) (2 3)) ((4 5) (6
/// 7)). The ranks of a power of two, from a multiple of it on, are a node. f32, bf16 and f16 are
/// summed in f32 and rounded once. The destination may be one of the sources, or apart from them.
struct ReduceRanks {
  void* destination;
  const void* const* sources;
  int ranks;
  std::int64_t count;
  DType type;
  RankReduce reduce;
  bool destination_f32;  ///< the destination is f32 though the sources are bf16 or f16
  bool accumulate;       ///< add to the destination
};
void reduce_ranks(const ReduceRanks& args);

}  // namespace tessera::kernels
