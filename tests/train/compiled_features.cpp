// What a step may do and still be captured: each case compares the bits of captured calls (results,
// parameters, buffers, optimizer state, random streams) with those of calls that are taken as they
// are, in several layouts and with each executor.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera;
import tessera.graph;
import tessera.ops;
import tessera.parallel;
import tessera.passes;
import tessera.tensor;

#include "compiled_as_eager.hpp"
#include "support.hpp"

using namespace tessera;
using parallel_test::Net;

using namespace features;

namespace {

/// The sum of squares, one update, and the loss as the result.
Tensors plain_step(Subject& subject, StepCall& call) {
  const Tensor loss = ops::sum(ops::square(subject.out(call)));
  backward(loss);
  subject.update(call);
  return {subject.whole(loss)};
}

}  // namespace

TEST_CASE("captured: forward hooks of modules", "[features]") {
  captured_as_eager(plain_step, [](Subject& subject) {
    subject.child("net.blocks.0").add_pre_hook([](nn::Module&, Tensors& inputs) {
      inputs[0] = ops::mul_scalar(inputs[0], 0.5);
    });
    subject.child("net.blocks.1")
        .add_hook([](nn::Module&, const Tensors& inputs, Tensors& outputs) {
          outputs[0] = ops::add(outputs[0], ops::tanh(inputs[0]));
        });
    subject.child("net.blocks.1").add_outer_pre_hook([](nn::Module&, Tensors& inputs) {
      inputs[0] = ops::tanh(inputs[0]);
    });
  });
}

TEST_CASE("captured: hooks on the gradients of inputs, intermediates and leaves", "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        Tensor seen;
        const Tensor out = subject.out(call);
        add_gradient_hook(out, [&](const Tensor& gradient) {
          seen = subject.whole(ops::sum(ops::square(gradient)));
          return ops::mul_scalar(gradient, 0.25);
        });
        Tensor input = ops::mul_scalar(detached(out), 2);
        input.set_requires_grad(true);
        Tensor seen_of_input;
        add_gradient_hook(input, [&](const Tensor& gradient) {
          seen_of_input = subject.whole(ops::sum(gradient));
          return Tensor();
        });
        const Tensor loss = ops::sum(ops::square(ops::mul(out, input)));
        backward(loss);
        const Tensor of_input = subject.whole(ops::sum(ops::square(input.grad())));
        subject.update(call);
        return {subject.whole(loss), seen, seen_of_input, of_input};
      },
      [](Subject& subject) {
        add_gradient_hook(subject.parameter("head.weight")->value,
                          [](const Tensor& gradient) { return ops::mul_scalar(gradient, 0.5); });
      },
      {}, {"replicated"});
}

TEST_CASE("captured: hooks after accumulation, and callbacks at the end of backward",
          "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        const Tensor out = subject.out(call);
        const nn::ParameterPointer& head = subject.parameter("head.weight");
        Tensor at_end;
        add_gradient_hook(out, [&](const Tensor&) {
          queue_final_callback([&] {
            const NoGrad no_grad;
            at_end = subject.whole(ops::sum(ops::square(head->value)));
          });
          return Tensor();
        });
        const Tensor loss = ops::sum(ops::square(out));
        backward(loss);
        subject.update(call);
        return {subject.whole(loss), at_end};
      },
      [](Subject& subject) {
        for (const nn::ParameterPointer& parameter : subject.adamw->parameters()) {
          add_post_accumulate_hook(parameter->value, [](Tensor& leaf) {
            const NoGrad no_grad;
            if (leaf.grad()) {
              ops::mul_(leaf.grad(), ops::mul_scalar(ops::ones_like(leaf.grad()), 0.75));
            }
          });
        }
      },
      {}, {"replicated"});
}

TEST_CASE("captured: requires_grad changes within a step", "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        const nn::ParameterPointer& head = subject.parameter("head.weight");
        head->value.set_requires_grad(false);
        const Tensor first = ops::sum(ops::square(subject.out(call)));
        backward(first);
        head->value.set_requires_grad(true);
        const Tensor second = ops::sum(ops::exp(subject.out(call)));
        backward(second);
        subject.update(call);
        return {subject.whole(first), subject.whole(second)};
      },
      [](Subject&) {}, {}, {"one rank", "replicated"});
}

