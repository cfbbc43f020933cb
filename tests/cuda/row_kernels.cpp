// Kernels of rows at the edges of their ways: rows of fewer and more elements than 16 bytes, a
// warp's registers and a block's have; few long rows and many short ones; memory that does not
// begin at a multiple of 16.
#include <algorithm>
#include <cmath>
#include <cstdint>
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

constexpr DType floating[] = {DType::f32, DType::bf16, DType::f16, DType::f64};

/// Numbers of both signs, in no order.
Tensor noise(const Dims& shape, DType type, double seed = 0.7) {
  const Tensor counts = counted(empty(shape).numel());
  return ops::cast(ops::reshape(ops::sin(ops::mul_scalar(counts, seed)), shape), type);
}

/// By how many times a type's own rounding a result may differ from the CPU's.
double tolerance_of(DType type) {
  return type == DType::f64   ? 1e-12
         : type == DType::f32 ? 1e-5
         : type == DType::f16 ? 2e-3
                              : 1.6e-2;
}

void check_each(const Tensor& found, const Tensor& wanted, double tolerance) {
  const std::vector<double> a = to_doubles(found), b = to_doubles(wanted);
  REQUIRE(a.size() == b.size());
  double largest = 0, farthest = 0;
  std::size_t others = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (std::isfinite(b[i])) {
      largest = std::max(largest, std::abs(b[i]));
      farthest = std::isfinite(a[i]) ? std::max(farthest, std::abs(a[i] - b[i])) : INFINITY;
    } else {
      others += std::isnan(b[i]) ? !std::isnan(a[i]) : a[i] != b[i];
    }
  }
  CHECK(farthest <= tolerance * (1 + largest));
  CHECK(others == 0);
}

/// The GPU's results are the CPU's, and their bits do not depend on where the operands are.
void check(const char* name, const std::vector<Tensor>& in, const std::string& arguments) {
  const NoGrad constant;
  const Op& op = find_op(name);
  const Attributes attributes = parse_arguments(op, arguments);
  const auto results = [&](std::int64_t shift) {
    std::vector<Tensor> operands;
    for (const Tensor& x : in) operands.push_back(to_gpu(x, shift));
    next_order();
    return call(op, operands, attributes);
  };
  const Tensors aligned = results(0), shifted = results(1), wanted = call(op, in, attributes);
  for (std::size_t i = 0; i < wanted.size(); ++i) {
    INFO(name << " of " << name_of(in[0].dtype()) << " " << to_string(in[0].shape()) << ", result "
              << i);
    if (!wanted[i]) continue;
    CHECK(same_bits(aligned[i], ops::to_device(shifted[i], cpu)));
    check_each(aligned[i], wanted[i], tolerance_of(wanted[i].dtype()));
  }
}

/// Kernels that a call on the GPU launches.
std::uint64_t launches_of(const char* name, const std::vector<Tensor>& in,
                          const std::string& arguments) {
  const NoGrad constant;
  std::vector<Tensor> operands;
  for (const Tensor& x : in) operands.push_back(to_gpu(x));
  const Op& op = find_op(name);
  const std::uint64_t before = emulator_launches();
  const Tensors kept = call(op, operands, parse_arguments(op, arguments));
  ops::to_device(kept[0], cpu);
  return emulator_launches() - before;
}

/// The type of a row's statistics.
DType statistics(DType type) { return type == DType::f64 ? type : DType::f32; }

constexpr const char* all_dims = "dims=[], keepdim=false";
constexpr const char* all_elements = "dims=[], keepdim=false, across_ranks=true, whole=none";

}  // namespace

TEST_CASE("whole tensors are reduced in parts, in an order that does not depend on their place") {
  for (const DType type : floating) {
    for (const std::int64_t count : {1, 7, 8, 9, 2047, 2049, 4097, 70001}) {
      const Tensor x = noise({count}, type);
      check("sum", {x}, all_dims);
      check("mean", {x}, all_dims);
      check("squared_norm", {x}, "");
      check("amax", {x}, all_elements);
      check("amin", {x}, all_elements);
    }
    check("sum", {noise({3, 9001}, type)}, "dims=[1], keepdim=true");
    check("amax", {noise({3, 2, 5000}, type)},
          "dims=[2], keepdim=false, across_ranks=true, whole=none");
    check("sum", {zeros({3, 0}, type)}, "dims=[1], keepdim=false");
    check("squared_norm", {zeros({0}, type)}, "");
  }
  check("sum", {ops::cast(counted(9000), DType::i64)}, all_dims);
  check("amin", {ops::cast(counted(9000), DType::i32)}, all_elements);
  CHECK(launches_of("sum", {noise({70001}, DType::bf16)}, all_dims) == 2);
  CHECK(launches_of("sum", {noise({2000}, DType::bf16)}, all_dims) == 1);
}

