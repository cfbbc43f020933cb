// What random operators share: their placement rule, and loops over the elements that a rank holds.
module;
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/philox.hpp"
module tessera.ops:random_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops::random_numbers {

/// Any dims may be sharded, dims of extent 1 too: the numbers do not depend on the layout.
void any_dim_rule(const RuleContext& context, Strategies& strategies);
/// Appends the result's Spec to the attributes: the local call learns from it which elements it
/// has.
Attributes localize_result(const LocalContext& context);
void infer_same(const Call& call, ResultShapes& out);
/// Errors: p is not between 0 and 1.
void check_probability(const Call& call, double p);

/// Calls f(local index of the first, place of the first, count) for each run of the local tensor's
/// elements whose numbers follow each other.
template <class F>
inline void for_each_local_run(const Spec* spec, std::int64_t count,
                               const kernels::RandomRange& range, F f) {
  const auto cut = [&](std::int64_t at, std::int64_t first, std::int64_t length) {
    const auto run = static_cast<std::int64_t>(range.run);
    while (length > 0) {
      const std::int64_t size = run == 0 ? length : std::min(length, run - first % run);
      f(at, static_cast<std::int64_t>(range.place(static_cast<std::uint64_t>(first))), size);
      at += size;
      first += size;
      length -= size;
    }
  };
  if (spec == nullptr) {
    cut(0, 0, count);
    return;
  }
  std::int64_t at = 0;
  for_each_run(spec->shape, LocalPart{local_offset(*spec), local_shape(*spec)},
               [&](std::int64_t first, std::int64_t length) {
                 cut(at, first, length);
                 at += length;
               });
}

/// Fills operand 0 in place: fill(range, count, pointer) for each run.
template <class F>
inline void fill_in_place(const Call& call, kernels::RandomRange range, F fill) {
  const Tensor& x = call.in[0];
  const Tensor target = x.is_contiguous() ? x : empty(x.shape(), x.dtype());
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    for_each_local_run(spec_of(call, 0), x.numel(), range,
                       [&](std::int64_t at, std::int64_t first, std::int64_t count) {
                         range.first_index = static_cast<std::uint64_t>(first);
                         fill(range, count, pointer<T>(target) + at);
                       });
  });
  if (!target.same_as(x)) {
    copy_into(x, target);
  }
}

inline constexpr std::int64_t random_block = 4096;  // elements at a time

/// Calls f(local index, word) for each element.
template <class F>
inline void for_each_word(const Spec* spec, std::int64_t count, kernels::RandomRange range, F f) {
  std::vector<std::uint32_t> words(static_cast<std::size_t>(random_block));
  for_each_local_run(spec, count, range,
                     [&](std::int64_t at, std::int64_t first, std::int64_t length) {
                       for (std::int64_t done = 0; done < length; done += random_block) {
                         const std::int64_t size = std::min(random_block, length - done);
                         range.first_index = static_cast<std::uint64_t>(first + done);
                         kernels::fill_bits(range, size, words.data());
                         for (std::int64_t i = 0; i < size; ++i) {
                           f(at + done + i, words[static_cast<std::size_t>(i)]);
                         }
                       }
                     });
}

/// Fills operand 0 in place with number(word), a 64-bit integer.
template <class F>
inline void fill_from_words(const Call& call, kernels::RandomRange range, F number) {
  const Tensor& x = call.in[0];
  const Tensor numbers = empty(x.shape(), DType::i64);
  auto* const out = numbers.data<std::int64_t>();
  for_each_word(spec_of(call, 0), x.numel(), range,
                [&](std::int64_t at, std::uint32_t word) { out[at] = number(word); });
  const Tensor converted = empty(x.shape(), x.dtype());
  kernels::cast(DType::i64, x.dtype(), x.numel(), numbers.raw_data(), converted.raw_data());
  copy_into(x, converted);
}

}  // namespace tessera::ops::random_numbers
