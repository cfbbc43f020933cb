// A backward in two halves: the gradients of inputs first, those of other leaves later.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;
import tessera.conformance;

#include "../conformance/conformance.hpp"
#include "operator_samples.hpp"
#include "recorded_samples.hpp"
#include "small_decoder.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::testing;
using namespace on_graph;

namespace {

/// Compares a backward in two halves, in which the gradient of leaf `later` comes in the second
/// one, with a whole backward. Where the operator says that it does not read that leaf then, it is
/// in no memory.
void check_halves(Findings& all, const CallSample& sample, std::size_t later) {
  const Recorded whole(sample);
  backward(whole.roots, whole.root_gradients);
  const std::vector<Tensor> expected = whole.gradients_of_leaves();
  const Recorded halves(sample);
  std::vector<Tensor> inputs;
  for (std::size_t i = 0; i < halves.leaves.size(); ++i) {
    if (i != later && halves.leaves[i] && halves.leaves[i].requires_grad()) {
      inputs.push_back(halves.leaves[i]);
    }
  }
  LaterGradients rest = backward_to_inputs(halves.roots, halves.root_gradients, inputs);
  if (halves.leaves[later].grad()) {
    all.insert(sample.name + ": a gradient that was to come later is there");
  }
  if (sample.op->gradients_apart) {
    halves.leaves[later].storage().release_memory();
  }
  rest.compute();
  const std::vector<Tensor> found = halves.gradients_of_leaves();
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (found[i].defined() != expected[i].defined() ||
        (found[i] && to_doubles(found[i]) != to_doubles(expected[i]))) {
      all.insert(sample.name + ": another gradient of operand " + std::to_string(i));
    }
  }
}

}  // namespace

TEST_CASE("two halves of a backward have the gradients of a whole one, for every operator") {
  Findings findings;
  std::set<std::string> apart;
  for (const CallSample& sample : samples()) {
    if (!differentiable(sample)) {
      continue;
    }
    find_in(findings, sample.name, [&] {
      const Recorded r(sample);
      for (std::size_t i = 0; i < r.leaves.size() && !r.roots.empty(); ++i) {
        if (r.leaves[i] && r.leaves[i].requires_grad()) {
          check_halves(findings, sample, i);
          if (sample.op->gradients_apart) {
            apart.insert(sample.op->name);
          }
        }
      }
    });
  }
  CHECK(findings == none());
  const std::set<std::string> known = {"linear",    "matmul",          "mm",     "bmm",
                                       "addmm",     "baddbmm",         "conv2d", "grouped_mm",
                                       "embedding", "linear_in_blocks"};
  CHECK(apart == known);
}

namespace {

/// A small model's gradients, from a backward in two halves or a whole one.
struct ModelStep {
  std::vector<std::vector<double>> gradients;
  std::int64_t kept = 0;  // bytes, between the halves

  ModelStep(bool halves, bool checkpointed, bool tied) {
    const auto model = small_decoder(checkpointed, tied);
    const Tensor tokens = small_tokens();
    const Tensor one;
    for (int micro = 0; micro < 2; ++micro) {
      const std::int64_t before = memory_statistics().total;
      const Tensor logits = (*model)(Tensors{tokens})[0];
      const Tensor loss = model->loss()(Tensors{logits, tokens})[0];
      if (halves) {
        LaterGradients rest = backward_to_inputs({&loss, 1}, {&one, 1}, {});
        kept = memory_statistics().total - before;
        rest.compute();
      } else {
        kept = memory_statistics().total - before;
        backward(loss);
      }
    }
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
      gradients.push_back(to_doubles(parameter->value.grad()));
    }
  }
};

}  // namespace

TEST_CASE("two halves of a model's backward have its bits, and keep less than its graph") {
  for (const bool checkpointed : {false, true}) {
    for (const bool tied : {false, true}) {
      INFO("checkpointed " << checkpointed << ", tied " << tied);
      const ModelStep whole(false, checkpointed, tied);
      const ModelStep halves(true, checkpointed, tied);
      CHECK(halves.gradients == whole.gradients);
      if (!checkpointed) {
        CHECK(halves.kept < whole.kept);
      }
    }
  }
}

