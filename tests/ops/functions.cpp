// Functions that call several operators, against PyTorch's results and gradients; and what has no
// counterpart there: dropout in attention, errors, gradients of what was padded.
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "operator_samples.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

/// The arguments of one sample by name.
struct Arguments {
  const std::map<std::string, std::vector<double>>& numbers;
  std::vector<Tensor> x;

  double number(const std::string& name) const { return numbers.at(name)[0]; }
  std::int64_t integer(const std::string& name) const {
    return static_cast<std::int64_t>(number(name));
  }
  Dims dims(const std::string& name) const {
    Dims d;
    for (const double value : numbers.at(name)) {
      d.push_back(static_cast<std::int64_t>(value));
    }
    return d;
  }
  ops::Convolution convolution() const {
    return {.stride = dims("stride"),
            .padding = dims("padding"),
            .dilation = dims("dilation"),
            .groups = integer("groups")};
  }
};

/// Indices from tensor `first` on; an absent one takes the whole dim.
std::vector<Tensor> indices(const Arguments& a, std::size_t first) {
  return {a.x.begin() + static_cast<std::ptrdiff_t>(first), a.x.end()};
}

using Comparison = Tensor (*)(const Tensor&, double);
template <Comparison compare>
Tensor with_number(const Arguments& a) {
  return compare(a.x[0], a.number("value"));
}

using Function = std::function<Tensors(const Arguments&)>;

/// Functions of one result.
Function one(Tensor (*f)(const Arguments&)) {
  return [f](const Arguments& a) { return Tensors{f(a)}; };
}

const std::map<std::string, Function>& functions() {
  using A = const Arguments&;
  static const std::map<std::string, Function> all = {
      {"squeeze", one([](A a) { return ops::squeeze(a.x[0]); })},
      {"unflatten",
       one([](A a) { return ops::unflatten(a.x[0], a.integer("dim"), a.dims("extents")); })},
      {"swapaxes",
       one([](A a) { return ops::swapaxes(a.x[0], a.integer("dim0"), a.integer("dim1")); })},
      {"movedim",
       one([](A a) { return ops::movedim(a.x[0], a.dims("source"), a.dims("destination")); })},
      {"chunk", [](A a) { return ops::chunk(a.x[0], a.integer("chunks"), a.integer("dim")); }},
      {"repeat", one([](A a) { return ops::repeat(a.x[0], a.dims("repeats")); })},
      {"repeat_interleave", one([](A a) {
         return ops::repeat_interleave(a.x[0], a.integer("repeats"), a.integer("dim"));
       })},
      {"take_along_dim",
       one([](A a) { return ops::take_along_dim(a.x[0], a.x[1], a.integer("dim")); })},
      {"index_fill", one([](A a) {
         return ops::index_fill(a.x[0], a.x[1], a.number("value"), a.integer("dim"));
       })},
      {"index_add",
       one([](A a) { return ops::index_add(a.x[0], a.x[1], a.x[2], 0, a.number("alpha")); })},
      {"argmax",
       one([](A a) { return ops::argmax(a.x[0], std::nullopt, a.number("keepdim") != 0); })},
      {"argmin",
       one([](A a) { return ops::argmin(a.x[0], std::nullopt, a.number("keepdim") != 0); })},
      {"clamp", one([](A a) { return ops::clamp(a.x[0], a.x[1], a.x[2]); })},
      {"eq", one(with_number<ops::eq>)},
      {"ne", one(with_number<ops::ne>)},
      {"lt", one(with_number<ops::lt>)},
      {"le", one(with_number<ops::le>)},
      {"gt", one(with_number<ops::gt>)},
      {"ge", one(with_number<ops::ge>)},
      {"index", one([](A a) { return ops::index(a.x[0], indices(a, 1)); })},
      {"index_put", one([](A a) {
         return ops::index_put(a.x[0], indices(a, 2), a.x[1], a.number("accumulate") != 0);
       })},
      {"cross_entropy", one([](A a) {
         return ops::cross_entropy(
             a.x[0], a.x[1],
             {.reduction = static_cast<ops::Reduction>(a.integer("reduction")),
              .ignore_index = a.integer("ignore_index"),
              .label_smoothing = a.number("label_smoothing"),
              .weight = a.x[2]});
       })},
      {"nonzero", one([](A a) { return ops::nonzero(a.x[0]); })},
      {"masked_select", one([](A a) { return ops::masked_select(a.x[0], a.x[1]); })},
      {"roll", one([](A a) { return ops::roll(a.x[0], a.dims("shifts")); })},
      {"group_norm", one([](A a) {
         return ops::group_norm(a.x[0], a.integer("groups"), a.x[1], a.x[2], a.number("eps"));
       })},
      {"batch_norm",
       [](A a) {
         const auto copy = [](const Tensor& x) { return x ? ops::clone(ops::detach(x)) : x; };
         const Tensor mean = copy(a.x[1]);
         const Tensor variance = copy(a.x[2]);
         const Tensor y =
             ops::batch_norm(a.x[0], mean, variance, a.x[3], a.x[4], a.number("training") != 0,
                             a.number("momentum"), a.number("eps"));
         return mean ? Tensors{y, mean, variance} : Tensors{y};
       }},
      {"conv1d", one([](A a) { return ops::conv1d(a.x[0], a.x[1], a.x[2], a.convolution()); })},
      {"conv2d",
       one([](A a) { return ops::conv2d(a.x[0], a.x[1], {}, {.stride = {2}, .padding = {1}}); })},
      {"max_pool2d", one([](A a) { return ops::max_pool2d(a.x[0], {.kernel_size = {2}}); })},
      {"avg_pool2d", one([](A a) { return ops::avg_pool2d(a.x[0], {.kernel_size = {2}}); })},
      {"adaptive_avg_pool2d", one([](A a) { return ops::adaptive_avg_pool2d(a.x[0], {3}); })},
  };
  return all;
}

