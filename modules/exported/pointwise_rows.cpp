// Operators of elements, and new tensors.
module;
#include <array>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>
module tessera.exported;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using A = const Arguments&;

template <Tensor (*f)(const Tensor&)>
Tensors one(A a) {
  return {f(a.tensor(0))};
}
template <Tensor (*f)(const Tensor&, const Tensor&)>
Tensors two(A a) {
  return {f(a.tensor(0), a.tensor(1))};
}

/// x in the type that PyTorch computes `x op number` in.
Tensor promoted(const Tensor& x, const RunValue& number) {
  if (number.is_real && !is_floating(x.dtype())) {
    return ops::cast(x, DType::f32);
  }
  return x.dtype() == DType::boolean ? ops::cast(x, DType::i64) : x;
}

template <Tensor (*f)(const Tensor&, double)>
Tensors compare(A a) {
  return {f(a.tensor(0), a.real(1))};
}

/// x + alpha y, or x - alpha y, where y may be a number.
Tensor sum_of(A a, double sign) {
  const double alpha = sign * a.real(2);
  if (a.is_tensor(1)) {
    const Tensor y = a.tensor(1);
    return alpha == 1    ? ops::add(a.tensor(0), y)
           : alpha == -1 ? ops::sub(a.tensor(0), y)
                         : ops::add(a.tensor(0), y, alpha);
  }
  return ops::add_scalar(promoted(a.tensor(0), a.number(1)), alpha * a.real(1));
}

/// A number as a tensor of x's type, for operators that take two tensors.
Tensor operand(A a, std::size_t i, const Tensor& x) {
  if (a.is_tensor(i)) {
    return a.tensor(i);
  }
  const Tensor like = promoted(x, a.number(i));
  return full({}, a.real(i), like.dtype(), a.device());
}

template <Tensor (*f)(const Tensor&, const Tensor&)>
Tensors with_operand(A a) {
  const Tensor x = a.tensor(0);
  return {f(a.is_tensor(1) ? x : promoted(x, a.number(1)), operand(a, 1, x))};
}

Tensors product(A a) {
  const Tensor x = a.tensor(0);
  return {a.is_tensor(1) ? ops::mul(x, a.tensor(1))
                         : ops::mul_scalar(promoted(x, a.number(1)), a.real(1))};
}

/// x / y, rounded as the third argument says.
Tensors divided(A a) {
  const Tensor x = a.tensor(0);
  const Tensor y = operand(a, 1, x);
  if (!a.has(2)) {
    return {ops::div(
        is_floating(x.dtype()) || is_floating(y.dtype()) ? x : ops::cast(x, DType::f32), y)};
  }
  if (a.text(2) == "floor") {
    return {ops::floor_divide(x, y)};
  }
  if (a.text(2) != "trunc" || !is_floating(x.dtype())) {
    a.refuse("this way of rounding is not supported");
  }
  return {ops::trunc(ops::div(x, y))};
}

Tensors clamped(A a) {
  const Tensor x = a.tensor(0);
  if (a.is_tensor(1) || a.is_tensor(2)) {
    return {ops::clamp(x, a.tensor(1), a.tensor(2))};
  }
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (is_floating(x.dtype())) {
    return {ops::clamp(x, a.has(1) ? a.real(1) : -infinity, a.has(2) ? a.real(2) : infinity)};
  }
  Tensor result = x;
  if (a.has(1)) {
    result = ops::maximum(result, full({}, a.real(1), x.dtype(), a.device()));
  }
  if (a.has(2)) {
    result = ops::minimum(result, full({}, a.real(2), x.dtype(), a.device()));
  }
  return {result};
}

Tensors powers(A a) {
  const Tensor x = a.tensor(0);
  return {a.is_tensor(1) ? ops::pow(x, a.tensor(1))
                         : ops::pow_scalar(promoted(x, a.number(1)), a.real(1))};
}

/// elu with scales.
Tensors elus(A a) {
  const Tensor x = a.tensor(0);
  const Tensor y = ops::elu(x, a.real(1));
  if (a.real(3) != 1) {
    a.refuse("an input_scale other than 1 is not supported");
  }
  return {a.real(2) == 1 ? y : ops::mul_scalar(y, a.real(2))};
}

