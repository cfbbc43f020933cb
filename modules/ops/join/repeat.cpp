// Elements repeated: repeat, repeat_interleave.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {

Tensor repeat(const Tensor& x, const Dims& repeats) {
  operands::given("repeat", "x", x);
  const int front = repeats.size() - x.dims();
  if (front < 0 || std::any_of(repeats.begin(), repeats.end(), [](auto r) { return r < 0; })) {
    fail({.thing = "repeat",
          .wrong = "the number of repeats is wrong",
          .expected = fmt::format("one for each of {} dims or more, none negative", x.dims()),
          .got = to_string(repeats)});
  }
  // A repeated dim of n becomes [times, n], and one dim again; new dims are their times alone.
  Dims apart;
  Dims repeated;
  Dims together;
  for (int i = 0; i < repeats.size(); ++i) {
    const std::int64_t extent = i < front ? 1 : x.shape()[i - front];
    if (repeats[i] != 1 && extent != 1) {
      apart.push_back(1);
      repeated.push_back(repeats[i]);
    }
    apart.push_back(extent);
    repeated.push_back(extent == 1 ? repeats[i] : extent);
    together.push_back(checked_multiply(extent, repeats[i], "repeat"));
  }
  return reshape(expand(reshape(x, apart), repeated), together);
}

Tensor repeat_interleave(const Tensor& x, std::int64_t repeats, std::int64_t dim) {
  operands::given("repeat_interleave", "x", x);
  const int d = wrap_dim(dim, x.dims(), "repeat_interleave");
  if (repeats < 0) {
    fail({.thing = "repeat_interleave",
          .wrong = "the number of repeats must not be negative",
          .got = fmt::format("{}", repeats)});
  }
  Dims apart = x.shape();
  apart.insert(d + 1, repeats);
  Dims together = x.shape();
  together[d] = checked_multiply(together[d], repeats, "repeat_interleave");
  return reshape(expand(unsqueeze(x, d + 1), apart), together);
}

}  // namespace tessera::ops
