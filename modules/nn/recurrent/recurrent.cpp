// Layers with a state of equal size. Shapes: B rows, T tokens of each, C features.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;

namespace tessera::nn {
namespace {

/// A parameter that the ranks of a split by columns have parts of.
ParameterPointer parameter_of(const Dims& shape, DType dtype,
                              Initialization::Kind kind = Initialization::Kind::zeros,
                              double standard_deviation = 0) {
  return std::make_shared<Parameter>(shape, dtype, Initialization{kind, standard_deviation});
}

Tensor wide(const Tensor& x) { return x.dtype() == DType::f64 ? x : ops::cast(x, DType::f32); }

Tensor without_heads(const Tensor& x) {
  return ops::view(x, {x.size(0), x.size(1), x.size(2) * x.size(3)});
}

/// Each head's features with length 1, in f32.
Tensor unit(const Tensor& heads) {
  const Tensor x = wide(heads);
  const Tensor squares = ops::sum(ops::square(x), {3}, true);
  return ops::mul(x, ops::rsqrt(ops::add_scalar(squares, 1e-6)));
}

/// Tokens [B, T, ...] one after the other.
Tensor joined(const std::vector<Tensor>& parts) {
  return parts.size() == 1 ? parts[0] : ops::cat(parts, 1);
}

}  // namespace

std::int64_t RecurrentOptions::value_extent() const {
  return value_dim > 0 || value_heads == 0 ? value_dim : expand * dim / value_heads;
}

void RecurrentOptions::check() const {
  std::vector<std::pair<const char*, std::int64_t>> extents = {{"dim", dim}, {"kernel", kernel}};
  if (rule != RecurrentRule::convolution) {
    extents.insert(extents.end(), {{"key_heads", key_heads},
                                   {"value_heads", value_heads},
                                   {"key_dim", key_dim},
                                   {"value_dim", value_extent()}});
  }
  for (const auto& [name, value] : extents) {
    if (value < 1) {
      fail_input({.thing = "recurrent layer",
                  .wrong = fmt::format("{} must be at least 1", name),
                  .got = fmt::format("{}", value)});
    }
  }
  if (rule != RecurrentRule::convolution && value_heads % key_heads != 0) {
    fail_input({.thing = "recurrent layer",
                .wrong = fmt::format("key_heads must divide value_heads ({} value_heads, {} "
                                     "key_heads)",
                                     value_heads, key_heads)});
  }
}

std::int64_t RecurrentState::bytes() const {
  std::int64_t sum = bytes_of(sums);
  for (const Tensor& input : inputs) {
    sum += bytes_of(input);
  }
  for (const RecurrentState& text : of_texts) {
    sum += text.bytes();
  }
  return sum;
}

std::vector<std::string> RecurrentLayer::input_names() const {
  return {"hidden_states", "positions", "documents"};
}

RecurrentLayer::Entering RecurrentLayer::entering(const Tensors& inputs) const {
  const Tensor& hidden = input(inputs, 0);
  const Tensor& documents = inputs[2];
  if (state_ != nullptr && documents) {
    fail_input({.thing = fmt::format("module '{}'", name()),
                .wrong = "with a state of earlier tokens, it takes no documents"});
  }
  if (hidden.is_distributed()) {
    const Layout& layout = hidden.layout();
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (layout.placement(axis).is_shard(1)) {
        fail_input({.thing = fmt::format("module '{}'", name()),
                    .wrong = fmt::format("a recurrent layer needs all tokens of a row, and they "
                                         "are split along axis '{}'",
                                         layout.mesh().axis_name(axis)),
                    .advice = "leave this axis out of what splits sequences"});
      }
    }
  }
  for (const Tokens& tokens : tokens_of(hidden)) {
    const bool begins = state_ != nullptr && state_->batch != nullptr;
    RecurrentState* const state = tokens.state;
    if (begins && tokens.first == 0) {
      *state = {};
    }
    if (begins && state->length != tokens.first) {
      fail({.thing = "recurrent state",
            .wrong = "these tokens do not follow those before",
            .expected = fmt::format("position {}", state->length),
            .got = fmt::format("{}", tokens.first)});
    }
  }
  return {hidden, documents};
}