double value_of(const Tensor& x, std::size_t i) { return to_doubles(x)[i]; }

}  // namespace

TEST_CASE("functions give PyTorch's results and gradients") {
  std::map<std::string, int> called;
  for (const FunctionSample& f : read_function_samples(TESSERA_REFERENCE_DATA)) {
    INFO(f.sample.name);
    REQUIRE(functions().contains(f.function));
    ++called[f.function];
    // What is only read as statistics has no gradient here.
    std::vector<Tensor> inputs = fresh_inputs(f.sample, true);
    const Tensors out = functions().at(f.function)({f.numbers, inputs});
    REQUIRE(out.size() >= f.sample.outputs.size());
    std::vector<Tensor> roots;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < f.sample.outputs.size(); ++i) {
      INFO("result " << i << " got " << to_string(out[i]) << " expected "
                     << to_string(f.sample.outputs[i]));
      CHECK(largest_difference(out[i], f.sample.outputs[i]) <= tolerance(out[i].dtype()));
      if (f.sample.output_gradients[i]) {
        roots.push_back(out[i]);
        gradients.push_back(f.sample.output_gradients[i]);
      }
    }
    if (roots.empty()) {
      continue;
    }
    backward(roots, gradients);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      if (const Tensor& expected = f.sample.input_gradients[i]; expected && inputs[i].grad()) {
        INFO("gradient " << i << " got " << to_string(inputs[i].grad()) << " expected "
                         << to_string(expected));
        CHECK(largest_difference(inputs[i].grad(), expected) <= tolerance(expected.dtype()));
      } else if (expected) {
        INFO("gradient " << i << " is missing");
        CHECK(f.function == "batch_norm");  // of the running statistics
      }
    }
  }
  for (const auto& [name, function] : functions()) {
    INFO(name);
    CHECK(called[name] > 0);
  }
}

