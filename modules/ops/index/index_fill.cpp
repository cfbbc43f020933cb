// A number in the slices that a list of indices names: index_fill.
module;
#include <fmt/format.h>

#include <cstdint>
module tessera.ops;

import tessera.base;
import tessera.tensor;

namespace tessera::ops {

Tensor index_fill(const Tensor& x, const Tensor& index, double value, std::int64_t dim) {
  operands::given("index_fill", "x", x);
  operands::given("index_fill", "index", index);
  const int d = wrap_dim(dim, x.dims(), "index_fill");
  if (index.dims() != 1) {
    fail({.thing = "index_fill",
          .wrong = "the index has the wrong number of dims",
          .expected = "1",
          .got = to_string(index.shape())});
  }
  Dims line = Dims::filled(x.dims(), 1);
  line[d] = index.size(0);
  Dims whole = x.shape();
  whole[d] = index.size(0);
  return scatter(x, expand(view(index, line), whole), value, d);
}

}  // namespace tessera::ops
