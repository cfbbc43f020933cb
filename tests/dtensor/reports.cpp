// What was communicated, by whom; and what operators say when they would have to.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.parallel;

#include "ranks.hpp"

using namespace tessera;
using dtensor_test::check;
using dtensor_test::contains;
using dtensor_test::error_of;
using dtensor_test::numbered;
using dtensor_test::on_ranks;
using dtensor_test::values;

namespace {

/// Two layers, the second of which sees a sum over the ranks.
class Pair : public nn::Module {
 public:
  Pair()
      : first_(add_child<nn::Linear>("first", 4, 6, true, 0.5)),
        second_(add_child<nn::Linear>("second", 6, 3, false, 0.5)) {}
  std::string_view kind() const override { return "Pair"; }
  nn::Linear& second() { return *second_; }
  Tensors forward(const Tensors& inputs) override { return (*second_)((*first_)(inputs)); }

 private:
  std::shared_ptr<nn::Linear> first_;
  std::shared_ptr<nn::Linear> second_;
};

const Op& without_rule() {
  static const Op& op = register_op({
      .schema = "negated_for_test(x)",
      .infer = [](const Call& call,
                  ResultShapes& out) { out.push_back({call.in[0].shape(), call.in[0].dtype()}); },
      .cpu = [](const Call& call,
                std::span<Tensor> out) { operands::copy_elements(ops::neg(call.in[0]), out[0]); },
      .about = "For tests: an operator without a placement rule.",
  });
  return op;
}

}  // namespace

TEST_CASE("a report tells each collective's module, direction, axis, bytes and time") {
  const DeviceMesh mesh = DeviceMesh::make({"data", "tensor"}, {1, 2});
  on_ranks(2, [&](int) {
    Pair model;
    model.set_names("model");
    for (const auto& parameter : nn::all_parameters(model)) {
      parameter->value =
          distribute(ops::fill_(zeros(parameter->value.shape()), 0.25), Layout::replicated(mesh));
      parameter->value.set_requires_grad();
    }
    // A hook that gathers what came sharded, as a style would.
    model.second().add_pre_hook([](nn::Module&, Tensors& inputs) {
      inputs[0] = redistribute(inputs[0], {Replicate(), Replicate()});
    });
    Tensor x =
        distribute(ops::fill_(zeros({5, 4}), 1), Layout::make(mesh, {Replicate(), Shard(0)}));
    const CommunicationReport report;
    const Tensor y = model(x);
    const Tensor loss = ops::sum(y);
    backward(loss);
    parallel::GradientFinisher().finish(nn::all_parameters(model));

    const auto& entries = report.entries();
    check(entries.size() == 3, report.to_string());
    check(entries[0].operation == "all_gather" && entries[0].module == "model.second" &&
              !entries[0].backward && entries[0].axis == "tensor" &&
              entries[0].where == "redistribute" && entries[0].bytes == 3 * 6 * 4,
          report.to_string());
    // The ranks agree on which parameters have a gradient.
    check(entries[1].operation == "all_reduce" && entries[1].where == "finish_gradients" &&
              entries[1].axis == "data+tensor",
          report.to_string());
    // first's weight and bias are Partial after backward, and summed in one all-reduce.
    check(entries[2].operation == "all_reduce" && entries[2].where == "finish_gradients" &&
              entries[2].bytes == (6 * 4 + 6) * 4 && entries[2].module.empty(),
          report.to_string());
    check(entries[0].seconds > 0 && report.seconds() < 30, "times");
    check(contains(report.to_string(), "1 x all_gather on tensor, 72 B, ") &&
              contains(report.to_string(), "forward (redistribute, in model.second)"),
          report.to_string());
    const auto json = nlohmann::json::parse(report.to_json());
    check(json.size() == 3 && json[0]["module"] == "model.second" && json[0]["bytes"] == 72 &&
              json[0]["phase"] == "forward" && json[0]["axis"] == "tensor" &&
              json[0]["implicit"] == false && json[0]["seconds"] > 0,
          report.to_json());
  });
}

