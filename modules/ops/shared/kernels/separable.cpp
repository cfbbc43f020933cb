#include "separable.hpp"

#include <algorithm>
#include <cstddef>

#include "parallel.hpp"

namespace tessera::kernels {
namespace {

constexpr std::int64_t kGrain = 1 << 15;  // elements

template <class T>
void choose(std::int64_t outer, std::int64_t extent, std::int64_t inner,
            std::span<const std::int64_t> source, const T* x, T fill, T* y) {
  const auto results = static_cast<std::int64_t>(source.size());
  parallel_for(0, outer, 1 + kGrain / (results * inner + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o) {
                   for (std::int64_t j = 0; j < results; ++j) {
                     T* const to = y + (o * results + j) * inner;
                     const std::int64_t from = source[static_cast<std::size_t>(j)];
                     if (from < 0) {
                       std::fill_n(to, inner, fill);
                     } else {
                       std::copy_n(x + (o * extent + from) * inner, inner, to);
                     }
                   }
                 }
               });
}

/// Calls term(result, element, weight) with offsets of slices, for each outer index and each term.
template <class Term>
void for_each_term(const SparseMap& map, std::int64_t outer, std::int64_t extent,
                   std::int64_t inner, Term term) {
  const std::int64_t results = map.results;
  parallel_for(0, outer, 1 + kGrain / ((results + extent) * inner + 1),
               [&](std::int64_t begin, std::int64_t end) {
                 for (std::int64_t o = begin; o < end; ++o) {
                   for (std::int64_t j = 0; j < results; ++j) {
                     const auto first = static_cast<std::size_t>(map.first[j]);
                     const auto last = static_cast<std::size_t>(map.first[j + 1]);
                     for (std::size_t k = first; k < last; ++k) {
                       term((o * results + j) * inner, (o * extent + map.index[k]) * inner,
                            map.weight[k]);
                     }
                   }
                 }
               });
}

template <class T>
void add_slice(std::int64_t inner, T weight, const T* from, T* to) {
  for (std::int64_t i = 0; i < inner; ++i) to[i] += weight * from[i];
}

}  // namespace

void choose_slices(std::int64_t element_size, std::int64_t outer, std::int64_t extent,
                   std::int64_t inner, std::span<const std::int64_t> source, const void* x,
                   const void* fill, void* y) {
  const auto with = [&]<class T>(T) {
    choose(outer, extent, inner, source, static_cast<const T*>(x), *static_cast<const T*>(fill),
           static_cast<T*>(y));
  };
  switch (element_size) {
    case 1:
      return with(std::uint8_t{});
    case 2:
      return with(std::uint16_t{});
    case 4:
      return with(std::uint32_t{});
    default:
      return with(std::uint64_t{});
  }
}

template <class T>
void apply(const SparseMap& map, std::int64_t outer, std::int64_t extent, std::int64_t inner,
           const T* x, T* y) {
  std::fill_n(y, outer * map.results * inner, T{0});
  for_each_term(map, outer, extent, inner,
                [&](std::int64_t result, std::int64_t element, double weight) {
                  add_slice(inner, static_cast<T>(weight), x + element, y + result);
                });
}

template <class T>
void apply_transposed(const SparseMap& map, std::int64_t outer, std::int64_t extent,
                      std::int64_t inner, const T* y, T* x) {
  std::fill_n(x, outer * extent * inner, T{0});
  for_each_term(map, outer, extent, inner,
                [&](std::int64_t result, std::int64_t element, double weight) {
                  add_slice(inner, static_cast<T>(weight), y + result, x + element);
                });
}

template void apply(const SparseMap&, std::int64_t, std::int64_t, std::int64_t, const float*,
                    float*);
template void apply(const SparseMap&, std::int64_t, std::int64_t, std::int64_t, const double*,
                    double*);
template void apply_transposed(const SparseMap&, std::int64_t, std::int64_t, std::int64_t,
                               const float*, float*);
template void apply_transposed(const SparseMap&, std::int64_t, std::int64_t, std::int64_t,
                               const double*, double*);

}  // namespace tessera::kernels
