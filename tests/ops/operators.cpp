// Every registered operator by its samples: results and gradients against PyTorch's, strided
// operands, shapes on the meta device. What is missing is printed.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <exception>
#include <iostream>
#include <map>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "operator_samples.hpp"

using namespace tessera;
using namespace tessera::testing;

namespace {

const OperatorSamples& all_samples() {
  static const OperatorSamples samples = read_operator_samples(TESSERA_REFERENCE_DATA);
  return samples;
}

std::string joined(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) {
    text += " " + name;
  }
  return text;
}

/// Writes down which operators run.
class Names final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    heard.insert(call.op.name);
    return next(call);
  }
  std::set<std::string> heard;
};

/// Operators that no stored sample calls, in forward or backward, with the test that compares them
/// with something else.
const std::map<std::string, std::string>& compared_elsewhere() {
  static const std::map<std::string, std::string> places = {
      {"adadelta_", "tests/optim/curves.cpp, with torch.optim"},
      {"adagrad_", "tests/optim/curves.cpp, with torch.optim"},
      {"adam_8bit_", "tests/optim/adam_8bit.cpp"},
      {"adamw_8bit_", "tests/optim/adam_8bit.cpp"},
      {"adam_", "tests/optim/curves.cpp, with torch.optim"},
      {"adamax_", "tests/optim/curves.cpp, with torch.optim"},
      {"adamw_", "tests/optim/curves.cpp, with torch.optim"},
      {"adamw_rounded_", "tests/optim/rounded.cpp"},
      {"asgd_", "tests/optim/curves.cpp, with torch.optim"},
      {"embedding_backward_", "tests/ops/training_ops.cpp"},
      {"linear_grad_input_", "tests/ops/training_ops.cpp"},
      {"linear_grad_weight_", "tests/ops/training_ops.cpp"},
      {"lion_", "tests/optim/curves.cpp, with torch.optim"},
      {"nadam_", "tests/optim/curves.cpp, with torch.optim"},
      {"radam_", "tests/optim/curves.cpp, with torch.optim"},
      {"rmsprop_", "tests/optim/curves.cpp, with torch.optim"},
      {"rprop_", "tests/optim/curves.cpp, with torch.optim"},
      {"scaled_linear", "tests/ops/float8.cpp"},
      {"scaled_linear_grad_input", "tests/ops/float8.cpp"},
      {"scaled_linear_grad_input_", "tests/ops/float8.cpp"},
      {"scaled_linear_grad_weight", "tests/ops/float8.cpp"},
      {"scaled_linear_grad_weight_", "tests/ops/float8.cpp"},
      {"sgd_", "tests/optim/curves.cpp, with torch.optim"},
      {"all_gather", "tests/ops/collective_ops.cpp"},
      {"all_gather_async", "tests/ops/collective_async.cpp"},
      {"all_gather_into", "tests/ops/collective_async.cpp"},
      {"all_reduce", "tests/ops/collective_ops.cpp"},
      {"all_reduce_", "tests/ops/collective_async.cpp"},
      {"all_reduce_async", "tests/ops/collective_async.cpp"},
      {"all_reduce_coalesced_", "tests/ops/collective_async.cpp"},
      {"all_to_all", "tests/ops/collective_ops.cpp"},
      {"all_to_all_async", "tests/ops/collective_async.cpp"},
      {"all_to_all_rows", "tests/ops/all_to_all_rows.cpp"},
      {"all_to_all_rows_async", "tests/ops/all_to_all_rows.cpp"},
      {"amax_magnitude", "tests/ops/math_ops.cpp"},
      {"amin_magnitude", "tests/ops/math_ops.cpp"},
      {"attention_block", "tests/ops/attention_block.cpp"},
      {"attention_block_backward", "tests/ops/attention_block.cpp"},
      {"attention_merge", "tests/ops/attention_block.cpp"},
      {"bernoulli", "tests/ops/math_ops.cpp"},
      {"bernoulli_", "tests/ops/math_ops.cpp"},
      {"broadcast", "tests/ops/collective_ops.cpp"},
      {"receive_", "tests/ops/collective_ops.cpp"},
      {"send", "tests/ops/collective_ops.cpp"},
      {"chunk_cat", "tests/ops/math_ops.cpp"},
      {"copy_", "below: what strided operands are made with"},
      {"counted_rows", "tests/dtensor/operators.cpp"},
      {"detach", "tests/ops/functions.cpp"},
      {"distribute", "tests/dtensor/conversions.cpp"},
      {"dropout", "tests/ops/training_ops.cpp, with stored numbers"},
      {"exact_sum", "tests/ops/exact_sum.cpp"},
      {"exact_value", "tests/ops/exact_sum.cpp"},
      {"exchange", "tests/dtensor/redistribute.cpp"},
      {"exchange_async", "tests/dtensor/redistribute.cpp"},
      {"exchange_messages", "tests/dtensor/redistribute.cpp"},
      {"fill_", "tests/dtensor/written_views.cpp"},
      {"foreach_add_", "tests/ops/math_ops.cpp"},
      {"foreach_addcdiv_", "tests/ops/math_ops.cpp"},
      {"foreach_addcmul_", "tests/ops/math_ops.cpp"},
      {"foreach_lerp_", "tests/ops/math_ops.cpp"},
      {"foreach_mul_", "tests/ops/math_ops.cpp"},
      {"foreach_squared_norm", "tests/ops/math_ops.cpp"},
      {"foreach_zero_", "tests/ops/math_ops.cpp"},
      {"from_local", "tests/dtensor/conversions.cpp"},
      {"from_local_terms", "tests/dtensor/conversions.cpp"},
      {"linear_in_blocks", "tests/ops/feature_blocks.cpp"},
      {"linear_in_blocks_grad_input", "tests/ops/feature_blocks.cpp"},
      {"linear_in_blocks_grad_weight", "tests/ops/feature_blocks.cpp"},
      {"linear_recurrence", "tests/ops/derivatives.cpp, with differences"},
      {"logits_statistics", "tests/plugins/loss_parallel/loss.cpp"},
      {"mirror", "tests/ops/collective_ops.cpp"},
      {"mirror_async", "tests/ops/collective_async.cpp"},
      {"multinomial", "tests/ops/math_ops.cpp"},
      {"normal_", "tests/ops/training_ops.cpp, with stored numbers"},
      {"quantize_f8", "tests/ops/float8.cpp"},
      {"randint_", "tests/ops/math_ops.cpp"},
      {"randperm_", "tests/ops/math_ops.cpp"},
      {"redistribute", "tests/dtensor/redistribute.cpp"},
      {"redistribute_between", "tests/dtensor/redistribute.cpp"},
      {"reduce_scatter", "tests/ops/collective_ops.cpp"},
      {"reduce_scatter_async", "tests/ops/collective_async.cpp"},
      {"reduce_scatter_into", "tests/ops/collective_async.cpp"},
      {"rotary_at", "tests/dtensor/operators.cpp"},
      {"rotary_at_inverse", "tests/dtensor/operators.cpp"},
      {"shift", "tests/ops/collective_ops.cpp"},
      {"shift_async", "tests/ops/collective_async.cpp"},
      {"softmax_statistics", "tests/plugins/loss_parallel/loss.cpp"},
      {"squared_norm", "tests/ops/math_ops.cpp"},
      {"to_device", "tests/device/tensors.cpp"},
      {"to_local", "tests/dtensor/conversions.cpp"},
      {"topk_across_ranks", "tests/dtensor/across_ranks.cpp"},
      {"uniform_", "tests/ops/training_ops.cpp, with stored numbers"},
      {"unique", "tests/dtensor/operators.cpp"},
      {"wait", "tests/ops/collective_async.cpp"},
      {"wait_readers", "tests/ops/collective_async.cpp"},
      {"whole_norm", "tests/dtensor/operators.cpp"},
      {"whole_sum", "tests/dtensor/across_ranks.cpp"},
  };
  return places;
}