TEST_CASE("attention drops the probabilities that dropout would drop, forward and backward") {
  const auto wave = [](const Dims& shape, double shift) {
    Tensor x = empty(shape, DType::f64);
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      x.data<double>()[i] = std::sin(0.9 * static_cast<double>(i) + shift);
    }
    return x.set_requires_grad();
  };
  const RandomStream start{.seed = 5, .stream = 9, .offset = 12};
  std::vector<Tensor> fused{wave({2, 4, 3, 5}, 0), wave({2, 2, 70, 5}, 1), wave({2, 2, 70, 5}, 2),
                            wave({3, 70}, 3)};
  std::vector<Tensor> plain{wave({2, 4, 3, 5}, 0), wave({2, 2, 70, 5}, 1), wave({2, 2, 70, 5}, 2),
                            wave({3, 70}, 3)};
  RandomStream stream = start;
  const Tensor y = ops::scaled_dot_product_attention(fused[0], fused[1], fused[2], fused[3], 0.4,
                                                     ops::Causal::none, 0.3, stream);
  RandomStream other = start;
  const Tensor k = ops::repeat_interleave(plain[1], 2, 1);
  const Tensor v = ops::repeat_interleave(plain[2], 2, 1);
  const Tensor scores =
      ops::add(ops::mul_scalar(ops::matmul(plain[0], ops::transpose(k, 2, 3)), 0.3), plain[3]);
  const Tensor expected = ops::matmul(ops::dropout(ops::softmax(scores, 3), 0.4, other), v);
  CHECK(stream.offset == other.offset);
  CHECK(largest_difference(y, expected) <= 1e-12);
  backward(ops::sum(ops::mul(y, y)));
  backward(ops::sum(ops::mul(expected, expected)));
  for (std::size_t i = 0; i < fused.size(); ++i) {
    INFO("operand " << i);
    CHECK(largest_difference(fused[i].grad(), plain[i].grad()) <= 1e-11);
  }
}

TEST_CASE("a number that a type cannot hold is compared with its elements, not wrapped") {
  const double infinity = std::numeric_limits<double>::infinity();
  for (const DType dtype : {DType::i64, DType::i32, DType::u8, DType::boolean}) {
    const Tensor x = ops::cast(from_values<double>({0, 1}, {2}), dtype);
    const std::vector<double> all{1, 1};
    const std::vector<double> none{0, 0};
    for (const double large : {1e30, infinity}) {
      INFO(name_of(dtype) << " and " << large);
      CHECK(to_doubles(ops::lt(x, large)) == all);
      CHECK(to_doubles(ops::ge(x, large)) == none);
      CHECK(to_doubles(ops::eq(x, large)) == none);
      CHECK(to_doubles(ops::gt(x, -large)) == all);
      CHECK(to_doubles(ops::ne(x, -large)) == all);
    }
    CHECK(to_doubles(ops::eq(x, std::nan(""))) == none);
    CHECK(to_doubles(ops::eq(x, 1)) == std::vector<double>{0, 1});
  }
  CHECK(to_doubles(ops::eq(from_values<std::int32_t>({0, 5}, {2}), 0x1p40)) ==
        std::vector<double>{0, 0});
}

TEST_CASE("pieces of many sizes are views, and their gradients meet in x") {
  Tensor x = zeros({2, 66}, DType::f64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<double>()[i] = std::cos(static_cast<double>(i));
  }
  x.set_requires_grad();
  const std::vector<std::int64_t> sizes{1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11};
  const Tensors pieces = ops::split_with_sizes(x, sizes, 1);
  REQUIRE(pieces.size() == sizes.size());
  std::int64_t start = 0;
  Tensor total;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Tensor wanted = ops::narrow(x, 1, start, sizes[i]);
    CHECK(pieces[i].shape() == wanted.shape());
    CHECK(pieces[i].raw_data() == wanted.raw_data());
    const Tensor part = ops::mul_scalar(ops::sum(ops::square(pieces[i])), static_cast<double>(i));
    total = total ? ops::add(total, part) : part;
    start += sizes[i];
  }
  backward(total);
  start = 0;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const Tensor part = ops::narrow(x, 1, start, sizes[i]);
    CHECK(largest_difference(ops::narrow(x.grad(), 1, start, sizes[i]),
                             ops::mul_scalar(part, 2.0 * static_cast<double>(i))) <= 1e-14);
    start += sizes[i];
  }
}

TEST_CASE("a maximum of not-a-number is not a number") {
  const double nan = std::nan("");
  const Tensor x = from_values<double>({1, nan, 3, 4}, {1, 1, 1, 4});
  const Tensor y = ops::max_pool2d(x, {.kernel_size = {1, 2}});
  CHECK(std::isnan(value_of(y, 0)));
  CHECK(value_of(y, 1) == 4);
}

