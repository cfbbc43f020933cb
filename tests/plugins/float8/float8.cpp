// Float8 layers: scales, codes, outputs and gradients as torchao's; one scale of a weight in every
// layout; what is gathered and reduced; what is refused.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.plugin;
import tessera.checkpoint;
import tessera.parallel;

#include "../../../plugins/float8/arithmetic.hpp"
#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using Entries = std::vector<parallel::StyleEntry>;

constexpr std::int64_t width = 32;
constexpr double standard_deviation = 0.2;

parallel::StyleEntry float8_of(std::vector<std::string> on, const std::string& options = "{}") {
  return {.style = "Float8", .on = std::move(on), .options = options};
}

const char* const gathered_codes = R"({"all_gather": true})";
const char* const turned_weights = R"({"turned_weights": true})";

/// Rows of `width` features -> up -> relu -> down (+ bias), in f32 or as set_precision says.
class Pair final : public nn::Module {
 public:
  explicit Pair(std::int64_t inner = 2 * width, bool bias = true) {
    up_ = add_child<nn::Linear>("up", width, inner, false, standard_deviation);
    down_ = add_child<nn::Linear>("down", inner, width, bias, standard_deviation);
    set_names();
  }
  std::string_view kind() const override { return "Pair"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*down_)(ops::relu((*up_)(inputs[0])))};
  }

 private:
  nn::Child up_, down_;
};

/// One layer, which is replaced.
class Holder final : public nn::Module {
 public:
  Holder(std::int64_t in, std::int64_t out) {
    layer_ = add_child<nn::Linear>("layer", in, out, true, standard_deviation);
    set_names();
  }
  std::string_view kind() const override { return "Holder"; }
  Tensors forward(const Tensors& inputs) override { return {(*layer_)(inputs[0])}; }

 private:
  nn::Child layer_;
};

/// An embedding and a head with one weight.
class Tied final : public nn::Module {
 public:
  Tied() {
    embed_ = add_child<nn::Embedding>("embed", 48, width, standard_deviation);
    head_ = add_child<nn::Linear>("head", width, 48, false, standard_deviation);
    head_->set_parameter("weight", embed_->parameter("weight"));
    set_names();
  }
  std::string_view kind() const override { return "Tied"; }
  Tensors forward(const Tensors& inputs) override { return {(*head_)((*embed_)(inputs[0]))}; }

 private:
  nn::Child embed_, head_;
};

Tensor rows(double shift = 0) {
  Tensor x = empty({4, 8, width}, DType::f32);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<float>()[i] = static_cast<float>(std::sin(0.37 * static_cast<double>(i) + shift));
  }
  return x;
}

/// The losses of four steps of AdamW and, before each one, the weights' scales.
struct Trained {
  std::vector<double> losses;
  std::vector<double> scales;
};

std::vector<double> scales_of(nn::Module& model) {
  std::vector<double> all;
  for (const nn::BufferPointer& buffer : nn::all_buffers(model)) {
    all.push_back(to_doubles(buffer->value.local())[0]);
  }
  return all;
}

Trained train(Planned& run) {
  const auto optimizer = optim::adamw(nn::all_parameters(*run.model), {});
  parallel::GradientFinisher finisher;
  Trained trained;
  for (int step = 0; step < 4; ++step) {
    finisher.begin(optimizer->parameters());
    const Tensor loss =
        ops::mean(ops::square((*run.model)(distribute(rows(step), run.plan.batch_layout()))));
    backward(loss);
    finisher.finish(optimizer->parameters());
    trained.losses.push_back(to_doubles(full_tensor(detached(loss)))[0]);
    for (const double scale : scales_of(*run.model)) {
      trained.scales.push_back(scale);
    }
    run.plan.before_optimizer();
    optimizer->step(1e-3);
    run.plan.after_optimizer();
    optimizer->zero_grad();
  }
  return trained;
}

Trained train(const DeviceMesh& mesh, const Entries& entries) {
  Planned run(std::make_shared<Pair>(), mesh, entries);
  return train(run);
}

/// The same on one rank.
Trained train_alone(const Entries& entries) {
  Trained trained;
  on_ranks(1, [&](int) { trained = train(DeviceMesh::make({"shard"}, {1}), entries); });
  return trained;
}

std::string refused(const Entries& entries, std::int64_t inner = 2 * width, int ranks = 2) {
  return refusal(entries, std::make_shared<Pair>(inner), ranks);
}

