// Softmaxes and norms.
#include <cstddef>
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

// Pieces of 16 bytes that a thread has of a row in its registers (kernels/norm.cu).
constexpr int pieces_of_row = 4;
constexpr int pieces_of_gradient = 2;

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
  rows.launch_teams(out[0], call.op.name, call.in.size() == 1 ? pieces_of_row : pieces_of_gradient);
}

void rms_norm(const Call& call, std::span<Tensor> out) {
  Rows::of_last_dim(call.in[0].shape())
      .whole(call.in[0])
      .shared(call.in[1])
      .whole(out[0])
      .per_row(out[1])
      .number(call.args<NormArgs>().eps)
      .launch_teams(out[0], "rms_norm", pieces_of_row);
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
      .launch_teams(out[0], "layer_norm", pieces_of_row);
}

// ---- gradients: also of what all rows share ----

/// Groups of rows that a team has, by the shape only.
Parts groups_of(const Tensor& x) {
  constexpr std::int64_t least = 8, most_groups = 1024, enough_groups = 128;
  const std::int64_t rows = x.shape().back() == 0 ? 0 : x.numel() / x.shape().back();
  // Sums of twice as many rows are half as many bytes, where all processors still have a group.
  std::int64_t each = rows >= 2 * least * enough_groups ? 2 * least : least;
  while ((rows + each - 1) / each > most_groups) {
    each *= 2;
  }
  return {each, (rows + each - 1) / each};
}

/// Queues the gradient of x, and those of what all rows share: out[1], ... `rows` has the operands
/// and out[0]; the sums of groups come next.
void backward(const Call& call, std::span<Tensor> out, Rows& rows) {
  const Tensor& x = call.in[1];
  const Parts groups = groups_of(x);
  rows.memory(call.workspace.data()).integer(groups.each).integer(groups.count);
  const std::string& name = call.op.name;
  if (!rows.launch_teams(out[0], name, pieces_of_gradient, groups.count) && groups.count > 0) {
    const RowArguments& a = rows.finish();
    launch(out[0], with_type(name + "_sums", x.dtype()), blocks_for(groups.count * a.length),
           threads_per_block, a);
  }
  std::byte* sums = call.workspace.data();
  for (const Tensor& sum : out.subspan(1)) {
    const RowArguments result = Rows::of_last_dim(x.shape()).shared(sum).number(1).finish();
    join_groups(result, result.arrays[0], sums, groups.count, sum);
    sums +=
        groups.count * result.length * static_cast<std::int64_t>(size_of(summed_type(x.dtype())));
  }
}

template <std::size_t sums>
std::size_t workspace_of_backward(const Call& call, std::span<const Tensor>) {
  const Tensor& x = call.in[1];
  return sums * static_cast<std::size_t>(groups_of(x).count * x.shape().back()) *
         size_of(summed_type(x.dtype()));
}

void rms_norm_backward(const Call& call, std::span<Tensor> out) {
  Rows rows = Rows::of_last_dim(call.in[1].shape());
  rows.whole(call.in[0]).whole(call.in[1]).shared(call.in[2]).per_row(call.in[3]).whole(out[0]);
  backward(call, out, rows);
}

void layer_norm_backward(const Call& call, std::span<Tensor> out) {
  Rows rows = Rows::of_last_dim(call.in[1].shape());
  rows.whole(call.in[0]).whole(call.in[1]).shared(call.in[2]);
  rows.per_row(call.in[3]).per_row(call.in[4]).whole(out[0]);
  backward(call, out, rows);
}

}  // namespace

void add_norms(KernelTable& table) {
  table["softmax"] = {along_dim<SoftmaxArgs>};
  table["softmax_backward"] = {along_dim<SoftmaxArgs>};
  table["log_softmax"] = {along_dim<LogSoftmaxArgs>};
  table["log_softmax_backward"] = {along_dim<LogSoftmaxArgs>};
  table["rms_norm"] = {rms_norm};
  table["rms_norm_backward"] = {.run = rms_norm_backward, .workspace = workspace_of_backward<1>};
  table["layer_norm"] = {layer_norm};
  table["layer_norm_backward"] = {.run = layer_norm_backward,
                                  .workspace = workspace_of_backward<2>};
}

}  // namespace tessera::cuda