TEST_CASE("two halves add the gradients of all uses within a checkpoint") {
  const auto gradients = [](bool halves) {
    const Tensor x = leaf({3, 4}, 0.5);
    const Tensor w = leaf({4, 4}, 0.25);
    const CheckpointedFunction twice = [&](std::span<const Tensor> in) {
      return Tensors{ops::linear(ops::exp(ops::linear(in[0], w, Tensor())), w, Tensor())};
    };
    const Tensor loss = ops::sum(checkpoint(twice, {&x, 1})[0]);
    const Tensor one;
    if (halves) {
      LaterGradients rest = backward_to_inputs({&loss, 1}, {&one, 1}, {&x, 1});
      CHECK_FALSE(w.grad().defined());
      rest.compute();
    } else {
      backward(loss);
    }
    return std::pair{to_doubles(x.grad()), to_doubles(w.grad())};
  };
  CHECK(gradients(true) == gradients(false));
}

TEST_CASE("the first half keeps what products need, and no other memory") {
  constexpr std::int64_t activation = 16 * 256 * 8;
  constexpr std::int64_t weight = 256 * 256 * 8;
  constexpr std::int64_t little = 1000;
  const Tensor x = leaf({16, 256}, 0.1);
  const Tensor w = leaf({256, 256}, 0.001);
  const std::int64_t before = memory_statistics().total;
  const auto added = [&] { return memory_statistics().total - before; };
  LaterGradients rest;
  {
    const Tensor h = ops::linear(x, w, Tensor());
    const Tensor loss = ops::sum(ops::exp(ops::exp(ops::exp(h))));
    const Tensor one;
    rest = backward_to_inputs({&loss, 1}, {&one, 1}, {&x, 1});
    // h, its gradient and that of x: nothing that the functions after h have saved.
    CHECK(added() <= 3 * activation + little);
  }
  CHECK(x.grad().defined());
  CHECK_FALSE(w.grad().defined());
  // The gradients of x and of h, and not yet that of w; x and w are there anyway.
  CHECK(added() <= 2 * activation + little);
  rest.compute();
  CHECK(w.grad().defined());
  CHECK(added() <= activation + weight + little);
  rest.compute();  // nothing more
  CHECK(added() <= activation + weight + little);
}

TEST_CASE("hooks run in the half to which they belong") {
  const Tensor x = leaf({2}, 1);
  const Tensor w = leaf({2}, 3);
  std::string seen;
  add_gradient_hook(x, [&](const Tensor&) {
    seen += backward_part() == BackwardPart::to_inputs ? "x" : "?";
    queue_for_second_half([&] { seen += "|"; });
    queue_final_callback([&] { seen += "."; });
    return Tensor();
  });
  add_gradient_hook(w, [&](const Tensor& g) {
    CHECK(to_doubles(g) == repeated(2, 2));  // of both uses
    seen += backward_part() == BackwardPart::to_leaves ? "w" : "?";
    queue_final_callback([&] { seen += "!"; });
    return Tensor();
  });
  const Tensor loss = ops::sum(ops::add(ops::mul(x, w), w));
  const Tensor one;
  LaterGradients rest = backward_to_inputs({&loss, 1}, {&one, 1}, {&x, 1});
  CHECK(seen == "x.");
  rest.compute();
  CHECK(seen == "x.|w!");
  CHECK(backward_part() == BackwardPart::whole);
}

TEST_CASE("a half of a backward within another one is refused") {
  const Tensor x = leaf({2}, 1);
  std::string error;
  add_gradient_hook(x, [&](const Tensor&) {
    error = error_of([&] {
      const Tensor loss = ops::sum(x);
      const Tensor one;
      backward_to_inputs({&loss, 1}, {&one, 1}, {});
    });
    return Tensor();
  });
  backward(ops::sum(x));
  CHECK(contains(error, "backward_to_inputs: called within a backward"));
}
