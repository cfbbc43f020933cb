// The experts of a mixture: rows in the order of their experts, and the exchange of rows between
// ranks that have different ones.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.calls;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

/// The ranks that share the experts, how many there are, and the names of their mesh axes.
struct Owners {
  std::optional<ops::GroupArgument> group = std::nullopt;
  std::int64_t count = 1;
  std::string axis = {};  // the mesh's
};

/// Reports an exchange between the owners of experts of which this rank gets `result`, as if all
/// experts had as many tokens. Its gradient, if there will be one, is exchanged too.
void report_exchange(const Owners& owners, const Tensor& result, std::int64_t rows) {
  if (!communication_reported()) {
    return;
  }
  const std::int64_t elements = rows * (result.numel() / std::max<std::int64_t>(result.size(0), 1));
  const std::int64_t bytes = collective::received_bytes(
      result.dtype(), collective::even_counts(elements, owners.group->size()),
      owners.group->rank());
  Communication exchange{.operation = std::string(name_of(collective::CallKind::all_to_all)),
                         .axis = owners.axis,
                         .bytes = bytes,
                         .where = "experts"};
  record_communication(exchange);
  if (result.requires_grad()) {
    exchange.backward = true;
    record_communication(exchange);
  }
}

/// The inputs of a layer's experts: those of forward, and their two or three matrices. The last one
/// gives the result, the first ones are a gate's, where there is one, and the other factor's.
struct ExpertInputs {
  Tensor hidden;                     // (..., C)
  Tensor weights, chosen;            // (..., P): of a token's experts, and their numbers
  Tensor kept;                       // (..., P); undefined: all
  std::span<const Tensor> matrices;  // (E, F, C) and (E, C, F), of this rank's experts
  std::span<const Tensor> biases;    // (E, F) and (E, C); empty: there are none

  std::size_t last() const { return matrices.size() - 1; }
};

/// What each expert computes, besides its matrices.
struct ExpertFunction {
  Activation activation = Activation::silu;
  GateLimits limits = {};
  bool weigh_inputs = false;  // see MixtureOptions
  bool adds_bias = true;      // this rank adds the bias of the result
};

/// Rows on their way (see all_to_all_rows): issued when it is made, and complete after wait().
/// These are two recorded steps, so that in backward the gradient's way back is issued by the one,
/// and waited for by the other, behind what was computed between them.
class RowsInFlight {
 public:
  struct Counts {
    Tensor sends, receives;
    ops::GroupArgument group;
  };

  RowsInFlight(const Tensor& x, Counts counts, std::int64_t rows, ops::RowOrder order)
      : counts_(std::move(counts)), sent_rows_(x.size(0)), order_(order) {
    {
      const NoGrad no_grad;
      rows_ = ops::all_to_all_rows_async(x, counts_.sends, counts_.receives, rows, order,
                                         counts_.group);
      sent_ = detached(x);
    }
    record_function("send_rows", {&x, 1}, {&sent_, 1},
                    [](std::span<const Tensor> grads, std::span<Tensor> out) {
                      out[0] = grad_enabled() ? grads[0] : ops::PendingTensor(grads[0]).wait();
                    });
  }

  Tensor wait() {
    Tensor arrived;
    {
      const NoGrad no_grad;
      arrived = detached(std::exchange(rows_, {}).wait());
    }
    record_function(name, {&sent_, 1}, {&arrived, 1}, way_back());
    sent_ = Tensor();
    return arrived;
  }

 private:
  FunctionBackward way_back() const {
    return [receives = SavedTensor(counts_.receives), sends = SavedTensor(counts_.sends),
            rows = sent_rows_, group = counts_.group,
            order = order_ == ops::RowOrder::by_rank ? ops::RowOrder::by_group
                                                     : ops::RowOrder::by_rank](
               std::span<const Tensor> grads, std::span<Tensor> out) {
      const Tensor& from = receives.get(name);
      const Tensor& to = sends.get(name);
      // A gradient that has one itself is not in flight between the two steps.
      out[0] = grad_enabled()
                   ? ops::all_to_all_rows(grads[0], from, to, rows, order, group)
                   : ops::all_to_all_rows_async(grads[0], from, to, rows, order, group).in_flight();
    };
  }