/// The largest difference over the largest number.
double relative(const Tensor& x, const Tensor& expected) {
  const std::vector<double> a = to_doubles(x);
  const std::vector<double> b = to_doubles(expected);
  double most = 0;
  double largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    most = std::max(most, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  return a.size() == b.size() ? most / largest : std::numeric_limits<double>::infinity();
}

Tensor whole_of(const Tensor& x) { return full_tensor(detached(x)); }

}  // namespace

TEST_CASE("Float8: scales and codes are torchao's, bit for bit") {
  const SafetensorsFile file(TESSERA_SOURCE_FOLDER "/tests/reference/data/float8.safetensors");
  for (const bool rowwise : {false, true}) {
    const auto scaling = rowwise ? float8::Scaling::rowwise : float8::Scaling::tensorwise;
    for (const std::string type : {"/", "_bf16/"}) {
      const std::string recipe = (rowwise ? "rowwise" : "tensorwise") + type;
      const auto read = [&](const std::string& name) { return file.read(recipe + name); };
      const auto compare = [&](const std::string& name, const Tensor& x, DType codes, int dim) {
        INFO(recipe << name);
        const float8::QuantizedTensor found = float8::quantize(x, codes,
                                                               !rowwise   ? float8::Scales::whole
                                                               : dim == 1 ? float8::Scales::rows
                                                                          : float8::Scales::columns,
                                                               float8::CodesOrder::both);
        CHECK(to_doubles(found.as_x) == to_doubles(read(name + "_codes")));
        CHECK(to_doubles(found.turned) == to_doubles(read(name + "_codes")));
        const Tensor scale = read(name + "_scale");
        CHECK(found.as_x.dtype() == codes);
        if (!rowwise) {
          CHECK(to_doubles(float8::scale_of(float8::largest(x), codes)) == to_doubles(scale));
        }
        CHECK(to_doubles(found.factor) == to_doubles(ops::reciprocal(scale)));
      };
      const Tensor x = ops::view(read("x"), {16, 32});
      const Tensor dy = ops::view(read("dy"), {16, 48});
      const DType gradient = rowwise ? DType::f8e4m3 : DType::f8e5m2;
      CHECK(float8::gradient_type(scaling) == gradient);
      compare("x", x, DType::f8e4m3, 1);
      compare("w", read("weight"), DType::f8e4m3, 1);
      compare("g", dy, gradient, 1);
      if (rowwise) {
        compare("x_columns", x, DType::f8e4m3, 0);
        compare("w_columns", read("weight"), DType::f8e4m3, 0);
        compare("g_columns", dy, gradient, 0);
      }
    }
  }
}

TEST_CASE("Float8: values beyond the codes' range are cut off") {
  const Tensor x = from_values({1.0F, -3.0F, 0.5F}, {3});
  const Tensor scale = full({}, 40000);
  CHECK(to_doubles(float8::quantize(x, DType::f8e4m3, scale, float8::CodesOrder::as_x).as_x) ==
        std::vector<double>{448, -448, 448});
  CHECK(to_doubles(float8::quantize(x, DType::f8e5m2, scale, float8::CodesOrder::as_x).as_x) ==
        std::vector<double>{40960, -57344, 20480});
}

TEST_CASE("Float8: a layer's output and gradients are torchao's") {
  const SafetensorsFile file(TESSERA_SOURCE_FOLDER "/tests/reference/data/float8.safetensors");
  on_ranks(1, [&](int) {
    for (const std::string recipe : {"tensorwise", "rowwise"}) {
      for (const bool narrow : {false, true}) {
        const auto read = [&](const std::string& name) {
          return file.read(recipe + (narrow ? "_bf16/" : "/") + name);
        };
        const auto model = std::make_shared<Holder>(32, 48);
        if (narrow) {
          parallel::set_precision(*model, {.parameters = DType::bf16});
        }
        Planned run(model, DeviceMesh::make({"shard"}, {1}),
                    {float8_of({"layer"}, R"({"scaling": ")" + recipe + "\"}")});
        const auto parameters = nn::all_parameters(*model);
        check(parameters[0]->name == "layer.weight" && parameters[1]->name == "layer.bias",
              "the layer keeps its parameters' names");
        {
          const NoGrad constant;
          ops::copy_(parameters[0]->value.local(), read("weight"));
          ops::copy_(parameters[1]->value.local(), read("bias"));
        }
        Tensor x = distribute(read("x"), run.plan.batch_layout());
        x.set_requires_grad();
        const Tensor y = (*model)(Tensors{x})[0];
        backward(ops::sum(ops::mul(y, distribute(read("dy"), run.plan.batch_layout()))));
        // Sums in f32 differ in their order. torchao rounds row-wise products to bf16.
        const double tolerance = narrow || recipe == "rowwise" ? 0x1p-7 : 1e-6;
        check(y.dtype() == (narrow ? DType::bf16 : DType::f32), "the output's type");
        const std::map<std::string, Tensor> found = {{"y", y},
                                                     {"dx", x.grad()},
                                                     {"dw", parameters[0]->value.grad()},
                                                     {"db", parameters[1]->value.grad()}};
        for (const auto& [name, value] : found) {
          const double difference = relative(whole_of(value), read(name));
          check(difference <= tolerance, recipe + (narrow ? " bf16 " : " ") + name +
                                             " differs by " + std::to_string(difference));
        }
      }
    }
  });
}

