// What layers and styles declare: layers of a program's own under the shipped styles, order and
// conflicts of styles that no other style names, one entry on several axes.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
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
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using Entries = std::vector<parallel::StyleEntry>;

nn::ParameterPointer parameter(const Dims& shape) {
  return std::make_shared<nn::Parameter>(shape, DType::f64,
                                         nn::Initialization{nn::Initialization::Kind::normal, 0.5});
}

/// y = x W^T + s (x A^T) B^T around a linear layer of any kind: low-rank adaptation.
class LowRank final : public nn::Module {
 public:
  explicit LowRank(const std::shared_ptr<nn::Module>& base) {
    base_ = attach("base", base);
    const Dims shape = base->parameter("weight")->value.shape();
    add_parameter("a", parameter({2, shape[1]}));
    add_parameter("b", parameter({shape[0], 2}));
    attach<nn::LayerSplits>().declared = [this] {
      nn::LayerSplit columns = nn::split_of(*base_, "columns");
      columns.parameters.push_back({parameter("b"), Shard(0)});
      nn::LayerSplit rows = nn::split_of(*base_, "rows");
      rows.parameters.push_back({parameter("a"), Shard(1)});
      return std::vector{std::move(columns), std::move(rows)};
    };
  }
  std::string_view kind() const override { return "LowRank"; }
  std::vector<std::string> input_names() const override { return {"input"}; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor low = ops::linear(inputs[0], parameters()[0].second->use(), {});
    return {ops::add((*base_)(inputs[0]), ops::linear(low, parameters()[1].second->use(), {}))};
  }

 private:
  using nn::Module::parameter;
  static nn::ParameterPointer parameter(const Dims& shape) { return ::parameter(shape); }
  nn::Child base_;
};

/// down(relu(up(x))) with layers that may be replaced.
class Mlp final : public nn::Module {
 public:
  Mlp() {
    up_ = add_child<nn::Linear>("up", 6, 8, true, 0.5, DType::f64);
    down_ = add_child<nn::Linear>("down", 8, 6, false, 0.5, DType::f64);
    set_names();
  }
  std::string_view kind() const override { return "Mlp"; }
  Tensors forward(const Tensors& inputs) override {
    return {(*down_)(ops::relu((*up_)(inputs[0])))};
  }

 private:
  nn::Child up_, down_;
};

std::shared_ptr<Mlp> adapted() {
  const auto model = std::make_shared<Mlp>();
  CHECK(nn::replace_modules(*model, "*", [](const std::shared_ptr<nn::Module>& before) {
          return std::make_shared<LowRank>(before);
        }) == 2);
  return model;
}

Tensor input() {
  std::vector<double> values;
  for (int i = 0; i < 4 * 6; ++i) {
    values.push_back(0.1 * ((i * 7) % 11) - 0.4);
  }
  return from_values(std::span<const double>(values), {4, 6});
}

/// A style of a test, with the facts that the test gives it.
class Declared final : public parallel::ParallelStyle {
 public:
  explicit Declared(parallel::StyleFacts facts) : facts_(std::move(facts)) {}
  parallel::StyleFacts facts() const override { return facts_; }
  void apply(const parallel::StyleTarget&) override {}

 private:
  parallel::StyleFacts facts_;
};

parallel::StyleEntry declared(const std::string& name, const std::string& axis,
                              std::vector<std::string> on, const std::string& where,
                              const parallel::StyleFacts& facts) {
  return {.style = name,
          .axis = axis,
          .on = std::move(on),
          .where = where,
          .make = [facts](parallel::Options&) { return std::make_unique<Declared>(facts); }};
}

std::string refused(const DeviceMesh& mesh, const Entries& entries) {
  Net model;
  return error_of(
      [&] { const parallel::ParallelPlan plan(model, mesh, entries, shipped_styles()); });
}

}  // namespace

