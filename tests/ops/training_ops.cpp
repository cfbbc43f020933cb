// What stored samples of single operators cannot show: matrices within strides, attention with a
// cache, random numbers by global index, optimizers over several steps, the texts of errors.
#include <algorithm>
#include <array>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "safetensors.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;

using namespace tessera;
using tessera::testing::error_of;

namespace {

/// Numbers that look random and are the same in every run.
Tensor numbers(const Dims& shape, DType dtype = DType::f64, double seed = 0.7) {
  const Tensor x = empty(shape, dtype);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    const double value =
        std::sin(seed + 1.37 * static_cast<double>(i * i % 101) + 0.11 * static_cast<double>(i));
    if (dtype == DType::f64) {
      x.data<double>()[i] = value;
    } else {
      x.data<float>()[i] = static_cast<float>(value);
    }
  }
  return x;
}

double difference(const Tensor& a, const Tensor& b) {
  REQUIRE(to_string(a.shape()) == to_string(b.shape()));
  const std::vector<double> x = to_doubles(a);
  const std::vector<double> y = to_doubles(b);
  double largest = 0;
  for (std::size_t i = 0; i < x.size(); ++i) {
    largest = std::max(largest, std::abs(x[i] - y[i]));
  }
  return largest;
}

Tensor transposed(const Tensor& x) {
  return alias(x, {x.shape()[1], x.shape()[0]}, {x.strides()[1], x.strides()[0]}, x.offset());
}

/// Rows times columns, one element at a time.
Tensor product(const Tensor& a, const Tensor& b) {
  const Tensor c = zeros({a.shape()[0], b.shape()[1]}, DType::f64);
  const std::vector<double> x = to_doubles(a);
  const std::vector<double> y = to_doubles(b);
  for (std::int64_t i = 0; i < a.shape()[0]; ++i) {
    for (std::int64_t j = 0; j < b.shape()[1]; ++j) {
      for (std::int64_t k = 0; k < a.shape()[1]; ++k) {
        c.data<double>()[i * b.shape()[1] + j] +=
            x[static_cast<std::size_t>(i * a.shape()[1] + k)] *
            y[static_cast<std::size_t>(k * b.shape()[1] + j)];
      }
    }
  }
  return c;
}

std::vector<Tensor> one(const Tensor& x) { return {x}; }

Tensor stored(const std::map<std::string, StoredTensor>& tensors, const std::string& key) {
  const StoredTensor& t = tensors.at(key);
  const Tensor x = empty(Dims(std::span(t.shape)), t.dtype == "F64" ? DType::f64 : DType::f32);
  REQUIRE(t.bytes.size() == static_cast<std::size_t>(x.numel()) * size_of(x.dtype()));
  if (!t.bytes.empty()) {
    std::memcpy(x.raw_data(), t.bytes.data(), t.bytes.size());
  }
  return x;
}

}  // namespace

