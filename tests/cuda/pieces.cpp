// Kernels that move pieces of 16 bytes: lengths about a piece, addresses between pieces, mixed
// types, and what lies behind the last piece.
#include <cmath>
#include <cstdint>
#include <functional>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.device;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"
#include "control.hpp"
#include "device.hpp"
#include "results.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// How many results of a call differ.
std::size_t differing(const Tensor& there, const Tensor& here) {
  const std::vector<double> found = to_doubles(there), wanted = to_doubles(here);
  REQUIRE(found.size() == wanted.size());
  std::size_t count = 0;
  for (std::size_t i = 0; i < wanted.size(); ++i) count += found[i] == wanted[i] ? 0 : 1;
  return count;
}

const std::string adam_step =
    "lr=0.01, beta1=0.9, beta2=0.99, eps=1e-8, weight_decay=0.1, grad_scale=0.5, step=4, ";

/// Of a parameter in bf16: p, g, m, v, and the largest v.
std::vector<Tensor> rounded_operands(const Dims& shape, DType gradient, bool amsgrad) {
  const Tensor squares = ops::abs(waves(shape, DType::bf16));
  return {waves(shape, DType::bf16), waves(shape, gradient),
          ops::mul_scalar(waves(shape, DType::bf16), 0.1), squares,
          amsgrad ? ops::mul_scalar(squares, 0.5) : Tensor()};
}

/// The step itself may differ in the last place, which another rounding shows only near a limit.
void check_rounded(const Dims& shape, const std::string& whole, std::int64_t shift, DType gradient,
                   bool amsgrad) {
  const Results all = results_of("adamw_rounded_", rounded_operands(shape, gradient, amsgrad),
                                 adam_step + "amsgrad=" + (amsgrad ? "true" : "false") +
                                     ", maximize=false, seed=7, stream=3, whole=" + whole,
                                 shift);
  for (std::size_t i = 0; i < all.here.size(); ++i) {
    if (i == 1 || !all.here[i]) continue;
    INFO(to_string(shape) << " of " << whole << ", shift " << shift << ", operand " << i);
    CHECK(differing(all.there[i], all.here[i]) <= 2);
  }
}

}  // namespace

TEST_CASE("steps of optimizers in pieces are those of single elements") {
  for (const DType gradient : {DType::f32, DType::bf16, DType::f16}) {
    for (const std::int64_t length : {1, 3, 4, 7, 8, 9, 4099}) {
      for (const std::int64_t shift : {0, 1, 4}) {
        const auto x = [&](double by) { return ops::mul_scalar(waves({length}), by); };
        check_near("adamw_",
                   {x(1), waves({length}, gradient), x(0.1), ops::abs(x(1)), ops::abs(x(0.5))},
                   adam_step + "amsgrad=true, maximize=false", 2e-6, shift);
        check_near("sgd_", {x(1), waves({length}, gradient), Tensor()},
                   "lr=0.1, momentum=0, dampening=0, weight_decay=0.1, grad_scale=0.5, step=1, "
                   "nesterov=false, maximize=true",
                   2e-6, shift);
      }
    }
  }
}

TEST_CASE("a rounded step in pieces has the random numbers of each element's place") {
  for (const DType gradient : {DType::f32, DType::bf16}) {
    for (const std::int64_t length : {1, 7, 8, 9, 4099}) {
      for (const std::int64_t shift : {0, 1, 8}) {
        check_rounded({length}, "none", shift, gradient, length % 2 == 0);
      }
    }
    // This rank, 0, has the last part: rows that begin at even and odd places, parts of rows that
    // are whole pieces or not.
    check_rounded({4, 16}, "bf16[12, 16] [Shard(0)] on mesh(m=3) of ranks 1 2 0", 0, gradient,
                  true);
    check_rounded({5, 7}, "bf16[15, 7] [Shard(0)] on mesh(m=3) of ranks 1 2 0", 0, gradient, false);
    check_rounded({3, 21}, "bf16[9, 21] [Shard(0)] on mesh(m=3) of ranks 2 0 1", 0, gradient,
                  false);
    check_rounded({5, 16}, "bf16[5, 48] [Shard(1)] on mesh(m=3) of ranks 1 2 0", 0, gradient, true);
    check_rounded({5, 12}, "bf16[5, 36] [Shard(1)] on mesh(m=3) of ranks 1 2 0", 0, gradient,
                  false);
    check_rounded({3, 2, 8}, "bf16[3, 2, 24] [Shard(2)] on mesh(m=3) of ranks 1 2 0", 0, gradient,
                  false);
    check_rounded({5, 8}, "bf16[5, 17] [Shard(1)] on mesh(m=2) of ranks 1 0", 0, gradient, false);
  }
}

