// The options of FSDP and what a program may change while it runs, one by one; that all of them
// compute what one device does is in combinations.cpp.
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.options;
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

DeviceMesh line(int ranks) { return DeviceMesh::make({"shard"}, {ranks}); }

struct Calls {
  int times = 0;
  std::int64_t bytes = 0;
};
Calls calls(const CommunicationReport& report, const std::string& operation,
            const std::string& group) {
  Calls all;
  for (const Communication& one : report.entries()) {
    if (one.operation == operation && one.where == "FSDP " + group) {
      ++all.times;
      all.bytes += one.bytes;
    }
  }
  return all;
}

Named expected_gradients() {
  const auto expected = plain(std::make_shared<Net>());
  backward(plain_loss(*expected, net_tokens(4, 1)));
  return gradients_of(*expected);
}

Named scaled(Named values, double factor) {
  for (auto& [name, numbers] : values) {
    for (double& number : numbers) {
      number *= factor;
    }
  }
  return values;
}

/// The error of sharding a Net in this way over so many ranks; empty: none.
std::string refusal(const parallel::FullyShardOptions& options, const DeviceMesh& mesh = line(2)) {
  return error_of([&] {
    Net model;
    const parallel::FullySharded handle(model, mesh, options, shipped_styles());
  });
}

}  // namespace

TEST_CASE("between forward and backward, neighbouring ranks keep whole values") {
  on_ranks(4, [](int) {
    parallel::FullyShardOptions options = in_blocks();
    options.reshard_ranks = 2;
    Sharded run(line(4), options);
    const CommunicationReport forward;
    const Tensor loss = run.loss(1);
    const Calls all = calls(forward, "all_gather", "blocks.0");
    const CommunicationReport report;
    backward(loss);
    const Calls kept = calls(report, "all_gather", "blocks.0");
    check(all.times == 1 && kept.times == 1, "gathered once each");
    check(kept.bytes < all.bytes, "1 part of 2 instead of 3 of 4");
    check(!is_whole(run.model, 0), "freed");
  });
}

TEST_CASE("values that backward leaves are used again until they are written") {
  on_ranks(2, [](int) {
    Sharded run(line(2), in_blocks());
    run.handle.parameters().set_reshard_after_backward(false);
    const auto gathers = [&] {
      const CommunicationReport report;
      const Tensor loss = run.loss(1);
      const int times = calls(report, "all_gather", "blocks.0").times;
      backward(loss);
      return times;
    };
    check(gathers() == 1, "at first");
    check(is_whole(run.model, 0), "left");
    check(gathers() == 0, "again");
    change_values(run.model, 0.5, 0.1);
    check(gathers() == 1, "after a write");
    run.handle.before_optimizer();
    check(!is_whole(run.model, 0), "freed before the optimizer writes");
  });
}

TEST_CASE("modules whose parameters are gathered together are gathered once") {
  const Named expected = expected_gradients();
  on_ranks(2, [&](int) {
    parallel::FullyShardOptions options{.groups = {"embed", "head", "blocks.*", "."},
                                        .together = {{"embed", "head"}}};
    Sharded run(line(2), options);
    const CommunicationReport report;
    const Tensor loss = run.loss(1);
    check(calls(report, "all_gather", "embed").times == 1, "by the first");
    check(calls(report, "all_gather", "head").times == 0, "not by the second");
    backward(loss);
    check(difference(gradients_of(run.model), expected) < 1e-11, "gradients");
  });
}

TEST_CASE("reduced gradients are scaled, and pass a hook of the program") {
  const Named expected = expected_gradients();
  on_ranks(2, [&](int) {
    Sharded run(line(2), in_blocks());
    parallel::ShardedParameters& parameters = run.handle.parameters();
    parameters.set_gradient_factor(0.25);
    backward(run.loss(1));
    check(difference(gradients_of(run.model), scaled(expected, 0.25)) < 1e-11, "scaled");
    clear_gradients(run.model);
    std::map<std::string, int> seen;
    parameters.set_reduction_hook([&](nn::Parameter& parameter, Tensor& gradient) {
      ++seen[parameter.name];
      check(gradient.shape() == parameter.value.local().shape(), "the shard");
      gradient = ops::mul_scalar(gradient, 8);
    });
    backward(run.loss(1));
    check(seen.size() == nn::all_parameters(run.model).size(), "every parameter");
    for (const auto& [name, times] : seen) {
      check(times == 1, name + " once");
    }
    check(difference(gradients_of(run.model), scaled(expected, 2)) < 1e-11, "after the factor");
  });
}