TEST_CASE("errors of structural functions begin with their name") {
  const Tensor x = zeros({2, 3});
  const Tensor q = zeros({1, 2, 3, 4});
  const Tensor i = from_values<std::int64_t>({5}, {1});
  const Tensor mask = zeros({2, 3}, DType::boolean);
  const std::vector<Tensor> indices{i};
  const Tensor i64 = zeros({2, 2}, DType::i64);
  const std::multimap<std::string, std::function<void()>> mistakes = {
      {"unflatten", [&] { ops::unflatten(x, 1, {2, 2}); }},
      {"movedim", [&] { ops::movedim(x, {0, 0}, {0, 1}); }},
      {"chunk", [&] { ops::chunk(x, 0); }},
      {"diagonal", [&] { ops::diagonal(x, 0, 1, 1); }},
      {"as_strided", [&] { ops::as_strided(x, {4, 2}, {2, 1}); }},
      {"repeat", [&] { ops::repeat(x, {2}); }},
      {"roll", [&] { ops::roll(x, {1, 2}, {0}); }},
      {"pad", [&] { ops::pad(x, {1}); }},
      {"take_along_dim", [&] { ops::take_along_dim(x, i, 0); }},
      {"index_add", [&] { ops::index_add(x, i, zeros({1, 3}), 0); }},
      {"index", [&] { ops::index(x, indices); }},
      {"index_put", [&] { ops::index_put(x, indices, zeros({2})); }},
      {"scatter", [&] { ops::scatter(x, zeros({2, 4}, DType::i64), x, 1); }},
      {"masked_select", [&] { ops::masked_select(x, x); }},
      {"index", [&] { ops::index(x, std::vector{Tensor(), Tensor()}); }},
      {"index", [&] { ops::index(x, std::vector{Tensor(), Tensor(), i}); }},
      {"index", [&] { ops::index(x, std::vector{zeros({3}, DType::boolean)}); }},
      {"index", [&] { ops::index(x, std::vector{empty({2}, DType::boolean, meta)}); }},
      {"index_put",
       [&] { ops::index_put(x, std::vector{empty({2}, DType::boolean, meta)}, zeros({1, 3})); }},
      {"split_with_sizes", [&] { ops::split_with_sizes(x, std::vector<std::int64_t>{1, 1}, 1); }},
      {"split_with_sizes", [&] { ops::split_with_sizes(x, std::vector<std::int64_t>{-1, 4}, 1); }},
      {"clamp", [&] { ops::clamp(x, Tensor(), Tensor()); }},
      {"cross_entropy", [&] { ops::cross_entropy(x, i, {.label_smoothing = 1.5}); }},
      {"cross_entropy", [&] { ops::cross_entropy(x, i, {.weight = zeros({2})}); }},
      {"addmm", [&] { ops::addmm(i64, i64, i64, 0.5); }},
      {"mm", [&] { ops::mm(mask, ops::transpose(mask, 0, 1)); }},
      {"nonzero", [&] { ops::nonzero(empty({2}, DType::f32, meta)); }},
      {"group_norm", [&] { ops::group_norm(q, 3); }},
      {"batch_norm", [&] { ops::batch_norm(x, {}, {}, {}, {}, false); }},
      {"conv1d", [&] { ops::conv1d(x, x); }},
      {"conv2d", [&] { ops::conv2d(q, zeros({1, 2, 9, 9})); }},
      {"max_pool2d", [&] { ops::max_pool2d(q, {.kernel_size = {2}, .padding = {2}}); }},
      {"interpolate", [&] { ops::interpolate(q, {3}); }},
      {"scaled_dot_product_attention", [&] { ops::scaled_dot_product_attention(q, q, q, mask); }},
  };
  for (const auto& [name, mistake] : mistakes) {
    std::string text = "no error";
    try {
      mistake();
    } catch (const Error& error) {
      text = error.what();
    }
    INFO(text);
    CHECK(text.starts_with(name + ": "));
  }
}