TEST_CASE("Float8: scales are of what a product sums over, so small columns keep their digits") {
  constexpr std::int64_t in = 32, out = 48, count = 16;
  // Columns of very different sizes: with one scale for a row, the small ones would be 0.
  const auto waves = [](std::int64_t rows, std::int64_t columns, double seed) {
    std::vector<float> all;
    for (std::int64_t r = 0; r < rows; ++r) {
      for (std::int64_t c = 0; c < columns; ++c) {
        const double wave = 1.5 + std::sin(seed + 1.7 * static_cast<double>(r * columns + c));
        all.push_back(static_cast<float>(std::ldexp(wave, -3 * static_cast<int>(c % 8))));
      }
    }
    return from_values(std::span<const float>(all), {rows, columns});
  };
  on_ranks(1, [&](int) {
    const auto model = std::make_shared<Holder>(in, out);
    Planned run(model, DeviceMesh::make({"shard"}, {1}),
                {float8_of({"layer"}, R"({"scaling": "rowwise"})")});
    const nn::ParameterPointer weight = nn::all_parameters(*model)[0];
    const Tensor w = waves(out, in, 1), dy = waves(count, out, 2), rows = waves(count, in, 3);
    {
      const NoGrad constant;
      ops::copy_(weight->value.local(), w);
    }
    Tensor x = distribute(rows, run.plan.batch_layout());
    x.set_requires_grad();
    const Tensor y = (*model)(Tensors{x})[0];
    backward(ops::sum(ops::mul(y, distribute(dy, run.plan.batch_layout()))));
    const auto near = [](const Tensor& found, const Tensor& wanted, const std::string& what) {
      for (int dim = 0; dim < 2; ++dim) {
        for (std::int64_t i = 0; i < wanted.shape()[dim]; ++i) {
          const double difference =
              relative(ops::narrow(found, dim, i, 1), ops::narrow(wanted, dim, i, 1));
          check(difference < 0.1, what + ", index " + std::to_string(i) + " of dim " +
                                      std::to_string(dim) + " differs by " +
                                      std::to_string(difference));
        }
      }
    };
    near(whole_of(x.grad()), ops::matmul(dy, w), "dx");
    near(whole_of(weight->value.grad()), ops::matmul(ops::transpose(dy, 0, 1), rows), "dw");
  });
}

TEST_CASE("Float8: a weight has one scale in every layout, and losses are near") {
  const std::vector<std::string> layers = {"up", "down"};
  const Trained expected = train_alone({float8_of(layers)});
  REQUIRE(expected.scales.size() == 8);
  CHECK(expected.scales[0] != expected.scales[2]);  // new after an update
  const parallel::StyleEntry columns{"ColwiseParallel", "tensor", {"up"}};
  const parallel::StyleEntry rows_of{"RowwiseParallel", "tensor", {"down"}};
  const auto compare = [&](int ranks, const DeviceMesh& mesh, const Entries& entries,
                           const std::string& name) {
    on_ranks(ranks, [&](int) {
      const Trained found = train(mesh, entries);
      // The first scales are of the same values; later ones of updates that differ a little.
      check(std::equal(found.scales.begin(), found.scales.begin() + 2, expected.scales.begin()),
            name + ": first scales");
      const double scales = difference(found.scales, expected.scales);
      const double losses = difference(found.losses, expected.losses);
      check(scales < 2e-3, name + ": scales differ by " + std::to_string(scales));
      // Each rank scales its own activations: other roundings, of 3 bits.
      check(losses < 1e-2, name + ": losses differ by " + std::to_string(losses));
    });
  };
  const DeviceMesh two = DeviceMesh::make({"shard"}, {2});
  const DeviceMesh four = DeviceMesh::make({"shard"}, {4});
  const DeviceMesh tensor = DeviceMesh::make({"tensor"}, {2});
  const DeviceMesh square = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const parallel::StyleEntry by_columns{
      "FSDP", "shard", {"up", "down"}, R"({"shard_dims": [{"on": ["*.weight"], "dim": 1}]})"};
  for (const char* options : {"{}", gathered_codes}) {
    compare(2, two, {float8_of(layers, options), fsdp(layers)}, "FSDP on 2");
    compare(4, four, {float8_of(layers, options), fsdp(layers)}, "FSDP on 4");
    compare(2, two, {float8_of(layers, options), by_columns}, "FSDP of columns");
    compare(4, square, {float8_of(layers, options), columns, rows_of, fsdp(layers)}, "FSDP x TP");
  }
  compare(2, two, {float8_of(layers), {"Replicate", "shard", {"."}}}, "Replicate");
  compare(2, tensor, {float8_of(layers), columns, rows_of}, "TP");
}