TEST_CASE("what backward communicates is told of the module whose forward made it") {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {2});
  on_ranks(2, [&](int) {
    Pair model;
    model.set_names("net");
    for (const auto& parameter : nn::all_parameters(model)) {
      parameter->value =
          distribute(ops::fill_(zeros(parameter->value.shape()), 1), Layout::replicated(mesh));
    }
    model.second().add_pre_hook([](nn::Module&, Tensors& inputs) {
      inputs[0] = redistribute(inputs[0], {Shard(0)});  // local forward, a gather backward
    });
    Tensor x = distribute(zeros({4, 4}), Layout::replicated(mesh));
    x.set_requires_grad();
    const CommunicationReport report;
    backward(ops::sum(ops::square(model(x))));
    check(report.entries().size() == 1, report.to_string());
    const Communication& only = report.entries()[0];
    check(only.backward && only.module == "net.second" && only.operation == "all_gather",
          report.to_string());
  });
}

TEST_CASE("FSDP's gathers and reductions are in the report") {
  const DeviceMesh mesh = DeviceMesh::make({"shard"}, {2});
  on_ranks(2, [&](int) {
    plugin::Host host({{TESSERA_PLUGINS}, false, false});
    Pair model;
    model.set_names();
    parallel::ParallelPlan plan(model, mesh, {{"FSDP", "shard", {"first", "."}, "{}", "test"}},
                                host);
    plan.materialize();
    nn::materialize(model);
    nn::initialize(model);
    const CommunicationReport report;
    const Tensor x = distribute(ops::fill_(zeros({4, 4}), 1), plan.batch_layout());
    backward(ops::sum(model(x)));
    parallel::GradientFinisher().finish(nn::all_parameters(model));
    // Both groups are gathered; the inner one is gathered again for backward.
    check(report.count("all_gather") >= 2 && report.count("reduce_scatter") == 2,
          report.to_string());
    bool forward = false;
    bool backward = false;
    for (const Communication& c : report.entries()) {
      check((c.where.starts_with("FSDP") || c.where == "finish_gradients") && c.axis == "shard" &&
                c.bytes > 0,
            report.to_string());
      forward |= !c.backward && c.operation == "all_gather" && c.module == "first";
      backward |= c.backward && c.operation == "reduce_scatter";
    }
    check(forward && backward, report.to_string());
  });
}

TEST_CASE("operators that would have to communicate say what to do, or count it in a scope") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor rows = distribute(numbered({4, 4}), Layout::make(mesh, {Shard(0)}));
    const Tensor columns = distribute(numbered({4, 4}), Layout::make(mesh, {Shard(1)}));
    const std::string error = error_of([&] { ops::add(rows, columns); });
    check(contains(error, "add: operand '") && contains(error, "f64[4, 4] [Shard(") &&
              contains(error, "must be redistributed to") &&
              contains(error, "call redistribute(x, Layout::parse(mesh, \"[Shard("),
          error);
    const CommunicationReport report;
    const AllowRedistribution allowed;
    const Tensor sum = ops::add(rows, columns);
    check(allowed.count() == 1 && allowed.entries()[0].implicit, "counted");
    check(report.entries().size() == 1 && report.entries()[0].where == "add", "and listed");
    redistribute(rows, {Replicate()});
    check(allowed.count() == 1 && report.entries().size() == 2,
          "what was asked for is not counted");
    check(contains(report.to_string(), "(add, implicit)"), report.to_string());
    check(to_doubles(full_tensor(sum)) == to_doubles(ops::mul_scalar(numbered({4, 4}), 2)),
          "and right");
  });
}

TEST_CASE("what a scope allowed is refused again after it, although its plan is known") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const Tensor rows = distribute(numbered({4, 6}), Layout::make(mesh, {Shard(0)}));
    const Tensor columns = distribute(numbered({4, 6}), Layout::make(mesh, {Shard(1)}));
    for (int i = 0; i < 2; ++i) {
      const AllowRedistribution allowed;
      ops::mul(rows, columns);
      check(allowed.count() == 1, "counted each time");
    }
    check(contains(error_of([&] { ops::mul(rows, columns); }), "must be redistributed to"),
          "refused after the scope");
  });
}

