#pragma once
// Random numbers as a function of (seed, stream, position): Philox 4x32-10, Salmon et al., Parallel
// random numbers: as easy as 1, 2, 3 (SC 2011). An element has the same bits on every rank and
// machine, in every cut of the tensor: shards are filled by their global indices.
//
// key     = mix(seed + (stream + 1) * 0x9e3779b97f4a7c15), low word first: see philox_key
// element = offset + global linear index; counter = element / 4 in words 0 (low) and 1 (high),
// words 2
//           and 3 are 0; the element's 32 bits are word element mod 4 of the output. Normals use
//           the pairs of words (0, 1) and (2, 3) of one counter.

#include <array>
#include <cstdint>

#include "types.hpp"

namespace tessera::kernels {

using PhiloxKey = std::array<std::uint32_t, 2>;
using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Philox 4x32 with 10 rounds: the four words of a counter under a key.
PhiloxBlock philox(PhiloxBlock counter, PhiloxKey key);

/// splitmix64's output function (Steele et al. 2014) of seed + stream * its increment: streams of
/// one seed are the outputs of the splitmix64 generator started there.
PhiloxKey philox_key(std::uint64_t seed, std::uint64_t stream);

/// The numbers of a tensor's elements in the sequence, and which of them one fill writes.
struct RandomRange {
  std::uint64_t seed = 0;
  std::uint64_t stream = 0;
  std::uint64_t offset = 0;       // of the whole tensor in the stream
  std::uint64_t first_index = 0;  // place() of the first element of this fill
  // A tensor of part of a batch: its elements are runs of the whole batch's, at equal distances.
  std::uint64_t run = 0;     // elements of a run; 0: the tensor is one run
  std::uint64_t stride = 0;  // from the start of a run to the start of the next one

  /// Where the element with this global linear index is, counted from `offset`.
  std::uint64_t place(std::uint64_t index) const {
    return run == 0 ? index : index / run * stride + index % run;
  }
};

// T: float, double, BFloat16, Half: the float rounded (or widened). Bits do not depend on the
// number of threads nor on how an index range is cut into calls.

/// out[i] = low + (high - low) * u, u = (word >> 8) * 2^-24 in [0, 1), by one fused multiply-add.
/// (Where high - low is not exact the upper bound itself can come out, as in other libraries.)
template <class T>
void fill_uniform(const RandomRange& range, std::int64_t count, float low, float high, T* out);

/// out[i] = mean + standard_deviation * z (one fused multiply-add) with z from Box and Muller's
/// transform: u1 = ((word_0 >> 8) + 1) * 2^-24, u2 = (word_1 >> 8) * 2^-24, radius = sqrt(-2 log
/// u1); z_0 = radius cos(2 pi u2), z_1 = radius sin(2 pi u2). log, sin and cos are fixed
/// polynomials in float with explicit fused multiply-adds (philox.cpp), so another device can give
/// the same bits.
template <class T>
void fill_normal(const RandomRange& range, std::int64_t count, float mean, float standard_deviation,
                 T* out);

/// out[i] = 1 with the given probability, else 0: word < probability * 2^32 (in double).
void fill_bernoulli(const RandomRange& range, std::int64_t count, double probability,
                    std::uint8_t* out);

/// y[i] = 0 where fill_bernoulli gives 1, else x[i] / (1 - probability). y may be x.
template <class T>
void drop(const RandomRange& range, std::int64_t count, double probability, const T* x, T* y);

/// out[i] = the 32 bits of the element.
void fill_bits(const RandomRange& range, std::int64_t count, std::uint32_t* out);

}  // namespace tessera::kernels