  static constexpr const char* name = "receive_rows";
  Counts counts_;
  std::int64_t sent_rows_;
  ops::RowOrder order_;
  ops::PendingTensor rows_;
  Tensor sent_;  // connects the two steps
};

/// An expert's matrix by the place of its dims: [experts, out, in] as grouped_mm takes it.
Tensor transposed(const Tensor& weights) { return ops::transpose(weights, 1, 2); }

/// Experts on this rank's tensors. Shapes: N tokens, P experts per token, C features of the model,
/// E experts of all owners, O owners.
class LocalExperts {
 public:
  /// `experts`: of all owners. `beside`: see Experts::compute_beside; it outlives this.
  LocalExperts(const ExpertInputs& in, const ExpertFunction& function, std::int64_t experts,
               Owners owners, const Experts::Beside& beside)
      : in_(in),
        function_(function),
        experts_(experts),
        owners_(std::move(owners)),
        beside_(beside) {}

  Tensor result() const {
    const Tensor& hidden = in_.hidden;
    const std::int64_t dim = hidden.size(-1);
    const std::int64_t per_token = in_.chosen.size(-1);
    const std::int64_t tokens = hidden.numel() / dim;
    const Tensor chosen = ops::reshape(in_.chosen, {tokens * per_token});  // (N * P)
    const Tensor kept = in_.kept ? ops::reshape(in_.kept, chosen.shape()) : Tensor();
    Counts counts{ops::scatter_add(zeros({experts_}, DType::i64, hidden.device()), chosen,
                                   kept ? ops::cast(kept, DType::i64) : ops::ones_like(chosen), 0)};
    if (owners_.group) {
      counts.arriving = ops::all_to_all_async(ops::view(counts.own, {1, experts_}), 0,
                                              owners_.count, 1, *owners_.group);
    }
    // Stable: an expert's tokens stay in their order. Rows of no expert come last.
    const Tensor order = ops::argsort(kept ? rows_of_none(chosen, kept) : chosen);  // (N * P)
    const Tensor place = ops::argsort(order);                                       // its inverse
    const Tensor token = ops::floor_divide(
        order, full({}, static_cast<double>(per_token), DType::i64, hidden.device()));
    // (N * P, C), both
    const Tensor rows = ops::index_select(ops::reshape(hidden, {tokens, dim}), token, 0);
    const Tensor computed = exchanged(weighted(rows, order), counts, per_token);
    // (N, P, C)
    const Tensor by_token =
        ops::view(ops::index_select(computed, place, 0), {tokens, per_token, dim});
    if (function_.weigh_inputs) {
      return ops::reshape(ops::sum(by_token, {1}), hidden.shape());
    }
    // (N, P, 1)
    const Tensor weights =
        ops::cast(ops::reshape(in_.weights, {tokens, per_token, 1}), hidden.dtype());
    return ops::reshape(ops::sum(ops::mul(by_token, weights), {1}), hidden.shape());
  }

 private:
  /// How many of this rank's rows each expert gets, [experts]; and on their way, where there are
  /// several owners, those that each of them sends to this rank's experts.
  struct Counts {
    Tensor own;
    ops::PendingTensor arriving = {};
  };

  /// Rows in the order of their experts, times their weights where inputs are weighted.
  Tensor weighted(const Tensor& rows, const Tensor& order) const {
    if (!function_.weigh_inputs) {
      return rows;
    }
    const Tensor weights = ops::cast(ops::reshape(in_.weights, {order.size(0), 1}), rows.dtype());
    return ops::mul(rows, ops::index_select(weights, order, 0));
  }

  /// The numbers of experts, where there is one; elsewhere a number after all of them.
  Tensor rows_of_none(const Tensor& chosen, const Tensor& kept) const {
    return ops::where(
        kept, chosen,
        full(chosen.shape(), static_cast<double>(experts_), DType::i64, chosen.device()));
  }

