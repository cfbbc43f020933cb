// Rows in the order of their experts, and the exchange of rows between ranks that have different
// ones.
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
#include <utility>
#include <vector>
module tessera.routed;

import :routed_rows;
import tessera.base;
import tessera.calls;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.dtensor;

namespace tessera::routed {
namespace {

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

/// Rows on their way (see all_to_all_rows): issued when it is made, and complete after wait().
/// These are two recorded steps, so that in backward the gradient's way back is issued by the one,
/// and waited for by the other, after what was computed between them.
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

}  // namespace

Tensor LocalExperts::result(const RoutedRows& in) const {
  const Tensor& hidden = in.hidden;
  const std::int64_t dim = hidden.size(-1);
  const std::int64_t per_token = in.chosen.size(-1);
  const std::int64_t tokens = hidden.numel() / dim;
  const std::int64_t experts = options_.experts;
  const bool weigh_inputs = layer_.function.weigh_inputs;
  const Tensor chosen = ops::reshape(in.chosen, {tokens * per_token});  // (N * P)
  const Tensor kept = in.kept ? ops::reshape(in.kept, chosen.shape()) : Tensor();
  Counts counts{ops::scatter_add(zeros({experts}, DType::i64, hidden.device()), chosen,
                                 kept ? ops::cast(kept, DType::i64) : ops::ones_like(chosen), 0)};
  if (options_.owners.group) {
    counts.arriving = ops::all_to_all_async(ops::view(counts.own, {1, experts}), 0,
                                            options_.owners.count, 1, *options_.owners.group);
  }
  // Stable: an expert's tokens stay in their order. Rows of no expert come last.
  const Tensor order = ops::argsort(kept ? rows_of_none(chosen, kept) : chosen);  // (N * P)
  const Tensor place = ops::argsort(order);                                       // its inverse
  const Tensor token = ops::floor_divide(
      order, full({}, static_cast<double>(per_token), DType::i64, hidden.device()));
  // (N * P, C), both
  Tensor rows = ops::index_select(ops::reshape(hidden, {tokens, dim}), token, 0);
  if (weigh_inputs) {
    const Tensor weights = ops::cast(ops::reshape(in.weights, {order.size(0), 1}), rows.dtype());
    rows = ops::mul(rows, ops::index_select(weights, order, 0));
  }
  const Tensor computed = exchanged(rows, counts, per_token);
  // (N, P, C)
  const Tensor by_token =
      ops::view(ops::index_select(computed, place, 0), {tokens, per_token, dim});
  if (weigh_inputs) {
    return ops::reshape(ops::sum(by_token, {1}), hidden.shape());
  }
  // (N, P, 1)
  const Tensor weights =
      ops::cast(ops::reshape(in.weights, {tokens, per_token, 1}), hidden.dtype());
  return ops::reshape(ops::sum(ops::mul(by_token, weights), {1}), hidden.shape());
}

/// The numbers of experts, where there is one; elsewhere a number after all of them.
Tensor LocalExperts::rows_of_none(const Tensor& chosen, const Tensor& kept) const {
  return ops::where(
      kept, chosen,
      full(chosen.shape(), static_cast<double>(options_.experts), DType::i64, chosen.device()));
}

/// Rows of each expert, [rows, dim]; `expected` rows have one.
Tensor LocalExperts::feed_forward(const Tensor& rows, const Tensor& counts,
                                  std::int64_t expected) const {
  const std::span<const Tensor> matrices = layer_.matrices;
  const std::size_t last = matrices.size() - 1;
  const auto products = [&](const Tensor& x, std::size_t first, std::size_t count) {
    Tensors results = layer_.products(x, {first, matrices.subspan(first, count)}, counts, expected);
    for (std::size_t i = 0; i < count && !layer_.biases.empty(); ++i) {
      // Each row's bias is a product too: rows of no expert get none.
      const bool counted = first + i < last || options_.adds_bias;
      const Tensor ones = full({x.size(0), 1}, counted ? 1 : 0, x.dtype(), x.device());
      const Tensor bias = ops::unsqueeze(layer_.biases[first + i], 1);
      results[i] = ops::add(results[i], ops::grouped_mm(ones, bias, counts, expected));
    }
    return results;
  };
  return products(layer_.function.between(products(rows, 0, last)), last, 1)[0];
}

/// Of rows in the order of the experts, also where these are on other ranks.
Tensor LocalExperts::exchanged(const Tensor& rows, Counts& counts, std::int64_t per_token) const {
  const Owners& owners = options_.owners;
  const std::int64_t sent = rows.size(0);
  if (!owners.group) {
    return feed_forward(rows, counts.own, sent);
  }
  const std::int64_t own = options_.experts / owners.count;
  const Tensor sends = ops::view(counts.own, {owners.count, own});  // (O, E / O)
  const Tensor receives = counts.arriving.wait();                   // (O, E / O)
  report_exchange(owners, receives, receives.size(0));
  // A token has at most one row for each of a rank's experts.
  const std::int64_t most = sent / per_token * std::min(per_token, own) * owners.count;
  RowsInFlight to_experts(rows, {sends, receives, *owners.group}, most, ops::RowOrder::by_group);
  std::optional<RowsInFlight> to_tokens;
  const auto compute = [&, layer = current_module()] {
    if (!to_tokens) {
      const ModuleScope scope(layer);
      const Tensor arrived = to_experts.wait();  // (at most `most`, C), by expert
      report_exchange(owners, arrived, sent);
      to_tokens.emplace(feed_forward(arrived, ops::sum(receives, {0}), sent),
                        RowsInFlight::Counts{receives, sends, *owners.group}, sent,
                        ops::RowOrder::by_rank);
    }
  };
  if (beside_) {
    beside_(compute);
  }
  compute();
  const Tensor returned = to_tokens->wait();  // as rows
  report_exchange(owners, returned, sent);
  return returned;
}

}  // namespace tessera::routed
