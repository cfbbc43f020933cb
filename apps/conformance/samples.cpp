module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.conformance;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.nn;
import tessera.optim;

namespace tessera::conformance {
namespace {

/// The call's shapes and attributes in words: calls with the same ones are the same sample.
std::string key_of(const Op& op, std::span<const Tensor> inputs, const Attributes& attributes) {
  std::string key = op.name;
  for (const Tensor& x : inputs) {
    key += x ? " " + std::string(name_of(x.dtype())) + to_string(x.shape()) : " none";
  }
  for (const std::int64_t value : attributes.fixed()) {
    key += "," + std::to_string(value);
  }
  for (const std::int64_t value : attributes.dynamic()) {
    key += ";" + std::to_string(value);
  }
  return key;
}

/// Arguments that follow from the types alone: each integer is `whole`, each number a half. Nothing
/// where there must be a group of ranks, or a layout.
std::optional<Attributes> arguments_with(const Op& op, std::int64_t whole) {
  if (op.arguments == nullptr) {
    return whole == 0 ? std::optional(Attributes{}) : std::nullopt;
  }
  std::vector<ArgumentValue> values = op.arguments->values(op.arguments->blank());
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::string_view type = op.arguments->fields[i].type;
    if (type == ArgumentType<ops::GroupArgument>::name ||
        (type == ArgumentType<SpecArgument>::name && op.rule == nullptr)) {
      return std::nullopt;
    }
    if (std::holds_alternative<double>(values[i])) {
      values[i] = 0.5;
    } else if (std::holds_alternative<std::int64_t>(values[i])) {
      values[i] = whole;
    } else if (type == ArgumentType<RandomNumbers>::name) {
      values[i] = ArgumentType<RandomNumbers>::value({.seed = 5, .stream = 3, .offset = 8});
    }
  }
  try {
    return op.arguments->from_values(values);
  } catch (const Error&) {
    return std::nullopt;
  }
}

/// Shapes of a call's operands; the last one is that of all further ones.
using Shapes = std::vector<Dims>;

const std::vector<Shapes>& shapes_to_try() {
  static const std::vector<Shapes> all = {
      {{3, 5}},                           // elementwise
      {{2, 3, 4}},                        //
      {{6}},                              //
      {{3, 5}, {5}},                      // rows and a vector: norms, biases
      {{3, 5}, {5, 4}},                   // products
      {{3, 5}, {4, 5}, {4}},              //
      {{2, 3, 5}, {2, 5, 4}},             //
      {{6, 5}, {6}},                      // rows and one number for each
      {{6, 4}, {3}},                      // a table and places in it
      {{2, 3, 2, 4}},                     // heads
      {{2, 3, 6, 6}, {4, 3, 3, 3}, {4}},  // images and filters
      {{}},                               // a scalar
  };
  return all;
}

/// 0, 1, 2, 0, ...: places in any of the shapes above.
Tensor small_integers(const Dims& shape) {
  const Tensor x = empty(shape, DType::i64);
  for (std::int64_t i = 0; i < x.numel(); ++i) {
    x.data<std::int64_t>()[i] = i % 3;
  }
  return x;
}

/// Which operands are integers, as bits.
std::vector<std::uint64_t> integer_masks(std::size_t count) {
  std::vector<std::uint64_t> masks = {0};
  for (std::size_t i = count; i-- > 0;) {
    masks.push_back(std::uint64_t{1} << i);
  }
  if (count > 1) {
    masks.push_back((std::uint64_t{1} << count) - 1);
  }
  return masks;
}

/// The operands of these shapes: lists have two entries, optional operands may be absent.
std::vector<Tensor> operands_of(const Op& op, const Shapes& shapes, DType dtype,
                                std::uint64_t integers, bool with_optional) {
  std::vector<Tensor> operands;
  const auto add = [&](std::size_t i, const Dims& shape, double shift) {
    operands.push_back((integers >> i & 1U) != 0 ? small_integers(shape)
                                                 : ops::cast(numbers(shape, shift), dtype));
  };
  for (std::size_t i = 0; i < op.operands.size(); ++i) {
    const Dims& shape = shapes[std::min(i, shapes.size() - 1)];
    const auto shift = static_cast<double>(i);
    if (op.operands[i].type == "tensor?" && !with_optional) {
      operands.emplace_back();
    } else if (op.operands[i].type == "tensor...") {
      add(i, shape, shift);
      add(i, shape, shift + 0.5);
    } else {
      add(i, shape, shift);
    }
  }
  return operands;
}

/// Whether the operator takes the call.
bool accepts(const Op& op, std::span<const Tensor> operands, const Attributes& attributes) {
  const NoGrad constant;
  try {
    ResultShapes results;
    if (op.infer != nullptr) {
      op.infer({op, operands, attributes}, results);
    }
    const Tensors out = tessera::call(op, copies_of(operands), attributes);
    return std::ranges::all_of(out, [](const Tensor& x) { return x.defined(); });
  } catch (const Error&) {
    return false;
  }
}

}  // namespace