/// A failure of the sample itself is a failure of the check, with the sample's name.
template <class F>
void for_each_sample(F&& check) {
  for (const OperatorSample& sample : all_samples().samples) {
    INFO(sample.name << " " << sample.op->schema);
    try {
      check(sample);
    } catch (const std::exception& error) {
      FAIL_CHECK(sample.name << " throws: " << error.what());
    }
  }
}

/// PyTorch's results come first; an operator may have more, which only its backward reads.
void check_count(std::size_t results, const OperatorSample& sample) {
  if (results < sample.outputs.size()) {
    fail("too few results");
  }
}

/// Losses of 16-bit operands may stay in f32, where PyTorch rounds them.
Tensor as_expected(const Tensor& result, const Tensor& expected) {
  const bool narrow = expected.dtype() == DType::bf16 || expected.dtype() == DType::f16;
  return narrow && result.dtype() == DType::f32 ? ops::cast(result, expected.dtype()) : result;
}

/// Roots and their gradients, of the outputs that take part.
struct Roots {
  std::vector<Tensor> roots;
  std::vector<Tensor> gradients;
};

Roots roots_of(const OperatorSample& sample, std::span<const Tensor> out) {
  Roots r;
  for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
    if (sample.output_gradients[i]) {
      r.roots.push_back(out[i]);
      r.gradients.push_back(ops::cast(sample.output_gradients[i], out[i].dtype()));
    }
  }
  return r;
}

}  // namespace