TEST_CASE("a part that has no number, or an infinite one, decides a reduction") {
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float special : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    for (const std::int64_t place : {0, 4100, 8999}) {
      const Tensor x = noise({9000}, DType::f32);
      x.data<float>()[place] = special;
      for (const DType type : {DType::f32, DType::bf16, DType::f16}) {
        const Tensor of = ops::cast(x, type);
        check("sum", {of}, all_dims);
        check("squared_norm", {of}, "");
        check("amax", {of}, all_elements);
        check("amin", {of}, all_elements);
      }
    }
  }
}

TEST_CASE(
    "the squares of a list of tensors are added in one launch of a type, each as on its own") {
  std::vector<Tensor> list;
  for (std::int64_t i = 0; i < 300; ++i) {
    list.push_back(noise({i == 7 ? 9000 : i == 290 ? 4100 : i % 23}, floating[i % 4]));
  }
  check("foreach_squared_norm", list, "");
  list.resize(20);
  std::vector<Tensor> operands;
  for (const Tensor& x : list) operands.push_back(to_gpu(x));
  // Those that are not contiguous have launches of their own.
  operands[3] = ops::transpose(to_gpu(noise({70, 90}, DType::bf16)), 0, 1);
  operands[4] = ops::transpose(to_gpu(noise({7, 9}, DType::f32)), 0, 1);
  const Tensor all = ops::foreach_squared_norm(operands);
  for (std::int64_t i = 0; i < 20; ++i) {
    INFO("tensor " << i);
    const Tensor& x = operands[static_cast<std::size_t>(i)];
    CHECK(same_bits(ops::select(all, 0, i),
                    ops::to_device(ops::squared_norm(ops::contiguous(x)), cpu)));
  }
  list.clear();
  for (std::int64_t i = 0; i < 7; ++i) list.push_back(noise({i}, DType::bf16));
  CHECK(launches_of("foreach_squared_norm", list, "") == 1);
  list.push_back(noise({9000}, DType::bf16));
  CHECK(launches_of("foreach_squared_norm", list, "") == 2);
  list.push_back(noise({9}, DType::f32));
  CHECK(launches_of("foreach_squared_norm", list, "") == 3);
}

TEST_CASE("columns are added over groups of rows") {
  for (const DType type : floating) {
    for (const std::int64_t rows : {1, 31, 33, 128, 129, 260, 700}) {
      for (const std::int64_t columns : {1, 8, 56, 72}) {
        check("sum", {noise({rows, columns}, type)}, "dims=[0], keepdim=false");
      }
    }
    check("mean", {noise({5, 40, 3, 16}, type)}, "dims=[0, 1], keepdim=false");
    check("sum", {zeros({0, 8}, type)}, "dims=[0], keepdim=false");
  }
  check("sum", {ops::cast(ops::reshape(counted(600), {200, 3}), DType::i64)},
        "dims=[0], keepdim=false");
  CHECK(launches_of("sum", {noise({128, 16}, DType::bf16)}, "dims=[0], keepdim=false") == 1);
  CHECK(launches_of("sum", {noise({129, 16}, DType::bf16)}, "dims=[0], keepdim=false") == 2);
}

/// Rows around the limits of a piece, of a warp's registers and of a block's, where a thread keeps
/// so many pieces of a row.
std::vector<std::int64_t> lengths_of(DType type, std::int64_t pieces) {
  const std::int64_t piece = type == DType::bf16 || type == DType::f16 ? 8 : 4;
  std::vector<std::int64_t> all = {1, piece - 1, piece, piece + 1, 3 * piece};
  for (const std::int64_t team : {32, 512}) {
    if (team == 32 || type == DType::bf16) {
      all.push_back(team * pieces * piece);
      all.push_back((team * pieces + 1) * piece);
    }
  }
  return all;
}

std::int64_t rows_for(std::int64_t length) { return length > 600 ? 2 : 9; }

