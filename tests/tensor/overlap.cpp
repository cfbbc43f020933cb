// Memory that tensors have in common: held to a comparison of all elements' addresses, and refused
// where an operator writes it.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

using namespace tessera;
using tessera::testing::contains;
using tessera::testing::error_of;

namespace {

/// The addresses of all bytes, one element after the other.
std::vector<const std::byte*> bytes_of(const Tensor& x) {
  std::vector<const std::byte*> bytes;
  const auto size = static_cast<std::int64_t>(size_of(x.dtype()));
  Dims index = Dims::filled(x.dims(), 0);
  for (std::int64_t n = x.numel(); n > 0; --n) {
    std::int64_t at = 0;
    for (int d = 0; d < x.dims(); ++d) {
      at += index[d] * x.strides()[d];
    }
    for (std::int64_t byte = 0; byte < size; ++byte) {
      bytes.push_back(static_cast<const std::byte*>(x.raw_data()) + at * size + byte);
    }
    for (int d = x.dims() - 1; d >= 0 && ++index[d] == x.shape()[d]; --d) {
      index[d] = 0;
    }
  }
  return bytes;
}

bool meet(const Tensor& a, const Tensor& b) {
  const auto x = bytes_of(a);
  const std::set<const std::byte*> known(x.begin(), x.end());
  const auto y = bytes_of(b);
  return std::any_of(y.begin(), y.end(), [&](const std::byte* p) { return known.contains(p); });
}

bool repeats(const Tensor& x) {
  const auto all = bytes_of(x);
  return std::set<const std::byte*>(all.begin(), all.end()).size() != all.size();
}

/// Any shape and strides within `memory`.
Tensor random_view(std::mt19937& random, const Tensor& memory) {
  const auto draw = [&](int most) { return static_cast<std::int64_t>(random() % (most + 1)); };
  for (;;) {
    Dims shape;
    Dims strides;
    std::int64_t reach = 0;
    for (int d = static_cast<int>(draw(3)); d > 0; --d) {
      shape.push_back(draw(9) == 0 ? 0 : 1 + draw(3));
      strides.push_back(draw(12));
      reach += std::max<std::int64_t>(shape.back() - 1, 0) * strides.back();
    }
    if (reach < memory.numel()) {
      const std::int64_t room = memory.numel() - 1 - reach;
      return alias(memory, shape, strides, draw(static_cast<int>(room)));
    }
  }
}

}  // namespace

TEST_CASE("shared memory is found exactly") {
  std::mt19937 random(7);
  const Tensor memory = zeros({48});
  int shared = 0;
  int repeated = 0;
  for (int i = 0; i < 4000; ++i) {
    const Tensor a = random_view(random, memory);
    const Tensor b = random_view(random, memory);
    INFO(to_string(a.shape()) << " " << to_string(a.strides()) << " at " << a.offset() << ", "
                              << to_string(b.shape()) << " " << to_string(b.strides()) << " at "
                              << b.offset());
    REQUIRE(shares_memory(a, b) == meet(a, b));
    REQUIRE(repeats_elements(a) == repeats(a));
    shared += meet(a, b) ? 1 : 0;
    repeated += repeats(a) ? 1 : 0;
  }
  CHECK(shared > 400);
  CHECK(shared < 3600);
  CHECK(repeated > 400);
  CHECK(repeated < 3600);
}

TEST_CASE("elements of different widths and borrowed memory share bytes") {
  const Tensor whole = zeros({8}, DType::f64);
  const Tensor borrowed =
      from_memory(static_cast<std::byte*>(whole.raw_data()) + 12, {2}, DType::f32);
  CHECK(shares_memory(whole, borrowed));
  CHECK(shares_memory(alias(whole, {1}, {1}, 1), borrowed));
  CHECK(shares_memory(alias(whole, {3}, {2}, 0), borrowed));  // bytes 16 to 20
  CHECK_FALSE(shares_memory(alias(whole, {3}, {3}, 0), borrowed));
  CHECK_FALSE(shares_memory(zeros({8}), zeros({8})));
  CHECK_FALSE(shares_memory(alias(whole, {0}, {1}, 0), whole));
}

