// Random fillings, with the CPU's bits.
#include "kernels/elements.hpp"
#include "kernels/random.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

__device__ std::uint64_t number_of(const RandomArguments& a, std::int64_t i) {
  const auto index = static_cast<std::uint64_t>(place_of(a.places, i));
  const std::uint64_t place = a.run == 0 ? index : index / a.run * a.stride + index % a.run;
  return a.offset + place;
}

/// Fills the elements with value(word). A block of Philox has four words; it is computed again only
/// where the next element's word is in another one.
template <class Value>
__device__ void fill_by_words(const RandomArguments& a, Value value) {
  const StridedArray& y = a.elements.result;
  const std::int64_t count = a.elements.count;
  for (std::int64_t first = thread_place() * random_per_thread; first < count;
       first += thread_count() * random_per_thread) {
    functions::PhiloxWords words = {};
    std::uint64_t computed = ~std::uint64_t{0};
    for (int k = 0; k < random_per_thread && first + k < count; ++k) {
      const std::uint64_t number = number_of(a, first + k);
      if (number / 4 != computed) {
        computed = number / 4;
        words = functions::philox_block(number, a.key);
      }
      const unsigned which = number % 4;
      const std::uint32_t word = which == 0   ? words.word[0]
                                 : which == 1 ? words.word[1]
                                 : which == 2 ? words.word[2]
                                              : words.word[3];
      store(y.data, y.type, offset_of(a.elements, y, first + k), value(word));
    }
  }
}

}  // namespace

extern "C" {

/// low + width u, u = (word >> 8) 2^-24, rounded once.
__global__ void fill_uniform(const __grid_constant__ RandomArguments a) {
  fill_by_words(a, [&](std::uint32_t word) {
    return fmaf(static_cast<float>(word >> 8) * 0x1p-24F, a.width, a.low);
  });
}

__global__ void fill_truths(const __grid_constant__ RandomArguments a) {
  fill_by_words(a, [&](std::uint32_t word) { return word < a.limit ? 1.0F : 0.0F; });
}

}  // extern "C"
