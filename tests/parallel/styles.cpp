// The styles on small modules: what they compute is what one rank computes, what they are given
// wrong is an error.
#include <cstddef>
#include <cstdint>
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

#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

using Entries = std::vector<parallel::StyleEntry>;

parallel::StyleEntry entry(const std::string& style, std::vector<std::string> on,
                           const std::string& options = "{}", const std::string& where = "") {
  return {style, "tensor", std::move(on), options, where};
}

/// Tokens [B, T] -> embedding -> a residual block with norm and dropout -> a product with a gate.
class Stack final : public nn::Module {
 public:
  explicit Stack(double dropout, bool tied = false) {
    embed_ = add_child<nn::Embedding>("embed", 11, 6, 0.5, DType::f64);
    norm_ = add_child<nn::RMSNorm>("norm", 6, 1e-5, DType::f64);
    drop_ = add_child<nn::Dropout>("drop", dropout);
    up_ = add_child<nn::Linear>("up", 6, 8, true, 0.5, DType::f64);
    down_ = add_child<nn::Linear>("down", 8, 6, false, 0.5, DType::f64);
    gate_ = add_child<nn::Linear>("gate", 6, 6, false, 0.5, DType::f64);
    head_ = add_child<nn::Linear>("head", 6, 11, false, 0.5, DType::f64);
    if (tied) {
      head_->set_parameter("weight", embed_->parameter("weight"));
    }
    set_names();
  }
  std::string_view kind() const override { return "Stack"; }
  Tensors forward(const Tensors& inputs) override {
    const Tensor x = (*embed_)(inputs[0]);
    const Tensor hidden = (*down_)(ops::relu((*up_)((*drop_)((*norm_)(x)))));
    const Tensor sum = ops::add(x, hidden);
    return {(*head_)(ops::mul(sum, (*gate_)(sum)))};
  }

 private:
  std::shared_ptr<nn::Embedding> embed_;
  std::shared_ptr<nn::RMSNorm> norm_;
  std::shared_ptr<nn::Dropout> drop_;
  std::shared_ptr<nn::Linear> up_, down_, gate_, head_;
};

/// The loss and every parameter's gradient, whole.
using Outcome = std::map<std::string, std::vector<double>>;

Outcome outcome(int ranks, const Entries& entries, double dropout, bool tied) {
  Outcome found;
  on_ranks(ranks, [&](int rank) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {ranks});
    Stack model(dropout, tied);
    parallel::ParallelPlan plan(model, mesh, entries, shipped_styles());
    plan.materialize();
    nn::initialize(model);
    const Tensor tokens = distribute(
        from_values<std::int64_t>({0, 10, 3, 7, 7, 1, 2, 9, 5, 4}, {2, 5}), plan.batch_layout());
    const Layout whole = Layout::replicated(mesh);
    const Tensor loss = redistribute(ops::sum(ops::square(model(tokens))), whole);
    backward(loss);
    const auto parameters = nn::all_parameters(model);
    parallel::GradientFinisher finisher;
    finisher.finish(parameters);
    Outcome mine;
    mine["loss"] = to_doubles(full_tensor(detached(loss)));
    for (const nn::ParameterPointer& p : parameters) {
      check(p->value.grad().layout() == p->value.layout(), "layout of the gradient of " + p->name);
      mine[p->name] = to_doubles(full_tensor(p->value.grad()));
    }
    if (rank == 0) {
      found = mine;
    }
  });
  return found;
}

void computes_the_same(const Entries& entries, bool tied = false) {
  for (const double dropout : {0.0, 0.4}) {
    const Outcome expected = outcome(1, {}, dropout, tied);
    for (const int ranks : {2, 3}) {
      const Outcome got = outcome(ranks, entries, dropout, tied);
      for (const auto& [name, values] : expected) {
        INFO(ranks << " ranks, dropout " << dropout << ": " << name);
        CHECK(difference(got.at(name), values) < 1e-11);
      }
    }
  }
}

const std::string shard_1 = R"~({"output": "Shard(1)"})~";