TEST_CASE("captured: gradients are read, set and cleared by the step", "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        const nn::ParameterPointer& head = subject.parameter("head.weight");
        const nn::ParameterPointer& norm = subject.parameter("blocks.0.norm.weight");
        backward(ops::sum(ops::square(subject.out(call))));
        Tensor read;
        {
          const NoGrad no_grad;
          read = ops::sum(norm->value.grad());
          norm->value.grad() = ops::mul(norm->value, norm->value);
          head->value.grad() = Tensor();
        }
        const Tensor second = ops::sum(ops::square(subject.out(call)));
        backward(second);
        subject.update(call);
        return {subject.whole(second), subject.whole(read)};
      },
      [](Subject&) {}, {}, {"one rank", "replicated"});
}

TEST_CASE("captured: parameters are replaced within a step", "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        nn::Module& first = subject.child("net.blocks.0.up");
        nn::Module& second = subject.child("net.blocks.1.up");
        const nn::ParameterPointer own = second.parameter("weight");
        second.set_parameter("weight", first.parameter("weight"));  // tied, in this pass
        const Tensor loss = ops::sum(ops::square(subject.out(call)));
        backward(loss);
        second.set_parameter("weight", own);
        const Tensor apart = ops::sum(ops::square(subject.out(call)));
        backward(apart);
        subject.update(call);
        return {subject.whole(loss), subject.whole(apart)};
      },
      [](Subject&) {}, {}, {"replicated"});
}

TEST_CASE("captured: memory is released and restored, and values change through views",
          "[features]") {
  captured_as_eager([](Subject& subject, StepCall& call) -> Tensors {
    const Tensor loss = ops::sum(ops::square(subject.out(call)));
    backward(loss);
    Tensor sum;
    {
      const NoGrad no_grad;
      const Tensor x = ops::clone(subject.whole(loss));
      const Tensor table = ops::mul(full({4, 3}, 1, DType::f64), x);
      ops::mul_(ops::narrow(table, 0, 1, 2), full({2, 3}, 3, DType::f64));
      ops::fill_(ops::select(table, 1, 2), 0.5);
      ops::add_(ops::transpose(table, 0, 1), full({3, 4}, 1, DType::f64));
      sum = ops::sum(table);
      table.storage().release_memory();
      table.storage().restore_memory();
      ops::copy_(table, full({4, 3}, 2, DType::f64));
      ops::mul_(table, x);
      sum = ops::add(sum, ops::sum(table));
    }
    subject.update(call);
    return {subject.whole(loss), sum};
  });
}

TEST_CASE("captured: buffers are written: running statistics, a slow copy of a weight",
          "[features]") {
  captured_as_eager([](Subject& subject, StepCall& call) -> Tensors {
    const Tensor out = subject.out(call);
    Tensor loss;
    {
      const AllowRedistribution allowed;
      const Tensor flat = ops::reshape(out, {-1, Net::vocabulary});
      loss = ops::sum(
          ops::square(ops::batch_norm(flat, subject.model().buffer("mean")->value,
                                      subject.model().buffer("var")->value, {}, {}, true)));
      loss = ops::add(loss, ops::sum(ops::square(out)));
      backward(loss);
    }
    subject.update(call);
    {
      const NoGrad no_grad;
      const Tensor head = subject.whole(subject.parameter("head.weight")->value);
      const Tensor& slow = subject.model().buffer("slow")->value;
      ops::lerp_scalar_(local_of(slow), head, 0.1);
    }
    return {subject.whole(loss)};
  });
}

TEST_CASE("captured: recomputation with random numbers, and numbers that the step draws",
          "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        const Tensor out = subject.out(call);
        const Tensor noisy =
            ops::mul(out, ops::dropout(ops::ones_like(out), 0.5, by_batch_row("noise")));
        const Tensor loss = ops::sum(ops::square(noisy));
        backward(loss);
        subject.update(call);
        return {subject.whole(loss)};
      },
      [](Subject&) {}, {.checkpointing = true, .dropout = 0.3});
}