TEST_CASE("backward has the permissions of the calls in forward, and no others") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {
    const auto leaf = [&](Placement placement) {
      Tensor x = distribute(numbered({4, 4}), Layout::make(mesh, {placement}));
      x.set_requires_grad(true);
      return x;
    };
    const Tensor rows = leaf(Shard(0));
    const Tensor columns = leaf(Shard(1));
    Tensor product;
    std::int64_t in_forward = 0;
    {
      const AllowRedistribution allowed;
      product = ops::mul(rows, columns);
      in_forward = allowed.count();
    }
    {
      const CommunicationReport report;
      backward(ops::sum(ops::mul(product, product)));
      check(in_forward == 1 && !report.entries().empty() && report.entries()[0].implicit &&
                report.entries()[0].backward,
            report.to_string());
    }
    const Tensor n = numbered({4, 4});  // the gradient of (n n)^2 by one of the factors
    const std::vector<double> expected =
        to_doubles(ops::mul_scalar(ops::mul(n, ops::mul(n, n)), 2));
    check(to_doubles(full_tensor(rows.grad())) == expected &&
              to_doubles(full_tensor(columns.grad())) == expected,
          "their values");

    const Tensor mask = numbered({4, 4});
    const Tensor masked = [&] {
      const PlainIsReplicate promise;
      return ops::mul(rows, mask);
    }();
    rows.grad() = Tensor();
    backward(ops::sum(masked));
    check(to_doubles(full_tensor(rows.grad())) == to_doubles(mask), "a promise holds in backward");

    // Forward needs no permission here, and backward gets a gradient by columns.
    const Tensor square = ops::mul(rows, rows);
    const Tensor moved =
        redistribute(square, Layout::make(mesh, {Shard(1)}), Layout::make(mesh, {Shard(1)}));
    const std::string error = error_of([&] { backward(ops::sum(moved)); });
    check(contains(error, "mul in backward: operand '") && contains(error, "must be redistributed"),
          error);
  });
}

TEST_CASE("an operator without a rule offers the ways out, and each of them works") {
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  without_rule();
  on_ranks(2, [&](int) {
    const Tensor whole = numbered({5});
    const Tensor x = distribute(whole, Layout::make(mesh, {Shard(0)}));
    const auto negated = [](const Tensor& t) { return call_one(without_rule(), {t}); };
    const std::string error = error_of([&] { negated(x); });
    check(contains(error,
                   "negated_for_test: the operator has no placement rule for distributed operands "
                   "(f64[5] [Shard(0)]") &&
              contains(error, "local_map") &&
              contains(error, "register the operator with a rule") &&
              contains(error, "AllowRedistribution"),
          error);
    LocalMapOptions options;
    options.out = {x.layout()};
    options.out_shapes = {{5}};
    const Tensor mapped = local_map(
        [&](std::span<const Tensor> in) { return Tensors{negated(in[0])}; }, {&x, 1}, options)[0];
    check(values(mapped) == values(ops::neg(x)), "local_map");
    const AllowRedistribution allowed;
    const Tensor gathered = negated(x);
    check(gathered.layout().is_replicated() && allowed.count() == 1, "a scope");
    check(values(gathered) == to_doubles(ops::neg(whole)), "its value");
  });
}

TEST_CASE("an operator is found by its name, registered or in a plugin") {
  CHECK(&load_operator("mm") == &find_op("mm"));
  CHECK(contains(error_of([] { load_operator("nobody_offers_this"); }), "nobody_offers_this"));
  const auto doubled = [](const char* schema) {
    return [schema] {
      return Op{.schema = schema,
                .infer =
                    [](const Call& call, ResultShapes& out) {
                      out.push_back({call.in[0].shape(), call.in[0].dtype()});
                    },
                .cpu =
                    [](const Call& call, std::span<Tensor> out) {
                      operands::copy_elements(ops::mul_scalar(call.in[0], 2), out[0]);
                    },
                .rule = rules::pointwise_linear};
    };
  };
  plugin::host().add<OperatorPlugin>("doubled_for_test", doubled("doubled_for_test(x)"));
  plugin::host().add<OperatorPlugin>("named_otherwise", doubled("another_name(x)"));
  const DeviceMesh mesh = DeviceMesh::make({"a"}, {2});
  on_ranks(2, [&](int) {  // both load it at once, and it is registered once
    const Tensor x = distribute(numbered({3}), Layout::make(mesh, {Shard(0)}));
    const Tensor y = call_one(load_operator("doubled_for_test"), {x});
    check(values(y) == values(ops::mul_scalar(x, 2)) && y.layout() == x.layout(), "its result");
  });
  CHECK(contains(
      error_of([] { load_operator("named_otherwise"); }),
      "registers the wrong schema (expected 'named_otherwise(...)', got 'another_name(x)')"));
}