/// Sequence parallel with a gate that every rank computes whole, and a head split by its outputs.
const Entries split_sequence = {
    entry("RowwiseParallel", {"embed"}, R"~({"input": "Replicate", "output": "Shard(1)"})~"),
    entry("SequenceParallel", {"norm", "drop"}),
    entry("ColwiseParallel", {"up"}, R"~({"input": "Shard(1)"})~"),
    entry("RowwiseParallel", {"down"}, shard_1),
    entry("NoParallel", {"gate"}, shard_1),
    entry("ColwiseParallel", {"head"}, R"~({"input": "Shard(1)"})~")};

}  // namespace

TEST_CASE("sequence parallel over norm and dropout, with a module kept whole") {
  computes_the_same(split_sequence);
}

TEST_CASE("an embedding split by columns, a head split by rows") {
  computes_the_same({entry("ColwiseParallel", {"embed"}, R"~({"output": "Replicate"})~"),
                     entry("ColwiseParallel", {"up"}), entry("RowwiseParallel", {"down"}),
                     entry("RowwiseParallel", {"head"}, R"~({"output": "Shard(-1)"})~")});
}

TEST_CASE("inputs and outputs of a module are prepared") {
  computes_the_same({entry("PrepareModuleInput", {"up"}), entry("ColwiseParallel", {"up"}),
                     entry("RowwiseParallel", {"down"}),
                     entry("PrepareModuleInputOutput", {"gate"},
                           R"~({"desired_input": ["Shard(1)"], "desired_output": ["None"]})~"),
                     entry("PrepareModuleOutput", {"head"},
                           R"~({"output": "Shard(0)", "desired": "Shard(1)"})~")});
}

TEST_CASE("tied weights under two styles that agree are split once") {
  Entries entries = split_sequence;
  computes_the_same(entries, true);
  entries[5] = entry("RowwiseParallel", {"head"}, "{}", "run.toml:9");
  entries[0].where = "run.toml:3";
  Stack model(0, true);
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  const std::string error =
      error_of([&] { const parallel::ParallelPlan plan(model, mesh, entries, shipped_styles()); });
  CHECK(error ==
        "run.toml:9: RowwiseParallel: parameter 'embed.weight' is Shard(0) on axis 'tensor' by "
        "run.toml:3: RowwiseParallel; RowwiseParallel needs Shard(1) in module 'head'");
}

TEST_CASE("dropout on a part of the sequence drops what one device drops") {
  const Tensor x = full({2, 5, 4}, 1.0);
  set_seed(5);
  const std::vector<double> expected = to_doubles(ops::dropout(x, 0.5, random_stream("dropout")));
  on_ranks(3, [&](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {3});
    nn::Dropout drop(0.5);
    const parallel::ParallelPlan plan(drop, mesh, {entry("SequenceParallel", {"."})},
                                      shipped_styles());
    const Tensor y = drop(distribute(x, Layout::replicated(mesh)));
    check(y.layout() == Layout::make(mesh, {Shard(1)}), "runs on a part");
    check(to_doubles(full_tensor(y)) == expected, "the same bits");
  });
}

namespace {

/// Several values, nested ones among them; remembers how they came.
class Several final : public nn::Module {
 public:
  Several() { set_names(); }
  std::string_view kind() const override { return "Several"; }
  std::vector<std::string> input_names() const override {
    return {"x", "cache.keys", "cache.values", "mask"};
  }
  std::vector<std::string> output_names() const override { return {"y", "cache.keys", "aux"}; }
  Tensors forward(const Tensors& inputs) override {
    seen = inputs;
    return {inputs[0], inputs[1], Tensor()};
  }
  Tensors seen;
};

/// A value that only has positions.
class Unnamed final : public nn::Module {
 public:
  Unnamed() { set_names(); }
  std::string_view kind() const override { return "Unnamed"; }
  Tensors forward(const Tensors& inputs) override { return inputs; }
};

Placement placement(const Tensor& x) { return x.layout().placement(0); }

}  // namespace