TEST_CASE("functions of elements in pieces are those of single elements") {
  for (const std::int64_t length : {1, 7, 8, 9, 16, 17, 4099}) {
    for (const std::int64_t shift : {0, 1, 8}) {
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        const Tensor x = waves({length}, type);
        const Tensor y = ops::add_scalar(waves({length}, type), 0.25);
        check_bits("mul", {x, y}, "", shift);
        check_bits("mul_", {ops::clone(x), y}, "", shift);
        check_bits("neg", {x}, "", shift);
        check_bits("maximum", {x, y}, "", shift);
        check_bits("lt", {x, y}, "", shift);
        check_bits("where", {ops::lt(x, y), x, y}, "", shift);
        check_near("silu", {x}, "", type == DType::f32 ? 2e-6 : 0.01, shift);
      }
    }
  }
}

TEST_CASE("pieces of several types, of one element, and of rows have the CPU's bits") {
  const Tensor x = waves({40, 16}, DType::bf16), wide = waves({40, 16});
  const Tensor row = waves({16}), column = waves({40, 1}, DType::bf16), one = full({}, 1.5);
  for (const std::int64_t shift : {0, 1, 8}) {
    check_bits("mul_", {ops::clone(x), ops::cast(row, DType::bf16)}, "", shift);
    check_bits("mul_", {ops::clone(wide), ops::cast(x, DType::f32)}, "", shift);
    check_bits("mul", {x, column}, "", shift);
    check_bits("mul", {column, x}, "", shift);
    check_bits("mul", {wide, row}, "", shift);
    check_bits("mul", {wide, one}, "", shift);
    check_bits("mul", {one, wide}, "", shift);
    check_bits("where", {ops::lt(row, one), wide, one}, "", shift);
    check_bits("mul", {waves({40, 12}), waves({12})}, "", shift);  // no whole pieces
    check_bits("add_scalar", {x}, "value=0.5", shift);
  }
  std::vector<float> values(16, std::numeric_limits<float>::quiet_NaN());
  values[3] = -values[3];
  values[5] = std::numeric_limits<float>::infinity();
  values[7] = 3e38F;
  values[8] = 1e-40F;
  values[9] = -0.0F;
  const Tensor special = from_values(std::span<const float>(values), {16});
  check_bits("neg", {special}, "");
  check_bits("neg", {ops::cast(special, DType::bf16)}, "");
  check_bits("cast", {special}, "dtype=bf16");
  check_bits("cast", {ops::cast(special, DType::bf16)}, "dtype=f32");
}

TEST_CASE("copies and fills in words of 16 bytes leave nothing out") {
  for (const DType type : {DType::boolean, DType::bf16, DType::f32, DType::i64}) {
    for (const std::int64_t length : {1, 15, 16, 17, 4096, 4099}) {
      const Tensor x = some_of({length}, 2, type);
      for (const std::int64_t shift : {0, 1, 16}) {
        check_bits("clone", {x}, "", shift);
        check_bits("cast", {x}, "dtype=f32", shift);
        check_bits("cast", {x}, "dtype=bf16", shift);
        check_bits("fill_", {ops::clone(x)}, "value=0", shift);
        check_bits("fill_", {ops::clone(x)}, "value=1", shift);
      }
    }
    const Tensor rows = some_of({6, 5, 32}, 2, type);
    check_bits("clone", {ops::narrow(rows, 1, 1, 3)}, "");
    check_bits("clone", {ops::narrow(rows, 2, 16, 16)}, "");
    check_bits("clone", {ops::narrow(rows, 2, 3, 16)}, "");
    check_bits("cat", {rows, ops::narrow(rows, 1, 2, 2)}, "dim=1");
    check_bits("cat", {rows, ops::narrow(rows, 2, 0, 7)}, "dim=2");
  }
}

TEST_CASE("uniform numbers and masks of a device have the CPU's bits at each place") {
  const auto numbers = [](const std::string& whole) {
    return "numbers=seed=7 stream=3 offset=5 run=0 stride=0, whole=" + whole;
  };
  for (const DType type : {DType::f32, DType::bf16, DType::f16, DType::f64}) {
    for (const std::int64_t length : {1, 3, 4, 5, 1031}) {
      const Tensor x = zeros({length}, type);
      check_bits("uniform_", {ops::clone(x)}, "low=-0.3, high=0.7, " + numbers("none"), length % 2);
      check_bits("bernoulli_", {ops::clone(x)}, "p=0.3, " + numbers("none"), length % 2);
    }
  }
}
