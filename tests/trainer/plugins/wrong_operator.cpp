// Operators with one fault each, for the tests of `tessera plugin check`; and one that only its
// examples can call.
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;

namespace {

using namespace tessera;

void infer(const Call& call, ResultShapes& out) {
  if (call.in[0].dtype() != DType::f64) {
    fail(call.op.name + ": f64 is expected");
  }
  out.push_back({call.in[0].shape(), DType::f64});
}

/// out = f(x), element by element.
template <double (*f)(double)>
void elementwise(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[0].data<double>()[i] = f(x.data<double>()[i]);
  }
}

double square(double x) { return x * x; }

/// 3 x instead of 2 x.
void wrong_backward(const BackwardContext& context, std::span<const Tensor> grads,
                    std::span<Tensor> out) {
  out[0] = ops::mul(grads[0], ops::mul_scalar(context.in[0], 3));
}

/// x minus the mean of all its elements, which a shard does not know.
void centred(const Call& call, std::span<Tensor> out) {
  const Tensor x = operands::contiguous(call.in[0]);
  double sum = 0;
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    sum += x.data<double>()[i];
  }
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    out[0].data<double>()[i] = x.data<double>()[i] - sum / static_cast<double>(x.numel());
  }
}

/// Writes its operand, too.
void scribbling(const Call& call, std::span<Tensor> out) {
  elementwise<square>(call, out);
  if (call.in[0].numel() > 0) {
    call.in[0].data<double>()[0] += 1;
  }
}

/// Takes every operand for one whose elements lie in order.
void dense(const Call& call, std::span<Tensor> out) {
  for (std::int64_t i = 0; i < out[0].numel(); ++i) {
    out[0].data<double>()[i] = square(call.in[0].data<double>()[i]);
  }
}

void crashing(const Call& call, std::span<Tensor> out) {
  if (call.in[0].dims() == 3) {
    std::abort();
  }
  elementwise<square>(call, out);
}

/// Only of 7 x 2.
void infer_special(const Call& call, ResultShapes& out) {
  if (!(call.in[0].shape() == Dims{7, 2})) {
    fail(call.op.name + ": the shape is wrong (expected [7, 2], got " +
         to_string(call.in[0].shape()) + ")");
  }
  infer(call, out);
}

void whole_only(const RuleContext&, Strategies&) {}

void special_examples(std::vector<OpExample>& out) {
  out.push_back({.operands = {full({7, 2}, 0.5, DType::f64)}});
}

Op op(const char* name, Kernel kernel) {
  return {.schema = std::string(name) + "(x)",
          .infer = infer,
          .cpu = kernel,
          .rule = rules::pointwise,
          .about = "An operator of a test."};
}

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  const auto add = [&](const char* name, Kernel kernel, void (*change)(Op&)) {
    registrar.add<OperatorPlugin>(name, [=] {
      Op made = op(name, kernel);
      change(made);
      return made;
    });
  };
  const auto as_it_is = [](Op&) {};
  add("wrong_derivative", elementwise<square>, [](Op& o) {
    o.backward = wrong_backward;
    o.saves_inputs = saves_all;
  });
  add("wrong_shards", centred, as_it_is);
  add("wrong_writes", scribbling, as_it_is);
  add("wrong_strides", dense, as_it_is);
  add("wrong_memory", crashing, as_it_is);
  add("wrong_element", elementwise<square>, [](Op& o) {
    o.element = [](const Call&) {
      return Element{.function = "Twice",
                     .header =
                         "struct Twice { template <class T> static T value(T x) "
                         "{ return x + x; } };"};
    };
  });
  add("hidden_special", elementwise<square>, [](Op& o) {
    o.infer = infer_special;
    o.rule = whole_only;
  });
  add("shown_special", elementwise<square>, [](Op& o) {
    o.infer = infer_special;
    o.rule = whole_only;
    o.examples = special_examples;
  });
}