TEST_CASE("captured: collectives of a part of the mesh, and a broadcast of parameters",
          "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        const DeviceMesh& mesh = subject.net.plan.mesh();
        const Tensor out = subject.out(call);
        const Tensor loss = ops::sum(ops::square(out));
        backward(loss);
        Tensor sums;
        {
          const NoGrad no_grad;
          sums = ops::sum(out.local());
          for (int axis = 0; axis < mesh.ndim(); ++axis) {
            const std::span<const int> group = mesh.group(axis, current_rank());
            const ops::Ranks ranks = ops::GroupArgument::of(group);
            sums = ops::all_reduce(sums, ReduceOp::max, ranks);
            const Tensor all = ops::all_gather(ops::reshape(sums, {1}), 0,
                                               static_cast<std::int64_t>(group.size()), ranks);
            sums = ops::add(sums, ops::sum(ops::broadcast(all, 0, ranks)));
          }
        }
        subject.update(call);
        return {subject.whole(loss), sums};
      },
      [](Subject&) {}, {}, {"fully sharded", "replicated", "hybrid"});
}

namespace {

/// x + x * x, as an operator that a program registers, and its form in place.
void own_kernel(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[0];
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[0].data<double>()[i] = x.data<double>()[i] * (1 + x.data<double>()[i]);
  }
}

ops::GroupArgument everyone_of(const DeviceMesh& mesh) {
  return ops::GroupArgument::of(mesh.group(0, current_rank()));
}

const Op& own_operator(bool in_place) {
  const auto infer = [](const Call& call, ResultShapes& out) {
    out.push_back({call.in[0].shape(), call.in[0].dtype()});
  };
  static const Op& made =
      register_op({.schema = "features_own(x)", .infer = infer, .cpu = own_kernel});
  static const Op& written = register_op(
      {.schema = "features_own_(x)", .infer = infer, .cpu = own_kernel, .in_place = true});
  return in_place ? written : made;
}

}  // namespace

TEST_CASE("captured: operators of the program's own", "[features]") {
  captured_as_eager([](Subject& subject, StepCall& call) -> Tensors {
    const Tensor loss = ops::sum(ops::square(subject.out(call)));
    backward(loss);
    subject.update(call);
    const NoGrad no_grad;
    const Tensor local = ops::clone(subject.parameter("head.weight")->value.local());
    const Tensor made = tessera::call(own_operator(false), std::vector{local}, {})[0];
    tessera::call(own_operator(true), std::vector{made}, {});
    return {subject.whole(loss), ops::sum(made)};
  });
}

TEST_CASE("captured: parameters that are broadcast before the first use", "[features]") {
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        {
          const NoGrad no_grad;
          for (const nn::ParameterPointer& parameter : subject.adamw->parameters()) {
            const Tensor& own = parameter->value.local();
            ops::copy_(own, ops::broadcast(own, 0, everyone_of(subject.net.plan.mesh())));
          }
          subject.net.plan.after_optimizer();
        }
        return plain_step(subject, call);
      },
      [](Subject& subject) {
        const NoGrad no_grad;
        if (current_rank() == 1) {  // until the first call, ranks differ
          ops::fill_(subject.parameter("head.weight")->value.local(), 0.25);
        }
      },
      {}, {"one rank", "replicated"});
}

TEST_CASE("captured: streams and events of the CPU", "[features]") {
  captured_as_eager([](Subject& subject, StepCall& call) -> Tensors {
    const Stream side = Stream::make(cpu);
    const Tensor out = subject.out(call);
    side.wait(record_event(current_stream(cpu)));
    const Tensor loss = ops::sum(ops::square(out));
    current_stream(cpu).wait(record_event(side));
    backward(loss);
    subject.update(call);
    return {subject.whole(loss)};
  });
}

TEST_CASE("captured: a device whose streams are ordered by events only", "[features]") {
  plugin::host().load(ADVERSARY);
  captured_as_eager(
      [](Subject& subject, StepCall& call) -> Tensors {
        const Device device = subject.device;
        const Stream side = Stream::make(device);
        const Tensor out = subject.out(call);
        side.wait(record_event(current_stream(device)));
        Tensor loss;
        {
          const StreamScope scope(side);
          loss = ops::sum(ops::square(out));
        }
        current_stream(device).wait(record_event(side));
        backward(loss);
        subject.update(call);
        return {subject.whole(loss)};
      },
      [](Subject&) {}, {.dropout = 0.2}, {"one rank", "fully sharded"},
      [] { return find_device("adversary:" + std::to_string(current_rank())); });
}
