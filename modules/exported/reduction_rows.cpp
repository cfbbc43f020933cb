// Operators that reduce, order or accumulate along dims.
module;
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
module tessera.exported;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using A = const Arguments&;

/// PyTorch reduces all dims of a list without any.
Tensors summed(A a) { return {ops::sum(a.typed(3), a.dims(1), a.flag(2))}; }
Tensors averaged(A a) { return {ops::mean(a.typed(3), a.dims(1), a.flag(2))}; }

Tensors with_positions(const ops::ValuesAndIndices& both) { return {both.values, both.indices}; }

std::int64_t correction(A a, std::size_t i) { return a.has(i) ? a.integer(i) : 1; }

Tensors variance(A a) { return {ops::var(a.tensor(0), a.dims(1), a.flag(3), correction(a, 2))}; }
Tensors variance_and_mean(A a) {
  const Tensor x = a.tensor(0);
  return {ops::var(x, a.dims(1), a.flag(3), correction(a, 2)), ops::mean(x, a.dims(1), a.flag(3))};
}

template <Tensor (*f)(const Tensor&, const Dims&, bool)>
Tensors of_dim(A a) {
  return {f(a.tensor(0), {a.integer(1)}, a.flag(2))};
}
template <Tensor (*f)(const Tensor&, const Dims&, bool)>
Tensors of_all(A a) {
  return {f(a.tensor(0), {}, false)};
}

template <Tensor (*f)(const Tensor&, std::optional<std::int64_t>, bool, bool)>
Tensors position(A a) {
  const std::optional<std::int64_t> dim = a.has(1) ? std::optional(a.integer(1)) : std::nullopt;
  return {f(a.tensor(0), dim, a.flag(2), false)};
}

template <Tensor (*f)(const Tensor&, const Dims&, bool, bool)>
Tensors extreme(A a) {
  return {f(a.tensor(0), a.dims(1), a.flag(2), false)};
}
template <Tensor (*f)(const Tensor&, const Dims&, bool, bool)>
Tensors extreme_of_all(A a) {
  return {f(a.tensor(0), {}, false, false)};
}

Tensors norms(A a) {
  const double order = a.has(1) ? a.real(1) : 2;
  return {ops::norm(a.typed(4), order, a.dims(2), a.flag(3))};
}

constexpr AtenOperator rows[] = {
    {"aten.sum.dim_IntList", "self dim keepdim=false dtype=none", summed},
    {"aten.sum.default", "self dtype=none", [](A a) { return Tensors{ops::sum(a.typed(1))}; }},
    {"aten.mean.dim", "self dim keepdim=false dtype=none", averaged},
    {"aten.mean.default", "self dtype=none", [](A a) { return Tensors{ops::mean(a.typed(1))}; }},
    {"aten.amax.default", "self dim=[] keepdim=false", extreme<ops::amax>},
    {"aten.amin.default", "self dim=[] keepdim=false", extreme<ops::amin>},
    {"aten.max.default", "self", extreme_of_all<ops::amax>},
    {"aten.min.default", "self", extreme_of_all<ops::amin>},
    {"aten.max.dim", "self dim keepdim=false",
     [](A a) { return with_positions(ops::max(a.tensor(0), a.integer(1), a.flag(2))); }},
    {"aten.min.dim", "self dim keepdim=false",
     [](A a) { return with_positions(ops::min(a.tensor(0), a.integer(1), a.flag(2))); }},
    {"aten.argmax.default", "self dim=none keepdim=false", position<ops::argmax>},
    {"aten.argmin.default", "self dim=none keepdim=false", position<ops::argmin>},
    {"aten.any.default", "self", of_all<ops::any>},
    {"aten.any.dim", "self dim keepdim=false", of_dim<ops::any>},
    {"aten.any.dims", "self dim=[] keepdim=false",
     [](A a) { return Tensors{ops::any(a.tensor(0), a.dims(1), a.flag(2))}; }},
    {"aten.all.default", "self", of_all<ops::all>},
    {"aten.all.dim", "self dim keepdim=false", of_dim<ops::all>},
    {"aten.prod.default", "self dtype=none", [](A a) { return Tensors{ops::prod(a.typed(1))}; }},
    {"aten.prod.dim_int", "self dim keepdim=false dtype=none",
     [](A a) { return Tensors{ops::prod(a.typed(3), {a.integer(1)}, a.flag(2))}; }},
    {"aten.logsumexp.default", "self dim keepdim=false",
     [](A a) { return Tensors{ops::logsumexp(a.tensor(0), a.dims(1), a.flag(2))}; }},
    {"aten.var.correction", "self dim=none correction=none keepdim=false", variance},
    {"aten.var.dim", "self dim unbiased=true keepdim=false", variance},
    {"aten.std.correction", "self dim=none correction=none keepdim=false",
     [](A a) { return Tensors{ops::std(a.tensor(0), a.dims(1), a.flag(3), correction(a, 2))}; }},
    {"aten.var_mean.correction", "self dim=none correction=none keepdim=false", variance_and_mean},
    {"aten.linalg_vector_norm.default", "self ord=2 dim=none keepdim=false dtype=none", norms},
    {"aten.norm.ScalarOpt_dim", "self p dim keepdim=false dtype=none", norms},
    {"aten.cumsum.default", "self dim dtype=none",
     [](A a) { return Tensors{ops::cumsum(a.typed(2), a.integer(1))}; }},
    {"aten.cumprod.default", "self dim dtype=none",
     [](A a) { return Tensors{ops::cumprod(a.typed(2), a.integer(1))}; }},
    {"aten.sort.default", "self dim=-1 descending=false",
     [](A a) { return with_positions(ops::sort(a.tensor(0), a.integer(1), a.flag(2))); }},
    {"aten.argsort.default", "self dim=-1 descending=false",
     [](A a) { return Tensors{ops::argsort(a.tensor(0), a.integer(1), a.flag(2))}; }},
    {"aten.topk.default", "self k dim=-1 largest=true -sorted",
     [](A a) {
       return with_positions(ops::topk(a.tensor(0), a.integer(1), a.integer(2), a.flag(3)));
     }},
};

}  // namespace

std::span<const AtenOperator> reduction_rows() { return rows; }

}  // namespace tessera::exported
