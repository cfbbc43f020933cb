// Calls on the emulated device beside the CPU's. Include it after the imports of tessera.base,
// tessera.tensor, tessera.ops and tessera.conformance, and after device.hpp.
#pragma once
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "catch.hpp"
#include "device.hpp"

namespace tessera::testing {

/// A copy of x on the device that begins `shift` elements after an address for words of 16 bytes.
inline Tensor to_gpu(const Tensor& x, std::int64_t shift = 0) {
  if (!x || shift == 0) {
    return x ? copied_to(x, cuda()) : x;
  }
  const NoGrad constant;
  const Tensor memory = copied_to(zeros({x.numel() + shift}, x.dtype()), cuda());
  const Tensor moved = alias(memory, x.shape(), contiguous_strides(x.shape()), shift);
  ops::copy_(moved, copied_to(x, cuda()));
  return moved;
}

inline bool same_bits(const Tensor& there, const Tensor& here) {
  const Tensor found = ops::contiguous(ops::to_device(there, cpu));
  const Tensor wanted = ops::contiguous(here);
  return found.shape() == wanted.shape() && found.dtype() == wanted.dtype() &&
         std::memcmp(found.raw_data(), wanted.raw_data(),
                     static_cast<std::size_t>(wanted.numel()) * size_of(wanted.dtype())) == 0;
}

/// The call's results on the device and on the CPU; the operands, where they are written.
struct Results {
  std::vector<Tensor> there, here;
};
inline Results results_of(const char* name, const std::vector<Tensor>& in,
                          const std::string& arguments, std::int64_t shift = 0) {
  const NoGrad constant;
  const Op& op = find_op(name);
  const Attributes attributes = parse_arguments(op, arguments);
  std::vector<Tensor> there;
  for (const Tensor& x : in) there.push_back(to_gpu(x, shift));
  next_order();
  const Tensors found = call(op, there, attributes);
  const Tensors wanted = call(op, in, attributes);
  if (op.in_place) {
    return {.there = there, .here = in};
  }
  return {.there = {found.begin(), found.end()}, .here = {wanted.begin(), wanted.end()}};
}

inline void check_bits(const char* name, const std::vector<Tensor>& in,
                       const std::string& arguments, std::int64_t shift = 0) {
  const Results all = results_of(name, in, arguments, shift);
  REQUIRE(all.there.size() == all.here.size());
  for (std::size_t i = 0; i < all.here.size(); ++i) {
    INFO(name << " " << arguments << ", shift " << shift << ", result " << i);
    CHECK((!all.here[i] || same_bits(all.there[i], all.here[i])));
  }
}

inline void check_near(const char* name, const std::vector<Tensor>& in,
                       const std::string& arguments, double tolerance, std::int64_t shift = 0) {
  const Results all = results_of(name, in, arguments, shift);
  for (std::size_t i = 0; i < all.here.size(); ++i) {
    if (!all.here[i]) continue;
    INFO(name << " " << arguments << ", shift " << shift << ", result " << i);
    CHECK(largest_difference(ops::to_device(all.there[i], cpu), all.here[i]) <= tolerance);
  }
}

/// Whole numbers from a few, in no order, with ties.
inline Tensor some_of(const Dims& shape, std::int64_t values, DType type = DType::i64) {
  const Tensor x = empty(shape, DType::i64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<std::int64_t>()[i] = (i * i * 7 + i * 13) % 1009 % values;
  }
  return ops::cast(x, type);
}

inline Tensor waves(const Dims& shape, DType type = DType::f32) {
  return ops::cast(
      ops::reshape(ops::sin(ops::mul_scalar(counted(empty(shape).numel()), 0.7)), shape), type);
}

}  // namespace tessera::testing