TEST_CASE("Float8: weights whose codes are kept turned give the same bits, if they are kept") {
  const std::vector<std::string> layers = {"up", "down"};
  const auto same = [&](const DeviceMesh& mesh, const std::vector<parallel::StyleEntry>& others) {
    const auto trained = [&](const char* options) {
      Entries entries = {float8_of(layers, options)};
      entries.insert(entries.end(), others.begin(), others.end());
      return train(mesh, entries);
    };
    const Trained once = trained("{}"), turned = trained(turned_weights);
    check(once.losses == turned.losses && once.scales == turned.scales, "the numbers");
  };
  on_ranks(2, [&](int) {
    same(DeviceMesh::make({"shard"}, {2}), {{"Replicate", "shard", {"."}}});
    same(DeviceMesh::make({"shard"}, {2}), {fsdp(layers)});
    same(DeviceMesh::make({"tensor"}, {2}),
         {{"ColwiseParallel", "tensor", {"up"}}, {"RowwiseParallel", "tensor", {"down"}}});
  });
}

TEST_CASE("Float8: gathered codes give the same bits as gathered values") {
  const std::vector<std::string> layers = {"up", "down"};
  on_ranks(3, [&](int) {  // shards of 22, 22 and 20 rows
    const DeviceMesh mesh = DeviceMesh::make({"shard"}, {3});
    const auto losses = [&](const char* options, bool reshard) {
      Planned run(std::make_shared<Pair>(), mesh,
                  {float8_of(layers, options), fsdp({"."}, reshard)});
      const auto optimizer = optim::adamw(nn::all_parameters(*run.model), {});
      std::vector<double> all;
      for (int step = 0; step < 3; ++step) {
        const Tensor x =
            ops::view(ops::narrow(ops::view(rows(step), {32, width}), 0, 0, 30), {3, 10, width});
        const Tensor loss =
            ops::mean(ops::square((*run.model)(distribute(x, run.plan.batch_layout()))));
        backward(loss);
        all.push_back(to_doubles(full_tensor(detached(loss)))[0]);
        run.plan.before_optimizer();
        optimizer->step(1e-3);
        run.plan.after_optimizer();
        optimizer->zero_grad();
      }
      return all;
    };
    const std::vector<double> values = losses("{}", true);
    check(losses(gathered_codes, true) == values, "freed after forward");
    check(losses(gathered_codes, false) == values, "kept after forward");
  });
}

TEST_CASE("Float8: codes are gathered in a quarter of the bytes, scales in one all-reduce a step") {
  on_ranks(2, [&](int) {
    const auto step_report = [&](const char* options) {
      Planned run(std::make_shared<Pair>(2 * width, false), DeviceMesh::make({"shard"}, {2}),
                  {float8_of({"up", "down"}, options), fsdp({"."})});
      train(run);  // without the scales that are computed for the first time
      const auto optimizer = optim::adamw(nn::all_parameters(*run.model), {});
      std::map<std::string, std::int64_t> found;
      const CommunicationReport report;
      backward(ops::mean(ops::square((*run.model)(distribute(rows(), run.plan.batch_layout())))));
      run.plan.before_optimizer();
      optimizer->step(1e-3);
      run.plan.after_optimizer();
      for (const Communication& one : report.entries()) {
        found[one.operation] += one.operation == "all_gather" ? one.bytes : 0;
        found[one.where] += 1;
      }
      return found;
    };
    auto values = step_report("{}");
    auto codes = step_report(gathered_codes);
    check(values["all_gather"] > 0 && values["all_gather"] == 4 * codes["all_gather"], "bytes");
    check(codes["Float8 scales"] == 1 && values["Float8 scales"] == 1, "one all-reduce");
  });
}