bool is_small(std::span<const Tensor> inputs, std::int64_t most, bool any_type) {
  return std::ranges::all_of(inputs, [&](const Tensor& x) {
    return !x ||
           (x.numel() <= most && (any_type || !is_floating(x.dtype()) || x.dtype() == DType::f64));
  });
}

Tensors Recorder::call(const Call& heard, NextCall& next) {
  std::vector<Tensor> inputs = copies_of(heard.in);  // before what is written in place
  Tensors out = next(heard);
  add(heard.op, std::move(inputs), heard.attributes, {});
  return out;
}

void Recorder::add(const Op& op, std::vector<Tensor> inputs, const Attributes& attributes,
                   std::vector<Tensor> output_gradients, std::int64_t largest) {
  std::vector<CallSample>& samples = by_op[op.name];
  if (samples.size() >= most_ || !is_small(inputs, largest, any_type_) ||
      !keys_.insert(key_of(op, inputs, attributes)).second) {
    return;
  }
  const std::string name = op.name + "/" + source + std::to_string(samples.size());
  if (output_gradients.empty() && op.backward != nullptr) {
    ResultShapes results;
    op.infer({op, inputs, attributes}, results);
    for (std::size_t i = 0; i < results.size(); ++i) {
      const bool constant = i < 64 && ((op.constant_outputs >> i) & 1U) != 0;
      output_gradients.push_back(is_floating(results[i].dtype) && !constant
                                     ? ops::cast(numbers(results[i].shape, 1), results[i].dtype)
                                     : Tensor());
    }
  }
  samples.push_back({&op, name, std::move(inputs), attributes, std::move(output_gradients)});
}

void listen(Recorder& recorder, const char* source, const std::function<void()>& f) {
  recorder.source = source;
  const ModeScope scope(ModeLevel::above_distribution, recorder);
  f();
}

void make_samples(const Op& op, Recorder& recorder) {
  recorder.source = "example";
  if (op.examples != nullptr) {
    std::vector<OpExample> examples;
    op.examples(examples);
    for (OpExample& example : examples) {
      recorder.add(op, std::move(example.operands), example.attributes, {});
    }
  }
  recorder.source = "made";
  for (const std::int64_t whole : {0, 1, 2}) {
    const std::optional<Attributes> attributes = arguments_with(op, whole);
    for (const Shapes& shapes : attributes ? shapes_to_try() : std::vector<Shapes>{}) {
      for (const DType dtype : {DType::f64, DType::f32}) {
        for (const std::uint64_t integers : integer_masks(op.operands.size())) {
          for (const bool with_optional : {true, false}) {
            std::vector<Tensor> operands = operands_of(op, shapes, dtype, integers, with_optional);
            if (recorder.trying) {
              recorder.trying(key_of(op, operands, *attributes));
            }
            if (accepts(op, operands, *attributes)) {
              recorder.add(op, std::move(operands), *attributes, {});
            }
          }
        }
      }
    }
  }
}

void hear_training(Recorder& recorder) {
  set_seed(1);
  nn::DecoderLM model({.vocab = 6,
                       .dim = 4,
                       .layers = 1,
                       .heads = 2,
                       .kv_heads = 1,
                       .ffn_dim = 6,
                       .dropout = 0.2,
                       .standard_deviation = 0.3});
  model.set_names();
  nn::materialize(model);
  nn::initialize(model);
  const auto optimizer = optim::adamw(nn::all_parameters(model));
  const Tensor tokens = small_integers({2, 4});
  listen(recorder, "step", [&] {
    backward(ops::cross_entropy(model(tokens), tokens));
    optimizer->step(0.01, 1);
  });
}

}  // namespace tessera::conformance