TEST_CASE("a layer of a program's own is split by columns and by rows as it declares") {
  const auto expected = plain(adapted());
  Tensor x = input();
  x.set_requires_grad();
  const Tensor loss = ops::sum(ops::square((*expected)(x)));
  backward(loss);
  for (const int ranks : {2, 3}) {
    on_ranks(ranks, [&](int) {
      const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {ranks});
      Planned run(adapted(), mesh,
                  {{"ColwiseParallel", "tensor", {"up"}}, {"RowwiseParallel", "tensor", {"down"}}});
      const nn::Module& up = *run.model->children()[0].second;
      check(up.parameter("b")->value.layout().placement(0) == Shard(0), "b is split by columns");
      check(up.parameter("a")->value.layout().placement(0).is_replicate(), "a is not");
      check(up.parameter("b")->name == "up.b", "name of b");
      check(up.children()[0].second->parameter("weight")->name == "up.base.weight",
            "name inside: " + up.children()[0].second->parameter("weight")->name);
      Tensor mine = distribute(input(), Layout::replicated(mesh));
      mine.set_requires_grad();
      const Tensor own = ops::sum(ops::square((*run.model)(mine)));
      backward(own);
      parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
      check(difference(to_doubles(full_tensor(detached(own))), to_doubles(detached(loss))) < 1e-12,
            "loss");
      check(difference(to_doubles(full_tensor(mine.grad())), to_doubles(x.grad())) < 1e-11,
            "gradient of the input");
      check(difference(gradients_of(*run.model), gradients_of(*expected)) < 1e-11, "gradients");
    });
  }
}

TEST_CASE("Llama with replaced projections is split as with its own, and its heads are checked") {
  const auto llama = [] {
    const auto model = std::make_shared<nn::DecoderLM>(nn::DecoderShape{.vocab = 11,
                                                                        .dim = 8,
                                                                        .layers = 1,
                                                                        .heads = 4,
                                                                        .kv_heads = 2,
                                                                        .ffn_dim = 12,
                                                                        .dtype = DType::f64});
    CHECK(nn::replace_modules(*model, "model.layers.*.{self_attn,mlp}.*_proj",
                              [](const std::shared_ptr<nn::Module>& before) {
                                return std::make_shared<LowRank>(before);
                              }) == 7);
    return model;
  };
  const Entries entries = {
      {"ColwiseParallel", "tensor", {"model.layers.*.self_attn.{q,k,v}_proj"}},
      {"ColwiseParallel", "tensor", {"model.layers.*.mlp.{gate,up}_proj"}},
      {"RowwiseParallel", "tensor", {"model.layers.*.{self_attn.o,mlp.down}_proj"}}};
  const auto expected = plain(llama());
  backward(plain_loss(*expected, net_tokens(2, 1)));
  on_ranks(2, [&](int) {
    Planned run(llama(), DeviceMesh::make({"tensor"}, {2}), entries);
    backward(run.loss(net_tokens(2, 1)));
    parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < 1e-10, "gradients");
  });
  const auto model = llama();
  CHECK(error_of([&] {
          const parallel::ParallelPlan plan(*model, DeviceMesh::make({"tensor"}, {4}), entries,
                                            shipped_styles());
        }) ==
        "module 'model.layers.0.self_attn.k_proj': its 2 heads cannot be split over 4 ranks; "
        "choose a mesh axis whose size divides model.heads (4) and model.kv_heads (2)");
}

TEST_CASE("a layer that declares no split is refused by name, with those that do") {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  CHECK(refused(mesh, {{"ColwiseParallel", "tensor", {"blocks.0.norm"}, "{}", "run.toml:4"}}) ==
        "run.toml:4: ColwiseParallel: module 'blocks.0.norm' is a RMSNorm, which does not declare "
        "a split by columns; choose among the modules that do, which are of the kind Embedding and "
        "Linear");
  nn::RMSNorm norm(4, 1e-5);
  norm.set_names("norm");
  CHECK(error_of([&] { nn::split_of(norm, "rows"); })
            .starts_with("module 'norm' is a RMSNorm, which declares no split by rows (its splits: "
                         "none)"));
}

TEST_CASE("a convolution is split by its output channels") {
  const auto image = [] { return ops::reshape(input(), {1, 2, 3, 4}); };
  const auto layer = [] {
    const auto made =
        std::make_shared<nn::Conv2d>(2, 6, Dims{2, 2}, ops::Convolution{}, true, 0.5, DType::f64);
    made->set_names("conv");
    return made;
  };
  const auto expected = plain(layer());
  backward(ops::sum(ops::square((*expected)(image()))));
  on_ranks(3, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {3});
    Planned run(layer(), mesh, {{"ColwiseParallel", "tensor", {"conv"}}});
    const Tensor y = (*run.model)(distribute(image(), Layout::replicated(mesh)));
    check(y.layout().placement(0) == Shard(1), "its channels are split");
    backward(ops::sum(ops::square(y)));
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < 1e-11, "gradients");
  });
}

