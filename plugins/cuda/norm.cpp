// Softmaxes and norms.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "kernels.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

// The arguments of the operators.
struct SoftmaxArgs {
  std::int64_t dim;
};
struct LogSoftmaxArgs {
  std::int64_t dim;
  bool loss_parallel;
};
struct NormArgs {
  Dynamic<double> eps;
};

/// Rows along the dim of the operator's arguments.
template <class Args>
Rows rows_of(const Call& call) {
  const Dims& shape = call.in[0].shape();
  const std::int64_t dim = call.args<Args>().dim;
  return shape.empty() ? Rows(Dims{1}, Dims{0})
                       : Rows(shape, Dims{dim < 0 ? dim + shape.size() : dim});
}

/// y from x; or dx from dy and y.
template <class Args>
void along_dim(const Call& call, std::span<Tensor> out) {
  const bool is_number = call.in[0].dims() == 0;
  Rows rows = rows_of<Args>(call);
  for (const Tensor& x : call.in) {
    is_number ? rows.shared(x) : rows.whole(x);
  }
  is_number ? rows.shared(out[0]) : rows.whole(out[0]);
  rows.launch_rows(out[0], with_type(call.op.name, out[0].dtype()));
}

void rms_norm(const Call& call, std::span<Tensor> out) {
  Rows::of_last_dim(call.in[0].shape())
      .whole(call.in[0])
      .shared(call.in[1])
      .whole(out[0])
      .per_row(out[1])
      .number(call.args<NormArgs>().eps)
      .launch_rows(out[0], with_type("rms_norm", out[0].dtype()));
}

void rms_norm_backward(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[1];
  Rows::of_last_dim(x.shape())
      .whole(call.in[0])
      .whole(x)
      .shared(call.in[2])
      .per_row(call.in[3])
      .whole(out[0])
      .launch_rows(out[0], with_type("rms_norm_backward", x.dtype()));
  Rows::of_last_dim(x.shape())
      .whole(call.in[0])
      .whole(x)
      .per_row(call.in[3])
      .shared(out[1])
      .launch_columns(out[1], with_type("rms_norm_weight", x.dtype()));
}

void layer_norm(const Call& call, std::span<Tensor> out) {
  Rows::of_last_dim(call.in[0].shape())
      .whole(call.in[0])
      .shared(call.in[1])
      .shared(call.in[2])
      .whole(out[0])
      .per_row(out[1])
      .per_row(out[2])
      .number(call.args<NormArgs>().eps)
      .launch_rows(out[0], with_type("layer_norm", out[0].dtype()));
}

void layer_norm_backward(const Call& call, std::span<Tensor> out) {
  const Tensor& x = call.in[1];
  Rows::of_last_dim(x.shape())
      .whole(call.in[0])
      .whole(x)
      .shared(call.in[2])
      .per_row(call.in[3])
      .per_row(call.in[4])
      .whole(out[0])
      .launch_rows(out[0], with_type("layer_norm_backward", x.dtype()));
  Rows::of_last_dim(x.shape())
      .whole(call.in[0])
      .whole(x)
      .per_row(call.in[3])
      .per_row(call.in[4])
      .shared(out[1])
      .launch_columns(out[1], with_type("layer_norm_weight", x.dtype()));
  Rows::of_last_dim(x.shape())
      .whole(call.in[0])
      .shared(out[2])
      .number(1)
      .launch_columns(out[2], with_type("sum_columns", x.dtype()));
}

}  // namespace

void add_norms(KernelTable& table) {
  table["softmax"] = {along_dim<SoftmaxArgs>};
  table["softmax_backward"] = {along_dim<SoftmaxArgs>};
  table["log_softmax"] = {along_dim<LogSoftmaxArgs>};
  table["log_softmax_backward"] = {along_dim<LogSoftmaxArgs>};
  table["rms_norm"] = {rms_norm};
  table["rms_norm_backward"] = {rms_norm_backward};
  table["layer_norm"] = {layer_norm};
  table["layer_norm_backward"] = {layer_norm_backward};
}

}  // namespace tessera::cuda