TEST_CASE("values of a module are prepared by position, by name, nested and absent") {
  on_ranks(2, [](int) {
    const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
    const Tensor x = distribute(full({4, 4}, 1), Layout::replicated(mesh));
    Several module;
    const parallel::ParallelPlan plan(
        module, mesh,
        {entry("PrepareModuleInput", {"."},
               R"~({"desired": {"cache": "Shard(0)", "mask": "Shard(1)", "x": "None"}})~"),
         entry("PrepareModuleInput", {"."}, R"~({"desired": ["Shard(1)", "None"]})~"),
         entry("PrepareModuleOutput", {"."},
               R"~({"desired": {"y": "Shard(0)", "cache": "Replicate", "aux": "Shard(0)"}})~")},
        shipped_styles());
    const Tensors out = module.by_name({{"cache.values", x}, {"x", x}, {"cache.keys", x}});
    check(placement(module.seen[0]) == Shard(1), "by position");
    check(placement(module.seen[1]) == Shard(0), "nested");
    check(placement(module.seen[2]) == Shard(0), "nested, all of them");
    check(!module.seen[3].defined(), "absent stays absent");
    check(placement(out[0]) == Shard(0), "an output by name");
    check(placement(out[1]).is_replicate(), "a nested output");
    check(!out[2].defined(), "an absent output stays absent");
    check(module({x, x})[0].defined(), "fewer inputs than names");
  });
}

TEST_CASE("names and positions that a module does not have are errors") {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  const auto refused = [&]<class Model>(const Model&, const std::string& options) {
    return error_of([&] {
      Model module;  // a new one: a model takes one plan
      const parallel::ParallelPlan plan(module, mesh,
                                        {entry("PrepareModuleInput", {"."}, options, "run.toml:4")},
                                        shipped_styles());
    });
  };
  Several several;
  Unnamed unnamed;
  CHECK(refused(several, R"~({"desired": {"msak": "Shard(0)"}})~") ==
        "run.toml:4: module '' (Several): has no input 'msak' (its inputs: x, cache.keys, "
        "cache.values and mask); did you mean 'mask'?");
  CHECK(refused(several, R"~({"desired": ["None", "None", "None", "None", "Shard(0)"]})~") ==
        "run.toml:4: module '' (Several): has no input at position 4 (its inputs: x, cache.keys, "
        "cache.values and mask)");
  CHECK(refused(unnamed, R"~({"desired": {"x": "Shard(0)"}})~") ==
        "run.toml:4: module '' (Unnamed): has no input 'x' (its inputs have no names: give a list, "
        "by position)");
  CHECK(refused(unnamed, R"~({"desired": ["Shard(0)", 3]})~") ==
        "run.toml:4: PrepareModuleInput: option 'desired' must be a placement, a list of "
        "placements by position, or a table of them by name (got 3)");
  CHECK(error_of([&] { several.by_name({{"y", Tensor()}}); }).find("has no input 'y'") !=
        std::string::npos);
}

TEST_CASE("a style twice on one module is an error that names both entries") {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  const auto refused = [&](const Entries& entries) {
    Stack model(0);
    return error_of(
        [&] { const parallel::ParallelPlan plan(model, mesh, entries, shipped_styles()); });
  };
  CHECK(refused({entry("FSDP", {"up", "."}, "{}", "a:1"), entry("FSDP", {"."}, "{}", "a:2")}) ==
        "a:2: FSDP: FSDP is applied to the whole model along axis 'tensor' already, by a:1; remove "
        "one of the two entries, or give them different modules");
  CHECK(refused({entry("ColwiseParallel", {"up"}, "{}", "a:1"),
                 entry("ColwiseParallel", {"*"}, R"~({"output": "Replicate"})~", "a:2")})
            .starts_with("a:2: ColwiseParallel: "));
  CHECK(refused({entry("FSDP", {"up"}, "{}", "a:1"), entry("FSDP", {"."}, "{}", "a:2")}) ==
        "no error");
  CHECK(refused({entry("NoParallel", {"gate"}, "{}", "a:1"),
                 entry("ColwiseParallel", {"gate"}, "{}", "a:2")})
            .find("by a:1: NoParallel; ColwiseParallel needs Shard(0)") != std::string::npos);
  CHECK(
      refused({entry("LossParallel", {"head"}, "{}", "a:1")}) ==
      "a:1: LossParallel: module 'head' is a Linear, which does not declare a split by classes; no "
      "module of this model does: declare it in Module::splits");
}