std::vector<RecurrentLayer::Tokens> RecurrentLayer::tokens_of(const Tensor& x) const {
  if (state_ == nullptr || state_->batch == nullptr) {
    return {{.count = x.size(1), .state = state_}};
  }
  std::vector<Tokens> all;
  std::int64_t begin = 0;
  for (const RaggedRow& row : state_->batch->rows) {
    all.push_back({.begin = begin,
                   .count = row.count,
                   .first = row.first,
                   .state = &state_->of_texts.at(static_cast<std::size_t>(row.state))});
    begin += row.count;
  }
  require(begin == x.size(1), "recurrent layer: the batch has another number of tokens");
  return all;
}

bool RecurrentLayer::is_exact() const {
  return state_ != nullptr && state_->batch != nullptr && state_->batch->exact;
}

Tensor RecurrentLayer::convolved(const Child& convolution, std::size_t which, const Tensor& x,
                                 const Tensor& documents) {
  std::vector<Tensor> results;
  for (const auto& [begin, count, first, state] : tokens_of(x)) {
    Tensor earlier;
    if (state != nullptr) {
      state->inputs.resize(std::max(state->inputs.size(), which + 1));
      earlier = state->inputs[which];
      if (earlier && earlier.size(0) != x.size(0)) {
        fail({.thing = "recurrent state",
              .wrong = "these rows are not those of the tokens before",
              .expected = fmt::format("{} rows", earlier.size(0)),
              .got = fmt::format("{}", x.size(0)),
              .advice = "clear the cache for another batch"});
      }
    }
    const Tensor own = count < x.size(1) ? ops::narrow(x, 1, begin, count) : x;
    Tensors out = (*convolution)(Tensors{own, documents, earlier});
    if (state != nullptr) {
      state->inputs[which] = out[1];
    }
    results.push_back(out[0]);
  }
  return joined(results);
}

void RecurrentLayer::count(const Tensor& hidden) {
  for (const Tokens& tokens : tokens_of(hidden)) {
    if (tokens.state != nullptr) {
      tokens.state->length += tokens.count;
    }
  }
}

CausalConvolution::CausalConvolution(std::int64_t features, std::int64_t kernel, bool bias,
                                     double standard_deviation, DType dtype)
    : kernel_(kernel) {
  add_parameter("weight", parameter_of({features, 1, kernel}, dtype, Initialization::Kind::normal,
                                       standard_deviation));
  if (bias) {
    add_parameter("bias", parameter_of({features}, dtype));
  }
  attach<LayerSplits>().declared = [this] {
    LayerSplit columns{.name = "columns", .inputs = {Shard(-1)}, .output = Shard(-1)};
    for (const auto& [name, parameter] : parameters()) {
      columns.parameters.push_back({parameter, Shard(0)});
    }
    return std::vector{std::move(columns)};
  };
}

std::string_view CausalConvolution::kind() const { return "CausalConvolution"; }
std::vector<std::string> CausalConvolution::input_names() const {
  return {"hidden_states", "documents", "earlier"};
}

