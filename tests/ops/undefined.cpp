// Every function of tessera.ops refuses an undefined tensor where one is needed, by name: a program
// that forgot an operand is told which one.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;

using namespace tessera;

namespace {

/// An argument of each type, the tensors of a call in their order.
struct Arguments {
  std::vector<Tensor> tensors;
  std::vector<std::vector<Tensor>> lists;
  std::size_t next = 0;
  std::size_t undefined = 0;
  RandomStream stream{.seed = 1, .stream = 2, .offset = 0};

  Tensor tensor() { return next++ == undefined ? Tensor() : zeros({2, 3}); }

  template <class T>
  std::decay_t<T> make() {
    using Value = std::decay_t<T>;
    if constexpr (std::is_same_v<Value, Tensor>) {
      return tensor();
    } else if constexpr (std::is_same_v<Value, std::span<const Tensor>>) {
      return lists.emplace_back(std::vector{tensor(), tensor()});
    } else if constexpr (std::is_same_v<Value, double>) {
      return 0.5;
    } else if constexpr (std::is_same_v<Value, RandomSource>) {
      return RandomSource(stream);
    } else {
      return Value{};
    }
  }
};

template <class T>
constexpr std::size_t tensors_in = std::is_same_v<std::decay_t<T>, Tensor>                    ? 1
                                   : std::is_same_v<std::decay_t<T>, std::span<const Tensor>> ? 2
                                                                                              : 0;

struct Function {
  std::string name;
  std::size_t tensors;
  std::function<void(std::size_t undefined)> call;
};

template <class R, class... A>
Function of(const char* name, R (*function)(A...)) {
  return {name, (tensors_in<A> + ... + 0), [function](std::size_t undefined) {
            Arguments arguments;
            arguments.lists.reserve(sizeof...(A));
            arguments.undefined = undefined;
            const auto argument = [&]<class T>(std::type_identity<T>) -> decltype(auto) {
              if constexpr (std::is_same_v<T, RandomStream&>) {
                return (arguments.stream);
              } else {
                return arguments.make<T>();
              }
            };
            // Braces: from the first to the last.
            std::tuple<std::conditional_t<std::is_lvalue_reference_v<A> &&
                                              !std::is_const_v<std::remove_reference_t<A>>,
                                          A, std::decay_t<A>>...>
                values{argument(std::type_identity<A>{})...};
            std::apply(function, values);
          }};
}

using OfTwo = Tensor(const Tensor&, const Tensor&);
using WithNumber = Tensor(const Tensor&, double);

const std::vector<Function>& functions() {
  static const std::vector<Function> all = {
      of("add", ops::add),
      of("sub", ops::sub),
      of("mul", ops::mul),
      of("div", ops::div),
      of("pow", ops::pow),
      of("maximum", ops::maximum),
      of("minimum", ops::minimum),
      of("atan2", ops::atan2),
      of("fmod", ops::fmod),
      of("remainder", ops::remainder),
      of("floor_divide", ops::floor_divide),
      of("add_scalar", ops::add_scalar),
      of("mul_scalar", ops::mul_scalar),
      of("pow_scalar", ops::pow_scalar),
      of("fill_", ops::fill_),
      of("clamp", static_cast<Tensor (*)(const Tensor&, const Number&, const Number&)>(ops::clamp)),
      of("clamp", static_cast<Tensor (*)(const Tensor&, const Tensor&, const Tensor&)>(ops::clamp)),
      of("lerp", ops::lerp),
      of("lerp_scalar", ops::lerp_scalar),
      of("addcmul", ops::addcmul),
      of("addcdiv", ops::addcdiv),
      of("neg", ops::neg),
      of("abs", ops::abs),
      of("sign", ops::sign),
      of("square", ops::square),
      of("floor", ops::floor),
      of("ceil", ops::ceil),
      of("round", ops::round),
      of("trunc", ops::trunc),
      of("frac", ops::frac),
      of("exp", ops::exp),
      of("exp2", ops::exp2),
      of("expm1", ops::expm1),
      of("log", ops::log),
      of("log2", ops::log2),
      of("log10", ops::log10),
      of("log1p", ops::log1p),
      of("sqrt", ops::sqrt),
      of("rsqrt", ops::rsqrt),
      of("reciprocal", ops::reciprocal),
      of("sin", ops::sin),
      of("cos", ops::cos),
      of("tan", ops::tan),
      of("asin", ops::asin),
      of("acos", ops::acos),
      of("atan", ops::atan),
      of("sinh", ops::sinh),
      of("cosh", ops::cosh),
      of("tanh", ops::tanh),
      of("erf", ops::erf),
      of("sigmoid", ops::sigmoid),
      of("log_sigmoid", ops::log_sigmoid),
      of("relu", ops::relu),
      of("silu", ops::silu),
      of("mish", ops::mish),
      of("gelu", ops::gelu),
      of("hardswish", ops::hardswish),
      of("hardsigmoid", ops::hardsigmoid),
      of("leaky_relu", ops::leaky_relu),
      of("elu", ops::elu),
      of("hardtanh", ops::hardtanh),
      of("softplus", ops::softplus),
      of("nan_to_num", static_cast<Tensor (*)(const Tensor&, double)>(ops::nan_to_num)),
      of("nan_to_num",
         static_cast<Tensor (*)(const Tensor&, double, double, double)>(ops::nan_to_num)),
      of("eq", static_cast<OfTwo*>(ops::eq)),
      of("eq_scalar", static_cast<WithNumber*>(ops::eq)),
      of("ne", static_cast<OfTwo*>(ops::ne)),
      of("ne_scalar", static_cast<WithNumber*>(ops::ne)),
      of("lt", static_cast<OfTwo*>(ops::lt)),
      of("lt_scalar", static_cast<WithNumber*>(ops::lt)),
      of("le", static_cast<OfTwo*>(ops::le)),
      of("le_scalar", static_cast<WithNumber*>(ops::le)),
      of("gt", static_cast<OfTwo*>(ops::gt)),
      of("gt_scalar", static_cast<WithNumber*>(ops::gt)),
      of("ge", static_cast<OfTwo*>(ops::ge)),
      of("ge_scalar", static_cast<WithNumber*>(ops::ge)),
      of("logical_and", ops::logical_and),
      of("logical_or", ops::logical_or),
      of("logical_xor", ops::logical_xor),
      of("logical_not", ops::logical_not),
      of("isnan", ops::isnan),
      of("isinf", ops::isinf),
      of("isfinite", ops::isfinite),
      of("bitwise_and", ops::bitwise_and),
      of("bitwise_or", ops::bitwise_or),
      of("bitwise_xor", ops::bitwise_xor),
      of("bitwise_not", ops::bitwise_not),
      of("where", ops::where),
      of("masked_fill", ops::masked_fill),
      of("add_", ops::add_),
      of("sub_", ops::sub_),
      of("mul_", ops::mul_),
      of("div_", ops::div_),
      of("add_scalar_", ops::add_scalar_),
      of("mul_scalar_", ops::mul_scalar_),
      of("pow_scalar_", ops::pow_scalar_),
      of("clamp_", ops::clamp_),
      of("lerp_", ops::lerp_),
      of("lerp_scalar_", ops::lerp_scalar_),
      of("addcmul_", ops::addcmul_),
      of("addcdiv_", ops::addcdiv_),
      of("masked_fill_", ops::masked_fill_),
      of("copy_", ops::copy_),
      of("neg_", ops::neg_),
      of("abs_", ops::abs_),
      of("square_", ops::square_),
      of("exp_", ops::exp_),
      of("log_", ops::log_),
      of("sqrt_", ops::sqrt_),
      of("rsqrt_", ops::rsqrt_),
      of("reciprocal_", ops::reciprocal_),
      of("relu_", ops::relu_),
      of("sigmoid_", ops::sigmoid_),
      of("tanh_", ops::tanh_),
      of("cast", ops::cast),
      of("clone", ops::clone),
      of("ones_like", ops::ones_like),
      of("zeros_like", ops::zeros_like),
      of("sum", ops::sum),
      of("mean", ops::mean),
      of("amax", ops::amax),
      of("amin", ops::amin),
      of("all", ops::all),
      of("any", ops::any),
      of("count_nonzero", ops::count_nonzero),
      of("logsumexp", ops::logsumexp),
      of("var", ops::var),
      of("std", ops::std),
      of("norm", ops::norm),
      of("prod", ops::prod),
      of("argmax", ops::argmax),
      of("argmin", ops::argmin),
      of("max", ops::max),
      of("min", ops::min),
      of("cumsum", ops::cumsum),
      of("cumprod", ops::cumprod),
      of("logcumsumexp", ops::logcumsumexp),
      of("vector_norm", ops::vector_norm),
      of("squared_norm", ops::squared_norm),
      of("sort", ops::sort),
      of("argsort", ops::argsort),
      of("unique", ops::unique),
      of("topk", ops::topk),
      of("mm", ops::mm),
      of("bmm", ops::bmm),
      of("matmul", ops::matmul),
      of("linear", ops::linear),
      of("addmm", ops::addmm),
      of("baddbmm", ops::baddbmm),
      of("mv", ops::mv),
      of("dot", ops::dot),
      of("outer", ops::outer),
      of("view", ops::view),
      of("transpose", ops::transpose),
      of("permute", ops::permute),
      of("expand", ops::expand),
      of("squeeze", static_cast<Tensor (*)(const Tensor&, std::int64_t)>(ops::squeeze)),
      of("squeeze", static_cast<Tensor (*)(const Tensor&)>(ops::squeeze)),
      of("unsqueeze", ops::unsqueeze),
      of("narrow", ops::narrow),
      of("select", ops::select),
      of("slice", ops::slice),
      of("flatten", ops::flatten),
      of("unflatten", ops::unflatten),
      of("view_as", ops::view_as),
      of("swapaxes", ops::swapaxes),
      of("movedim", ops::movedim),
      of("unbind", ops::unbind),
      of("chunk", ops::chunk),
      of("diagonal", ops::diagonal),
      of("as_strided", ops::as_strided),
      of("detach", ops::detach),
      of("to_device", ops::to_device),
      of("cat", ops::cat),
      of("stack", ops::stack),
      of("split", ops::split),
      of("split_with_sizes", ops::split_with_sizes),
      of("flip", ops::flip),
      of("roll", ops::roll),
      of("pad", ops::pad),
      of("repeat", ops::repeat),
      of("repeat_interleave", ops::repeat_interleave),
      of("contiguous", ops::contiguous),
      of("reshape", ops::reshape),
      of("embedding", ops::embedding),
      of("gather", ops::gather),
      of("scatter_add", ops::scatter_add),
      of("index_select", ops::index_select),
      of("scatter",
         static_cast<Tensor (*)(const Tensor&, const Tensor&, const Tensor&, std::int64_t)>(
             ops::scatter)),
      of("scatter",
         static_cast<Tensor (*)(const Tensor&, const Tensor&, double, std::int64_t)>(ops::scatter)),
      of("take_along_dim", ops::take_along_dim),
      of("index_add", ops::index_add),
      of("index_fill", ops::index_fill),
      of("index", ops::index),
      of("index_put", ops::index_put),
      of("nonzero", ops::nonzero),
      of("masked_select", ops::masked_select),
      of("tril", ops::tril),
      of("triu", ops::triu),
      of("one_hot", ops::one_hot),
      of("rms_norm", ops::rms_norm),
      of("layer_norm", ops::layer_norm),
      of("group_norm", ops::group_norm),
      of("batch_norm", ops::batch_norm),
      of("softmax", ops::softmax),
      of("log_softmax", ops::log_softmax),
      of("conv2d", ops::conv2d),
      of("conv1d", ops::conv1d),
      of("max_pool2d", ops::max_pool2d),
      of("avg_pool2d", ops::avg_pool2d),
      of("adaptive_avg_pool2d", ops::adaptive_avg_pool2d),
      of("interpolate", ops::interpolate),
      of("causal_attention", ops::causal_attention),
      of("scaled_dot_product_attention", ops::scaled_dot_product_attention),
      of("rotary",
         static_cast<Tensor (*)(const Tensor&, double, std::int64_t, const ops::RotaryScaling&)>(
             ops::rotary)),
      of("rotary",
         static_cast<Tensor (*)(const Tensor&, const Tensor&, double, const ops::RotaryScaling&)>(
             ops::rotary)),
      of("swiglu", ops::swiglu),
      of("counted_rows", ops::counted_rows),
      of("cross_entropy", ops::cross_entropy),
      of("cross_entropy_rows", ops::cross_entropy_rows),
      of("nll_loss", ops::nll_loss),
      of("mse_loss", ops::mse_loss),
      of("l1_loss", ops::l1_loss),
      of("smooth_l1_loss", ops::smooth_l1_loss),
      of("binary_cross_entropy_with_logits", ops::binary_cross_entropy_with_logits),
      of("kl_div", ops::kl_div),
      of("uniform_", ops::uniform_),
      of("normal_", ops::normal_),
      of("dropout", ops::dropout),
      of("bernoulli_", ops::bernoulli_),
      of("bernoulli", ops::bernoulli),
      of("randint_", ops::randint_),
      of("randperm_", ops::randperm_),
      of("multinomial", ops::multinomial),
      of("adadelta_", ops::adadelta_),
      of("adagrad_", ops::adagrad_),
      of("adam_", ops::adam_),
      of("adam_8bit_", ops::adam_8bit_),
      of("adamw_8bit_", ops::adamw_8bit_),
      of("adamax_", ops::adamax_),
      of("adamw_", ops::adamw_),
      of("asgd_", ops::asgd_),
      of("lion_", ops::lion_),
      of("nadam_", ops::nadam_),
      of("radam_", ops::radam_),
      of("rmsprop_", ops::rmsprop_),
      of("rprop_", ops::rprop_),
      of("sgd_", ops::sgd_),
      of("foreach_zero_", ops::foreach_zero_),
      of("foreach_mul_", ops::foreach_mul_),
      of("foreach_add_", ops::foreach_add_),
      of("foreach_lerp_", ops::foreach_lerp_),
      of("foreach_addcmul_", ops::foreach_addcmul_),
      of("foreach_addcdiv_", ops::foreach_addcdiv_),
      of("foreach_squared_norm", ops::foreach_squared_norm),
      of("chunk_cat", ops::chunk_cat),
  };
  return all;
}

/// Tensors that may be absent, by function and place.
const std::map<std::string, std::vector<std::size_t>>& optional_tensors() {
  static const std::map<std::string, std::vector<std::size_t>> places = {
      {"linear", {2}},
      {"clamp", {1, 2}},
      {"index", {1, 2}},
      {"index_put", {1, 2}},
      {"rms_norm", {1}},
      {"layer_norm", {1, 2}},
      {"group_norm", {1, 2}},
      {"conv2d", {2}},
      {"conv1d", {2}},
      {"batch_norm", {1, 2, 3, 4}},
      {"adam_", {8, 9}},
      {"adamw_", {8, 9}},
      {"sgd_", {4, 5}},
      {"rmsprop_", {6, 7, 8, 9}},
      {"scaled_dot_product_attention", {3}},
  };
  return places;
}

}  // namespace

TEST_CASE("every function refuses an undefined tensor by name") {
  for (const Function& function : functions()) {
    for (std::size_t i = 0; i < function.tensors; ++i) {
      const auto found = optional_tensors().find(function.name);
      if (found != optional_tensors().end() &&
          std::find(found->second.begin(), found->second.end(), i) != found->second.end()) {
        continue;
      }
      std::string text = "no error";
      try {
        function.call(i);
      } catch (const Error& error) {
        text = error.what();
      }
      INFO(function.name << ", tensor " << i << ": " << text);
      CHECK(text.find(": operand '") != std::string::npos);
      CHECK(text.find("is an undefined tensor") != std::string::npos);
    }
  }
}