  /// Rows of each expert, [rows, dim]; `expected` rows have one.
  Tensor feed_forward(const Tensor& rows, const Tensor& counts, std::int64_t expected) const {
    const auto product = [&](const Tensor& x, std::size_t matrix) {
      const Tensor result = ops::grouped_mm(x, transposed(in_.matrices[matrix]), counts, expected);
      if (in_.biases.empty()) {
        return result;
      }
      // Each row's bias is a product too: rows of no expert get none.
      const bool counted = matrix < in_.last() || function_.adds_bias;
      const Tensor ones = full({x.size(0), 1}, counted ? 1 : 0, x.dtype(), x.device());
      return ops::add(
          result, ops::grouped_mm(ones, ops::unsqueeze(in_.biases[matrix], 1), counts, expected));
    };
    const Tensor first = product(rows, 0);  // (rows, F)
    if (in_.last() == 1) {
      return product(activated(function_.activation, first), 1);
    }
    const Tensor up = product(rows, 1);  // (rows, F)
    return product(gated(function_.activation, function_.limits, first, up), 2);
  }

  /// Of rows in the order of the experts, also where these are on other ranks.
  Tensor exchanged(const Tensor& rows, Counts& counts, std::int64_t per_token) const {
    const std::int64_t sent = rows.size(0);
    if (!owners_.group) {
      return feed_forward(rows, counts.own, sent);
    }
    const std::int64_t own = experts_ / owners_.count;
    const Tensor sends = ops::view(counts.own, {owners_.count, own});  // (O, E / O)
    const Tensor receives = counts.arriving.wait();                    // (O, E / O)
    report_exchange(owners_, receives, receives.size(0));
    // A token has at most one row for each of a rank's experts.
    const std::int64_t most = sent / per_token * std::min(per_token, own) * owners_.count;
    RowsInFlight to_experts(rows, {sends, receives, *owners_.group}, most, ops::RowOrder::by_group);
    std::optional<RowsInFlight> to_tokens;
    const auto compute = [&, layer = current_module()] {
      if (!to_tokens) {
        const ModuleScope scope(layer);
        const Tensor arrived = to_experts.wait();  // (at most `most`, C), by expert
        report_exchange(owners_, arrived, sent);
        to_tokens.emplace(feed_forward(arrived, ops::sum(receives, {0}), sent),
                          RowsInFlight::Counts{receives, sends, *owners_.group}, sent,
                          ops::RowOrder::by_rank);
      }
    };
    if (beside_) {
      beside_(compute);
    }
    compute();
    const Tensor returned = to_tokens->wait();  // as rows
    report_exchange(owners_, returned, sent);
    return returned;
  }

  ExpertInputs in_;
  ExpertFunction function_;
  std::int64_t experts_;
  Owners owners_;
  const Experts::Beside& beside_;
};

/// How experts are distributed: along which axes of several ranks they are split, the outermost one
/// first, and along which ones their features are.
struct ExpertLayout {
  std::vector<int> experts = {};
  std::vector<int> features = {};
};

[[noreturn]] void refuse_layout(const Experts& layer, std::string wrong, std::string got,
                                std::string advice) {
  fail_input({.thing = "module '" + layer.name() + "'",
              .wrong = std::move(wrong),
              .got = std::move(got),
              .advice = std::move(advice)});
}

/// Errors: biases that are not split as their matrices are.
void check_biases(const Experts& layer, const ExpertInputs& in, const ExpertLayout& split) {
  for (std::size_t i = 0; i < in.biases.size(); ++i) {
    const Layout& layout = in.biases[i].layout();
    Layout expected = Layout::replicated(layout.mesh());
    for (const int axis : split.experts) {
      expected = expected.with_placement(axis, Shard(0));
    }
    for (const int axis : split.features) {
      expected = i < in.last() ? expected.with_placement(axis, Shard(1)) : expected;
    }
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (layout.placement(axis) != expected.placement(axis) && layout.mesh().axis_size(axis) > 1) {
        refuse_layout(layer, "its biases are not split as its matrices are", to_string(layout),
                      "split all parameters of the layer by one style");
      }
    }
  }
}