TEST_CASE("order follows from what styles do to the same modules and parameters") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const parallel::StyleEntry keeps =
      declared("Keeper", "shard", {"."}, "a:1", {.splits_batch = true, .keeps_parameters = true});
  const parallel::StyleEntry wraps = declared("Around", "shard", {"blocks.0"}, "a:1",
                                              {.splits_batch = true, .wraps_forward = true});
  const parallel::StyleEntry places =
      declared("Cutter", "tensor", {"blocks.1.up"}, "a:2", {.places_parameters = true});
  const auto converts = [](const std::string& module) {
    return declared("Converter", "tensor", {module}, "a:2", {.converts_values = true});
  };
  CHECK(refused(mesh, {keeps, places}) ==
        "a:1: Keeper: must come after Cutter (a:2), which places the parameter "
        "'blocks.1.up.weight'; swap the two entries");
  CHECK(refused(mesh, {places, keeps}) == "no error");
  CHECK(refused(mesh, {wraps, converts("blocks.0")}) ==
        "a:1: Around: must come after Converter (a:2), which converts values of module 'blocks.0'; "
        "swap the two entries");
  CHECK(refused(mesh, {converts("blocks.0"), wraps}) == "no error");
  CHECK(refused(mesh, {wraps, converts("blocks.1")}) == "no error");  // they do not meet
  CHECK(refused(mesh, {wraps, places}) == "no error");
  // A shipped style and one that it has never heard of.
  CHECK(refused(mesh, {keeps, {"ColwiseParallel", "tensor", {"head"}, "{}", "a:2"}}) ==
        "a:1: Keeper: must come after ColwiseParallel (a:2), which places the parameter "
        "'head.weight'; swap the two entries");
  CHECK(refused(mesh, {fsdp({"."}), places}) ==
        "FSDP: must come after Cutter (a:2), which places the parameter 'blocks.1.up.weight'; swap "
        "the two entries");
}

TEST_CASE("styles that cannot share an axis or a parameter are named together") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const parallel::StyleEntry tensor =
      declared("Cutter", "tensor", {"head"}, "a:3", {.places_parameters = true});
  const auto splits = [](const std::string& name, const std::string& where) {
    return declared(name, "shard", {"."}, where, {.splits_batch = true});
  };
  CHECK(
      refused(mesh, {splits("One", "a:1"), splits("Two", "a:2"), tensor}) ==
      "a:1: One: cannot share axis 'shard' with a:2: Two, as each splits the batch in its own way, "
      "and both are applied to parameter 'embed.weight'; give one of them another axis, or other "
      "modules");
  CHECK(refused(mesh, {splits("One", "a:1"),
                       declared("Cutter", "shard", {"head"}, "a:2", {.places_parameters = true}),
                       tensor}) ==
        "a:1: One and a:2: Cutter are both on axis 'shard', but one splits the batch along it and "
        "the other does not; give one of them another axis");
  CHECK(refused(mesh, {fsdp({"."}), fsdp({"."}, true, "tensor")})
            .starts_with("FSDP and FSDP would both keep the parameter 'embed.weight' in memory of "
                         "their own; give them different modules, or use one of them only, on all "
                         "axes"));
}

TEST_CASE("an entry names as many axes as its style takes") {
  const DeviceMesh mesh = DeviceMesh::make({"shard", "tensor"}, {2, 2});
  const auto on = [](const std::string& style, parallel::AxisNames axes) {
    return parallel::StyleEntry{style, std::move(axes), {"."}, "{}", "a:1"};
  };
  CHECK(refused(mesh, {on("Replicate", {"shard", "tensor"})}) ==
        "a:1: Replicate: works on the wrong number of axes (expected 1, got 2); write one entry "
        "for each axis");
  CHECK(refused(mesh, {on("FSDP", {"shard", "shard"})}) ==
        "a:1: FSDP: axis 'shard' is named twice; name each axis once");
  CHECK(refused(mesh, {on("FSDP", std::vector<std::string>{})})
            .starts_with("a:1: FSDP: works on the wrong number of axes (expected 1 to 2, got 0)"));
  CHECK(refused(mesh, {on("FSDP", {"shard", "tensr"})}).find("no axis 'tensr'") !=
        std::string::npos);
}