TEST_CASE("a gather is issued by hand, and completed by the module that needs it") {
  const Named expected = expected_gradients();
  on_ranks(2, [&](int) {
    Sharded run(line(2), in_blocks());
    parallel::ShardedParameters& parameters = run.handle.parameters();
    parameters.start_unshard("blocks.1");
    check(!is_whole(run.model, 1), "not complete");
    const CommunicationReport report;
    parameters.unshard("blocks.1");
    check(is_whole(run.model, 1), "complete");
    check(calls(report, "all_gather", "blocks.1").times == 1, "one gather");
    parameters.start_unshard("blocks.0");
    parameters.reshard("blocks.0");
    check(!is_whole(run.model, 0), "given up");
    backward(run.loss(1));
    check(difference(gradients_of(run.model), expected) < 1e-11, "gradients");
  });
}

TEST_CASE("a program says what is gathered ahead") {
  on_ranks(2, [](int rank) {
    Sharded run(line(2), {.groups = {"blocks.*", "embed", "head", "."}, .prefetch = 0});
    backward(run.loss(1));
    const auto gathering = [&] {
      const std::string mine = "rank " + std::to_string(rank) + ": ";
      std::string calls = collective::World::current().recent_calls(1);
      calls = calls.substr(calls.find(mine));
      calls = calls.substr(0, calls.find('\n'));
      return calls.find("all_gather") != std::string::npos &&
             calls.find("(not complete)") != std::string::npos;
    };
    std::vector<bool> seen;
    block_of(run.model, 0)
        .children()[3]
        .second->add_hook([&](nn::Module&, const Tensors& inputs, Tensors&) {
          seen.push_back(gathering());
          add_gradient_hook(inputs[0], [&](const Tensor&) {
            seen.push_back(gathering());
            return Tensor();
          });
        });
    backward(run.loss(1));
    check(seen == std::vector<bool>{false, false}, "nothing, by the option");
    run.handle.parameters().set_forward_prefetch("blocks.0", {"head"});
    run.handle.parameters().set_backward_prefetch("blocks.0", {"embed"});
    seen.clear();
    backward(run.loss(1));
    check(seen[0], "in forward");
    check(seen[1], "in backward");
  });
}

TEST_CASE("parameters without a gradient have the gradient 0 where the option says so") {
  on_ranks(2, [](int rank) {
    parallel::FullyShardOptions options = in_blocks();
    options.missing_gradients_are_zero = true;
    Sharded run(line(2), options);
    // The second block computes without its last layer: on both ranks, or on one.
    for (const bool everywhere : {true, false}) {
      clear_gradients(run.model);
      auto hook = block_of(run.model, 1)
                      .children()[3]
                      .second->add_hook([&](nn::Module&, const Tensors& inputs, Tensors& outputs) {
                        if (everywhere || rank == 0) {
                          outputs[0] = ops::mul_scalar(detached(outputs[0]), 0);
                          (void)inputs;
                        }
                      });
      backward(run.loss(1));
      hook.remove();
      const auto& down = block_of(run.model, 1).children()[3].second->parameter("weight");
      const Named gradients = gradients_of(run.model);
      bool zero = true;
      for (const double number : gradients.at(down->name)) {
        zero = zero && number == 0;
      }
      check(zero == everywhere, everywhere ? "0 everywhere" : "the terms of one rank");
      check(gradients.size() == nn::all_parameters(run.model).size(), "all have one");
    }
  });
}

TEST_CASE("methods other than forward run with whole values") {
  const auto expected = plain(std::make_shared<Net>());
  const auto twice = [](nn::Module& up) {
    return [&up](const Tensors& in) { return Tensors{ops::mul_scalar(up.forward(in)[0], 2)}; };
  };
  const auto up_of = [](nn::Module& model) -> nn::Module& {
    return *model.children()[1].second->children()[2].second;
  };
  const Tensor x = full({2, 6}, 0.5, DType::f64);
  nn::Module& plain_up = up_of(*expected);
  const std::vector<double> wanted = to_doubles(plain_up.call({x}, twice(plain_up))[0]);
  on_ranks(2, [&](int) {
    Sharded run(line(2), {.groups = {"blocks.*.*", "."}});
    nn::Module& up = up_of(run.model);
    const Tensor replicated = distribute(x, Layout::replicated(line(2)));
    const Tensor y = up.call({replicated}, twice(up))[0];
    const NoGrad constant;
    check(difference(to_doubles(full_tensor(detached(y))), wanted) < 1e-12, "values");
    check(!up.parameter("weight")->computed.defined(), "freed afterwards");
  });
}