TEST_CASE("norms of rows of any length are the CPU's, wherever the rows are") {
  for (const DType type : floating) {
    for (const std::int64_t length : lengths_of(type, 4)) {
      const Tensor x = noise({rows_for(length), length}, type);
      const Tensor weight = noise({length}, type, 0.3), bias = noise({length}, type, 0.9);
      check("rms_norm", {x, weight}, "eps=1e-5");
      check("layer_norm", {x, weight, bias}, "eps=1e-5");
    }
    const Tensor none;
    const Tensor x = noise({2, 5, 48}, type);
    check("rms_norm", {x, none}, "eps=1e-5");
    check("layer_norm", {x, none, none}, "eps=1e-5");
    check("rms_norm", {zeros({0, 48}, type), noise({48}, type)}, "eps=1e-5");
  }
}

TEST_CASE("gradients of norms of rows of any length are the CPU's, wherever the rows are") {
  for (const DType type : floating) {
    const auto factors = [&](const Dims& shape) {
      return ops::abs(noise(shape, statistics(type), 0.1));
    };
    for (const std::int64_t length : lengths_of(type, 2)) {
      const std::int64_t rows = rows_for(length);
      const Tensor x = noise({rows, length}, type), dy = noise({rows, length}, type, 1.3);
      const Tensor weight = noise({length}, type, 0.3);
      check("rms_norm_backward", {dy, x, weight, factors({rows})}, "");
      check("layer_norm_backward",
            {dy, x, weight, noise({rows}, statistics(type)), factors({rows})}, "");
    }
    const Tensor none;
    const Tensor x = noise({2, 5, 48}, type);
    check("rms_norm_backward", {x, x, none, factors({2, 5})}, "");
    check("layer_norm_backward", {x, x, none, factors({2, 5}), factors({2, 5})}, "");
    const Tensor empty_rows = zeros({0, 48}, type);
    check("rms_norm_backward", {empty_rows, empty_rows, noise({48}, type), factors({0})}, "");
  }
}

TEST_CASE("gradients of norms are added over many groups of rows") {
  for (const DType type : {DType::f32, DType::bf16}) {
    for (const std::int64_t rows : {7, 8, 65, 8200}) {
      const Tensor x = noise({rows, 16}, type), weight = noise({16}, type, 0.3);
      const Tensor rstd = ops::abs(noise({rows}, DType::f32, 0.1));
      check("rms_norm_backward", {noise({rows, 16}, type, 1.3), x, weight, rstd}, "");
      check("layer_norm_backward",
            {noise({rows, 16}, type, 1.3), x, weight, noise({rows}, DType::f32), rstd}, "");
    }
  }
}

TEST_CASE("softmaxes of rows of any length are the CPU's, wherever the rows are") {
  for (const DType type : floating) {
    for (const std::int64_t length : lengths_of(type, 4)) {
      const std::int64_t rows = rows_for(length);
      const Tensor x = ops::mul_scalar(noise({rows, length}, type), 4);
      const Tensor dy = noise({rows, length}, type, 1.3);
      for (const std::string name : {"softmax", "log_softmax"}) {
        const std::string arguments = name == "softmax" ? "dim=1" : "dim=1, loss_parallel=false";
        check(name.c_str(), {x}, arguments);
        check((name + "_backward").c_str(),
              {dy, name == "softmax" ? ops::softmax(x, 1) : ops::log_softmax(x, 1)}, arguments);
      }
    }
    check("softmax", {noise({40, 6, 3}, type)}, "dim=0");
  }
  constexpr float infinity = std::numeric_limits<float>::infinity();
  for (const float special : {std::numeric_limits<float>::quiet_NaN(), infinity, -infinity}) {
    const Tensor x = noise({3, 64}, DType::f32);
    x.data<float>()[70] = special;
    check("softmax", {x}, "dim=1");
    check("softmax", {ops::cast(x, DType::bf16)}, "dim=1");
    check("rms_norm", {ops::cast(x, DType::f16), Tensor()}, "eps=1e-5");
  }
}

TEST_CASE("there may be more rows than a launch has teams of threads", "[.long]") {
  check("sum", {noise({66000, 8}, DType::bf16)}, "dims=[1], keepdim=false");
  check("softmax", {noise({263000, 8}, DType::bf16)}, "dim=1");
}