Tensors CausalConvolution::forward(const Tensors& inputs) {
  const Tensor& x = input(inputs, 0);  // (B, T, C)
  const Tensor& documents = inputs[1];
  const std::int64_t tokens = x.size(1);
  const std::int64_t before = kernel_ - 1;
  const Tensor all = inputs[2] ? ops::cat(Tensors{inputs[2], x}, 1)
                               : ops::pad(x, {0, 0, before, 0});  // (B, before + T, C)
  const Tensor weight = parameters()[0].second->use();
  Tensor sum;
  for (std::int64_t i = 0; i < kernel_; ++i) {
    const std::int64_t distance = before - i;
    Tensor term =
        ops::mul(ops::narrow(all, 1, i, tokens), ops::select(ops::select(weight, 2, i), 1, 0));
    if (documents && distance > 0) {
      const Tensor earlier =
          ops::pad(documents, {distance, 0}, ops::PadMode::constant, -1);  // (B, distance + T)
      const Tensor same = ops::eq(documents, ops::narrow(earlier, 1, 0, tokens));
      term = ops::mul(term, ops::cast(ops::unsqueeze(same, 2), x.dtype()));
    }
    sum = sum ? ops::add(sum, term) : term;
  }
  if (parameters().size() > 1) {
    sum = ops::add(sum, parameters()[1].second->use());
  }
  return {sum, ops::contiguous(ops::narrow(all, 1, tokens, before))};
}

DecaySteps::DecaySteps(const RecurrentOptions& options)
    : low_(options.step_low), high_(options.step_high) {
  const std::int64_t heads = options.value_heads;
  const bool by_features = options.gate_rank > 0;
  add_parameter("A_log",
                parameter_of(by_features ? Dims{1, 1, heads, 1} : Dims{heads}, options.dtype));
  add_parameter("dt_bias", parameter_of({by_features ? heads * options.key_dim : heads},
                                        options.dtype, Initialization::Kind::ones));
  if (options.rule == RecurrentRule::sum) {
    add_parameter("D", parameter_of({heads}, options.dtype, Initialization::Kind::ones));
  }
  attach<LayerSplits>().declared = [this] {
    LayerSplit columns{.name = "columns", .inputs = {Shard(2)}, .output = Shard(2)};
    for (const auto& [name, parameter] : parameters()) {
      columns.parameters.push_back({parameter, Shard(parameter->value.dims() == 4 ? 2 : 0)});
    }
    return std::vector{std::move(columns)};
  };
}

std::string_view DecaySteps::kind() const { return "DecaySteps"; }
std::vector<std::string> DecaySteps::input_names() const { return {"input"}; }

Tensors DecaySteps::forward(const Tensors& inputs) {
  const Tensor x = wide(input(inputs, 0));
  const Tensor rates = ops::neg(ops::exp(wide(parameter("A_log")->use())));
  Tensor steps = ops::softplus(ops::add(x, wide(parameter("dt_bias")->use())));
  if (parameters().size() < 3) {
    if (rates.dims() == 4) {
      steps = heads_of(steps, x.size(2) / rates.size(2));
    }
    return {ops::mul(steps, rates)};
  }
  if (low_ > 0 || high_ > 0) {
    steps = ops::clamp(steps, low_, high_ > 0 ? high_ : 1e30);
  }
  return {ops::mul(steps, rates), steps, wide(parameter("D")->use())};
}

GroupedNorm::GroupedNorm(std::int64_t features, std::int64_t groups, double eps, DType dtype)
    : group_(features / groups), eps_(eps) {
  add_parameter("weight", parameter_of({features}, dtype, Initialization::Kind::ones));
  attach<LayerSplits>().declared = [this] {
    return std::vector<LayerSplit>{{.name = "columns",
                                    .parameters = {{parameter("weight"), Shard(0)}},
                                    .inputs = {Shard(-1)},
                                    .output = Shard(-1)}};
  };
}

std::string_view GroupedNorm::kind() const { return "GroupedNorm"; }
std::vector<std::string> GroupedNorm::input_names() const { return {"input"}; }

Tensors GroupedNorm::forward(const Tensors& inputs) {
  const Tensor groups = heads_of(input(inputs, 0), group_);
  const Tensor mean = ops::mean(ops::square(groups), {3}, true);
  const Tensor normed = ops::mul(groups, ops::rsqrt(ops::add_scalar(mean, eps_)));
  return {ops::mul(without_heads(normed), wide(parameter("weight")->use()))};
}

