// Where calls come from: stored samples, the calls of their backward, and what follows from a
// schema.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <string>
#include <utility>
#include <vector>

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.conformance;

#include "conformance.hpp"
#include "operator_samples.hpp"

namespace tessera::testing {
namespace {

constexpr std::int64_t small_doubled = 800;

/// What the gradients of the samples call.
void hear_backward(const std::vector<OperatorSample>& samples, Recorder& recorder) {
  for (const OperatorSample& sample : samples) {
    if (!is_small(sample.inputs)) {
      continue;
    }
    const std::vector<Tensor> inputs = fresh_inputs(sample, true);
    const Tensors out = call(*sample.op, inputs, sample.attributes);
    std::vector<Tensor> roots;
    std::vector<Tensor> gradients;
    for (std::size_t i = 0; i < sample.output_gradients.size(); ++i) {
      if (sample.output_gradients[i]) {
        roots.push_back(out[i]);
        gradients.push_back(sample.output_gradients[i]);
      }
    }
    if (!roots.empty()) {
      listen(recorder, "backward", [&] { backward(roots, gradients); });
    }
  }
}

/// "mul_" and "mul_out" on the samples of "mul", where the result fits into what is written.
void write_operands(Recorder& recorder) {
  recorder.source = "written";
  for (const Op* op : all_ops()) {
    if (op->form_of == nullptr || !recorder.by_op.contains(op->form_of->name)) {
      continue;
    }
    const bool into = op->operands.size() > op->form_of->operands.size();
    const std::vector<CallSample> samples = recorder.by_op[op->form_of->name];
    for (const CallSample& sample : samples) {
      const Tensors out = call(*sample.op, sample.inputs, sample.attributes);
      std::vector<Tensor> inputs = sample.inputs;
      if (into) {
        inputs.insert(inputs.begin(), ops::cast(numbers(out[0].shape(), 6), out[0].dtype()));
      }
      if (out[0].shape() == inputs[0].shape() && out[0].dtype() == inputs[0].dtype()) {
        recorder.add(*op, std::move(inputs), sample.attributes, {});
      }
    }
  }
}

bool takes(const Op& op, const Tensor& x) {
  if (op.infer == nullptr) {
    return false;  // what it takes, another operator must have made: wait
  }
  try {
    ResultShapes results;
    op.infer({op, {&x, 1}, {}}, results);
  } catch (const Error&) {
    return false;  // bits of floating numbers
  }
  return true;
}

/// Every extent doubled, the values repeated.
Tensor doubled(const Tensor& x) {
  Tensor twice = x;
  for (int d = 0; d < x.dims(); ++d) {
    twice = ops::cat(std::vector{twice, twice}, d);
  }
  return twice;
}

bool has_odd_extent(std::span<const Tensor> inputs) {
  return std::any_of(inputs.begin(), inputs.end(), [](const Tensor& x) {
    return x && std::any_of(x.shape().begin(), x.shape().end(),
                            [](std::int64_t extent) { return extent > 1 && extent % 2 != 0; });
  });
}

/// For each operator one call with extents such as 6, which divide by each axis of a mesh of 2 x 2
/// and not by both: a sample with all extents doubled, where the operator takes it so.
void double_extents(Recorder& recorder) {
  recorder.source = "doubled";
  recorder.allow_more(1);
  for (const Op* op : all_ops()) {
    if (!recorder.by_op.contains(op->name)) {
      continue;
    }
    for (const CallSample& sample : std::vector<CallSample>(recorder.by_op[op->name])) {
      std::vector<Tensor> inputs;
      for (const Tensor& x : sample.inputs) {
        inputs.push_back(x ? doubled(x) : x);
      }
      if (!has_odd_extent(sample.inputs) || !is_small(inputs, small_doubled)) {
        continue;
      }
      try {
        call(*op, inputs, sample.attributes);
      } catch (const Error&) {
        continue;  // its attributes are of the extents
      }
      recorder.add(*op, std::move(inputs), sample.attributes, {}, small_doubled);
      break;
    }
  }
}

/// Operators of one tensor and nothing else take any.
void try_any_tensor(Recorder& recorder) {
  recorder.source = "any";
  for (const Op* op : all_ops()) {
    if (op->operands.size() == 1 && op->operands[0].type == "tensor" && op->parameters.empty() &&
        op->distributed == nullptr) {
      for (const Dims& shape : {Dims{3, 5}, Dims{2, 3, 4}, Dims{}, Dims{0, 3}}) {
        if (takes(*op, numbers(shape))) {
          recorder.add(*op, {numbers(shape)}, {}, {});
        }
      }
    }
  }
}

/// What the gradients of such operators call, where no stored sample leads to it.
void hear_backward_of_any(const std::vector<std::string>& without_sample, Recorder& recorder) {
  std::vector<OperatorSample> samples;
  for (const std::string& name : without_sample) {
    const Op& op = find_op(name);
    if (op.backward != nullptr && op.operands.size() == 1 && op.parameters.empty() &&
        op.form_of == nullptr && !name.starts_with("wrong_")) {
      for (const CallSample& sample : recorder.by_op[name]) {
        samples.push_back({.op = &op,
                           .name = sample.name,
                           .inputs = sample.inputs,
                           .attributes = sample.attributes,
                           .outputs = {},
                           .output_gradients = sample.output_gradients,
                           .input_gradients = {}});
      }
    }
  }
  hear_backward(samples, recorder);
}

void call_random(RandomStream& stream) {
  for (const Dims& shape : {Dims{3, 5}, Dims{2, 3, 4}, Dims{6}}) {
    const Tensor x = numbers(shape);
    ops::uniform_(x, -1, 2, stream);
    ops::normal_(x, 0, 1, stream);
    ops::dropout(numbers(shape), 0.4, stream);
    ops::bernoulli_(x, 0.4, stream);
    ops::bernoulli(ops::mul_scalar(numbers(shape), 0.4), stream);
    ops::randint_(x, -3, 9, stream);
    ops::randint_(zeros(shape, DType::i64), -3, 9, stream);
    ops::multinomial(numbers(shape), 5, true, stream);
    ops::multinomial(numbers(shape), 3, false, stream);
    ops::randperm_(zeros({shape.product()}, DType::i64), stream);
  }
}

/// Lists of tensors of several shapes; one list behind the other are one call's operands.
void call_lists() {
  for (const bool two : {false, true}) {
    const auto list = [&](double shift) {
      std::vector<Tensor> x{numbers({3, 4}, shift)};
      if (two) {
        x.push_back(numbers({5}, shift + 1));
      }
      return x;
    };
    const std::vector<Tensor> x = list(0);
    ops::foreach_zero_(list(0));
    ops::foreach_mul_(x, -0.5);
    ops::foreach_add_(x, list(1), 0.5);
    ops::foreach_lerp_(x, list(2), 0.25);
    ops::foreach_addcmul_(x, list(1), list(2), 0.5);
    ops::foreach_addcdiv_(x, list(3), list(4), 0.5);
    ops::foreach_squared_norm(x);
    ops::chunk_cat(x, 0, 2);
  }
  ops::chunk_cat(std::vector{numbers({2, 5, 3}), numbers({2, 2})}, 1, 3);
}

/// Blocks of attention, whose positions follow from no schema.
void call_attention_blocks() {
  const Tensor documents = from_values<std::int64_t>({3, 3, 6, 6, 0, 5, 5, 5}, {2, 4});
  for (const bool in_documents : {false, true}) {
    for (const std::int64_t window : {0, 3}) {
      const Tensor q = numbers({2, 4, 4, 3}, 1);
      const Tensor k = numbers({2, 5, 2, 3}, 2);
      const Tensor v = numbers({2, 5, 2, 3}, 3);
      const ops::AttentionBlockOptions options{.window = window,
                                               .softcap = window == 0 ? 0.0 : 2.0,
                                               .first_query = 4,
                                               .first_key = 2,
                                               .documents = in_documents ? documents : Tensor()};
      const ops::AttentionBlock block = ops::attention_block(q, k, v, options);
      ops::attention_merge(block, {numbers(block.y.shape(), 4), numbers(block.lse.shape(), 5)});
      ops::attention_block_backward(numbers(block.y.shape(), 6), q, k, v,
                                    numbers(block.lse.shape(), 7), ops::add_scalar(block.lse, 1),
                                    options);
    }
  }
}

/// Losses over a vocabulary that may be sharded: a flag that stored samples leave off.
void call_loss_parallel(Recorder& recorder) {
  const Tensor targets = from_values<std::int64_t>({0, 4, -1, 2, 3, 1}, {2, 3});
  const auto differentiate = [&](const std::function<Tensor(const Tensor&)>& f) {
    Tensor x = numbers({2, 3, 5});
    x.set_requires_grad();
    listen(recorder, "parallel", [&] { backward(ops::sum(f(x))); });
  };
  differentiate([&](const Tensor& x) {
    return ops::cross_entropy(
        x, targets, {.reduction = ops::Reduction::sum, .ignore_index = -1, .loss_parallel = true});
  });
  differentiate([&](const Tensor& x) { return ops::cross_entropy_rows(x, targets, -1, true); });
  for (const ops::Reduction reduction : {ops::Reduction::sum, ops::Reduction::mean}) {
    differentiate([&](const Tensor& x) { return ops::nll_loss(x, targets, reduction, -1); });
  }
  for (const int dim : {2, 1}) {
    differentiate([&](const Tensor& x) { return ops::log_softmax(x, dim, true); });
  }
}

/// Each optimizer's step, on lists of parameters with state; what is a square is not negative.
void call_updates(const std::function<std::vector<Tensor>(int seed)>& list) {
  const auto squares = [&](int seed) {
    std::vector<Tensor> all = list(seed);
    for (Tensor& x : all) {
      x = ops::square(x);
    }
    return all;
  };
  const std::vector<Tensor> none(2);
  const ops::AdamStep adam{.lr = 0.1,
                           .beta1 = 0.9,
                           .beta2 = 0.95,
                           .eps = 1e-8,
                           .weight_decay = 0.1,
                           .grad_scale = 0.5,
                           .step = 3};
  ops::AdamStep amsgrad = adam;
  amsgrad.amsgrad = true;
  ops::adam_(list(2), list(3), list(4), squares(5), none, adam);
  ops::adam_(list(2), list(3), list(4), squares(5), squares(6), amsgrad);
  ops::adamw_(list(2), list(3), list(4), squares(5), none, adam);
  ops::adamw_(list(2), list(3), list(4), squares(5), squares(6), amsgrad);
  for (const char* const maximum : {"false", "true"}) {
    const Op& rounded = find_op("adamw_rounded_");
    const std::string step =
        R"({"lr": 0.1, "beta1": 0.9, "beta2": 0.95, "eps": 1e-8, "weight_decay": 0.1, )"
        R"("grad_scale": 0.5, "step": 3, "maximize": false, "seed": 5, "stream": 8, )"
        R"("whole": "none", "amsgrad": )";
    call(rounded,
         {numbers({3, 5}, 2), numbers({3, 5}, 3), numbers({3, 5}, 4),
          ops::square(numbers({3, 5}, 5)), ops::square(numbers({3, 5}, 6))},
         attributes_from_json(*rounded.arguments, step + maximum + "}", "adamw_rounded_"));
  }
  // Vectors are sharded by whole blocks only.
  const auto matrices = [](int seed) {
    return std::vector<Tensor>{numbers({3, 5}, seed), numbers({5, 2, 2}, seed + 1)};
  };
  const auto codes = [&](int seed) {
    std::vector<Tensor> all = matrices(seed);
    for (Tensor& x : all) {
      x = ops::cast(ops::mul_scalar(ops::square(x), 40), DType::u8);
    }
    return all;
  };
  const auto scales = [&](int seed) {
    std::vector<Tensor> all;
    for (const Tensor& x : matrices(seed)) {
      all.push_back(ops::square(numbers(ops::quantized_blocks(x.shape()), seed)));
    }
    return all;
  };
  ops::adam_8bit_(matrices(2), matrices(3), codes(4), scales(5), codes(6), scales(7), adam);
  ops::adamw_8bit_(matrices(2), matrices(3), codes(4), scales(5), codes(6), scales(7), adam);
  ops::sgd_(list(2), list(3), list(4),
            {.lr = 0.1,
             .momentum = 0.9,
             .weight_decay = 0.1,
             .grad_scale = 0.5,
             .step = 2,
             .nesterov = true});
  ops::sgd_(list(2), list(3), none, {.lr = 0.1, .grad_scale = 1, .step = 1});
  ops::adagrad_(list(2), list(3), squares(4),
                {.lr = 0.1, .eps = 1e-8, .weight_decay = 0.1, .grad_scale = 0.5, .step = 2});
  ops::adadelta_(list(2), list(3), squares(4), squares(5),
                 {.lr = 1, .rho = 0.9, .eps = 1e-6, .weight_decay = 0.1, .grad_scale = 0.5});
  ops::adamax_(list(2), list(3), list(4), squares(5),
               {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8, .grad_scale = 0.5, .step = 3});
  ops::nadam_(list(2), list(3), list(4), squares(5),
              {.lr = 0.1,
               .beta1 = 0.9,
               .beta2 = 0.95,
               .eps = 1e-8,
               .weight_decay = 0.1,
               .momentum_decay = 4e-3,
               .grad_scale = 0.5,
               .step = 3});
  for (const std::int64_t step : {3, 30}) {  // without the adaptive rate, and with it
    ops::radam_(list(2), list(3), list(4), squares(5),
                {.lr = 0.1,
                 .beta1 = 0.9,
                 .beta2 = 0.95,
                 .eps = 1e-8,
                 .weight_decay = 0.1,
                 .grad_scale = 0.5,
                 .step = step});
  }
  ops::RMSpropStep rmsprop{.lr = 0.1, .alpha = 0.9, .eps = 1e-2, .grad_scale = 0.5};
  ops::rmsprop_(list(2), list(3), squares(4), none, none, rmsprop);
  rmsprop.momentum = 0.9;
  rmsprop.centered = true;
  ops::rmsprop_(list(2), list(3), squares(4), list(5), list(6), rmsprop);
  ops::rprop_(list(2), list(3), list(4), squares(5),
              {.lr = 0.1,
               .decrease = 0.5,
               .increase = 1.2,
               .smallest = 1e-6,
               .largest = 50,
               .grad_scale = 0.5,
               .step = 2});
  ops::asgd_(list(2), list(3), list(4),
             {.lr = 0.1, .lambd = 1e-2, .alpha = 0.75, .t0 = 1, .grad_scale = 0.5, .step = 4});
  ops::lion_(list(2), list(3), list(4),
             {.lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .weight_decay = 0.1, .grad_scale = 0.5});
}

/// Operators that no sample leads to: their attributes come from the functions that users call.
void call_the_rest(Recorder& recorder) {
  recorder.allow_more(2);
  listen(recorder, "call", [] {
    struct WholeNormArgs {
      double p;
    };
    struct DimArgs {
      std::int64_t dim;
    };
    for (const double p : {2.0, 3.0}) {  // called where a gradient meets norms of parts
      call(find_op("whole_norm"), {numbers({2, 3})}, WholeNormArgs{p});
    }
    constexpr double infinity = std::numeric_limits<double>::infinity();
    const Tensor parts = numbers({2, 3, 5});
    ops::amax(parts, {1}, true, true);  // across ranks: a flag that stored samples leave off
    ops::amin(parts, {0, 2}, false, true);
    for (const double p : {infinity, -infinity}) {
      ops::norm(parts, p);
      ops::norm(parts, p, {1}, true, true);
      ops::norm(parts, p, {0, 2}, false);
    }
    for (const char* arguments :
         {"k=2, dim=1, largest=true, whole=none", "k=3, dim=2, largest=false, whole=none"}) {
      const Op& topk = find_op("topk_across_ranks");  // of distributed tensors only
      call(topk, {parts}, parse_arguments(topk, arguments));
    }
    for (const char* arguments : {"dtype=f8e4m3, scales=rows, powers_of_two=true, order=as_x",
                                  "dtype=f8e5m2, scales=columns, powers_of_two=false, order=both",
                                  "dtype=f8e4m3, scales=columns, powers_of_two=true, order=turned",
                                  "dtype=f8e5m2, scales=whole, powers_of_two=false, order=as_x"}) {
      const Op& quantize = find_op("quantize_f8");
      call(quantize, {parts, Tensor()},
           attributes_from_text(*quantize.arguments, arguments, "quantize_f8"));
    }
    RandomStream stream{.seed = 7, .stream = 3, .offset = 8};
    call_random(stream);
    call_lists();
    call_attention_blocks();
    for (const Dims& shape : {Dims{3, 5}, Dims{2, 3, 4}, Dims{6}}) {
      const Tensor x = numbers(shape);
      ops::fill_(x, 2.5);
      ops::copy_(x, numbers(shape, 2));
      ops::copy_(x, numbers(Dims{shape.back()}, 2));
      const auto list = [&](int seed) {
        return std::vector<Tensor>{numbers(shape, seed), numbers({4}, seed + 1)};
      };
      call_updates(list);
    }
    for (const Dims& rows : {Dims{5}, Dims{2, 3}}) {
      const auto of_rows = [&](std::int64_t last, int seed) {
        Dims shape = rows;
        shape.push_back(last);
        return numbers(shape, seed);
      };
      ops::linear_grad_weight_(numbers({4, 7}), of_rows(4, 1), of_rows(7, 2));
      call_one(find_op("linear_grad_input_"), {of_rows(7, 0), of_rows(4, 1), numbers({4, 7}, 2)});
      const Tensor places = from_values<std::int64_t>({3, 0, 3, 1, 2, 3}, {6});
      const Op& add_rows = find_op("embedding_backward_");
      call(add_rows,
           {numbers({4, 7}), of_rows(7, 1),
            ops::view(ops::narrow(places, 0, 0, rows.product()), rows)},
           attributes_from_text(*add_rows.arguments, "whole=none", "embedding_backward_"));
      const auto in_blocks = [](const char* op, const Tensor& a, const Tensor& b) {
        call(find_op(op), {a, b}, attributes_from_text(*find_op(op).arguments, "out=4, in=2", op));
      };
      in_blocks("linear_in_blocks", of_rows(6, 1), numbers({12, 6}, 2));
      in_blocks("linear_in_blocks_grad_input", of_rows(12, 1), numbers({12, 6}, 2));
      in_blocks("linear_in_blocks_grad_weight", of_rows(12, 1), of_rows(6, 2));
    }
    for (const char* scan : {"linear_recurrence", "linear_recurrence_from_end"}) {
      call_one(find_op(scan), {numbers({3, 4, 2}), numbers({3, 4, 2}, 1)}, DimArgs{1});
    }
    Tensor repeated = numbers({7});
    repeated.set_requires_grad();
    backward(ops::sum(ops::as_strided(repeated, {5, 3}, {0, 2}, 1)));  // rows on one memory
    const auto theta = [](const char* op) {
      return attributes_from_text(*find_op(op).arguments,
                                  "theta=100, scaling=yarn, factor=4, original_positions=64, "
                                  "low=1, high=32, amplitude=1.5, whole_dims=true",
                                  op);
    };
    for (const Dims& shape : {Dims{5}, Dims{2, 5}}) {
      const Tensor turned = numbers({2, 5, 2, 4});
      const Tensor positions = ops::cast(ops::mul_scalar(numbers(shape), 3), DType::i64);
      call(find_op("rotary_at"), {turned, positions}, theta("rotary_at"));
      call(find_op("rotary_at_inverse"), {turned, positions}, theta("rotary_at_inverse"));
    }
    // Long rows in groups of nearly all rows, of which a workspace is full.
    const Tensor long_rows = numbers({9, 20});
    const Tensor group_rows = from_values<std::int64_t>({5, 4}, {2});
    ops::grouped_mm(long_rows, numbers({2, 20, 2}), group_rows);
    ops::grouped_outer(long_rows, numbers({9, 2}), group_rows);
    const Op& to_device = find_op("to_device");
    call(to_device, {numbers({2, 5})},
         attributes_from_text(*to_device.arguments, "device=cpu, from=cpu", "to_device"));
    stream.offset = 4;
    const Tensor q = numbers({3, 4, 2, 3});
    const Tensor k = numbers({3, 2, 5, 3}, 1);
    ops::scaled_dot_product_attention(q, k, numbers(k.shape(), 2), numbers({4, 2, 5}, 3), 0.4,
                                      ops::Causal::none, 0, stream);
  });
}

}  // namespace

std::vector<CallSample> call_samples(std::size_t most) {
  const OperatorSamples stored = read_operator_samples(TESSERA_REFERENCE_DATA);
  Recorder recorder(most);
  call_loss_parallel(recorder);  // first: `most` counts
  recorder.source = "stored";
  for (const bool empty_ones : {false, true}) {  // those with elements first
    for (const OperatorSample& sample : stored.samples) {
      const bool empty = std::any_of(sample.inputs.begin(), sample.inputs.end(),
                                     [](const Tensor& x) { return x && x.numel() == 0; });
      if (empty == empty_ones) {
        recorder.add(*sample.op, sample.inputs, sample.attributes, sample.output_gradients);
      }
    }
  }
  write_operands(recorder);
  hear_backward(stored.samples, recorder);
  try_any_tensor(recorder);
  hear_backward_of_any(stored.without_sample, recorder);
  call_the_rest(recorder);
  double_extents(recorder);
  std::vector<CallSample> all;
  for (const auto& [name, samples] : recorder.by_op) {
    all.insert(all.end(), samples.begin(), samples.end());
  }
  return all;
}

}  // namespace tessera::testing
