// Operators of layers: products, convolutions, norms, attention, pooling, losses, dropout.
module;
#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <string_view>
module tessera.exported;

import tessera.base;
import tessera.tensor;
import tessera.dtensor;
import tessera.ops;
import :aten;
import :graph;

namespace tessera::exported {
namespace {

using A = const Arguments&;

template <Tensor (*f)(const Tensor&, const Tensor&)>
Tensors two(A a) {
  return {f(a.tensor(0), a.tensor(1))};
}

Tensor convolved(A a, const ops::Convolution& settings) {
  const Tensor weight = a.tensor(1);
  return weight.dims() == 3 ? ops::conv1d(a.tensor(0), weight, a.tensor(2), settings)
                            : ops::conv2d(a.tensor(0), weight, a.tensor(2), settings);
}

Tensors convolution(A a) {
  return {convolved(
      a,
      {.stride = a.dims(3), .padding = a.dims(4), .dilation = a.dims(5), .groups = a.integer(8)})};
}
Tensors plain_convolution(A a) {
  return {convolved(
      a,
      {.stride = a.dims(3), .padding = a.dims(4), .dilation = a.dims(5), .groups = a.integer(6)})};
}

std::string unsupported_convolution(const GraphNode& node) {
  return is_set(node, 6) ? "a transposed convolution" : "";
}

ops::Pooling pooling(A a) {
  return {.kernel_size = a.dims(1), .stride = a.dims(2), .padding = a.dims(3)};
}
Tensors largest_of_windows(A a) {
  ops::Pooling settings = pooling(a);
  settings.ceil_mode = a.flag(5);
  return {ops::max_pool2d(a.tensor(0), settings, a.dims(4))};
}
Tensors mean_of_windows(A a) {
  if (a.has(6)) {
    a.refuse("divisor_override is not supported");
  }
  ops::Pooling settings = pooling(a);
  settings.ceil_mode = a.flag(4);
  return {ops::avg_pool2d(a.tensor(0), settings, a.flag(5))};
}

Tensors resized(A a, ops::InterpolateMode mode, bool aligned, std::size_t factors) {
  const Tensor x = a.tensor(0);
  Dims size = a.dims(1);
  if (size.empty()) {
    for (int d = 2; d < x.dims(); ++d) {
      const RunValue factor = a.number(factors + static_cast<std::size_t>(d - 2));
      size.push_back(static_cast<std::int64_t>(static_cast<double>(x.size(d)) * factor.real));
    }
  }
  return {ops::interpolate(x, size, mode, aligned)};
}

/// Output sizes, or a list of factors.
Tensors resized_by_list(A a, ops::InterpolateMode mode, bool aligned, std::size_t factors) {
  const Tensor x = a.tensor(0);
  Dims size = a.dims(1);
  if (size.empty()) {
    for (int d = 2; d < x.dims(); ++d) {
      size.push_back(
          static_cast<std::int64_t>(static_cast<double>(x.size(d)) *
                                    a.real_of_list(factors, static_cast<std::size_t>(d - 2))));
    }
  }
  return {ops::interpolate(x, size, mode, aligned)};
}

/// The last `dims` dims as one, for layer norms over several.
Tensors layer_norms(A a) {
  const Tensor x = a.tensor(0);
  const int dims = a.dims(1).size();
  const auto flat = [dims](const Tensor& y) {
    return !y || dims == 1 ? y : ops::flatten(y, y.dims() - dims, -1);
  };
  const Tensor y = ops::layer_norm(flat(x), flat(a.tensor(2)), flat(a.tensor(3)), a.real(4));
  return {dims == 1 ? y : ops::reshape(y, x.shape())};
}

Tensors rms_norms(A a) {
  const Tensor x = a.tensor(0);
  const Tensor weight = a.has(2) ? a.tensor(2) : full(a.dims(1), 1, x.dtype(), a.device());
  const double smallest = x.dtype() == DType::f32 ? std::numeric_limits<float>::epsilon() : 1e-5;
  return {ops::rms_norm(x, weight, a.has(3) ? a.real(3) : smallest)};
}

/// x, weight, bias, running mean and variance of a batch norm.
Tensor batch_norms(A a, const Tensor& mean, const Tensor& variance, bool training,
                   std::size_t momentum) {
  const AllowRedistribution statistics_of_all_ranks;
  return ops::batch_norm(a.tensor(0), mean, variance, a.tensor(1), a.tensor(2), training,
                         a.real(momentum), a.real(momentum + 1));
}
Tensors running_batch_norm(A a) { return {batch_norms(a, a.tensor(3), a.tensor(4), false, 5)}; }
/// The new running statistics are results; the program writes them to the buffers.
Tensors functional_batch_norm(A a) {
  if (!a.flag(5)) {
    return {batch_norms(a, a.tensor(3), a.tensor(4), false, 6), {}, {}, a.tensor(3), a.tensor(4)};
  }
  const Tensor mean = ops::clone(ops::detach(a.tensor(3)));
  const Tensor variance = ops::clone(ops::detach(a.tensor(4)));
  const Tensor y = batch_norms(a, mean, variance, true, 6);
  return {y, {}, {}, mean, variance};
}
Tensors composite_batch_norm(A a) {
  return {batch_norms(a, a.tensor(3), a.tensor(4), a.flag(5), 6)};
}

/// q, k, v with all their dims: [B, H, T, D].
Tensor attention(A a, const Tensor& mask, std::size_t dropout, std::size_t causal,
                 std::size_t scale) {
  const Tensor q = a.tensor(0);
  const auto four = [](const Tensor& x) { return x.dims() == 3 ? ops::unsqueeze(x, 0) : x; };
  const Tensor y = ops::scaled_dot_product_attention(
      four(q), four(a.tensor(1)), four(a.tensor(2)), mask, a.training() ? a.real(dropout) : 0,
      a.flag(causal) ? ops::Causal::upper_left : ops::Causal::none,
      a.has(scale) ? a.real(scale) : 0);
  return q.dims() == 3 ? ops::squeeze(y, 0) : y;
}

Tensors dropped(A a) {
  const bool active = a.training() && a.has(2) && a.flag(2) && a.real(1) > 0;
  return {active ? ops::dropout(a.tensor(0), a.real(1), by_batch_row("dropout")) : a.tensor(0)};
}

Tensors softmaxes(A a) { return {ops::softmax(a.typed(2), a.integer(1))}; }
Tensors log_softmaxes(A a) { return {ops::log_softmax(a.typed(2), a.integer(1))}; }

ops::Reduction reduction(A a, std::size_t i) {
  return a.integer(i) == 0   ? ops::Reduction::none
         : a.integer(i) == 1 ? ops::Reduction::mean
                             : ops::Reduction::sum;
}

constexpr AtenOperator rows[] = {
    {"aten.mm.default", "self mat2", two<ops::mm>},
    {"aten.bmm.default", "self mat2", two<ops::bmm>},
    {"aten.matmul.default", "self other", two<ops::matmul>},
    {"aten.mv.default", "self vec", two<ops::mv>},
    {"aten.dot.default", "self tensor", two<ops::dot>},
    {"aten.outer.default", "self vec2", two<ops::outer>},
    {"aten.addmm.default", "self mat1 mat2 beta=1 alpha=1",
     [](A a) {
       return Tensors{ops::addmm(a.tensor(0), a.tensor(1), a.tensor(2), a.real(3), a.real(4))};
     }},
    {"aten.baddbmm.default", "self batch1 batch2 beta=1 alpha=1",
     [](A a) {
       return Tensors{ops::baddbmm(a.tensor(0), a.tensor(1), a.tensor(2), a.real(3), a.real(4))};
     }},
    {"aten.linear.default", "input weight bias=none",
     [](A a) { return Tensors{ops::linear(a.tensor(0), a.tensor(1), a.tensor(2))}; }},
    {"aten.convolution.default",
     "input weight bias stride padding dilation transposed output_padding groups", convolution,
     nullptr, 0, unsupported_convolution},
    {"aten.conv2d.default", "input weight bias=none stride=[1] padding=[0] dilation=[1] groups=1",
     plain_convolution},
    {"aten.conv1d.default", "input weight bias=none stride=[1] padding=[0] dilation=[1] groups=1",
     plain_convolution},

    {"aten.max_pool2d_with_indices.default",
     "self kernel_size stride=[] padding=[0] dilation=[1] ceil_mode=false", largest_of_windows,
     nullptr, 1},
    {"aten.max_pool2d.default",
     "self kernel_size stride=[] padding=[0] dilation=[1] ceil_mode=false", largest_of_windows},
    {"aten.avg_pool2d.default",
     "self kernel_size stride=[] padding=[0] ceil_mode=false count_include_pad=true "
     "divisor_override=none",
     mean_of_windows},
    {"aten._adaptive_avg_pool2d.default", "self output_size",
     [](A a) { return Tensors{ops::adaptive_avg_pool2d(a.tensor(0), a.dims(1))}; }},
    {"aten.adaptive_avg_pool2d.default", "self output_size",
     [](A a) { return Tensors{ops::adaptive_avg_pool2d(a.tensor(0), a.dims(1))}; }},
    {"aten.upsample_nearest2d.vec", "input output_size scale_factors",
     [](A a) { return resized_by_list(a, ops::InterpolateMode::nearest, false, 2); }},
    {"aten.upsample_bilinear2d.vec", "input output_size align_corners scale_factors",
     [](A a) { return resized_by_list(a, ops::InterpolateMode::linear, a.flag(2), 3); }},
    {"aten.upsample_nearest2d.default", "self output_size scales_h=none scales_w=none",
     [](A a) { return resized(a, ops::InterpolateMode::nearest, false, 2); }},
    {"aten.upsample_bilinear2d.default",
     "self output_size align_corners scales_h=none scales_w=none",
     [](A a) { return resized(a, ops::InterpolateMode::linear, a.flag(2), 3); }},

    {"aten.native_layer_norm.default", "input normalized_shape weight bias eps", layer_norms,
     nullptr, 1},
    {"aten.layer_norm.default",
     "input normalized_shape weight=none bias=none eps=1e-5 -cudnn_enable", layer_norms},
    {"aten.rms_norm.default", "input normalized_shape weight=none eps=none", rms_norms},
    {"aten.native_group_norm.default", "input weight bias -N -C -HxW group eps",
     [](A a) {
       return Tensors{
           ops::group_norm(a.tensor(0), a.integer(6), a.tensor(1), a.tensor(2), a.real(7))};
     },
     nullptr, 1},
    {"aten.group_norm.default", "input num_groups weight=none bias=none eps=1e-5 -cudnn_enabled",
     [](A a) {
       return Tensors{
           ops::group_norm(a.tensor(0), a.integer(1), a.tensor(2), a.tensor(3), a.real(4))};
     }},
    {"aten._native_batch_norm_legit_no_training.default",
     "input weight bias running_mean running_var momentum eps", running_batch_norm, nullptr, 1},
    {"aten._native_batch_norm_legit_functional.default",
     "input weight bias running_mean running_var training momentum eps", functional_batch_norm},
    {"aten.batch_norm.default",
     "input weight bias running_mean running_var training momentum eps -cudnn_enabled",
     composite_batch_norm},
    {"aten._softmax.default", "self dim half_to_float", softmaxes},
    {"aten.softmax.int", "self dim dtype=none", softmaxes},
    {"aten._log_softmax.default", "self dim half_to_float", log_softmaxes},
    {"aten.log_softmax.int", "self dim dtype=none", log_softmaxes},

    {"aten.scaled_dot_product_attention.default",
     "query key value attn_mask=none dropout_p=0 is_causal=false scale=none -enable_gqa",
     [](A a) { return Tensors{attention(a, a.tensor(3), 4, 5, 6)}; }},
    {"aten._scaled_dot_product_flash_attention_for_cpu.default",
     "query key value dropout_p=0 is_causal=false attn_mask=none scale=none",
     [](A a) { return Tensors{attention(a, a.tensor(5), 3, 4, 6)}; }, nullptr, 1},
    {"aten.dropout.default", "input p train", dropped},
    {"aten.native_dropout.default", "input p train", dropped, nullptr, 1},

    {"aten.cross_entropy_loss.default",
     "self target weight=none reduction=1 ignore_index=-100 label_smoothing=0",
     [](A a) {
       return Tensors{ops::cross_entropy(a.tensor(0), a.tensor(1),
                                         {.reduction = reduction(a, 3),
                                          .ignore_index = a.integer(4),
                                          .label_smoothing = a.real(5),
                                          .weight = a.tensor(2)})};
     }},
    {"aten.mse_loss.default", "self target reduction=1",
     [](A a) { return Tensors{ops::mse_loss(a.tensor(0), a.tensor(1), reduction(a, 2))}; }},
    {"aten.l1_loss.default", "self target reduction=1",
     [](A a) { return Tensors{ops::l1_loss(a.tensor(0), a.tensor(1), reduction(a, 2))}; }},
};

}  // namespace

std::span<const AtenOperator> layer_rows() { return rows; }

}  // namespace tessera::exported