TEST_CASE("large regular views are decided at once") {
  const std::int64_t n = 1 << 12;
  const Tensor x = zeros({n, n}, DType::u8);
  CHECK_FALSE(shares_memory(alias(x, {n, n / 2}, {n, 1}, 0), alias(x, {n, n / 2}, {n, 1}, n / 2)));
  CHECK(shares_memory(alias(x, {n, n / 2 + 1}, {n, 1}, 0), alias(x, {n, n / 2}, {n, 1}, n / 2)));
  CHECK_FALSE(shares_memory(alias(x, {n, n / 2}, {n, 2}, 0), alias(x, {n, n / 2}, {n, 2}, 1)));
  CHECK(shares_memory(x, alias(x, {n, n}, {1, n}, 0)));
  CHECK_FALSE(repeats_elements(alias(x, {n, n}, {1, n}, 0)));
  CHECK(repeats_elements(alias(x, {n, n}, {1, 1}, 0)));
}

TEST_CASE("a written operand that repeats elements or overlaps another one is refused") {
  const Tensor x = zeros({4, 4});
  const std::string repeated = error_of([&] { ops::add_(ops::expand(zeros({1, 4}), {4, 4}), x); });
  CHECK(contains(repeated, "add_: 'a' is written, but some of its elements are the same memory"));
  CHECK(contains(repeated, "got shape [4, 4] with strides [0, 1]"));
  CHECK(contains(error_of([&] { ops::fill_(alias(x, {3, 2}, {1, 1}, 0), 2); }), "fill_: 'x'"));

  CHECK(contains(error_of([&] { ops::mul_(x, ops::transpose(x, 0, 1)); }),
                 "mul_: 'a' is written and shares memory with 'b'"));
  CHECK(contains(error_of([&] { ops::add_(x, ops::select(x, 0, 1)); }), "shares memory"));
  CHECK(contains(error_of([&] { ops::copy_(ops::narrow(x, 0, 1, 2), ops::narrow(x, 0, 0, 2)); }),
                 "copy_: 'into' is written and shares memory with 'from'"));

  ops::fill_(x, 3);
  ops::mul_(x, ops::detach(x));  // the same view
  CHECK(to_doubles(x) == std::vector<double>(16, 9));
  ops::copy_(ops::narrow(x, 1, 0, 2), ops::narrow(zeros({4, 4}), 1, 2, 2));
  ops::copy_(ops::narrow(x, 1, 2, 2), ops::narrow(x, 1, 0, 2));  // other columns
  CHECK(to_doubles(x) == std::vector<double>(16, 0));
}

TEST_CASE("lists are refused when one of their written tensors overlaps another tensor") {
  const auto list = [](const Tensor& memory) {
    return std::vector<Tensor>{alias(memory, {4}, {1}, 0), alias(memory, {4}, {1}, 4)};
  };
  const Tensor memory = full({12}, 1);
  const Tensor other = full({8}, 2);
  ops::foreach_add_(list(memory), list(other), 1);   // one storage, separate parts
  ops::foreach_add_(list(memory), list(memory), 1);  // each tensor with itself
  CHECK(to_doubles(memory) == std::vector<double>{6, 6, 6, 6, 6, 6, 6, 6, 1, 1, 1, 1});

  std::vector<Tensor> twice = list(memory);
  twice[1] = alias(memory, {4}, {1}, 0);
  CHECK(contains(error_of([&] { ops::foreach_mul_(twice, 2); }),
                 "foreach_mul_: 'tensors[0]' is written and shares memory with 'tensors[1]'"));
  std::vector<Tensor> crossed = {list(memory)[1], list(memory)[0]};
  CHECK(contains(error_of([&] { ops::foreach_add_(list(memory), crossed, 1); }),
                 "shares memory with 'others["));
  std::vector<Tensor> repeated = {zeros({4}), ops::expand(zeros({1}), {4})};
  CHECK(contains(error_of([&] { ops::foreach_zero_(repeated); }), "'tensors[1]' is written, but"));

  const ops::AdamStep step{.lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0,
                           .grad_scale = 1,
                           .step = 1};
  const Tensor state = zeros({4});
  CHECK(contains(error_of([&] {
                   ops::adamw_(list(zeros({8})), list(other), std::vector{state, zeros({4})},
                               std::vector{zeros({4}), state}, std::vector<Tensor>(2), step);
                 }),
                 "is written and shares memory with"));
  CHECK(contains(error_of([&] {
                   ops::adamw_(std::vector{zeros({4})}, std::vector{zeros({4})}, std::vector{state},
                               std::vector{state}, std::vector<Tensor>(1), step);
                 }),
                 "adamw_: 'exp_avgs[0]' is written and shares memory with 'exp_avg_sqs[0]'"));
  CHECK(to_doubles(state) == std::vector<double>(4, 0));
}

