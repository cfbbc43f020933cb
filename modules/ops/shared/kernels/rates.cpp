#include "rates.hpp"

#include <algorithm>
#include <array>

#include "philox.hpp"
#include "simd.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kBlock = 1 << 11;  // 8 KiB

/// The compiler cannot know that nobody reads this.
void keep(const void* pointer) { asm volatile("" : : "g"(pointer) : "memory"); }

}  // namespace

void compute_exponentials(std::int64_t count) {
  alignas(64) std::array<float, kBlock> values;
  values.fill(-0.5F);
  simd::dispatch([&](auto) __attribute__((always_inline)) {
    for (std::int64_t done = 0; done < count; done += kBlock) {
      for (std::int64_t i = 0; i < kBlock; i += simd::kLanes<float>) {
        float* const at = values.data() + i;
        simd::store(at, simd::exp_nonpositive(simd::load(at)) - 1.0F);  // in (-1, 0] again
      }
      keep(values.data());
    }
  });
}

void compute_random_words(std::int64_t count) {
  std::array<std::uint32_t, kBlock> words;
  RandomRange range{.seed = 1, .stream = 2};
  for (std::int64_t done = 0; done < count; done += kBlock) {
    range.first_index = static_cast<std::uint64_t>(done);
    fill_bits(range, kBlock, words.data());
    keep(words.data());
  }
}

}  // namespace tessera::kernels