TEST_CASE("losses of rows of any length are the CPU's, wherever the logits are") {
  const std::string arguments = "ignore_index=-100, loss_parallel=false, whole=none";
  const auto targets_of = [](std::int64_t rows, std::int64_t classes) {
    const Tensor targets = empty({rows}, DType::i64);
    for (std::int64_t i = 0; i < rows; ++i) {
      targets.data<std::int64_t>()[i] = i == 1 ? -100 : (i * 37 + classes - 1) % classes;
    }
    return targets;
  };
  for (const DType type : floating) {
    for (const std::int64_t classes : {1, 3, 8, 9, 40, 255, 8 * 256, 8 * 256 * 4 + 13}) {
      const Tensor x = ops::mul_scalar(noise({5, classes}, type), 6);
      const Tensor targets = targets_of(5, classes);
      check("cross_entropy", {x, targets}, arguments);
      check("cross_entropy_rows", {x, targets}, arguments);
      check("logits_statistics", {x, targets}, arguments);
      const Tensor sums = call(find_op("cross_entropy_rows"), {x, targets},
                               parse_arguments(find_op("cross_entropy_rows"), arguments))[1];
      const DType number = statistics(type);
      check("cross_entropy_backward", {full({}, 0.5, number), x, targets, sums}, arguments);
      check("cross_entropy_backward", {noise({5}, number), x, targets, sums}, arguments);
    }
    check("cross_entropy_rows", {zeros({0, 8}, type), zeros({0}, DType::i64)}, arguments);
  }
  // Maxima that are infinite, late or absent.
  constexpr float infinity = std::numeric_limits<float>::infinity();
  const Tensor x = ops::mul_scalar(noise({6, 9000}, DType::f32), 30);
  float* const at = x.data<float>();
  std::fill_n(at, 9000, -infinity);
  std::fill_n(at + 9000, 8999, -infinity);
  at[2 * 9000 + 5] = infinity;
  at[3 * 9000 + 8990] = std::numeric_limits<float>::quiet_NaN();
  at[4 * 9000 + 8999] = 1000;
  for (const DType type : {DType::f32, DType::bf16}) {
    check("cross_entropy_rows", {ops::cast(x, type), targets_of(6, 9000)}, arguments);
  }
}

TEST_CASE("rotary positions by a table turn heads of any number and size as the CPU does") {
  const std::string scaled =
      "theta=10000, scaling=llama3, factor=8, original_positions=8, low=1, high=4, "
      "amplitude=1, whole_dims=true";
  for (const DType type : floating) {
    for (const std::int64_t dims : {2, 6, 16, 32, 48}) {
      for (const std::int64_t heads : {1, 4, 5}) {
        const Tensor x = noise({2, 3, heads, dims}, type);
        for (const char* name : {"rotary", "rotary_inverse"}) {
          check(name, {x}, "offset=5, whole=none, " + scaled);
        }
        std::vector<std::int64_t> places = {7, 0, 3, 2, 9, 1000000};
        const Tensor each = from_values(std::span<const std::int64_t>(places), {2, 3});
        check("rotary_at", {x, each}, scaled);
        check("rotary_at_inverse", {x, ops::select(each, 0, 1)}, scaled);
      }
    }
    const Tensor x = ops::transpose(noise({2, 3, 4, 32}, type), 1, 2);
    check("rotary", {x}, "offset=0, whole=none, " + scaled);
    // Rows that batches share, and heads with more pairs than a block makes angles of.
    for (const Dims& shape : {Dims{2, 2203, 2, 32}, Dims{2, 3, 2, 528}}) {
      check("rotary", {noise(shape, type)}, "offset=5, whole=none, " + scaled);
    }
  }
}

TEST_CASE("both gradients of swiglu come from one launch, with the CPU's numbers") {
  for (const DType type : floating) {
    for (const std::int64_t width : {1, 7, 8, 24, 1000}) {
      check("swiglu_backward",
            {noise({3, 5, width}, type), noise({3, 5, width}, type, 0.3),
             noise({3, 5, width}, type, 1.1)},
            "");
    }
    // Halves of one tensor.
    const Tensor both = noise({6, 32}, type, 0.3);
    const Tensor dy = noise({6, 16}, type);
    const Tensors wanted = call(find_op("swiglu_backward"),
                                {dy, ops::narrow(both, 1, 0, 16), ops::narrow(both, 1, 16, 16)});
    const Tensor there = to_gpu(both), of_dy = to_gpu(dy);
    const std::uint64_t before = emulator_launches();
    const Tensors found = call(find_op("swiglu_backward"), {of_dy, ops::narrow(there, 1, 0, 16),
                                                            ops::narrow(there, 1, 16, 16)});
    check_each(found[0], wanted[0], tolerance_of(type));
    check_each(found[1], wanted[1], tolerance_of(type));
    CHECK(emulator_launches() - before == 1);
  }
}
