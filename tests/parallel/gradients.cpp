// When and how gradients are summed: in buckets, during backward, in place.
#include <cstddef>
#include <cstdint>
#include <functional>
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
import tessera.plugin;
import tessera.parallel;

#include "net.hpp"
#include "support.hpp"

using namespace tessera;
using namespace parallel_test;

namespace {

DeviceMesh pair(const char* axis) { return DeviceMesh::make({axis}, {2}); }

/// Linear layers [width, width], one after the other, f32.
class Stack final : public nn::Module {
 public:
  Stack(int layers, std::int64_t width) {
    for (int i = 0; i < layers; ++i) {
      layers_.push_back(add_child<nn::Linear>(std::to_string(i), width, width, false, 0.05));
    }
  }
  std::string_view kind() const override { return "Stack"; }
  Tensors forward(const Tensors& inputs) override {
    Tensor x = inputs[0];
    for (const auto& layer : layers_) {
      x = (*layer)(x);
    }
    return {ops::sum(ops::square(x))};
  }
  const std::vector<std::shared_ptr<nn::Linear>>& layers() const { return layers_; }

 private:
  std::vector<std::shared_ptr<nn::Linear>> layers_;
};

/// Of a tree of 64 leaves: whether they are one node, from the definition.
bool is_node(const LeafRange& leaves) {
  for (std::int64_t size = 1; size <= 64; size *= 2) {
    for (std::int64_t first = 0; first < 64; first += size) {
      if (leaves == LeafRange{first, size}) {
        return true;
      }
    }
  }
  return false;
}

/// 1 MiB of gradient in each layer, so four of them are a bucket.
constexpr int layer_count = 6;
constexpr std::int64_t width = 512;

Tensor rows_of(const parallel::ParallelPlan& plan) {
  std::vector<float> values;
  for (int i = 0; i < 4 * width; ++i) {
    values.push_back(static_cast<float>((i * 7) % 11) / 11.0F - 0.5F);
  }
  const Tensor whole = from_values(std::span<const float>(values), {4, width});
  return redistribute(from_local(whole, Layout::replicated(plan.mesh())), plan.batch_layout());
}

/// Counts the sums that were issued before backward has returned, and in all.
class Counter final : public collective::Observer {
 public:
  int issued = 0;
  void perform(const collective::Activity& activity, const std::function<void()>& next) override {
    issued += activity.kind == collective::Activity::Kind::issue &&
                      activity.call.kind == collective::CallKind::all_reduce_segments
                  ? 1
                  : 0;
    next();
  }
};

}  // namespace

TEST_CASE("buckets of gradients are summed while backward runs, with the same bits") {
  on_ranks(2, [](int) {
    std::vector<Named> gradients;
    for (const bool begins : {false, true}) {
      Planned run(std::make_shared<Stack>(layer_count, width), pair("replicate"),
                  {{"Replicate", "replicate", {"."}, "{}", ""}});
      const auto parameters = nn::all_parameters(*run.model);
      parallel::GradientFinisher finisher;
      Counter counter;
      const collective::ObserverScope scope(counter);
      if (begins) {
        finisher.begin(parameters);
      }
      backward((*run.model)(rows_of(run.plan)));
      const int in_backward = counter.issued;
      finisher.finish(parameters);
      check(in_backward == (begins ? 1 : 0), "in backward: " + std::to_string(in_backward));
      check(counter.issued == (begins ? 2 : 1), "in all: " + std::to_string(counter.issued));
      gradients.push_back(gradients_of(*run.model));
    }
    check(gradients[0] == gradients[1], "the same bits");
  });
}

TEST_CASE("gradients lie where the other ranks read them") {
  on_ranks(2, [](int) {
    for (const char* style : {"Replicate", "FSDP"}) {
      Planned run(std::make_shared<Stack>(2, width), pair("shard"),
                  {{style, "shard", {"."}, "{}", ""}});
      int seen = 0;
      for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
        add_gradient_hook(p->use(), [&](const Tensor& gradient) {
          const collective::World& world = collective::World::current();
          check(world.peers_reach(gradient.local().raw_data()), style);
          ++seen;
          return Tensor();
        });
      }
      if (std::string(style) == "FSDP") {  // which computes with another tensor
        const std::string error = error_of([&] { backward((*run.model)(rows_of(run.plan))); });
        check(contains(error, "has a hook on its gradient that never runs"), error);
        continue;
      }
      backward((*run.model)(rows_of(run.plan)));
      parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
      check(seen == 2, "hooks: " + std::to_string(seen));
    }
  });
}