TEST_CASE("gradients of linear are added to a tensor as a sum after the product would") {
  const Op& add_input = find_op("linear_grad_input_");
  const Op& add_weight = find_op("linear_grad_weight_");
  const auto added = [](const Op& op, const Tensor& sum, const Tensor& a, const Tensor& b) {
    call(op, std::vector<Tensor>{sum, a, b}, {});
    return sum;
  };
  const Tensor dy = numbers({3, 5, 4});
  const Tensor x = numbers({3, 5, 6}, DType::f64, 0.2);
  const Tensor weight = numbers({4, 6}, DType::f64, 0.4);
  const Tensor of_weight = ops::linear_grad_weight(dy, x);
  const Tensor of_x = ops::linear_grad_input(dy, weight);
  // Whole tensors, and those with gaps between their elements.
  const auto sums = [](const Dims& shape, bool gaps) {
    Dims larger = shape;
    larger.back() *= 2;
    const Tensor whole = numbers(gaps ? larger : shape, DType::f64, 0.9);
    return gaps ? ops::slice(whole, shape.size() - 1, 0, larger.back(), 2) : whole;
  };
  for (const bool gaps : {false, true}) {
    INFO((gaps ? "with gaps" : "without gaps"));
    CHECK(difference(added(add_weight, sums({4, 6}, gaps), dy, x),
                     ops::add(sums({4, 6}, gaps), of_weight)) < 1e-14);
    CHECK(difference(added(add_input, sums({3, 5, 6}, gaps), dy, weight),
                     ops::add(sums({3, 5, 6}, gaps), of_x)) < 1e-14);
  }
  // Products of 16 bits are not rounded before they are added to f32: 256 + 1 / 256.
  const auto narrow = [](double value, const Dims& shape) {
    return ops::cast(full(shape, value), DType::bf16);
  };
  const Tensor sum = full({1, 1}, 0);
  for (int i = 0; i < 2; ++i) {
    added(add_weight, sum, narrow(i == 0 ? 16 : 0.0625, {1, 1}),
          narrow(i == 0 ? 16 : 0.0625, {1, 1}));
  }
  CHECK(sum.item() == 256 + 1.0 / 256);
  CHECK(error_of([&] { added(add_weight, full({4, 5}, 0, DType::f64), dy, x); }) ==
        "linear_grad_weight_: sum has the wrong shape (expected [4, 6], got [4, 5])");
  CHECK(error_of([&] { added(add_weight, full({4, 6}, 0), dy, x); }) ==
        "linear_grad_weight_: sum has the wrong type (expected f64, got f32); cast it");
  CHECK(error_of([&] { added(add_input, full({3, 5, 6}, 0, DType::f64), x, weight); }) ==
        "linear_grad_input_: the last dim of dy does not match weight (expected 4, got [3, 5, 6] x "
        "[4, 6])");
}

TEST_CASE("the gradient of an embedding is added to a tensor, row by row") {
  const Op& op = find_op("embedding_backward_");
  const Attributes whole = attributes_from_text(*op.arguments, "whole=none", "test");
  const auto added = [&](const Tensor& sum, const Tensor& dy, const Tensor& indices) {
    call(op, std::vector<Tensor>{sum, dy, indices}, whole);
    return sum;
  };
  const Tensor indices = from_values<std::int64_t>({4, 0, 4, 2, 4, 0}, {2, 3});
  const Tensor dy = numbers({2, 3, 4});
  const std::vector<double> rows = to_doubles(dy);
  for (const bool gaps : {false, true}) {
    INFO((gaps ? "with gaps" : "without gaps"));
    const Tensor memory = numbers({5, 8}, DType::f64, 0.9);
    const Tensor sum =
        gaps ? ops::slice(memory, 1, 0, 8, 2) : ops::clone(ops::narrow(memory, 1, 0, 4));
    std::vector<double> wanted = to_doubles(sum);
    for (std::size_t i = 0; i < 6; ++i) {
      for (std::size_t column = 0; column < 4; ++column) {
        wanted[std::array{4, 0, 4, 2, 4, 0}[i] * 4 + column] += rows[i * 4 + column];
      }
    }
    CHECK(to_doubles(added(sum, dy, indices)) == wanted);  // added in the order of the rows
  }
  // Terms of 16 bits are added to f32, or in f32 and rounded once: 256 + 1 + 1.
  const Tensor twice = from_values<std::int64_t>({0, 0}, {2});
  const Tensor ones = ops::cast(full({2, 1}, 1), DType::bf16);
  CHECK(added(full({1, 1}, 0x1p20), ones, twice).item() == 0x1p20 + 2);
  CHECK(added(ops::cast(full({1, 1}, 256), DType::bf16), ones, twice).item() == 258);
  CHECK(error_of([&] { added(full({5, 3}, 0, DType::f64), dy, indices); }) ==
        "embedding_backward_: dy has the wrong shape (expected [2, 3, 3], got [2, 3, 4])");
  CHECK(error_of([&] { added(full({5, 4}, 0), dy, indices); }) ==
        "embedding_backward_: sum has the wrong type (expected f64, got f32); cast it");
  CHECK(error_of([&] { added(full({5, 4}, 0, DType::f64), dy, ops::cast(indices, DType::f64)); }) ==
        "embedding_backward_: indices must be i64 or i32 (got f64)");
}

