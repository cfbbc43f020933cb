// Shared parts of random operators: their placement rule, and loops over the elements that a rank
// holds.
module;
#include "pointwise/kernels/pointwise.hpp"
#include "shared/kernels/philox.hpp"
#include "shared/kernels/workspace.hpp"
module tessera.ops:random_call;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :kernel_call;

namespace tessera::ops::random_numbers {

/// The range as the kernels take it.
inline kernels::RandomRange range_of(const RandomNumbers& numbers) {
  return {.seed = numbers.seed,
          .stream = numbers.stream,
          .offset = numbers.offset,
          .run = numbers.run,
          .stride = numbers.stride};
}

/// Only the numbers: bernoulli, randperm_.
struct RandomArgs {
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};  // of a local call: the Spec of the tensor that it is part of
};
/// bernoulli_, dropout.
struct ProbabilityArgs {
  Dynamic<double> p;
  Dynamic<RandomNumbers> numbers;
  SpecArgument whole{};
};

/// Any dims may be sharded, dims of extent 1 too: the numbers do not depend on the layout.
void any_dim_rule(const RuleContext& context, Strategies& strategies);
/// The local call learns from the result's Spec which elements it has.
template <class A>
inline Attributes localize_result(const LocalContext& context) {
  return with_whole<A>(context, context.out[0]);
}
void infer_same(const Call& call, ResultShapes& out);
/// Errors: p is not between 0 and 1.
void check_probability(const Call& call, double p);

/// Error: this rank's part of `whole`, whose Spec a text may say, has another number of elements.
void check_part(const Dims& part, std::int64_t count);

/// The bits of the elements from `first` on, as many as `words` has room for.
void words_of(const RandomNumbers& numbers, std::int64_t first, std::span<std::uint32_t> words);

/// Calls f(local index of the first, place of the first, count) for each run of the local tensor's
/// elements whose numbers follow each other.
template <class F>
inline void for_each_local_run(const SpecArgument& whole, std::int64_t count,
                               const kernels::RandomRange& range, F f) {
  const auto cut = [&](std::int64_t at, std::int64_t first, std::int64_t length) {
    const auto run = static_cast<std::int64_t>(range.run);
    while (length > 0) {
      // A run of 2^63 elements or more has them all.
      const std::int64_t size = run <= 0 ? length : std::min(length, run - first % run);
      f(at, static_cast<std::int64_t>(range.place(static_cast<std::uint64_t>(first))), size);
      at += size;
      first += size;
      length -= size;
    }
  };
  if (!whole) {
    cut(0, 0, count);
    return;
  }
  check_part(local_shape(*whole), count);
  std::int64_t at = 0;
  for_each_run(whole->shape, LocalPart{local_offset(*whole), local_shape(*whole)},
               [&](std::int64_t first, std::int64_t length) {
                 cut(at, first, length);
                 at += length;
               });
}

/// Fills operand 0 in place: fill(range, count, pointer) for each run.
template <class A, class F>
inline void fill_in_place(Workspace& w, const Call& call, const A& arguments, F fill) {
  const Tensor& x = call.in[0];
  kernels::RandomRange range = range_of(arguments.numbers);
  const Tensor target = x.is_contiguous() ? x : temporary(w, x.shape(), x.dtype());
  if (w.counts()) {
    return;
  }
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    for_each_local_run(arguments.whole, x.numel(), range,
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
inline void for_each_word(const SpecArgument& whole, std::int64_t count, kernels::RandomRange range,
                          F f) {
  std::array<std::uint32_t, random_block> words;
  for_each_local_run(whole, count, range,
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
template <class A, class F>
inline void fill_from_words(Workspace& w, const Call& call, const A& arguments, F number) {
  const Tensor& x = call.in[0];
  const Tensor numbers = temporary(w, x.shape(), DType::i64);
  const Tensor converted = temporary(w, x.shape(), x.dtype());
  if (w.counts()) {
    return;
  }
  auto* const out = numbers.data<std::int64_t>();
  for_each_word(arguments.whole, x.numel(), range_of(arguments.numbers),
                [&](std::int64_t at, std::uint32_t word) { out[at] = number(word); });
  kernels::cast(DType::i64, x.dtype(), x.numel(), pointer<void>(numbers), pointer<void>(converted));
  copy_into(x, converted);
}

}  // namespace tessera::ops::random_numbers