TEST_CASE("what a program does with gradients in backward happens before they are summed") {
  on_ranks(2, [](int rank) {
    Planned run(std::make_shared<Stack>(layer_count, width), pair("replicate"),
                {{"Replicate", "replicate", {"."}, "{}", ""}});
    const auto parameters = nn::all_parameters(*run.model);
    parallel::GradientFinisher finisher;
    const Tensor rows = rows_of(run.plan);
    const auto step = [&] {
      finisher.begin(parameters);
      backward((*run.model)(rows));
      finisher.finish(parameters);
      Named found = gradients_of(*run.model);
      clear_gradients(*run.model);
      return found;
    };
    const Named wanted = step();
    // Hooks that come after the finisher's own, which one rank has alone.
    std::vector<Tensor> kept;
    std::vector<std::vector<double>> terms;
    if (rank == 0) {
      for (const nn::ParameterPointer& p : parameters) {
        add_post_accumulate_hook(p->value, [&](Tensor& leaf) {
          kept.push_back(leaf.grad());
          terms.push_back(to_doubles(leaf.grad().local()));
        });
      }
    }
    check(step() == wanted, "a rank keeps the gradients");
    check(kept.size() == (rank == 0 ? 6U : 0U), "kept");
    for (std::size_t i = 0; i < kept.size(); ++i) {
      check(kept[i].layout().placement(0) == Partial() && to_doubles(kept[i].local()) == terms[i],
            "what is kept stays a term of the sum");
    }
    kept.clear();
    for (const nn::ParameterPointer& p : parameters) {
      add_post_accumulate_hook(p->value, [](Tensor& leaf) {
        const NoGrad no_grad;
        ops::mul_scalar_(leaf.grad(), 2);
      });
    }
    Named doubled = wanted;
    for (auto& [name, values] : doubled) {
      for (double& value : values) {
        value *= 2;
      }
    }
    check(step() == doubled, "every rank scales the gradients");
  });
}

TEST_CASE("a second backward with sync adds to what was summed") {
  on_ranks(2, [](int) {
    std::vector<Named> gradients;
    for (const bool begins : {false, true}) {
      Planned run(std::make_shared<Stack>(layer_count, width), pair("replicate"),
                  {{"Replicate", "replicate", {"."}, "{}", ""}});
      const auto parameters = nn::all_parameters(*run.model);
      parallel::GradientFinisher finisher;
      if (begins) {
        finisher.begin(parameters);
      }
      for (const double scale : {1.0, 0.5}) {
        backward(ops::mul_scalar((*run.model)(rows_of(run.plan)), scale));
      }
      finisher.finish(parameters);
      gradients.push_back(gradients_of(*run.model));
    }
    check(difference(gradients[0], gradients[1]) < 1e-6, "both backwards count");
  });
}

TEST_CASE("a step that ends by an error leaves nothing to the next one") {
  on_ranks(2, [](int rank) {
    const auto model = std::make_shared<Stack>(layer_count, width);
    Planned run(model, pair("replicate"), {{"Replicate", "replicate", {"."}, "{}", ""}});
    const auto parameters = nn::all_parameters(*run.model);
    parallel::GradientFinisher finisher;
    const Tensor rows = rows_of(run.plan);
    bool fails = false;
    // The last gradient of backward, when a bucket is in flight.
    add_gradient_hook(parameters[0]->value, [&](const Tensor&) {
      if (fails) {
        fail("planted");
      }
      return Tensor();
    });
    const auto step = [&] {
      finisher.begin(parameters);
      backward((*run.model)(rows));
      finisher.finish(parameters);
      const Named found = gradients_of(*run.model);
      clear_gradients(*run.model);
      return found;
    };
    const Named wanted = step();
    fails = true;
    check(error_of(step).find("planted") != std::string::npos, "a step fails");
    clear_gradients(*run.model);
    fails = false;
    check(step() == wanted, "the gradients of one step");
    // One rank fails with a gradient in a bucket, the other one with none.
    finisher.begin(parameters);
    if (rank == 0) {
      backward(ops::sum((*model->layers()[0])(rows)));
    }
    clear_gradients(*run.model);
    check(step() == wanted, "buckets of the same parameters on all ranks");
  });
}