TEST_CASE("Float8: weights that a program writes get new scales and codes") {
  on_ranks(2, [&](int) {
    const std::vector<std::string> layers = {"up", "down"};
    const parallel::StyleEntry replicate{"Replicate", "shard", {"."}};
    for (const Entries& entries : {Entries{float8_of(layers), fsdp({"."})},
                                   Entries{float8_of(layers, gathered_codes), fsdp({"."})},
                                   Entries{float8_of(layers), replicate},
                                   Entries{float8_of(layers, turned_weights), replicate}}) {
      Planned run(std::make_shared<Pair>(2 * width, false), DeviceMesh::make({"shard"}, {2}),
                  entries);
      const NoGrad constant;
      const auto output = [&] {
        return to_doubles(whole_of((*run.model)(distribute(rows(), run.plan.batch_layout()))));
      };
      const std::vector<double> before = output();
      const std::vector<double> scales = scales_of(*run.model);
      change_values(*run.model, 0.25, 0);
      const std::vector<double> after = output();
      check(scales_of(*run.model)[0] == 4 * scales[0], "scales");
      // All values are powers of two apart: codes stay, scales differ.
      double most = 0;
      for (std::size_t i = 0; i < before.size(); ++i) {
        most = std::max(most, std::abs(after[i] - before[i] / 16));
      }
      check(most < 1e-6, "outputs");
      change_values(*run.model, -1, 0);  // the scales stay, the codes do not
      check(output() != after, "codes");
    }
  });
}

TEST_CASE("Float8: what it cannot do is refused before the ranks start") {
  const std::string here =
      refused({float8_of({"up"}, R"({"scaling": "rowwise", "all_gather": true})"), fsdp({"."})});
  CHECK(contains(here, "option 'all_gather' needs scaling = \"tensorwise\""));
  CHECK(contains(
      refused({float8_of({"up"}, R"({"all_gather": true, "turned_weights": true})"), fsdp({"."})}),
      "option 'turned_weights' is of the codes that are kept for a step, which gathered "
      "codes are not; set turned_weights = false"));
  CHECK(contains(refused({float8_of({"up"}, R"({"scaling": "rowwise", "turned_weights": true})"),
                          fsdp({"."})}),
                 "which row-wise codes are not"));
  CHECK(contains(refused({float8_of({"up"}, R"({"scaling": "blockwise"})"), fsdp({"."})}),
                 "option 'scaling' must be"));
  CHECK(contains(
      refused({float8_of({"up"}), fsdp({"."})}, 40),
      "Float8: module 'up' has a weight that scaled products cannot have (expected extents "
      "that are multiples of 16, got [40, 32]); leave it out of 'on'"));
  CHECK(
      contains(refused({float8_of({"up"}),
                        {"ColwiseParallel", "shard", {"up"}},
                        {"RowwiseParallel", "shard", {"down"}}},
                       48),
               "Float8: module 'up': each of 2 ranks has a part of the weight [48, 32] that scaled "
               "products cannot have"));
  CHECK(contains(refused({float8_of({"."}), fsdp({"."})}),
                 "Float8: module '' cannot be replaced (expected a Linear, got Pair)"));
  CHECK(contains(
      refused({float8_of({"up"}), float8_of({"up"}, R"({"scaling": "rowwise"})"), fsdp({"."})}),
      "Float8: module 'up' cannot be replaced (expected a Linear, got Float8Linear)"));
  CHECK(contains(refused({float8_of({"up"}, gathered_codes), {"Replicate", "shard", {"."}}}),
                 "no style gathers parameter 'up.weight'"));
  CHECK(contains(refused({fsdp({"."}), float8_of({"up"}, gathered_codes)}),
                 "FSDP: must come after Float8"));
  CHECK(contains(
      error_of([] {
        Tied model;
        const parallel::ParallelPlan plan(model, DeviceMesh::make({"shard"}, {1}),
                                          {float8_of({"head"}, gathered_codes), fsdp({"."})},
                                          shipped_styles());
      }),
      "option 'all_gather': parameter 'embed.weight' is tied to 'head.weight', which needs "
      "its values; leave the layer out of 'on', or set all_gather = false"));
}

TEST_CASE("Float8: a second derivative is refused") {
  on_ranks(1, [](int) {
    const auto model = std::make_shared<Holder>(32, 48);
    Planned run(model, DeviceMesh::make({"shard"}, {1}), {float8_of({"layer"})});
    Tensor x = distribute(rows(), run.plan.batch_layout());
    x.set_requires_grad();
    const Tensor y = ops::sum(ops::square((*model)(Tensors{x})[0]));
    const Tensor one;  // not backward(): gradients with a graph would hold their parameters
    const auto derive = [&] { gradients({&y, 1}, {&one, 1}, {&x, 1}, {.create_graph = true}); };
    check(contains(error_of(derive), "rounding to 8 bits has no second derivative"), "refused");
  });
}