TEST_CASE("samples and operators know each other") {
  const OperatorSamples& s = all_samples();
  std::cout << "samples: " << s.samples.size()
            << "\nsamples without an operator:" << joined(s.without_operator)
            << "\noperators without a sample:" << joined(s.without_sample) << "\n";
  CHECK(s.samples.size() > 1200);
  // A composition of operators, not an operator.
  CHECK(s.without_operator == std::vector<std::string>{"mse_loss"});
}

TEST_CASE("operators give PyTorch's results") {
  for_each_sample([](const OperatorSample& sample) {
    const Tensors out = call(*sample.op, sample.inputs, sample.attributes);
    check_count(out.size(), sample);
    for (std::size_t i = 0; i < sample.outputs.size(); ++i) {
      INFO("got " << to_string(out[i]) << " expected " << to_string(sample.outputs[i]));
      CHECK(out[i].shape() == sample.outputs[i].shape());
      const Tensor result = as_expected(out[i], sample.outputs[i]);
      CHECK(result.dtype() == sample.outputs[i].dtype());
      CHECK(largest_difference(result, sample.outputs[i]) <= tolerance(result.dtype()));
    }
  });
}

TEST_CASE("operators give PyTorch's gradients") {
  std::set<std::string> compared;
  for_each_sample([&](const OperatorSample& sample) {
    const std::vector<Tensor> inputs = fresh_inputs(sample, true);
    const Tensors out = call(*sample.op, inputs, sample.attributes);
    const Roots r = roots_of(sample, out);
    if (r.roots.empty()) {
      return;
    }
    backward(r.roots, r.gradients);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const Tensor& expected = sample.input_gradients[i];
      if (!expected) {
        continue;
      }
      compared.insert(sample.op->name);
      const Tensor& found = inputs[i].grad();
      INFO("gradient " << i << " got " << to_string(found) << " expected " << to_string(expected));
      CHECK(found.defined());
      if (!found) {
        continue;
      }
      CHECK(found.dtype() == expected.dtype());
      CHECK(largest_difference(found, expected) <= tolerance(expected.dtype()));
    }
  });
  // Every operator that has a gradient and a sample, but those whose samples have none.
  std::set<std::string> differentiable;
  for (const OperatorSample& sample : all_samples().samples) {
    if (sample.op->backward != nullptr) {
      differentiable.insert(sample.op->name);
    }
  }
  CHECK(compared == differentiable);
}

TEST_CASE("every operator is compared with PyTorch, or elsewhere") {
  Names names;
  for_each_sample([&](const OperatorSample& sample) {
    const std::vector<Tensor> inputs = fresh_inputs(sample, true);
    const ModeScope scope(ModeLevel::below_distribution, names);
    const Tensors out = call(*sample.op, inputs, sample.attributes);
    const Roots r = roots_of(sample, out);
    if (!r.roots.empty()) {
      backward(r.roots, r.gradients);
    }
  });
  std::set<std::string> left;
  for (const std::string& name : all_samples().without_sample) {
    // A form is compared above.
    if (find_op(name).form_of == nullptr && !names.heard.contains(name)) {
      left.insert(name);
    }
  }
  std::set<std::string> stated;
  for (const auto& [name, place] : compared_elsewhere()) {
    stated.insert(name);
  }
  CHECK(left == stated);
}