TEST_CASE("each micro-batch is reduced into the shards unless whole gradients are kept") {
  const auto expected = plain(std::make_shared<Net>());
  for (const int seed : {1, 2, 3}) {
    backward(plain_loss(*expected, net_tokens(6, seed)));
  }
  for (const std::string accumulate : {"", "shards", "whole"}) {
    for (const bool hybrid : {false, true}) {
      INFO(accumulate << ", hybrid " << hybrid);
      on_ranks(hybrid ? 4 : 2, [&](int) {
        const std::string options =
            accumulate.empty() ? "{}" : "{\"accumulate\": \"" + accumulate + "\"}";
        const DeviceMesh mesh = hybrid ? DeviceMesh::make({"replicate", "shard"}, {2, 2})
                                       : DeviceMesh::make({"shard"}, {2});
        parallel::StyleEntry entry{"FSDP", "shard", {"blocks.*", "."}, options, ""};
        if (hybrid) {
          entry.axis = {"replicate", "shard"};
        }
        Planned run(std::make_shared<Net>(), mesh, {entry});
        const auto parameters = nn::all_parameters(*run.model);
        parallel::GradientFinisher finisher;
        finisher.begin(parameters);
        const CommunicationReport report;
        for (const int seed : {1, 2, 3}) {
          const StepScope sync([&](StepContext& step) { step.sums_gradients = seed == 3; });
          backward(run.loss(net_tokens(6, seed)));
          for (const nn::ParameterPointer& p : parameters) {
            const bool whole = accumulate == "whole" && seed < 3;
            check(p->value.grad().layout().placement(hybrid ? 1 : 0).is_shard() != whole,
                  p->name + " after micro-batch " + std::to_string(seed));
          }
        }
        check(report.count("reduce_scatter") == (accumulate == "whole" ? 3 : 9),
              report.to_string());
        finisher.finish(parameters);
        check(report.count("all_reduce") == (hybrid ? 2 : 1), report.to_string());
        check(difference(gradients_of(*run.model), gradients_of(*expected)) < 1e-11, "gradients");
      });
    }
  }
}

TEST_CASE("parameters below a size are replicated and train as the others do") {
  const auto expected = plain(std::make_shared<Net>());
  backward(plain_loss(*expected, net_tokens(4, 1)));
  on_ranks(2, [&](int) {
    Planned run(std::make_shared<Net>(), pair("shard"),
                {{"FSDP", "shard", {"blocks.*", "."}, R"({"replicate_below": 10})", ""}});
    int small = 0;
    for (const nn::ParameterPointer& p : nn::all_parameters(*run.model)) {
      check(p->value.layout().placement(0).is_replicate() == (p->value.numel() < 10), p->name);
      small += p->value.numel() < 10 ? 1 : 0;
    }
    check(small > 0, "the model has small parameters");
    backward(run.loss(net_tokens(4, 1)));
    parallel::GradientFinisher().finish(nn::all_parameters(*run.model));
    check(difference(gradients_of(*run.model), gradients_of(*expected)) < 1e-11, "gradients");
  });
}

TEST_CASE("leaves of a tree are the fewest nodes") {
  for (std::int64_t first = 0; first < 20; ++first) {
    for (std::int64_t count = 0; count < 20; ++count) {
      INFO(first << " " << count);
      const std::vector<LeafRange> nodes = parallel::tree_nodes({first, count});
      std::int64_t at = first;
      for (const LeafRange& node : nodes) {
        CHECK(node.first == at);
        CHECK(is_node(node));
        at += node.count;
      }
      CHECK(at == first + count);
      for (std::size_t i = 1; i < nodes.size(); ++i) {  // no two of them are one node
        CHECK(!is_node({nodes[i - 1].first, nodes[i - 1].count + nodes[i].count}));
      }
    }
  }
}

TEST_CASE("sums over ranks are nodes of the tree over virtual shards") {
  using Terms = std::vector<collective::MemberRange>;
  const auto terms = [](const DeviceMesh& mesh, const LeafRange& leaves, std::vector<int> axes) {
    const std::vector<int> batch = {0, 1};
    const StepScope scope(
        [&](StepContext& step) { step.tree_sums = parallel::tree_sums(mesh, batch, leaves); });
    return parallel::terms_of_sums(axes);
  };
  const Terms all(1);
  CHECK(parallel::terms_of_sums(std::vector<int>{0}) == all);
  const DeviceMesh three = DeviceMesh::make({"one", "three"}, {1, 3});
  CHECK(terms(three, {0, 3}, {1}) == Terms{{0, 2}, {2, 1}});
  CHECK(terms(three, {3, 3}, {1}) == Terms{{0, 1}, {1, 2}});
  CHECK(terms(three, {6, 2}, {1}) == Terms{{0, 2}});
  CHECK(terms(three, {0, 3}, {0}) == all);
  const DeviceMesh six = DeviceMesh::make({"three", "two"}, {3, 2});
  CHECK(terms(six, {0, 6}, {1}) == all);
  CHECK(terms(six, {0, 6}, {0}) == Terms{{0, 2}, {2, 1}});
  CHECK(terms(six, {0, 6}, {0, 1}) == Terms{{0, 4}, {4, 2}});
  CHECK(terms(six, {6, 2}, {0}) == Terms{{0, 1}});
  CHECK(terms(DeviceMesh::make({"four", "two"}, {4, 2}), {8, 8}, {0, 1}) == all);
}