TEST_CASE("products of transposed and cut matrices are those of their copies") {
  const Tensor a = numbers({5, 7});
  const Tensor b = numbers({7, 3}, DType::f64, 0.2);
  const Tensor wanted = product(a, b);
  CHECK(difference(ops::mm(a, b), wanted) < 1e-14);
  const Tensor at = numbers({7, 5});
  CHECK(difference(ops::mm(transposed(at), b), product(transposed(at), b)) < 1e-14);
  const Tensor bt = numbers({3, 7});
  CHECK(difference(ops::mm(a, transposed(bt)), product(a, transposed(bt))) < 1e-14);
  CHECK(difference(ops::mm(transposed(at), transposed(bt)),
                   product(transposed(at), transposed(bt))) < 1e-14);
  // Columns 2..8 of 12, every second row: rows at a distance, and one that no kernel can take.
  const Tensor wide = numbers({10, 12});
  const Tensor cut = alias(wide, {5, 7}, {24, 1}, 2);
  CHECK(difference(ops::mm(cut, b), product(cut, b)) < 1e-14);
  const Tensor spread = alias(wide, {5, 6}, {24, 2}, 0);
  const Tensor c = numbers({6, 2});
  CHECK(difference(ops::mm(spread, c), product(spread, c)) < 1e-14);
  CHECK(difference(ops::linear(cut, bt), product(cut, transposed(bt))) < 1e-14);
  CHECK(difference(ops::linear(cut, transposed(b)), product(cut, b)) < 1e-14);
}

TEST_CASE("attention of new queries over a cache equals the end of the full attention") {
  const Tensor q = numbers({2, 9, 4, 6});
  const Tensor k = numbers({2, 9, 2, 6}, DType::f64, 1.1);
  const Tensor v = numbers({2, 9, 2, 6}, DType::f64, 2.3);
  const Tensor whole = ops::causal_attention(q, k, v);
  for (const std::int64_t fresh : {1, 3, 9}) {
    const std::int64_t first = 9 - fresh;
    const Tensor last = alias(q, {2, fresh, 4, 6}, q.strides(), first * 4 * 6);
    const Tensor expected = alias(whole, {2, fresh, 4, 6}, whole.strides(), first * 4 * 6);
    CHECK(difference(ops::causal_attention(last, k, v), expected) < 1e-14);
  }
  // Heads in front of times, as some layouts have them: read by their strides.
  const Tensor heads_first = numbers({2, 4, 9, 6});
  const Tensor seen = alias(heads_first, {2, 9, 4, 6}, {216, 6, 54, 1}, 0);
  const Tensor copy = from_values(std::span<const double>(to_doubles(seen)), {2, 9, 4, 6});
  CHECK(difference(ops::causal_attention(seen, k, v), ops::causal_attention(copy, k, v)) == 0);
}

TEST_CASE("the gradient of attention agrees with finite differences") {
  Tensor in[3] = {numbers({1, 4, 4, 2}), numbers({1, 5, 2, 2}, DType::f64, 0.1),
                  numbers({1, 5, 2, 2}, DType::f64, 3)};
  const Tensor weights = numbers({1, 4, 4, 2}, DType::f64, 5);
  const auto value = [&] {
    const NoGrad constant;
    const std::vector<double> y =
        to_doubles(ops::causal_attention(in[0], in[1], in[2], {.scale = 0.4}));
    const std::vector<double> w = to_doubles(weights);
    double total = 0;
    for (std::size_t i = 0; i < y.size(); ++i) {
      total += y[i] * w[i];
    }
    return total;
  };
  for (Tensor& x : in) {
    x.set_requires_grad();
  }
  const Tensor y = ops::causal_attention(in[0], in[1], in[2], {.scale = 0.4});
  backward(std::span(&y, 1), std::span(&weights, 1));
  for (const Tensor& x : in) {
    for (std::int64_t i = 0; i < x.numel(); ++i) {
      const double at = x.data<double>()[i];
      x.data<double>()[i] = at + 1e-5;
      const double above = value();
      x.data<double>()[i] = at - 1e-5;
      const double below = value();
      x.data<double>()[i] = at;
      CHECK(x.grad().data<double>()[i] == Approx((above - below) / 2e-5).margin(1e-8));
    }
  }
}

