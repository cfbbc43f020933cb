// Causal attention, and rotary positions.
#include <algorithm>
#include <cmath>
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

constexpr unsigned threads = 128;  // of attention.cu
constexpr std::int64_t most_dim = 512;
constexpr std::int64_t most_blocks = 65535;

enum class RotaryScalingKind { none, linear, llama3, yarn };
struct RotaryArgs {
  Dynamic<double> theta;
  Dynamic<std::int64_t> offset;
  RotaryScalingKind scaling;
  double factor;
  double original_positions;
  double low;
  double high;
  double amplitude;
  bool whole_dims;
  SpecArgument whole{};
};
struct RotaryAtArgs {
  Dynamic<double> theta;
  RotaryScalingKind scaling;
  double factor;
  double original_positions;
  double low;
  double high;
  double amplitude;
  bool whole_dims;
};
struct CausalArgs {
  Dynamic<double> scale;
  std::int64_t window;
  Dynamic<double> softcap;
};

/// Of [batch, time, head, dim].
HeadArray heads_of(const Tensor& x) {
  return {x.device_address(), x.strides()[0], x.strides()[1],
          x.strides()[2],     x.strides()[3], x.dtype()};
}
/// Of [batch, head, time].
HeadArray log_sums_of(const Tensor& x) {
  return {x.device_address(), x.strides()[0], x.strides()[2], x.strides()[1], 0, x.dtype()};
}

/// Of [batch, time]; absent: no address.
HeadArray documents_of(const Tensor& x) {
  if (!x) {
    return {};
  }
  return {x.device_address(), x.strides()[0], x.strides()[1], 0, 0, x.dtype()};
}

/// Notes the first token that cannot be in its document.
void look_at(const Call& call, const Tensor& documents) {
  if (!documents || documents.numel() == 0) {
    return;
  }
  auto& driver = static_cast<CudaDriver&>(driver_of(documents.device()));
  const DocumentArguments arguments = {.batches = documents.shape()[0],
                                       .times = documents.shape()[1],
                                       .documents = documents_of(documents),
                                       .problem = driver.problem(),
                                       .op = call.op.id};
  launch(documents, "find_wrong_document", 1, threads_per_block, arguments);
}

AttentionArguments arguments_of(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& documents) {
  const auto arguments = call.args<CausalArgs>();
  AttentionArguments a = {};
  a.batches = q.shape()[0];
  a.queries = q.shape()[1];
  a.keys = k.shape()[1];
  a.key_heads = k.shape()[2];
  a.group = a.key_heads == 0 ? 0 : q.shape()[2] / a.key_heads;
  a.head_dim = q.shape()[3];
  a.value_dim = v.shape()[3];
  a.q = heads_of(q);
  a.k = heads_of(k);
  a.v = heads_of(v);
  const double scale = arguments.scale;
  a.scale = scale == 0 ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : scale;
  a.softcap = arguments.softcap;
  a.window = arguments.window;
  a.documents = documents_of(documents);
  require(a.head_dim <= most_dim && a.value_dim <= most_dim,
          "cuda: attention has heads of at most 512 dims");
  look_at(call, documents);
  return a;
}

void launch_blocks(const AttentionArguments& a, const char* kernel, std::int64_t work,
                   const Tensor& on) {
  if (work > 0) {
    launch(on, with_type(kernel, a.q.type), static_cast<unsigned>(std::min(work, most_blocks)),
           threads, a);
  }
}

void causal_attention(const Call& call, std::span<Tensor> out) {
  AttentionArguments a = arguments_of(call, call.in[0], call.in[1], call.in[2], call.in[3]);
  a.y = heads_of(out[0]);
  a.log_sums = log_sums_of(out[1]);
  launch_blocks(a, "attention", a.batches * a.key_heads * a.group * a.queries, out[0]);
}

void causal_attention_backward(const Call& call, std::span<Tensor> out) {
  AttentionArguments a = arguments_of(call, call.in[1], call.in[2], call.in[3], call.in[6]);
  a.dy = heads_of(call.in[0]);
  a.y = heads_of(call.in[4]);
  a.log_sums = log_sums_of(call.in[5]);
  a.dq = heads_of(out[0]);
  a.dk = heads_of(out[1]);
  a.dv = heads_of(out[2]);
  launch_blocks(a, "attention_queries", a.batches * a.key_heads * a.group * a.queries, out[0]);
  launch_blocks(a, "attention_keys", a.batches * a.key_heads * a.keys, out[0]);
}

/// Turns x by the angles of its positions; the direction -1 is the inverse.
template <class Args>
void turn(const Call& call, const Tensor& y, const Args& arguments, int direction,
          RotaryArguments a) {
  const Tensor& x = call.in[0];
  require(arguments.scaling == RotaryScalingKind::none,
          "cuda: rotary positions are not scaled yet");
  a.batches = x.shape()[0];
  a.times = x.shape()[1];
  a.heads = x.shape()[2];
  a.half = x.shape()[3] / 2;
  a.x = heads_of(x);
  a.y = heads_of(y);
  a.theta = arguments.theta;
  a.direction = direction;
  if (x.numel() != 0) {
    launch(y, with_type("rotary", x.dtype()), blocks_for(x.numel() / 2), threads_per_block, a);
  }
}

template <int direction>
void rotary(const Call& call, std::span<Tensor> out) {
  const auto arguments = call.args<RotaryArgs>();
  RotaryArguments a = {};
  a.offset = arguments.offset + (arguments.whole ? local_offset(*arguments.whole)[1] : 0);
  turn(call, out[0], arguments, direction, a);
}

/// Positions are [time] or [batch, time].
template <int direction>
void rotary_at(const Call& call, std::span<Tensor> out) {
  const Tensor& positions = call.in[1];
  RotaryArguments a = {};
  a.positions = {positions.device_address(),
                 positions.dims() == 2 ? positions.strides()[0] : 0,
                 positions.strides()[positions.dims() - 1],
                 0,
                 0,
                 positions.dtype()};
  turn(call, out[0], call.args<RotaryAtArgs>(), direction, a);
}

}  // namespace

void add_attention(KernelTable& table) {
  table["causal_attention"] = {causal_attention};
  table["rotary"] = {rotary<1>};
  table["rotary_inverse"] = {rotary<-1>};
  table["rotary_at"] = {rotary_at<1>};
  table["rotary_at_inverse"] = {rotary_at<-1>};
  table["causal_attention_backward"] = {causal_attention_backward};
}

}  // namespace tessera::cuda
