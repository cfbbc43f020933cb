// The largest element of each window of images: max_pool2d.
module;
#include <fmt/format.h>

#include <cstdint>
#include <span>

#include "convolution/kernels/convolution.hpp"
module tessera.ops;

import tessera.base;
import tessera.placement;
import tessera.tensor;
import :index_call;
import :kernel_call;
import :pooling_call;

namespace tessera::ops {
namespace {

using namespace pooling;

struct MaxPoolArgs {
  Dims kernel_size;
  Dims stride;
  Dims padding;
  bool ceil_mode;
  Dims dilation;
};

kernels::Windows max_windows(const Call& call, const Dims& x) {
  const auto p = call.args<MaxPoolArgs>();
  check_pooling(call, p);
  kernels::Windows w;
  w.channels = x[1];
  for (int i = 0; i < 2; ++i) {
    w.in[i] = x[i + 2];
    w.kernel[i] = p.kernel_size[i];
    w.stride[i] = p.stride[i];
    w.padding[i] = p.padding[i];
    w.dilation[i] = p.dilation[i];
    w.out[i] = windows_along(call, w.in[i], w.kernel[i], w.dilation[i], w.stride[i], w.padding[i],
                             p.ceil_mode);
  }
  return w;
}

void max_infer(const Call& call, ResultShapes& out) {
  check_image(call, 2);
  const Dims& x = call.in[0].shape();
  const kernels::Windows w = max_windows(call, x);
  if (w.out[0] < 1 || w.out[1] < 1) {
    refuse(call,
           {.wrong = fmt::format("the kernel is larger than the padded image {}", to_string(x))});
  }
  const Dims shape = with_spatial(x, {w.out[0], w.out[1]});
  out.push_back({shape, call.in[0].dtype()});
  out.push_back({shape, DType::i64});  // where in its image each maximum stands
}

void max_cpu(const Call& call, std::span<const Tensor> out, Workspace& w) {
  const Tensor x = contiguous_operand(w, call.in[0]);
  if (w.counts()) {
    return;
  }
  visit_floating(x.dtype(), call.op.name, [&]<class T>(T) {
    kernels::max_pool(max_windows(call, x.shape()), x.shape()[0], pointer<T>(x), pointer<T>(out[0]),
                      pointer<std::int64_t>(out[1]));
  });
}

void max_rule(const RuleContext& context, Strategies& strategies) {
  rules::same_dim(context, strategies, 0);
  rules::same_dim(context, strategies, 1);
}

/// [N, C, ...] as [N, C, n].
Tensor planes(const Tensor& x) { return reshape(x, {x.size(0), x.size(1), -1}); }

const Op& max_op = register_op<MaxPoolArgs>({
    .schema = "max_pool2d(x)",
    .infer = max_infer,
    .cpu = in_workspace<max_cpu>,
    .workspace = workspace_of<max_cpu>,
    .rule = max_rule,
    .backward =
        [](const BackwardContext& context, std::span<const Tensor> grads, std::span<Tensor> out) {
          const Dims& x = context.in_shapes[0];
          const Dims flat{x[0], x[1], x[2] * x[3]};
          out[0] = reshape(
              indexing::gather_backward(planes(grads[0]), planes(context.out[1]), 2, flat), x);
        },
    .saves_outputs = 0b10,
    .about = "The largest element of each window of images, and its position.",
});

}  // namespace

Tensor max_pool2d(const Tensor& x, const Pooling& settings, const Dims& dilation) {
  operands::given("max_pool2d", "x", x);
  return of_batch(x, [&](const Tensor& images) {
    return call_one(max_op, {images},
                    MaxPoolArgs{.kernel_size = for_both_dims(settings.kernel_size),
                                .stride = stride_of(settings),
                                .padding = for_both_dims(settings.padding),
                                .ceil_mode = settings.ceil_mode,
                                .dilation = for_both_dims(dilation)});
  });
}

}  // namespace tessera::ops