TEST_CASE("rotary continues where its offset says, and turning back gives x") {
  const Tensor x = numbers({2, 6, 2, 4});
  const Tensor whole = ops::rotary(x, 1000);
  const Tensor tail = alias(x, {2, 2, 2, 4}, x.strides(), 4 * 8);
  const Tensor expected = alias(whole, {2, 2, 2, 4}, whole.strides(), 4 * 8);
  CHECK(difference(ops::rotary(tail, 1000, 4), expected) == 0);
  const Op& inverse = find_op("rotary_inverse");
  const Attributes back = attributes_from_text(
      *inverse.arguments,
      "theta=1000, offset=0, scaling=none, factor=1, original_positions=0, low=1, high=4, "
      "amplitude=1, whole_dims=true, whole=none",
      "rotary_inverse");
  CHECK(difference(call_one(inverse, {whole}, back), x) < 1e-15);
}

namespace {

/// Calls f(local tensor, distributed tensor) on each rank of a 2 x 2 mesh for several layouts.
template <class F>
void on_every_rank(const Dims& shape, DType dtype, F f) {
  const auto mesh = DeviceMesh::make({"a", "b"}, {2, 2});
  const std::vector<Layout> layouts{
      Layout::make(mesh, {Shard(0), Replicate()}), Layout::make(mesh, {Replicate(), Shard(1)}),
      Layout::make(mesh, {Shard(1), Shard(0)}), Layout::make(mesh, {Shard(0), Shard(0)}),
      Layout::make(mesh, {Shard(0), Shard(0)}, {1, 0})};
  for (const Layout& layout : layouts) {
    const SpecHandle spec = Spec::make(layout, shape, dtype);
    for (int rank = 0; rank < mesh.size(); ++rank) {
      set_current_rank(rank);
      const Tensor local = zeros(local_shape(*spec), dtype);
      f(local, make_distributed(local, spec));
    }
  }
  set_current_rank(0);
}

/// Whether `local` holds the values of `whole` that its rank has by the layout.
bool is_part_of(const Tensor& local, const Spec& spec, const Tensor& whole) {
  const std::vector<double> mine = to_doubles(local);
  const std::vector<double> all = to_doubles(whole);
  std::size_t at = 0;
  bool equal = true;
  for_each_run(spec.shape, LocalPart{local_offset(spec), local_shape(spec)},
               [&](std::int64_t first, std::int64_t count) {
                 for (std::int64_t i = 0; i < count; ++i) {
                   equal = equal && mine[at++] == all[static_cast<std::size_t>(first + i)];
                 }
               });
  return equal && at == mine.size();
}

}  // namespace

TEST_CASE("random numbers belong to global elements: the same bits in every layout") {
  for (const Dims& shape : {Dims{5, 7}, Dims{1, 9}, Dims{3, 4, 2}}) {
    for (const DType dtype : {DType::f32, DType::f64, DType::bf16}) {
      RandomStream stream{7, 3, 8};
      const Tensor normal = ops::normal_(empty(shape, dtype), 0.5, 2, stream);
      CHECK(stream.offset == 8 + (static_cast<std::uint64_t>(shape.product()) + 3) / 4 * 4);
      const std::uint64_t second = stream.offset;
      const Tensor uniform = ops::uniform_(empty(shape, dtype), -1, 3, stream);
      on_every_rank(shape, dtype, [&](const Tensor& local, const Tensor& x) {
        RandomStream mine{7, 3, 8};
        ops::normal_(x, 0.5, 2, mine);
        CHECK(is_part_of(local, *x.spec(), normal));
        CHECK(mine.offset == second);
        ops::uniform_(x, -1, 3, mine);
        CHECK(is_part_of(local, *x.spec(), uniform));
      });
    }
  }
}