TEST_CASE("FSDP on two axes is Replicate on the first and FSDP on the second, bit by bit") {
  const DeviceMesh mesh = DeviceMesh::make({"replicate", "shard"}, {2, 2});
  const auto run = [&](const Entries& entries) {
    parallel_test::Named found;
    on_ranks(4, [&](int rank) {
      Planned planned(std::make_shared<Net>(), mesh, entries);
      check(planned.plan.batch_axes() == std::vector<int>{0, 1}, "both axes split the batch");
      parallel::GradientFinisher finisher;
      for (const int seed : {1, 2}) {
        backward(planned.loss(net_tokens(8, seed)));
        finisher.finish(nn::all_parameters(*planned.model));
        const NoGrad no_grad;
        planned.plan.before_optimizer();
        for (const nn::ParameterPointer& p : nn::all_parameters(*planned.model)) {
          ops::add_(p->value, p->value.grad(), -1e-2);
        }
        parallel_test::clear_gradients(*planned.model);
      }
      const parallel_test::Named values = values_of(*planned.model);
      if (rank == 0) {
        found = values;
      }
    });
    return found;
  };
  const parallel::StyleEntry both{"FSDP", {"replicate", "shard"}, {"blocks.*", "."}};
  const auto one_entry = run({both});
  CHECK(one_entry == run({{"Replicate", "replicate", {"."}}, fsdp({"blocks.*", "."})}));
  CHECK(one_entry.size() == 10);
}

namespace {

/// y = x * mask, where the mask has a weight for each feature.
class Masked final : public nn::Module {
 public:
  Masked() {
    add_buffer("mask", std::make_shared<nn::Buffer>(from_values<double>({1, 0, 2, 0, 3, 0}, {6})));
    set_names("masked");
  }
  std::string_view kind() const override { return "Masked"; }
  Tensors forward(const Tensors& inputs) override {
    return {ops::mul(inputs[0], buffer("mask")->value)};
  }
};

/// Splits the features of what a Masked computes.
class SplitMask final : public parallel::ParallelStyle {
 public:
  parallel::StyleFacts facts() const override { return {.converts_values = true}; }
  void apply(const parallel::StyleTarget& target) override {
    target.place(*target.module.buffer("mask"), Shard(0));
    parallel::redistribute_around(target, {}, Shard(1), Shard(1));
  }
};

}  // namespace

TEST_CASE("a buffer has a layout, memory when it is materialised, and placements") {
  Masked alone;
  CHECK(alone.buffer("mask")->value.is_meta());
  CHECK(alone.buffer("mask")->name == "masked.mask");
  nn::materialize(alone);
  const std::vector<double> expected = to_doubles(alone(input()));
  CHECK(expected[0] == input().data<double>()[0]);
  CHECK(expected[1] == 0);
  CHECK(expected[2] == 2 * input().data<double>()[2]);
  ops::mul_scalar_(alone.buffer("mask")->value, 5);
  CHECK(to_doubles(alone.buffer("mask")->initial) == std::vector<double>{1, 0, 2, 0, 3, 0});
  for (const bool split : {false, true}) {
    on_ranks(4, [&](int rank) {
      const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {4});
      Masked model;
      const parallel::StyleEntry own{
          .style = "SplitMask", .axis = "tensor", .on = {"masked"}, .make = [](parallel::Options&) {
            return std::make_unique<SplitMask>();
          }};
      parallel::ParallelPlan plan = parallel::apply(
          model, mesh, {split ? own : parallel::StyleEntry{"NoParallel", "tensor", {"masked"}}});
      const nn::Buffer& mask = *model.buffer("mask");
      check(mask.value.is_meta(), "no memory before");
      check(mask.value.layout().placement(0) == (split ? Shard(0) : Replicate()), "placement");
      plan.materialize();
      check(mask.value.local().numel() == (!split ? 6 : rank == 3 ? 0 : 2), "its local part");
      const Tensor y = model(distribute(input(), Layout::replicated(mesh)));
      check(to_doubles(full_tensor(y)) == expected, "values");
    });
  }
}
