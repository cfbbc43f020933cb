module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import :total;

namespace tessera::optim {
namespace {

/// The layout of one term of each rank: Partial where x is not the same on all ranks.
Layout terms_layout(const Tensor& x, ReduceOp reduce) {
  Layout layout = x.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    if (!layout.placement(axis).is_replicate()) {
      layout = layout.with_placement(axis, Partial(reduce));
    }
  }
  return layout;
}

/// Adds terms of several layouts of one mesh with one collective for each axis at most: those that
/// are Partial on an axis join before it is reduced.
Tensor sum_on_mesh(std::vector<Tensor> terms) {
  const int axes = terms.front().layout().ndim();
  for (int axis = 0; axis < axes; ++axis) {
    std::map<std::uint32_t, Tensor> by_layout;
    for (const Tensor& term : terms) {
      Tensor& sum = by_layout[term.layout().id()];
      sum = sum ? ops::add(sum, term) : term;
    }
    // A term that is Replicate here meets Partial ones as a Partial: rank 0 of the axis keeps it.
    const bool partial = std::any_of(by_layout.begin(), by_layout.end(), [&](const auto& entry) {
      return entry.second.layout().placement(axis).is_partial();
    });
    terms.clear();
    std::map<std::uint32_t, Tensor> joined;
    for (auto& [id, term] : by_layout) {
      const Tensor alike = partial ? redistribute_axis(term, axis, Partial()) : term;
      Tensor& sum = joined[alike.layout().id()];
      sum = sum ? ops::add(sum, alike) : alike;
    }
    for (auto& [id, sum] : joined) {
      terms.push_back(redistribute_axis(sum, axis, Replicate()));
    }
  }
  Tensor total = terms.front();
  for (std::size_t i = 1; i < terms.size(); ++i) {
    total = ops::add(total, terms[i]);
  }
  return total.local();
}

/// The largest of terms: each rank takes that of its own first, as it may count twice.
Tensor maximum_on_mesh(const std::vector<Tensor>& terms) {
  const Layout whole = Layout::replicated(terms.front().layout().mesh());
  Layout layout = whole;
  Tensor local;
  for (const Tensor& term : terms) {
    local = local ? ops::maximum(local, term.local()) : term.local();
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      if (term.layout().placement(axis).is_partial()) {
        layout = layout.with_placement(axis, Partial(ReduceOp::max));
      }
    }
  }
  return redistribute(from_local(local, layout), whole).local();
}

}  // namespace

Tensor total_of(std::vector<Tensor> terms, bool maximum) {
  std::vector<std::pair<DeviceMesh, std::vector<Tensor>>> by_mesh;
  std::vector<Tensor> local;
  for (Tensor& term : terms) {
    if (!term.is_distributed()) {
      local.push_back(std::move(term));
      continue;
    }
    const DeviceMesh mesh = term.layout().mesh();
    auto found = std::ranges::find_if(by_mesh, [&](const auto& m) { return m.first == mesh; });
    if (found == by_mesh.end()) {
      found = by_mesh.insert(by_mesh.end(), {mesh, {}});
    }
    found->second.push_back(std::move(term));
  }
  for (auto& [mesh, of_mesh] : by_mesh) {
    local.push_back(maximum ? maximum_on_mesh(of_mesh) : sum_on_mesh(std::move(of_mesh)));
  }
  Tensor total;
  for (const Tensor& term : local) {
    total = !total ? term : maximum ? ops::maximum(total, term) : ops::add(total, term);
  }
  return total;
}

Tensor largest_magnitude(const Tensor& x) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const Tensor local = local_of(x);
  // Shards may be uneven or empty, so each rank takes the largest of its own. As infinity a NaN
  // takes part in comparisons.
  Tensor largest = local.numel() == 0
                       ? full({}, 0, DType::f64, local.device())
                       : ops::amax(ops::nan_to_num(ops::abs(ops::cast(local, DType::f64)), infinity,
                                                   infinity, -infinity));
  return x.is_distributed() ? from_local(largest, terms_layout(x, ReduceOp::max)) : largest;
}

Tensor exact_term(const Tensor& x, ops::ExactTerm term) {
  const Tensor digits = ops::exact_sum(local_of(x), term);
  return x.is_distributed() ? from_local(digits, terms_layout(x, ReduceOp::sum)) : digits;
}

}  // namespace tessera::optim