TEST_CASE("normal numbers have the mean and deviation asked for, calls and streams differ") {
  RandomStream stream{1, 2, 0};
  const auto values = to_doubles(ops::normal_(empty({40000}, DType::f32), 3, 0.5, stream));
  double mean = 0;
  double square = 0;
  for (const double v : values) {
    mean += v / 40000;
    square += (v - 3) * (v - 3) / 40000;
  }
  CHECK(mean == Approx(3).margin(0.01));  // four standard errors
  CHECK(std::sqrt(square) == Approx(0.5).margin(0.008));
  RandomStream other{1, 3, 0};
  RandomStream same{1, 2, 0};
  const auto first = [](RandomStream& s) {
    return to_doubles(ops::uniform_(empty({4}, DType::f32), 0, 1, s));
  };
  const auto from_same = first(same);
  CHECK(from_same != first(same));
  CHECK(from_same != first(other));
}

TEST_CASE("dropout keeps the same elements in forward, backward and every layout") {
  const Tensor x = full({40, 50}, 3, DType::f64);
  Tensor leaf = full({40, 50}, 3, DType::f64);
  leaf.set_requires_grad();
  RandomStream stream{5, 1, 0};
  const Tensor y = ops::dropout(leaf, 0.25, stream);
  const Tensor ones = full({40, 50}, 1, DType::f64);
  backward(std::span(&y, 1), std::span(&ones, 1));
  std::size_t kept = 0;
  for (std::int64_t i = 0; i < y.numel(); ++i) {
    const double value = y.data<double>()[i];
    CHECK((value == 0 || value == Approx(4)));
    CHECK(leaf.grad().data<double>()[i] == Approx(value / 3));
    kept += value != 0 ? 1U : 0U;
  }
  CHECK(kept > 1420);  // 1500 expected, deviation 19
  CHECK(kept < 1580);
  on_every_rank({40, 50}, DType::f64, [&](const Tensor& local, const Tensor& d) {
    std::fill_n(local.data<double>(), local.numel(), 3.0);
    RandomStream mine{5, 1, 0};
    CHECK(is_part_of(ops::dropout(d, 0.25, mine).local(), *d.spec(), y));
  });
  RandomStream any{1, 1, 0};
  CHECK(to_doubles(ops::dropout(x, 1, any))[7] == 0);
  CHECK(to_doubles(ops::dropout(x, 0, any))[7] == 3);
  CHECK(
      error_of([&] { ops::dropout(x, 1.5, any); }).starts_with("dropout: p must be a probability"));
}

TEST_CASE("matmul and mse_loss, which are made of other operators, agree with PyTorch") {
  const std::string folder = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/operators";
  const auto tensors = read_safetensors(folder + ".safetensors");
  std::ifstream file(folder + ".json");
  int compared = 0;
  for (const auto& sample : nlohmann::json::parse(file)) {
    const std::string op = sample.at("op");
    if (op != "matmul" && op != "mse_loss") {
      continue;
    }
    const std::string type = tensors.at(sample.at("inputs")[0]).dtype;
    if (type != "F64" && type != "F32") {
      continue;
    }
    INFO(sample.at("sample").get<std::string>());
    Tensor a = stored(tensors, sample.at("inputs")[0]);
    Tensor b = stored(tensors, sample.at("inputs")[1]);
    const double tolerance = a.dtype() == DType::f64 ? 1e-13 : 2e-5;
    a.set_requires_grad();
    b.set_requires_grad();
    const Tensor y = op == "matmul" ? ops::matmul(a, b) : ops::mse_loss(a, b, ops::Reduction::sum);
    CHECK(difference(y, stored(tensors, sample.at("outputs")[0])) < tolerance);
    const Tensor dy = stored(tensors, sample.at("grad_outputs")[0]);
    backward(std::span(&y, 1), std::span(&dy, 1));
    CHECK(difference(a.grad(), stored(tensors, sample.at("grad_inputs")[0])) < tolerance);
    CHECK(difference(b.grad(), stored(tensors, sample.at("grad_inputs")[1])) < tolerance);
    ++compared;
  }
  CHECK(compared >= 15);
}