TEST_CASE("forms that write a tensor give PyTorch's results") {
  std::set<std::string> compared;
  std::set<std::string> forms;
  for (const Op* form : all_ops()) {
    if (form->form_of == nullptr) {
      continue;
    }
    forms.insert(form->name);
    const bool into = form->operands.size() > form->form_of->operands.size();
    for_each_sample([&](const OperatorSample& sample) {
      if (sample.op != form->form_of) {
        return;
      }
      std::vector<Tensor> in = fresh_inputs(sample, false);
      if (into) {
        in.insert(in.begin(), empty(sample.outputs[0].shape(), sample.outputs[0].dtype()));
      }
      if (in[0].shape() != sample.outputs[0].shape() ||
          in[0].dtype() != sample.outputs[0].dtype()) {
        return;
      }
      const Tensor written = in[0];
      const Tensor result = call(*form, in, sample.attributes)[0];
      CHECK(result.same_as(written));
      CHECK(largest_difference(written, sample.outputs[0]) <= tolerance(written.dtype()));
      compared.insert(form->name);
    });
  }
  CHECK(compared == forms);
}

TEST_CASE("forms that write the first operand give PyTorch's gradients") {
  std::set<std::string> compared;
  for (const Op* form : all_ops()) {
    if (form->form_of == nullptr || form->operands.size() > form->form_of->operands.size()) {
      continue;
    }
    for_each_sample([&](const OperatorSample& sample) {
      if (sample.op != form->form_of || sample.op->backward == nullptr ||
          sample.inputs[0].shape() != sample.outputs[0].shape() ||
          sample.inputs[0].dtype() != sample.outputs[0].dtype()) {
        return;
      }
      const std::vector<Tensor> inputs = fresh_inputs(sample, true);
      std::vector<Tensor> in = inputs;
      in[0] = ops::clone(inputs[0]);
      const Tensors out = call(*form, in, sample.attributes);
      const Roots r = roots_of(sample, out);
      if (r.roots.empty()) {
        return;
      }
      CHECK(out[0].same_as(in[0]));
      backward(r.roots, r.gradients);
      for (std::size_t i = 0; i < inputs.size(); ++i) {
        const Tensor& expected = sample.input_gradients[i];
        INFO(form->name << ", gradient " << i << " expected " << to_string(expected));
        if (expected) {
          REQUIRE(inputs[i].grad().defined());
          CHECK(largest_difference(inputs[i].grad(), expected) <= tolerance(expected.dtype()));
          compared.insert(form->name);
        }
      }
    });
  }
  CHECK(compared.size() > 15);
}

TEST_CASE("strided operands give the results of contiguous ones") {
  for_each_sample([](const OperatorSample& sample) {
    if (sample.op->name == "as_strided") {
      return;  // its arguments name places in the memory, so strides matter
    }
    std::vector<Tensor> strided;
    for (const Tensor& x : sample.inputs) {
      // Every second element of memory twice as wide, after an offset.
      strided.push_back(x);
      if (x && x.dims() > 0 && x.numel() > 0) {
        Dims strides = contiguous_strides(x.shape());
        for (std::int64_t& stride : strides) {
          stride *= 2;
        }
        const Tensor memory = zeros({2 * x.numel() + 3}, x.dtype());
        strided.back() = alias(memory, x.shape(), strides, 3);
        ops::copy_(strided.back(), x);
      }
    }
    const Tensors out = call(*sample.op, strided, sample.attributes);
    check_count(out.size(), sample);
    for (std::size_t i = 0; i < sample.outputs.size(); ++i) {
      INFO("got " << to_string(out[i]) << " expected " << to_string(sample.outputs[i]));
      const Tensor result = as_expected(out[i], sample.outputs[i]);
      CHECK(largest_difference(result, sample.outputs[i]) <= tolerance(result.dtype()));
    }
  });
}

TEST_CASE("the meta device gives the shapes of the real one") {
  for_each_sample([](const OperatorSample& sample) {
    std::vector<Tensor> inputs;
    for (const Tensor& x : sample.inputs) {
      inputs.push_back(x ? empty(x.shape(), x.dtype(), meta) : Tensor());
    }
    const Tensors out = call(*sample.op, inputs, sample.attributes);
    check_count(out.size(), sample);
    ResultShapes inferred;
    sample.op->infer({*sample.op, inputs, sample.attributes}, inferred);
    REQUIRE(inferred.size() == out.size());
    for (std::size_t i = 0; i < out.size(); ++i) {
      CHECK(out[i].is_meta());
      CHECK(inferred[i].shape == out[i].shape());
      CHECK(inferred[i].dtype == out[i].dtype());
    }
    for (std::size_t i = 0; i < sample.outputs.size(); ++i) {
      CHECK(out[i].shape() == sample.outputs[i].shape());
    }
  });
}