TEST_CASE("lists in borrowed memory are compared with all other memory") {
  const Tensor buffer = zeros({16});
  const auto borrowed = [&](std::int64_t at) {
    return from_memory(buffer.data<float>() + at, {4}, DType::f32);
  };
  const auto part = [&](std::int64_t at) { return alias(buffer, {4}, {1}, at); };
  const auto fresh = [] { return std::vector{full({4}, 1), full({4}, 1)}; };
  const auto error_with = [&](const Tensor& a, const Tensor& b, std::vector<Tensor> others) {
    return error_of([&] { ops::foreach_add_(std::vector{a, b}, others, 1); });
  };
  CHECK(error_with(borrowed(0), borrowed(4), fresh()) == "no error");
  CHECK(error_with(borrowed(8), borrowed(4), fresh()) == "no error");  // in any order
  CHECK(error_with(borrowed(0), full({4}, 1), fresh()) == "no error");
  CHECK(to_doubles(buffer) == std::vector<double>{2, 2, 2, 2, 2, 2, 2, 2, 1, 1, 1, 1, 0, 0, 0, 0});
  const Tensor own = borrowed(12);
  CHECK(error_with(borrowed(0), own, {full({4}, 1), own}) ==
        "no error");  // each tensor with itself

  const std::string refused =
      "foreach_add_: 'tensors[0]' is written and shares memory with 'tensors[1]'";
  CHECK(contains(error_with(borrowed(0), borrowed(2), fresh()), refused));
  CHECK(contains(error_with(borrowed(2), borrowed(0), fresh()), "shares memory with 'tensors["));
  CHECK(contains(error_with(borrowed(0), part(2), fresh()), refused));
  CHECK(contains(error_with(part(0), borrowed(2), fresh()), refused));
  CHECK(contains(error_with(borrowed(0), borrowed(4), {full({4}, 1), borrowed(2)}),
                 "shares memory with 'others[1]'"));
  CHECK(contains(error_with(borrowed(0), borrowed(8), {full({4}, 1), part(2)}),
                 "shares memory with 'others[1]'"));
  CHECK(contains(error_with(part(0), part(2), fresh()), refused));
  CHECK(error_with(part(0), part(4), fresh()) == "no error");
  // Parts of one storage, with another one between them.
  CHECK(contains(error_with(part(0), full({4}, 1), {part(8), part(2)}),
                 "shares memory with 'others[1]'"));
  CHECK(error_with(part(0), full({4}, 1), {part(8), part(4)}) == "no error");
}

TEST_CASE("distributed and meta operands are checked too") {
  set_current_rank(0);
  const Layout whole = Layout::replicated(DeviceMesh::make({"data"}, {1}));
  const Tensor x = zeros({4, 4});
  CHECK(contains(error_of([&] {
                   ops::add_(from_local(x, whole), from_local(ops::transpose(x, 0, 1), whole));
                 }),
                 "add_: 'a' is written and shares memory with 'b'"));
  const Tensor none = empty({4}, DType::f32, meta);
  CHECK(contains(error_of([&] { ops::fill_(ops::expand(empty({1}, DType::f32, meta), {4}), 1); }),
                 "fill_: 'x' is written, but"));
  CHECK(contains(error_of([&] { ops::copy_(alias(none, {2}, {1}, 1), alias(none, {2}, {1}, 0)); }),
                 "shares memory"));
  ops::copy_(alias(none, {2}, {1}, 2), alias(none, {2}, {1}, 0));
}