Recurrence::Recurrence(const RecurrentOptions& options) : options_(options) {
  options.check();
  const std::int64_t keys = options.key_heads * options.key_dim;
  const std::int64_t values = options.value_heads * options.value_extent();
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out) {
    return add_child<Linear>(name, in, out, options.bias, options.standard_deviation,
                             options.dtype);
  };
  const auto convolution = [&](const char* name, std::int64_t features) {
    return add_child<CausalConvolution>(name, features, options.kernel, options.convolution_bias,
                                        options.standard_deviation, options.dtype);
  };
  q_ = projection("q_proj", options.dim, keys);
  k_ = projection("k_proj", options.dim, keys);
  v_ = projection("v_proj", options.dim, values);
  add_gates();
  q_conv_ = convolution("q_conv", keys);
  k_conv_ = convolution("k_conv", keys);
  v_conv_ = convolution("v_conv", values);
  steps_ = add_child<DecaySteps>("steps", options);
  if (options.rule == RecurrentRule::sum) {
    norm_ =
        add_child<GroupedNorm>("norm", values, options.key_heads, options.norm_eps, options.dtype);
  } else {
    norm_ = add_child<RMSNorm>("norm", options.value_extent(), options.norm_eps, options.dtype);
  }
  o_ = projection("o_proj", values, options.dim);
  attach<LayerSplits>().check = [this](std::span<const int> axes) { check_heads(axes); };
}

void Recurrence::add_gates() {
  const RecurrentOptions& options = options_;
  const std::int64_t values = options.value_heads * options.value_extent();
  const auto projection = [&](const char* name, std::int64_t in, std::int64_t out) {
    return add_child<Linear>(name, in, out, options.bias, options.standard_deviation,
                             options.dtype);
  };
  if (options.gate_rank > 0) {
    gate_a_ = projection("gate_a_proj", options.dim, options.gate_rank);
    gate_ = projection("gate_b_proj", options.gate_rank, values);
    decay_a_ = projection("decay_a_proj", options.dim, options.gate_rank);
    decay_ = projection("decay_b_proj", options.gate_rank, options.value_heads * options.key_dim);
  } else {
    gate_ = projection("gate_proj", options.dim, values);
    decay_ = projection("decay_proj", options.dim, options.value_heads);
  }
  if (options.rule == RecurrentRule::delta) {
    strength_ = projection("strength_proj", options.dim, options.value_heads);
  }
}

std::string_view Recurrence::kind() const { return "Recurrence"; }

/// What comes out of the heads, [B, T, H V], normalized and multiplied by the gate.
Tensor Recurrence::gated(const Tensor& result, const Tensor& x) const {
  const Tensor projected = wide((*gate_)(gate_a_ ? (*gate_a_)(x) : x));  // (B, T, H V)
  const Tensor gate =
      options_.gate == OutputGate::silu ? ops::silu(projected) : ops::sigmoid(projected);
  if (options_.rule == RecurrentRule::sum) {
    return (*norm_)(ops::mul(without_heads(result), gate));
  }
  return ops::mul(without_heads((*norm_)(result)), gate);
}

/// What comes out of the heads, [B, T, H, V], of each text after its state.
Tensor Recurrence::summed(const RecurrenceInputs& inputs) const {
  std::vector<Tensor> results;
  for (const auto& [begin, count, first, state] : tokens_of(inputs.v)) {
    const auto own = [&](const Tensor& x) {
      return count < inputs.v.size(1) ? ops::narrow(x, 1, begin, count) : x;
    };
    RecurrenceInputs of_text = inputs;
    for (Tensor* const x :
         {&of_text.q, &of_text.k, &of_text.v, &of_text.decay, &of_text.strength}) {
      *x = own(*x);
    }
    of_text.sums = state != nullptr ? state->sums : Tensor();
    of_text.by_tokens = is_exact();
    RecurrenceResult result = recurrence(of_text);
    if (state != nullptr) {
      state->sums = std::move(result.sums);
    }
    results.push_back(std::move(result.y));
  }
  return joined(results);
}