TEST_CASE("optimizers do the steps that PyTorch does") {
  const std::string folder = std::string(TESSERA_SOURCE_DIR) + "/tests/reference/data/optimizers";
  const auto tensors = read_safetensors(folder + ".safetensors");
  std::ifstream file(folder + ".json");
  int compared = 0;
  for (const auto& run : nlohmann::json::parse(file)) {
    const bool adamw = run.at("optimizer") == "adamw";
    const double tolerance = run.at("dtype") == "f64" ? 1e-14 : 1e-6;
    INFO(run.at("name").get<std::string>());
    for (const auto& of : run.at("params")) {
      const Tensor p = stored(tensors, of.at("initial"));
      const Tensor first = zeros(p.shape(), p.dtype());
      const Tensor second = zeros(p.shape(), p.dtype());
      std::int64_t step = 0;
      for (std::size_t i = 0; i < of.at("grads").size(); ++i) {
        if (!of.at("grads")[i].is_null()) {
          const Tensor g = stored(tensors, of.at("grads")[i]);
          const std::uint64_t version = second.storage().version();
          ++step;
          if (adamw) {
            ops::adamw_(one(p), one(g), one(first), one(second), one(Tensor()),
                        {.lr = run.at("lr")[i].get<double>(),
                         .beta1 = run.at("betas")[0].get<double>(),
                         .beta2 = run.at("betas")[1].get<double>(),
                         .eps = run.at("eps").get<double>(),
                         .weight_decay = run.at("weight_decay").get<double>(),
                         .grad_scale = 1,
                         .step = step});
            CHECK(second.storage().version() == version + 1);
          } else {
            ops::sgd_(one(p), one(g), one(first),
                      {.lr = run.at("lr")[i].get<double>(),
                       .momentum = run.at("momentum").get<double>(),
                       .dampening = run.value("dampening", 0.0),
                       .weight_decay = run.at("weight_decay").get<double>(),
                       .grad_scale = 1,
                       .step = step,
                       .nesterov = run.at("nesterov")});
          }
        }
        CHECK(difference(p, stored(tensors, of.at("after")[i])) < tolerance);
      }
      for (const auto& [name, key] : of.at("state").items()) {
        if (name != "step") {
          CHECK(difference(name == "exp_avg_sq" ? second : first, stored(tensors, key)) <
                tolerance);
        }
      }
      ++compared;
    }
  }
  CHECK(compared > 80);
}

TEST_CASE("an optimizer step on shards is the step on the whole, and scales the gradient") {
  const Dims shape{5, 3};
  const Tensor gradient = numbers(shape);
  const Tensor whole = numbers(shape, DType::f64, 4);
  const Tensor m = zeros(shape, DType::f64);
  const Tensor v = zeros(shape, DType::f64);
  const ops::AdamStep settings{.lr = 0.1,
                               .beta1 = 0.9,
                               .beta2 = 0.99,
                               .eps = 1e-8,
                               .weight_decay = 0.1,
                               .grad_scale = 0.5,
                               .step = 1};
  const Tensor start = from_values(std::span<const double>(to_doubles(whole)), shape);
  ops::adamw_(one(whole), one(gradient), one(m), one(v), one(Tensor()), settings);
  // The first moment after one step is (1 - beta1) times the scaled gradient.
  CHECK(m.data<double>()[4] == Approx(0.1 * 0.5 * gradient.data<double>()[4]));
  on_every_rank(shape, DType::f64, [&](const Tensor& local, const Tensor& p) {
    const SpecHandle& spec = p.spec();
    const auto part = [&](const Tensor& of, const Tensor& into) {
      std::int64_t at = 0;
      for_each_run(shape, LocalPart{local_offset(*spec), local_shape(*spec)},
                   [&](std::int64_t first, std::int64_t count) {
                     std::copy_n(of.data<double>() + first, count, into.data<double>() + at);
                     at += count;
                   });
      return into;
    };
    part(start, local);
    const auto fresh = [&] { return zeros(local.shape(), DType::f64); };
    ops::adamw_(one(p), one(make_distributed(part(gradient, fresh()), spec)),
                one(make_distributed(fresh(), spec)), one(make_distributed(fresh(), spec)),
                one(Tensor()), settings);
    CHECK(is_part_of(local, *spec, whole));
  });
}