/// Errors: layouts of tokens and matrices that do not go together.
ExpertLayout layout_of(const Experts& layer, const ExpertInputs& in) {
  const Layout tokens = in.hidden.layout();
  const auto placement = [&](std::size_t matrix, int axis) {
    return in.matrices[matrix].layout().placement(axis);
  };
  if (tokens.has_partial() || tokens.shards(in.hidden.dims() - 1)) {
    refuse_layout(layer, "each rank needs whole hidden states", to_string(*in.hidden.spec()),
                  "use PrepareModuleInput");
  }
  ExpertLayout found;
  for (int axis = 0; axis < tokens.ndim(); ++axis) {
    const Placement first = placement(0, axis);
    const Placement down = placement(in.last(), axis);
    const bool same = in.last() == 1 || first == placement(1, axis);
    const bool whole = first.is_replicate() && down.is_replicate();
    if (tokens.mesh().axis_size(axis) == 1 || (same && whole)) {
      continue;
    }
    const bool split = tokens.placement(axis).is_shard();
    if (same && first.is_shard(0) && down.is_shard(0) && split) {
      found.experts.push_back(axis);
    } else if (same && first.is_shard(1) && down.is_shard(2) && !split) {
      found.features.push_back(axis);
    } else {
      refuse_layout(layer, "its experts are split in a way that it cannot compute",
                    "up_proj " + to_string(in.matrices[in.last() - 1].layout()) + ", down_proj " +
                        to_string(in.matrices[in.last()].layout()) + ", tokens " +
                        to_string(tokens),
                    "use ExpertParallel on axes along which the batch is split, "
                    "RowwiseParallel on others");
    }
  }
  check_biases(layer, in, found);
  // Whose part an expert is depends on which axis was applied first.
  const auto outer_first = [&](std::size_t matrix) {
    std::vector<int> axes;
    for (const int axis : in.matrices[matrix].layout().axes_sharding(0)) {
      if (std::ranges::find(found.experts, axis) != found.experts.end()) {
        axes.push_back(axis);
      }
    }
    return axes;
  };
  found.experts = outer_first(0);
  for (std::size_t matrix = 1; matrix < in.matrices.size(); ++matrix) {
    if (outer_first(matrix) != found.experts) {
      refuse_layout(
          layer, "the ranks have different experts' matrices",
          to_string(in.matrices[0].layout()) + " and " + to_string(in.matrices[matrix].layout()),
          "split all of them along the axes in one order");
    }
  }
  return found;
}

/// The layout with Partial on these axes.
Layout with_partial(Layout layout, std::span<const int> axes) {
  for (const int axis : axes) {
    layout = layout.with_placement(axis, Partial());
  }
  return layout;
}

/// The layout of a matrix's gradient: ranks with other tokens have other terms of it.
Layout gradient_of(const Layout& weights, const Layout& tokens) {
  Layout gradient = weights;
  for (int axis = 0; axis < weights.ndim(); ++axis) {
    if (weights.placement(axis).is_replicate() && tokens.placement(axis).is_shard()) {
      gradient = gradient.with_placement(axis, Partial());
    }
  }
  return gradient;
}

constexpr std::size_t first_matrix = 4;

/// `matrices`: how many there are.
ExpertInputs inputs_of(std::span<const Tensor> all, std::size_t matrices) {
  return {.hidden = all[0],
          .weights = all[1],
          .chosen = all[2],
          .kept = all[3],
          .matrices = all.subspan(first_matrix, matrices),
          .biases = all.subspan(first_matrix + matrices)};
}

/// The owners of experts that these axes split, the outermost one first, in the order of dim 0.
Owners owners_of(const DeviceMesh& mesh, std::span<const int> axes) {
  Owners owners{ops::GroupArgument::of(mesh.group(axes, current_rank()))};
  for (const int axis : axes) {
    owners.count *= mesh.axis_size(axis);
    owners.axis += (owners.axis.empty() ? "" : "+") + std::string(mesh.axis_name(axis));
  }
  return owners;
}

}  // namespace

