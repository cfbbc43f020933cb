module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.app.base;

namespace tessera::app {
namespace {

using Kind = Instruction::Kind;

/// The bytes of a tensor's elements; those that an expanded tensor repeats count once.
double element_bytes(const Tensor& x) {
  double elements = 1;
  for (int d = 0; d < x.dims(); ++d) {
    elements *= x.strides()[d] == 0 && x.shape()[d] > 0 ? 1 : static_cast<double>(x.shape()[d]);
  }
  return elements * static_cast<double>(size_of(x.dtype()));
}

/// The bytes of each operand that an instruction uses; 0 of an absent one.
std::vector<double> used_bytes(const Instruction& i, const graph::Shadow& shadow) {
  const std::vector<Tensor> in = shadow.at(i.in);
  const bool uses_some = i.kind == Kind::call && i.op->used_elements != nullptr;
  std::vector<double> bytes;
  for (std::size_t k = 0; k < in.size(); ++k) {
    double all = in[k] ? element_bytes(in[k]) : 0;
    if (uses_some && in[k]) {
      const Call call{.op = *i.op, .in = in, .attributes = i.attributes};
      all = std::min(all, static_cast<double>(i.op->used_elements(call, k)) *
                              static_cast<double>(size_of(in[k].dtype())));
    }
    bytes.push_back(all);
  }
  return bytes;
}

/// Bytes that an instruction reads and writes in the device's memory. A copy does not read what it
/// writes; other operators that write an operand, also products that add to it, read it.
double moved_bytes(const Instruction& i, const graph::Shadow& shadow) {
  const bool view = i.kind == Kind::call && i.op->view != nullptr;
  double bytes = 0;
  bool makes = false;
  for (const TensorIndex number : i.out) {
    if (number.exists() && !(view && shadow.memory(number) == shadow.memory(i.in[0]))) {
      bytes += element_bytes(shadow.at(number));
      makes = true;
    }
  }
  if (view && !makes) {
    return 0;
  }
  const bool copy =
      i.kind == Kind::call && i.op->moves_elements && i.op->in_place && i.op->flops == nullptr;
  const std::vector<double> used = used_bytes(i, shadow);
  for (std::size_t k = 0; k < used.size(); ++k) {
    bytes += used[k] * (i.writes(k) && !copy ? 2 : 1);
  }
  return bytes;
}

/// What is between the products of attention: a softmax, whose rows have statistics. They are
/// results without a gradient (Op::constant_outputs) of a call that has products, and the call that
/// computes its gradients reads them.
class RowStatistics {
 public:
  explicit RowStatistics(const Program& program) {
    for (const Instruction* i : graph::places_of(program)) {
      for (std::size_t k = 0; k < i->out.size(); ++k) {
        if (has_products(*i) && ((i->op->constant_outputs >> k) & 1U) != 0 && i->out[k].exists()) {
          all_.insert(i->out[k]);
        }
      }
    }
  }

  static bool has_products(const Instruction& i) {
    return i.kind == Kind::call && i.op->flops != nullptr;
  }
  /// Whether the call makes or reads them.
  bool are_of(const Instruction& i) const {
    const auto is_one = [&](TensorIndex number) { return all_.contains(number); };
    return std::ranges::any_of(i.in, is_one) || std::ranges::any_of(i.out, is_one);
  }

 private:
  std::set<TensorIndex> all_;
};

/// What limits the rate of products, by the narrowest of their operands.
Bound bound_of_products(const std::vector<Tensor>& in) {
  std::size_t narrowest = sizeof(double);
  for (const Tensor& x : in) {
    if (x && is_floating(x.dtype())) {
      narrowest = std::min(narrowest, size_of(x.dtype()));
    }
  }
  return narrowest == 1   ? Bound::products_of_bytes
         : narrowest == 2 ? Bound::products
                          : Bound::products_of_words;
}

/// FLOPs of a call's products, and what limits their rate.
std::pair<double, Bound> products_of(const Instruction& i, const graph::Shadow& shadow,
                                     const RowStatistics& statistics) {
  if (!RowStatistics::has_products(i)) {
    return {0, Bound::memory};
  }
  const std::vector<Tensor> in = shadow.at(i.in);
  const double flops =
      i.op->flops(Call{.op = *i.op, .in = in, .attributes = i.attributes}, shadow.at(i.out));
  return {flops, statistics.are_of(i) ? Bound::attention : bound_of_products(in)};
}

double rate_of(const DeviceRates& rates, Bound bound) {
  switch (bound) {
    case Bound::products_of_words:
      return rates.products_of_words;
    case Bound::products:
      return rates.products;
    case Bound::products_of_bytes:
      return rates.products_of_bytes;
    case Bound::attention:
      return rates.attention;
    case Bound::memory:
      break;
  }
  return rates.bandwidth;
}

std::optional<KernelCost> cost_of(const Instruction& i, const graph::Shadow& shadow,
                                  const RowStatistics& statistics, const DeviceRates& rates) {
  const bool communicates =
      i.kind == Kind::call && (i.op->communicates != Communicates::none || i.op->completes);
  if (communicates || (i.kind != Kind::call && i.kind != Kind::full)) {
    return {};
  }
  const double bytes = moved_bytes(i, shadow);
  const auto [flops, bound] = products_of(i, shadow, statistics);
  if (bytes == 0 && flops == 0) {
    return {};  // a view
  }
  const double moving = bytes / rates.bandwidth;
  const double computing = flops == 0 ? 0 : flops / rate_of(rates, bound);
  return KernelCost{.bound = computing < moving ? Bound::memory : bound,
                    .flops = flops,
                    .bytes = bytes,
                    .seconds = std::max(moving, computing)};
}

}  // namespace

std::string_view name_of(Bound bound) {
  switch (bound) {
    case Bound::products_of_words:
      return "32-bit products";
    case Bound::products:
      return "products";
    case Bound::products_of_bytes:
      return "8-bit products";
    case Bound::attention:
      return "attention";
    case Bound::memory:
      break;
  }
  return "memory";
}

ByPlace<std::optional<KernelCost>> kernel_costs(const Program& program, const DeviceRates& rates) {
  const graph::Shadow shadow = graph::shadow_of(program);
  const RowStatistics statistics(program);
  ByPlace<std::optional<KernelCost>> costs;
  for (const Instruction* i : graph::places_of(program)) {
    costs.add(cost_of(*i, shadow, statistics, rates));
  }
  return costs;
}

std::int64_t tokens_of(const Program& program) {
  std::map<int, std::int64_t> micro_batches;
  for (const auto& [name, input] : program.inputs) {
    if (input.role == Role::rows) {
      std::int64_t& most = micro_batches[input.micro_batch];
      most = std::max(most, program.tensors[input.tensor].shape.product());
    }
  }
  std::int64_t tokens = 0;
  for (const auto& [number, count] : micro_batches) {
    tokens += count;
  }
  return tokens;
}

}  // namespace tessera::app