TEST_CASE("a program's options of fully_shard are a config's options of FSDP") {
  const auto& table = parallel::fully_shard_table();
  CHECK(table.json({}) ==
        R"({"reshard_after_forward": true, "reshard_ranks": 0, "reshard_after_backward": true, )"
        R"("prefetch": 1, "accumulate": "shards", "param_dtype": "none", "reduce_dtype": "f32", )"
        R"("output_dtype": "none", "cast_inputs": true, "shard_dims": [], "replicate_below": 0, )"
        R"("ignore": [], "together": [], "shard_over": "last", "missing": "error"})");
  const std::string all =
      R"({"reshard_after_forward": false, "reshard_ranks": 2, "reshard_after_backward": false, )"
      R"("prefetch": 3, "accumulate": "whole", "param_dtype": "bf16", "reduce_dtype": "f16", )"
      R"("output_dtype": "f32", "cast_inputs": false, "shard_dims": [{"on": ["a"], "dim": 1}], )"
      R"("replicate_below": 9, "ignore": ["b"], "together": [{"on": ["c","d"]}], )"
      R"("shard_over": "all", "missing": "zeros"})";
  parallel::Options options(all);
  const parallel::FullyShardOptions read = table.read(options);
  options.finish();
  CHECK((!read.reshard_after_forward && read.reshard_ranks == 2 && !read.reshard_after_backward));
  CHECK((read.prefetch == 3 && read.keeps_whole_gradients && read.shard_over_all_axes));
  CHECK((read.precision.parameters == DType::bf16 && read.precision.outputs == DType::f32));
  CHECK((!read.precision.cast_inputs && read.reduce_dtype == DType::f16));
  CHECK((read.missing_gradients_are_zero && read.replicate_below == 9));
  CHECK(read.together == std::vector<std::vector<std::string>>{{"c", "d"}});
  CHECK(table.json(read) == all);
}

TEST_CASE("options of FSDP that do not fit are refused before ranks start") {
  parallel::FullyShardOptions options = in_blocks();
  options.reshard_ranks = 3;
  CHECK(refusal(options).find("'reshard_ranks' must be 0, or at least 2 and a divisor of the 2 "
                              "ranks (got 3)") != std::string::npos);
  options = in_blocks();
  options.ignore = {"blocks.*.bais"};
  CHECK(
      refusal(options).find("option 'ignore': the pattern 'blocks.*.bais' matches no parameter") !=
      std::string::npos);
  options = in_blocks();
  options.shard_dims = {{{"blocks.*.norm.weight"}, 1}};
  CHECK(refusal(options).find("parameter 'blocks.0.norm.weight' [6] has no dim 1") !=
        std::string::npos);
  options = in_blocks();
  options.together = {{"embed", "head"}};
  CHECK(refusal(options).find("'embed' matches no module") != std::string::npos);
  options = in_blocks();
  options.shard_over_all_axes = true;
  CHECK(refusal(options, DeviceMesh::make({"a", "b"}, {2, 2}))
            .find("cannot be sharded over 2 axes: 4 ranks must divide dim 0") != std::string::npos);
  options = in_blocks();
  options.precision.parameters = DType::bf16;
  options.reduce_dtype = DType::f16;
  CHECK(refusal(options).find("expected f32 or bf16, got f16") != std::string::npos);
}

namespace {

/// Calls its second layer on some ranks only.
class Conditional final : public nn::Module {
 public:
  Conditional() {
    first_ = add_child<nn::Linear>("first", 6, 6, false, 0.5, DType::f64);
    second_ = add_child<nn::Linear>("second", 6, 6, false, 0.5, DType::f64);
    third_ = add_child<nn::Linear>("third", 6, 6, false, 0.5, DType::f64);
    set_names();
  }
  std::string_view kind() const override { return "Conditional"; }
  Tensors forward(const Tensors& inputs) override {
    Tensor x = (*first_)(inputs[0]);
    x = uses_second ? (*second_)(x) : x;
    return {uses_third ? (*third_)(x) : x};
  }
  bool uses_second = true;
  bool uses_third = true;

 private:
  std::shared_ptr<nn::Linear> first_, second_, third_;
};

}  // namespace

TEST_CASE("a module that some ranks skip is an error that names a module, within seconds") {
  for (const bool last : {false, true}) {
    for (const bool known : {false, true}) {
      const auto started = std::chrono::steady_clock::now();
      const std::string error = error_of([&] {
        on_ranks(2, [&](int rank) {
          const auto model = std::make_shared<Conditional>();
          Planned run(model, line(2), {fsdp({"*", "."})});
          const auto step = [&] {
            const Tensor x = distribute(full({2, 6}, 0.5, DType::f64), run.plan.batch_layout());
            backward(ops::sum(ops::square((*model)(x))));
          };
          if (known) {
            step();  // what follows is gathered ahead from here on
          }
          (last ? model->uses_third : model->uses_second) = rank == 0;
          step();
          parallel::GradientFinisher().finish(nn::all_parameters(*model));
        });
      });
      INFO((last ? "the last" : "the second") << (known ? ", known order: " : ": ") << error);
      CHECK(error.find("rank") != std::string::npos);
      CHECK(error.find(last ? "third" : "second") != std::string::npos);
      CHECK(std::chrono::steady_clock::now() - started < std::chrono::seconds(20));
    }
  }
}