Tensors Recurrence::forward(const Tensors& inputs) {
  const auto [x, documents] = entering(inputs);  // (B, T, C)
  const std::int64_t key_dim = options_.key_dim;
  const auto features = [&](const Child& projection, const Child& convolution, std::size_t which,
                            std::int64_t width) {
    const Tensor mixed = convolved(convolution, which, (*projection)(x), documents);
    return heads_of(activated(options_.activation, mixed), width);
  };
  Tensor q = features(q_, q_conv_, 0, key_dim);                        // (B, T, K, D)
  Tensor k = features(k_, k_conv_, 1, key_dim);                        // (B, T, K, D)
  const Tensor v = features(v_, v_conv_, 2, options_.value_extent());  // (B, T, H, V)
  const Tensors steps = (*steps_)(Tensors{(*decay_)(decay_a_ ? (*decay_a_)(x) : x)});
  RecurrenceInputs in;
  in.rule = options_.rule;
  in.v = v;
  in.decay = steps[0];
  in.documents = documents;
  if (options_.rule == RecurrentRule::delta) {
    in.q = ops::mul_scalar(unit(q), 1 / std::sqrt(static_cast<double>(key_dim)));
    in.k = unit(k);
    in.strength = ops::sigmoid(wide((*strength_)(x)));
  } else {
    in.q = std::move(q);
    in.k = std::move(k);
    in.strength = steps[1];
  }
  Tensor y = summed(in);
  count(x);
  if (steps.size() > 2) {
    y = ops::add(y, ops::mul(wide(v), ops::unsqueeze(steps[2], 1)));
  }
  return {(*o_)(ops::cast(gated(y, x), x.dtype()))};
}

/// Errors (input): heads that are cut where projections are split.
void Recurrence::check_heads(std::span<const int> axes) const {
  for (const Child* const projection : {&q_, &v_}) {
    const Tensor& weight = (*projection)->parameters()[0].second->value;
    const Layout& layout = weight.layout();
    std::int64_t shards = 1;
    for (const int axis : axes) {
      shards *= layout.placement(axis).is_shard(0) ? layout.mesh().axis_size(axis) : 1;
    }
    const std::int64_t heads = projection == &q_ ? options_.key_heads : options_.value_heads;
    if (heads % shards != 0) {
      fail_input({.thing = fmt::format("module '{}'", (*projection)->name()),
                  .wrong = fmt::format("its {} heads cannot be split over {} ranks", heads, shards),
                  .advice = "choose a mesh axis whose size divides the heads of the recurrent "
                            "layers, or leave them out of what is split"});
    }
  }
}

GatedConvolution::GatedConvolution(const RecurrentOptions& options) {
  options.check();
  const auto projection = [&](const char* name) {
    return add_child<Linear>(name, options.dim, options.dim, options.bias,
                             options.standard_deviation, options.dtype);
  };
  q_ = projection("q_proj");
  k_ = projection("k_proj");
  v_ = projection("v_proj");
  conv_ =
      add_child<CausalConvolution>("conv", options.dim, options.kernel, options.convolution_bias,
                                   options.standard_deviation, options.dtype);
  o_ = projection("o_proj");
}

std::string_view GatedConvolution::kind() const { return "GatedConvolution"; }

Tensors GatedConvolution::forward(const Tensors& inputs) {
  const auto [x, documents] = entering(inputs);  // (B, T, C)
  const Tensor mixed = convolved(conv_, 0, ops::mul((*k_)(x), (*v_)(x)), documents);
  count(x);
  return {(*o_)(ops::mul((*q_)(x), mixed))};
}

}  // namespace tessera::nn