/// condition ? a : b, in their common type.
Tensors chosen(A a) {
  const Tensor x = a.tensor(1);
  const Tensor y = a.tensor(2);
  const DType type = x.dims() == 0 && y.dims() > 0   ? y.dtype()
                     : y.dims() == 0 && x.dims() > 0 ? x.dtype()
                                                     : promote(x.dtype(), y.dtype());
  const DType common = is_floating(type) || !(is_floating(x.dtype()) || is_floating(y.dtype()))
                           ? type
                       : is_floating(x.dtype()) ? x.dtype()
                                                : y.dtype();
  return {ops::where(a.tensor(0), ops::cast(x, common), ops::cast(y, common))};
}

Tensors filled(A a) {
  const Tensor x = a.tensor(0);
  const Tensor mask = a.tensor(1);
  if (a.is_tensor(2)) {
    return {ops::where(mask, ops::cast(a.tensor(2), x.dtype()), x)};
  }
  return {ops::masked_fill(x, mask, a.real(2))};
}

/// An operator of bits: of integers, and of bool.
template <Tensor (*f)(const Tensor&, const Tensor&)>
Tensors bits(A a) {
  const Tensor x = a.tensor(0);
  const Tensor y = a.is_tensor(1) ? a.tensor(1) : full({}, a.real(1), x.dtype(), a.device());
  if (x.dtype() == y.dtype()) {
    return {f(x, y)};
  }
  const DType type = promote(x.dtype(), y.dtype());
  return {f(ops::cast(x, type), ops::cast(y, type))};
}

// New tensors

DType type_of_number(const RunValue& number, bool is_boolean) {
  return number.is_real ? DType::f32 : is_boolean ? DType::boolean : DType::i64;
}

Tensors new_full(A a) {
  return {full(a.dims(0), a.real(1), a.dtype(2, type_of_number(a.number(1), false)), a.device())};
}
template <int value>
Tensors new_constant(A a) {
  return {full(a.dims(0), value, a.dtype(1, DType::f32), a.device())};
}
template <int value>
Tensors new_like(A a) {
  const Tensor x = a.tensor(0);
  return {full(x.shape(), value, a.dtype(1, x.dtype()), a.device())};
}
Tensors full_like(A a) {
  const Tensor x = a.tensor(0);
  return {full(x.shape(), a.real(1), a.dtype(2, x.dtype()), a.device())};
}
template <int value>
Tensors new_of_type(A a) {
  return {full(a.dims(1), value, a.dtype(2, a.tensor(0).dtype()), a.device())};
}
Tensors new_full_of_type(A a) {
  return {full(a.dims(1), a.real(2), a.dtype(3, a.tensor(0).dtype()), a.device())};
}
Tensors number_tensor(A a) {
  return {full({}, a.real(0), a.dtype(1, type_of_number(a.number(0), false)), a.device())};
}

Tensors counted(A a, const RunValue& start, const RunValue& end, const RunValue& step,
                std::size_t dtype) {
  const bool real = start.is_real || end.is_real || step.is_real;
  const DType type = a.dtype(dtype, real ? DType::f32 : DType::i64);
  if (step.real == 0 || (end.real - start.real) / step.real < 0) {
    a.refuse("the step leads away from the end");
  }
  const double exact = (end.real - start.real) / step.real;
  auto count = static_cast<std::int64_t>(exact);
  count += static_cast<double>(count) < exact ? 1 : 0;
  if (is_floating(type)) {
    std::vector<double> all(static_cast<std::size_t>(count));
    for (std::size_t i = 0; i < all.size(); ++i) {
      all[i] = start.real + static_cast<double>(i) * step.real;
    }
    const Tensor x = from_values(std::span<const double>(all), {count}, a.device());
    return {ops::cast(x, type)};
  }
  std::vector<std::int64_t> all(static_cast<std::size_t>(count));
  for (std::size_t i = 0; i < all.size(); ++i) {
    all[i] = start.integer + static_cast<std::int64_t>(i) * step.integer;
  }
  const Tensor x = from_values(std::span<const std::int64_t>(all), {count}, a.device());
  return {ops::cast(x, type)};
}