TEST_CASE("a loss over [batch, time] counts rows once, and its gradient is softmax less one") {
  Tensor logits = numbers({2, 3, 5});
  logits.set_requires_grad();
  const Tensor targets = from_values<std::int64_t>({4, 0, -100, 2, 1, -100}, {2, 3});
  const Tensor loss = ops::cross_entropy(logits, targets, {.reduction = ops::Reduction::sum});
  backward(loss);
  double expected = 0;
  for (std::int64_t row = 0; row < 6; ++row) {
    const std::int64_t target = targets.data<std::int64_t>()[row];
    double total = 0;
    for (std::int64_t c = 0; c < 5; ++c) {
      total += std::exp(logits.data<double>()[row * 5 + c]);
    }
    for (std::int64_t c = 0; c < 5; ++c) {
      const double p = std::exp(logits.data<double>()[row * 5 + c]) / total;
      const double wanted = target < 0 ? 0 : p - (c == target ? 1 : 0);
      CHECK(logits.grad().data<double>()[row * 5 + c] == Approx(wanted).margin(1e-14));
      expected -= c == target ? std::log(p) : 0;
    }
  }
  CHECK(loss.item() == Approx(expected));
}

TEST_CASE("errors say what was expected and what came") {
  const Tensor x = numbers({2, 3});
  CHECK(error_of([&] { ops::mm(x, x); }) == "mm: the shapes do not match (got [2, 3] x [2, 3])");
  CHECK(error_of([&] {
          ops::linear(x, numbers({4, 5}));
        }).starts_with("linear: the last dim of x does not match weight (expected 5, got [2, 3]"));
  CHECK(error_of([&] { ops::linear(x, numbers({4, 3}, DType::f32)); }) ==
        "linear: x and weight have different types (f64 and f32); cast one");
  const Tensor index = from_values<std::int64_t>({0, 2}, {2});
  CHECK(error_of([&] { ops::embedding(x, index); }) ==
        "embedding: index 2 is out of range (expected 0 to 1)");
  CHECK(error_of([&] { ops::cross_entropy(x, from_values<std::int64_t>({0, 3}, {2})); }) ==
        "cross_entropy: target 3 of row 1 is out of range (expected 0 to 2, or -100 to ignore the "
        "row)");
  CHECK(error_of([&] {
          ops::causal_attention(numbers({1, 2, 3, 4}), numbers({1, 2, 2, 4}),
                                numbers({1, 2, 2, 4}));
        }).find("must be a multiple of the heads") != std::string::npos);
  CHECK(error_of([&] {
          ops::causal_attention(numbers({1, 3, 2, 4}), numbers({1, 2, 2, 4}),
                                numbers({1, 2, 2, 4}));
        }).find("fewer keys than queries") != std::string::npos);
  CHECK(error_of([&] { ops::rotary(numbers({1, 2, 1, 3}), 1000); }).find("must be even") !=
        std::string::npos);
  CHECK(error_of([&] {
          const auto list = [&] {
            return std::vector<Tensor>{ops::clone(x), transposed(ops::clone(x))};
          };
          ops::adamw_(list(), list(), list(), list(), std::vector<Tensor>(2), {});
        }) ==
        "adamw_: parameters[1] is written in place and must be contiguous; pass contiguous()");
  CHECK(error_of([&] {
          ops::adamw_(one(x), one(transposed(ops::clone(x))), one(ops::clone(x)),
                      one(ops::clone(x)), one(Tensor()), {});
        }).find("gradients[0] has a different shape than its parameter") != std::string::npos);
  CHECK(error_of([&] {
          ops::adamw_(one(x), {}, one(ops::clone(x)), one(ops::clone(x)), one(Tensor()), {});
        }).find("the lists differ in length (1 parameters, 0 gradients)") != std::string::npos);
}