Experts::Experts(const MixtureOptions& options)
    : gated_(options.expert.gated),
      activation_(options.expert.activation),
      limits_(options.expert.limits),
      weigh_inputs_(options.weigh_inputs) {
  options.check();
  const std::int64_t dim = options.latent_dim > 0 ? options.latent_dim : options.expert.dim;
  const auto add = [&](const char* name, std::int64_t out, std::int64_t in) {
    const Initialization normal{Initialization::Kind::normal, options.expert.standard_deviation};
    add_parameter(name, std::make_shared<Parameter>(Dims{options.experts, out, in},
                                                    options.expert.dtype, normal));
  };
  if (gated_) {
    add("gate_proj", options.expert.width, dim);
  }
  add("up_proj", options.expert.width, dim);
  add("down_proj", dim, options.expert.width);
  const auto add_bias = [&](const char* name, std::int64_t out) {
    add_parameter(name, std::make_shared<Parameter>(Dims{options.experts, out},
                                                    options.expert.dtype, Initialization{}));
  };
  if (options.expert.bias) {
    if (gated_) {
      add_bias("gate_proj_bias", options.expert.width);
    }
    add_bias("up_proj_bias", options.expert.width);
    add_bias("down_proj_bias", dim);
  }
  attach<LayerSplits>().declared = [this] {
    LayerSplit experts{.name = "experts"};
    LayerSplit rows{
        .name = "rows", .inputs = {Replicate(), Replicate(), Replicate()}, .output = Partial()};
    for (const auto& [name, parameter] : parameters()) {
      experts.parameters.push_back({parameter, Shard(0)});
      if (name != "down_proj_bias") {
        rows.parameters.push_back({parameter, Shard(name == "down_proj" ? 2 : 1)});
      }
    }
    return std::vector{std::move(experts), std::move(rows)};
  };
}

std::string_view Experts::kind() const { return "Experts"; }
std::vector<std::string> Experts::input_names() const {
  return {"hidden_states", "weights", "experts", "kept"};
}

void Experts::compute_beside(Beside beside) { beside_ = std::move(beside); }

Tensors Experts::forward(const Tensors& inputs) {
  const Beside beside = std::exchange(beside_, nullptr);
  std::vector<Tensor> all = {input(inputs, 0), input(inputs, 1), input(inputs, 2),
                             inputs.size() > 3 ? inputs[3] : Tensor()};
  for (const auto& [name, parameter] : parameters()) {
    all.push_back(parameter->use());
  }
  const std::size_t matrices = gated_ ? 3 : 2;
  const std::int64_t experts = all[first_matrix].size(0);
  const Tensor& hidden = all[0];
  ExpertFunction function{
      .activation = activation_, .limits = limits_, .weigh_inputs = weigh_inputs_};
  if (!hidden.is_distributed()) {
    return {LocalExperts(inputs_of(all, matrices), function, experts, {}, beside).result()};
  }
  const Layout tokens = hidden.layout();
  const DeviceMesh& mesh = tokens.mesh();
  const ExpertLayout split = layout_of(*this, inputs_of(all, matrices));
  Owners owners;
  if (!split.experts.empty()) {
    if (!shards_evenly(hidden.shape(), tokens)) {
      refuse_layout(*this, "the ranks have different numbers of tokens", to_string(*hidden.spec()),
                    "use a batch that the axes divide");
    }
    owners = owners_of(mesh, split.experts);
    if (experts % owners.count != 0) {
      refuse_layout(*this, "its experts cannot be split equally over the ranks of the axes",
                    fmt::format("{} experts, {} ranks", experts, owners.count),
                    fmt::format("choose axes whose sizes multiply to a divisor of {}", experts));
    }
  }
  // Each rank has some features, so a term of the result and of its inputs' gradients.
  const Layout terms = with_partial(tokens, split.features);
  LocalMapOptions options{.in = {tokens, tokens, tokens, all[3] ? tokens : Layout()},
                          .out = {terms},
                          .in_gradients = {terms, terms, tokens, Layout()},
                          .out_shapes = {hidden.shape()}};
  for (std::size_t i = first_matrix; i < all.size(); ++i) {
    const Layout gradient = gradient_of(all[i].layout(), tokens);
    options.in.push_back(all[i].layout());
    // One of the ranks that share an expert's features adds the bias of its result.
    const bool added_once = i == first_matrix + 2 * matrices - 1;
    options.in_gradients.push_back(added_once ? with_partial(gradient, split.features) : gradient);
  }
  for (const int axis : split.features) {
    function.adds_bias &= mesh.coordinate_of(current_rank(), axis) == 0;
  }
  return local_map(
      [&](std::span<const Tensor> locals) {
        return Tensors{
            LocalExperts(inputs_of(locals, matrices), function, experts, owners, beside).result()};
      },
      all, options);
}

}  // namespace tessera::nn
