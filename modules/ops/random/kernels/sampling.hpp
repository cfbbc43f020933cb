#pragma once
// Positions sampled by weight, one row at a time: see docs/random-numbers.md.

#include <cstdint>

#include "shared/kernels/types.hpp"
#include "shared/kernels/workspace.hpp"

namespace tessera::kernels {

/// Reading of a row's weights.
struct WeightsRead {
  bool valid = true;          // finite and not negative
  std::int64_t positive = 0;  // how many are above 0
  double smallest = 0;        // of the positive ones; of none, infinity
  double largest = 0;
};

/// weights[i] = x[i] in double.
template <class T>
WeightsRead read_weights(std::int64_t n, const T* x, double* weights);

/// out[i] = the first position up to which the weights sum to more than words[i] * 2^-32 of all.
/// One weight at least is positive. The weights become these sums.
void sample_with_replacement(std::int64_t n, double* weights, std::int64_t count,
                             const std::uint32_t* words, std::int64_t* out);

/// out: the `count` positions of the smallest -log((words[i] + 1) 2^-32) / weights[i], in this
/// order (equal ones by position): those that first have an event, when events come at the rates of
/// the weights (Efraimidis and Spirakis, 2006). At least `count` weights are positive; they are
/// overwritten.
void sample_without_replacement(Workspace& workspace, std::int64_t n, double* weights,
                                const WeightsRead& read, std::int64_t count,
                                const std::uint32_t* words, std::int64_t* out);

}  // namespace tessera::kernels