Tensors cast_to(A a) {
  const Tensor x = a.tensor(0);
  return {ops::cast(x, a.dtype(1, x.dtype()))};
}
Tensors same(A a) { return {a.tensor(0)}; }

constexpr AtenOperator rows[] = {
    {"aten.abs.default", "self", one<ops::abs>},
    {"aten.neg.default", "self", one<ops::neg>},
    {"aten.sign.default", "self", one<ops::sign>},
    {"aten.square.default", "self", one<ops::square>},
    {"aten.floor.default", "self", one<ops::floor>},
    {"aten.ceil.default", "self", one<ops::ceil>},
    {"aten.round.default", "self", one<ops::round>},
    {"aten.trunc.default", "self", one<ops::trunc>},
    {"aten.exp.default", "self", one<ops::exp>},
    {"aten.exp2.default", "self", one<ops::exp2>},
    {"aten.expm1.default", "self", one<ops::expm1>},
    {"aten.log.default", "self", one<ops::log>},
    {"aten.log2.default", "self", one<ops::log2>},
    {"aten.log10.default", "self", one<ops::log10>},
    {"aten.log1p.default", "self", one<ops::log1p>},
    {"aten.sqrt.default", "self", one<ops::sqrt>},
    {"aten.rsqrt.default", "self", one<ops::rsqrt>},
    {"aten.reciprocal.default", "self", one<ops::reciprocal>},
    {"aten.sin.default", "self", one<ops::sin>},
    {"aten.cos.default", "self", one<ops::cos>},
    {"aten.tan.default", "self", one<ops::tan>},
    {"aten.asin.default", "self", one<ops::asin>},
    {"aten.acos.default", "self", one<ops::acos>},
    {"aten.atan.default", "self", one<ops::atan>},
    {"aten.sinh.default", "self", one<ops::sinh>},
    {"aten.cosh.default", "self", one<ops::cosh>},
    {"aten.tanh.default", "self", one<ops::tanh>},
    {"aten.erf.default", "self", one<ops::erf>},
    {"aten.sigmoid.default", "self", one<ops::sigmoid>},
    {"aten.log_sigmoid.default", "self", one<ops::log_sigmoid>},
    {"aten.log_sigmoid_forward.default", "self", one<ops::log_sigmoid>, nullptr, 1},
    {"aten.relu.default", "self", one<ops::relu>},
    {"aten.silu.default", "self", one<ops::silu>},
    {"aten.mish.default", "self", one<ops::mish>},
    {"aten.hardswish.default", "self", one<ops::hardswish>},
    {"aten.hardsigmoid.default", "self", one<ops::hardsigmoid>},
    {"aten.logical_not.default", "self", one<ops::logical_not>},
    {"aten.bitwise_not.default", "self", one<ops::bitwise_not>},
    {"aten.isnan.default", "self", one<ops::isnan>},
    {"aten.isinf.default", "self", one<ops::isinf>},
    {"aten.isfinite.default", "self", one<ops::isfinite>},
    {"aten.gelu.default", "self approximate='none'",
     [](A a) { return Tensors{ops::gelu(a.tensor(0), a.text(1) == "tanh")}; }},
    {"aten.leaky_relu.default", "self negative_slope=0.01",
     [](A a) { return Tensors{ops::leaky_relu(a.tensor(0), a.real(1))}; }},
    {"aten.elu.default", "self alpha=1 scale=1 input_scale=1", elus},
    {"aten.hardtanh.default", "self min_val=-1 max_val=1",
     [](A a) { return Tensors{ops::hardtanh(a.tensor(0), a.real(1), a.real(2))}; }},
    {"aten.relu6.default", "self", [](A a) { return Tensors{ops::hardtanh(a.tensor(0), 0, 6)}; }},
    {"aten.softplus.default", "self beta=1 threshold=20",
     [](A a) { return Tensors{ops::softplus(a.tensor(0), a.real(1), a.real(2))}; }},
    {"aten.clamp.default", "self min=none max=none", clamped},
    {"aten.clamp.Tensor", "self min=none max=none", clamped},
    {"aten.clamp_min.default", "self min max=none", clamped},
    {"aten.clamp_max.default", "self min=none max", clamped},

    {"aten.add.Tensor", "self other alpha=1", [](A a) { return Tensors{sum_of(a, 1)}; }},
    {"aten.add.Scalar", "self other alpha=1", [](A a) { return Tensors{sum_of(a, 1)}; }},
    {"aten.sub.Tensor", "self other alpha=1", [](A a) { return Tensors{sum_of(a, -1)}; }},
    {"aten.sub.Scalar", "self other alpha=1", [](A a) { return Tensors{sum_of(a, -1)}; }},
    {"aten.rsub.Scalar", "self other alpha=1",
     [](A a) {
       const Tensor x = promoted(a.tensor(0), a.number(1));
       return Tensors{ops::add_scalar(ops::mul_scalar(x, -a.real(2)), a.real(1))};
     }},
    {"aten.mul.Tensor", "self other", product},
    {"aten.mul.Scalar", "self other", product},
    {"aten.div.Tensor", "self other rounding_mode=none", divided},
    {"aten.div.Scalar", "self other rounding_mode=none", divided},
    {"aten.div.Tensor_mode", "self other rounding_mode", divided},
    {"aten.div.Scalar_mode", "self other rounding_mode", divided},
    {"aten.pow.Tensor_Scalar", "self exponent", powers},
    {"aten.pow.Tensor_Tensor", "self exponent", powers},
    {"aten.pow.Scalar", "self exponent", two<ops::pow>},
    {"aten.maximum.default", "self other", two<ops::maximum>},
    {"aten.minimum.default", "self other", two<ops::minimum>},
    {"aten.atan2.default", "self other", two<ops::atan2>},
    {"aten.fmod.Tensor", "self other", with_operand<ops::fmod>},
    {"aten.fmod.Scalar", "self other", with_operand<ops::fmod>},
    {"aten.remainder.Tensor", "self other", with_operand<ops::remainder>},
    {"aten.remainder.Scalar", "self other", with_operand<ops::remainder>},
    {"aten.floor_divide.default", "self other", with_operand<ops::floor_divide>},
    {"aten.lerp.Tensor", "self end weight",
     [](A a) { return Tensors{ops::lerp(a.tensor(0), a.tensor(1), a.tensor(2))}; }},
    {"aten.lerp.Scalar", "self end weight",
     [](A a) { return Tensors{ops::lerp_scalar(a.tensor(0), a.tensor(1), a.real(2))}; }},
    {"aten.addcmul.default", "self tensor1 tensor2 value=1",
     [](A a) { return Tensors{ops::addcmul(a.tensor(0), a.tensor(1), a.tensor(2), a.real(3))}; }},
    {"aten.addcdiv.default", "self tensor1 tensor2 value=1",
     [](A a) { return Tensors{ops::addcdiv(a.tensor(0), a.tensor(1), a.tensor(2), a.real(3))}; }},

    {"aten.eq.Tensor", "self other", two<ops::eq>},
    {"aten.ne.Tensor", "self other", two<ops::ne>},
    {"aten.lt.Tensor", "self other", two<ops::lt>},
    {"aten.le.Tensor", "self other", two<ops::le>},
    {"aten.gt.Tensor", "self other", two<ops::gt>},
    {"aten.ge.Tensor", "self other", two<ops::ge>},
    {"aten.eq.Scalar", "self other", compare<ops::eq>},
    {"aten.ne.Scalar", "self other", compare<ops::ne>},
    {"aten.lt.Scalar", "self other", compare<ops::lt>},
    {"aten.le.Scalar", "self other", compare<ops::le>},
    {"aten.gt.Scalar", "self other", compare<ops::gt>},
    {"aten.ge.Scalar", "self other", compare<ops::ge>},
    {"aten.logical_and.default", "self other", two<ops::logical_and>},
    {"aten.logical_or.default", "self other", two<ops::logical_or>},
    {"aten.logical_xor.default", "self other", two<ops::logical_xor>},
    {"aten.bitwise_and.Tensor", "self other", bits<ops::bitwise_and>},
    {"aten.bitwise_or.Tensor", "self other", bits<ops::bitwise_or>},
    {"aten.bitwise_xor.Tensor", "self other", bits<ops::bitwise_xor>},
    {"aten.bitwise_and.Scalar", "self other", bits<ops::bitwise_and>},
    {"aten.bitwise_or.Scalar", "self other", bits<ops::bitwise_or>},
    {"aten.bitwise_xor.Scalar", "self other", bits<ops::bitwise_xor>},
    {"aten.where.self", "condition self other", chosen},
    {"aten.where.ScalarSelf", "condition self other", chosen},
    {"aten.where.ScalarOther", "condition self other", chosen},
    {"aten.where.Scalar", "condition self other", chosen},
    {"aten.masked_fill.Scalar", "self mask value", filled},
    {"aten.masked_fill.Tensor", "self mask value", filled},

    {"aten._to_copy.default",
     "self dtype=none -layout -device -pin_memory -non_blocking -memory_format", cast_to},
    {"aten.to.dtype", "self dtype -non_blocking -copy -memory_format", cast_to},
    {"aten.to.dtype_layout",
     "self dtype=none -layout -device -pin_memory -non_blocking -copy -memory_format", cast_to},
    {"aten.to.device", "self -device dtype -non_blocking -copy -memory_format", cast_to},
    {"aten.type_as.default", "self other",
     [](A a) { return Tensors{ops::cast(a.tensor(0), a.tensor(1).dtype())}; }},
    {"aten.copy.default", "self src -non_blocking",
     [](A a) {
       const Tensor x = a.tensor(0);
       const Tensor y = ops::cast(a.tensor(1), x.dtype());
       return Tensors{y.shape() == x.shape() ? y : ops::expand(y, x.shape())};
     }},
    {"aten.clone.default", "self -memory_format", same},
    {"aten.contiguous.default", "self -memory_format", same},
    {"aten.alias.default", "self", same},
    {"aten.lift_fresh_copy.default", "self", same},
    {"aten.lift_fresh.default", "self", same},
    {"aten.detach.default", "self", one<ops::detach>},
    {"aten.detach_.default", "self", one<ops::detach>},

    {"aten.full.default", "size fill_value dtype=none -layout -device -pin_memory", new_full},
    {"aten.zeros.default", "size dtype=none -layout -device -pin_memory", new_constant<0>},
    {"aten.ones.default", "size dtype=none -layout -device -pin_memory", new_constant<1>},
    {"aten.zeros_like.default", "self dtype=none -layout -device -pin_memory -memory_format",
     new_like<0>},
    {"aten.ones_like.default", "self dtype=none -layout -device -pin_memory -memory_format",
     new_like<1>},
    {"aten.full_like.default",
     "self fill_value dtype=none -layout -device -pin_memory -memory_format", full_like},
    {"aten.new_zeros.default", "self size dtype=none -layout -device -pin_memory", new_of_type<0>},
    {"aten.new_ones.default", "self size dtype=none -layout -device -pin_memory", new_of_type<1>},
    {"aten.new_full.default", "self size fill_value dtype=none -layout -device -pin_memory",
     new_full_of_type},
    {"aten.scalar_tensor.default", "s dtype=none -layout -device -pin_memory", number_tensor},
    {"aten.arange.default", "end dtype=none -layout -device -pin_memory",
     [](A a) { return counted(a, whole_number(0), a.number(0), whole_number(1), 1); }},
    {"aten.arange.start", "start end dtype=none -layout -device -pin_memory",
     [](A a) { return counted(a, a.number(0), a.number(1), whole_number(1), 2); }},
    {"aten.arange.start_step", "start end step=1 dtype=none -layout -device -pin_memory",
     [](A a) { return counted(a, a.number(0), a.number(1), a.number(2), 3); }},
};

}  // namespace

std::span<const AtenOperator> pointwise_rows() { return rows; }

}  // namespace tessera::exported
