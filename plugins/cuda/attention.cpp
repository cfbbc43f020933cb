// Causal attention, and rotary positions.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <vector>

import tessera.base;
import tessera.device;
import tessera.placement;
import tessera.tensor;

#include "attention/arguments.hpp"
#include "attention/host_math.hpp"
#include "indices.hpp"
#include "kernels.hpp"
#include "kernels/attention_tile.hpp"
#include "kernels/rotary.hpp"
#include "rows.hpp"

namespace tessera::cuda {
namespace {

constexpr unsigned threads = 128;  // of attention.cu
constexpr std::int64_t most_dim = 512;
constexpr std::int64_t most_blocks = 65535;

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

/// Notes the first token that cannot be in its document. `position`: that of the first token.
void look_at(const Call& call, const Tensor& documents, std::int64_t position) {
  if (!documents || documents.numel() == 0) {
    return;
  }
  auto& driver = static_cast<CudaDriver&>(driver_of(documents.device()));
  const DocumentArguments arguments = {.batches = documents.shape()[0],
                                       .times = documents.shape()[1],
                                       .position = position,
                                       .documents = documents_of(documents),
                                       .problem = driver.problem(),
                                       .op = call.op.id};
  launch(documents, "find_wrong_document", 1, threads_per_block, arguments);
}

/// Which keys a query sees.
void set_keys(const ops::CausalArgs&, AttentionArguments& a) { a.shift = a.keys - a.queries; }
void set_keys(const ops::BlockArgs& arguments, AttentionArguments& a) {
  a.shift = arguments.is_causal ? arguments.first_query - arguments.first_key : a.keys;
  a.first_key = arguments.first_key;
}
std::int64_t first_query_of(const ops::CausalArgs&) { return 0; }
std::int64_t first_query_of(const ops::BlockArgs& arguments) { return arguments.first_query; }

/// The arguments' numbers of rows, heads and dims; the others are 0.
AttentionArguments sizes_of(const Tensor& q, const Tensor& k, const Tensor& v) {
  AttentionArguments a = {};
  a.batches = q.shape()[0];
  a.queries = q.shape()[1];
  a.keys = k.shape()[1];
  a.key_heads = k.shape()[2];
  a.group = a.key_heads == 0 ? 0 : q.shape()[2] / a.key_heads;
  a.head_dim = q.shape()[3];
  a.value_dim = v.shape()[3];
  return a;
}

template <class Args>
AttentionArguments arguments_of(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v,
                                const Tensor& documents) {
  const auto arguments = call.args<Args>();
  AttentionArguments a = sizes_of(q, k, v);
  a.q = heads_of(q);
  a.k = heads_of(k);
  a.v = heads_of(v);
  const double scale = arguments.scale;
  a.scale = scale == 0 ? 1 / std::sqrt(static_cast<double>(a.head_dim)) : scale;
  a.softcap = arguments.softcap;
  a.window = std::min(arguments.window, std::int64_t{1} << 40);  // so that sums do not overflow
  a.documents = documents_of(documents);
  set_keys(arguments, a);
  require(a.head_dim <= most_dim && a.value_dim <= most_dim,
          "cuda: attention has heads of at most 512 dims");
  look_at(call, documents, first_query_of(arguments));
  return a;
}

// ---- tensor cores (attention_mma.cu) ----

constexpr std::int64_t most_mma_dim = 256;

/// Whether rows can be copied in pieces of 16 bytes.
bool in_pieces(const Tensor& x) {
  constexpr std::int64_t piece = 8;
  const auto whole = [&](int dim) { return x.shape()[dim] <= 1 || x.strides()[dim] % piece == 0; };
  return reinterpret_cast<std::uintptr_t>(x.device_address()) % 16 == 0 && x.strides()[3] == 1 &&
         whole(0) && whole(1) && whole(2);
}

/// Whether the shapes are those of the kernels for tensor cores.
bool fits_tensor_cores(const Tensor& q, const Tensor& k, const Tensor& v) {
  constexpr std::int64_t most_keys = std::int64_t{1} << 30;
  const std::int64_t dim = q.shape()[3];
  return (q.dtype() == DType::bf16 || q.dtype() == DType::f16) && v.shape()[3] == dim && dim > 0 &&
         dim % 16 == 0 && dim <= most_mma_dim && k.shape()[1] < most_keys;
}

/// Tiles of a kernel: how many rows of queries or keys a block has, and its threads.
struct Tiles {
  int width;
  int attention, queries, keys;
  unsigned query_threads;
};
constexpr Tiles tiles_of(std::int64_t dim) {
  return dim <= 64    ? Tiles{64, 128, 64, 64, 128}
         : dim <= 128 ? Tiles{128, 128, 64, 64, 128}
                      : Tiles{256, 64, 32, 32, 64};
}

/// Queues a kernel with a block for each tile of `rows` in each of `heads`. `arrays`: how many have
/// such tiles in the block's memory.
void launch_tiles(const AttentionArguments& a, const std::string& kernel, std::int64_t heads,
                  std::int64_t rows, int tile, int arrays, unsigned block, const Tensor& on) {
  const std::int64_t blocks = a.batches * heads * ((rows + tile - 1) / tile);
  const int width = tiles_of(a.head_dim).width;
  if (blocks > 0) {
    launch(on, kernel + "_" + std::string(name_of(a.q.type)) + "_" + std::to_string(width),
           static_cast<unsigned>(blocks), block, a, attention_memory(arrays * tile, width));
  }
}

// ---- any type and size (attention.cu) ----

void launch_blocks(const AttentionArguments& a, const char* kernel, std::int64_t work,
                   const Tensor& on) {
  if (work > 0) {
    launch(on, with_type(kernel, a.q.type), static_cast<unsigned>(std::min(work, most_blocks)),
           threads, a);
  }
}

// ---- cuDNN (dnn.cpp) ----

/// Where the operator's memory for the library begins.
std::size_t bytes_of_means(std::int64_t rows) {
  constexpr std::size_t unit = 256;
  return (sizeof(float) * static_cast<std::size_t>(rows) + unit - 1) / unit * unit;
}

/// Whether the library has computed it. Backward, the means come first in the workspace.
bool by_library(const Call& call, const AttentionArguments& a, bool backward,
                std::span<const Tensor> rows, const Tensor& on) {
  if (!Dnn::takes(a, backward) || !std::ranges::all_of(rows, in_pieces)) {
    return false;
  }
  auto& driver = static_cast<CudaDriver&>(driver_of(on.device()));
  const std::size_t used =
      backward ? bytes_of_means(a.batches * a.key_heads * a.group * a.queries) : 0;
  Dnn* const dnn = call.workspace.size() > used ? driver.dnn() : nullptr;
  return dnn != nullptr &&
         dnn->attention(driver.handle_of(current_stream(on.device()).native()), a, backward,
                        call.workspace.data() + used, call.workspace.size() - used);
}

/// Bytes for the library, where it may be asked for attention with these operands.
std::size_t bytes_for_library(const Call& call, const Tensor& q, const Tensor& k, const Tensor& v,
                              const Tensor& documents, bool backward) {
  AttentionArguments a = sizes_of(q, k, v);
  a.q.type = q.dtype();
  const std::int64_t heads = a.key_heads * a.group;
  a.log_sums = {nullptr, heads * a.queries, 1, a.queries, 0, DType::f32};
  a.softcap = call.args<ops::CausalArgs>().softcap;
  return !documents && Dnn::takes(a, backward) && Dnn::is_wanted()
             ? Dnn::workspace_bytes(a.batches, a.queries, heads, a.key_heads, a.head_dim, backward)
             : 0;
}

// ---- operators ----

/// A block's gradients begin with the means, others with y.
template <class Args>
constexpr bool has_means = std::is_same_v<Args, ops::BlockArgs>;

template <class Args>
void attention(const Call& call, std::span<Tensor> out) {
  const Tensor &q = call.in[0], &k = call.in[1], &v = call.in[2];
  AttentionArguments a = arguments_of<Args>(call, q, k, v, call.in[3]);
  a.y = heads_of(out[0]);
  a.log_sums = log_sums_of(out[1]);
  const std::int64_t heads = a.key_heads * a.group;
  const Tensor rows[] = {q, k, v, out[0]};
  if constexpr (!has_means<Args>) {
    if (by_library(call, a, false, rows, out[0])) {
      return;
    }
  }
  if (fits_tensor_cores(q, k, v) && std::ranges::all_of(rows, in_pieces)) {
    launch_tiles(a, "attention", heads, a.queries, tiles_of(a.head_dim).attention, 1, threads,
                 out[0]);
  } else {
    launch_blocks(a, "attention", a.batches * heads * a.queries, out[0]);
  }
}

template <class Args>
void attention_backward(const Call& call, std::span<Tensor> out) {
  const Tensor &q = call.in[1], &k = call.in[2], &v = call.in[3];
  AttentionArguments a = arguments_of<Args>(call, q, k, v, call.in[6]);
  a.dy = heads_of(call.in[0]);
  if constexpr (has_means<Args>) {
    a.means = log_sums_of(call.in[4]);
  } else {
    a.y = heads_of(call.in[4]);
  }
  a.log_sums = log_sums_of(call.in[5]);
  a.dq = heads_of(out[0]);
  a.dk = heads_of(out[1]);
  a.dv = heads_of(out[2]);
  const std::int64_t heads = a.key_heads * a.group;
  const Tensor rows[] = {call.in[0], q, k, v, out[0], out[1], out[2]};
  if constexpr (!has_means<Args>) {
    const Tensor with_y[] = {call.in[0], q, k, v, call.in[4], out[0], out[1], out[2]};
    a.means = {call.workspace.data(), heads * a.queries, 1, a.queries, 0, DType::f32};
    if (by_library(call, a, true, with_y, out[0])) {
      return;
    }
    a.means = {};
  }
  if (fits_tensor_cores(q, k, v) && std::ranges::all_of(rows, in_pieces) &&
      (has_means<Args> || in_pieces(call.in[4]))) {
    if constexpr (!has_means<Args>) {
      a.means = {call.workspace.data(), heads * a.queries, 1, a.queries, 0, DType::f32};
    }
    const Tiles tiles = tiles_of(a.head_dim);
    launch_tiles(a, "attention_queries", heads, a.queries, tiles.queries, 2, tiles.query_threads,
                 out[0]);
    launch_tiles(a, "attention_keys", a.key_heads, a.keys, tiles.keys, 2, threads, out[0]);
  } else {
    launch_blocks(a, "attention_queries", a.batches * heads * a.queries, out[0]);
    launch_blocks(a, "attention_keys", a.batches * a.key_heads * a.keys, out[0]);
  }
}

std::size_t workspace_of_attention(const Call& call, std::span<const Tensor>) {
  return bytes_for_library(call, call.in[0], call.in[1], call.in[2], call.in[3], false);
}

/// The means of the queries, and what the library needs.
std::size_t workspace_of_backward(const Call& call, std::span<const Tensor> out) {
  const std::size_t library =
      bytes_for_library(call, call.in[1], call.in[2], call.in[3], call.in[6], true);
  return library != 0 || fits_tensor_cores(call.in[1], call.in[2], call.in[3])
             ? bytes_of_means(out[0].numel() / out[0].shape()[3]) + library
             : 0;
}

/// Of a block's result and one so far, in the type of statistics.
void attention_merge(const Call& call, std::span<Tensor> out) {
  const Tensor& y = call.in[0];
  const MergeArguments a = {.batches = y.shape()[0],
                            .times = y.shape()[1],
                            .heads = y.shape()[2],
                            .dim = y.shape()[3],
                            .y = heads_of(y),
                            .log_sums = log_sums_of(call.in[1]),
                            .other = heads_of(call.in[2]),
                            .other_log_sums = log_sums_of(call.in[3]),
                            .merged = heads_of(out[0]),
                            .merged_log_sums = log_sums_of(out[1])};
  if (y.numel() != 0) {
    launch(y, with_type("attention_merge", y.dtype()), blocks_for(y.numel()), threads_per_block, a);
  }
}

// ---- rotary positions ----

/// Rows of the table: of each time, or of each time of each batch.
std::int64_t table_rows_of(const Tensor& x, bool each_batch) {
  return x.shape()[1] * (each_batch ? x.shape()[0] : 1);
}
std::size_t bytes_of_table(const Tensor& x, bool each_batch) {
  const std::size_t pairs = static_cast<std::size_t>(table_rows_of(x, each_batch)) *
                            static_cast<std::size_t>(x.shape()[3] / 2);
  return 2 * pairs * (x.dtype() == DType::f64 ? sizeof(double) : sizeof(float));
}

/// Whether the halves of heads can be loaded in pieces of 16 bytes.
bool has_halves_in_pieces(const Tensor& x, const Tensor& y) {
  const auto in_16_bytes = [&](const Tensor& of) {
    const std::int64_t each = elements_of_piece(of.dtype());
    bool all = reinterpret_cast<std::uintptr_t>(of.device_address()) % 16 == 0 &&
               of.shape()[3] % (2 * each) == 0 && of.strides()[3] == 1;
    for (int dim = 0; dim < 3; ++dim) {
      all = all && (of.shape()[dim] == 1 || of.strides()[dim] % each == 0);
    }
    return all;
  };
  return x.dtype() != DType::f64 && in_16_bytes(x) && in_16_bytes(y) &&
         x.numel() < std::int64_t{1} << 31;
}

/// Queues the kernel whose blocks make the angles of their rows. Few rows are those of each batch,
/// so that all processors have some.
void launch_turned_pieces(RotaryTable t, const Tensor& y) {
  constexpr std::int64_t processors = 132;
  const RotaryArguments& a = t.rotary;
  t.rows_of_block = angles_of_block / static_cast<int>(a.half);
  if (t.batch_rows == 0 && t.rows < processors * t.rows_of_block) {
    t.batch_rows = a.times;
    t.rows = a.batches * a.times;
  }
  const std::int64_t blocks = (t.rows + t.rows_of_block - 1) / t.rows_of_block;
  launch(y, "rotary_pieces_" + std::string(name_of(y.dtype())), static_cast<unsigned>(blocks),
         angles_of_block, t);
}

/// Turns x by the angles of its positions; the direction -1 is the inverse.
template <class Args>
void turn(const Call& call, const Tensor& y, const Args& arguments, int direction,
          const RotaryArguments& positions, bool each_batch) {
  const Tensor& x = call.in[0];
  if (x.numel() == 0) {
    return;
  }
  RotaryTable t = {.rotary = positions,
                   .cosines = call.workspace.data(),
                   .sines = call.workspace.data() + bytes_of_table(x, each_batch) / 2,
                   .batch_rows = each_batch ? x.shape()[1] : 0,
                   .rows = table_rows_of(x, each_batch),
                   .rows_of_block = 0,
                   .frequencies = {}};
  RotaryArguments& a = t.rotary;
  a.batches = x.shape()[0];
  a.times = x.shape()[1];
  a.heads = x.shape()[2];
  a.half = x.shape()[3] / 2;
  a.x = heads_of(x);
  a.y = heads_of(y);
  a.frequencies = functions::frequencies_of(arguments);
  a.direction = direction;
  if (a.half <= angles_of_block) {
    for (std::int64_t i = 0; i < a.half; ++i) {
      t.frequencies[i] = functions::rotary_frequency<functions::HostMath>(a.frequencies, a.half, i);
    }
  }
  if (a.half <= angles_of_block && has_halves_in_pieces(x, y)) {
    launch_turned_pieces(t, y);
  } else {
    launch(y, with_type("rotary_table", x.dtype()), blocks_for(t.rows * a.half), threads_per_block,
           t);
    launch(y, with_type("rotary", x.dtype()), blocks_for(x.numel() / 2), threads_per_block, t);
  }
}

template <int direction>
void rotary(const Call& call, std::span<Tensor> out) {
  const auto arguments = call.args<ops::RotaryArgs>();
  RotaryArguments a = {};
  a.offset = arguments.offset + (arguments.whole ? local_offset(*arguments.whole)[1] : 0);
  turn(call, out[0], arguments, direction, a, false);
}

std::size_t workspace_of_rotary(const Call& call, std::span<const Tensor>) {
  return bytes_of_table(call.in[0], false);
}
std::size_t workspace_of_rotary_at(const Call& call, std::span<const Tensor>) {
  return bytes_of_table(call.in[0], call.in[1].dims() == 2);
}

/// Positions are [time] or [batch, time].
template <int direction>
void rotary_at(const Call& call, std::span<Tensor> out) {
  const Tensor& positions = call.in[1];
  look_at(call, positions, ops::most_positions, ProblemKind::position);
  RotaryArguments a = {};
  a.positions = {positions.device_address(),
                 positions.dims() == 2 ? positions.strides()[0] : 0,
                 positions.strides()[positions.dims() - 1],
                 0,
                 0,
                 positions.dtype()};
  turn(call, out[0], call.args<ops::RotaryAtArgs>(), direction, a, positions.dims() == 2);
}

}  // namespace

void add_attention(KernelTable& table) {
  table["causal_attention"] = {.run = attention<ops::CausalArgs>,
                               .workspace = workspace_of_attention};
  table["attention_block"] = {attention<ops::BlockArgs>};
  table["attention_block_backward"] = {attention_backward<ops::BlockArgs>};
  table["attention_merge"] = {attention_merge};
  table["rotary"] = {.run = rotary<1>, .workspace = workspace_of_rotary};
  table["rotary_inverse"] = {.run = rotary<-1>, .workspace = workspace_of_rotary};
  table["rotary_at"] = {.run = rotary_at<1>, .workspace = workspace_of_rotary_at};
  table["rotary_at_inverse"] = {.run = rotary_at<-1>, .workspace = workspace_of_rotary_at};
  table["causal_attention_backward"] = {.run = attention_backward<ops::CausalArgs>,
                                        .workspace = workspace_of_backward};
}

}  // namespace tessera::cuda
