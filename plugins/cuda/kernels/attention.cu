// Causal attention with grouped queries, scores of one tile of keys at a time. Simple: no tensor
// cores; a block has one query, or, for the gradients of keys and values, one key. Tiles begin with
// the first key that a query sees, so a document has the bits that it has alone.
#include "attention/functions/merge.hpp"
#include "kernels/attention.hpp"
#include "kernels/rows.hpp"

using namespace tessera;
using namespace tessera::cuda;

namespace {

constexpr int threads = 128;
constexpr int tile = 64;  // keys (queries) whose scores are held
constexpr int most_dim = 512;
constexpr int each = most_dim / threads;

/// One row of heads.
template <class C>
struct HeadRow {
  const HeadArray& x;
  std::int64_t begin;
  __device__ HeadRow(const HeadArray& array, std::int64_t batch, std::int64_t time,
                     std::int64_t head)
      : x(array), begin(batch * x.batch + time * x.time + head * x.head) {}
  __device__ C get(std::int64_t d) const { return load<C>(x.data, x.type, begin + d * x.dim); }
  __device__ void set(std::int64_t d, C value) const {
    store(x.data, x.type, begin + d * x.dim, value);
  }
};

template <class C>
__device__ C dot(std::int64_t n, const C* shared, const HeadRow<C>& row) {
  C sum = {};
  for (std::int64_t d = 0; d < n; ++d) sum += shared[d] * row.get(d);
  return sum;
}

template <class C>
__device__ void copy_row(C* shared, std::int64_t n, const HeadRow<C>& row) {
  for (std::int64_t d = threadIdx.x; d < n; d += threads) shared[d] = row.get(d);
}

/// The place of a block: which query (or key) of which head of which batch.
struct BlockPosition {
  std::int64_t batch, time, head;
  __device__ BlockPosition(std::int64_t work, std::int64_t times, std::int64_t heads)
      : batch(work / times / heads), time(work % times), head(work / times % heads) {}
};

template <class C>
__device__ void attention(const AttentionArguments& a) {
  __shared__ C query[most_dim];
  __shared__ C shares[tile];
  const ScoreFunction<C> f(a);
  const std::int64_t heads = a.key_heads * a.group;
  for (std::int64_t work = blockIdx.x; work < a.batches * heads * a.queries; work += gridDim.x) {
    const BlockPosition p(work, a.queries, heads);
    const std::int64_t key_head = p.head / a.group;
    const KeyRange keys = keys_of(a, p.batch, p.time);
    copy_row(query, a.head_dim, HeadRow<C>(a.q, p.batch, p.time, p.head));
    __syncthreads();
    C top = -static_cast<C>(INFINITY), total = {};
    C sums[each] = {};
    for (std::int64_t first = keys.first; first < keys.end; first += tile) {
      const std::int64_t key = first + threadIdx.x;
      const bool has_key = threadIdx.x < tile && key < keys.end;
      const C score = has_key
                          ? f.score(dot(a.head_dim, query, HeadRow<C>(a.k, p.batch, key, key_head)))
                          : -static_cast<C>(INFINITY);
      const C now = NanMaximum{}(top, join_block(score, -static_cast<C>(INFINITY), NanMaximum{}));
      const C share = has_key ? math::exp(score - now) : C{};
      if (threadIdx.x < tile) shares[threadIdx.x] = share;
      const C factor = math::exp(top - now);  // 0 at first
      total = total * factor + sum_block(share);
      const std::int64_t count = keys.end - first < tile ? keys.end - first : tile;
      for (int i = 0; i < each; ++i) {
        const std::int64_t d = threadIdx.x + i * threads;
        if (d >= a.value_dim) break;
        sums[i] *= factor;
        for (std::int64_t j = 0; j < count; ++j) {
          sums[i] += shares[j] * HeadRow<C>(a.v, p.batch, first + j, key_head).get(d);
        }
      }
      top = now;
      __syncthreads();
    }
    const HeadRow<C> y(a.y, p.batch, p.time, p.head);
    for (int i = 0; i < each; ++i) {
      const std::int64_t d = threadIdx.x + i * threads;
      if (d < a.value_dim) y.set(d, total == 0 ? C{} : sums[i] / total);  // 0 of no keys
    }
    if (threadIdx.x == 0) {
      HeadRow<C>(a.log_sums, p.batch, p.time, p.head).set(0, top + math::log(total));
    }
    __syncthreads();
  }
}

/// dq of one query in each block.
template <class C>
__device__ void attention_queries(const AttentionArguments& a) {
  __shared__ C query[most_dim];
  __shared__ C gradient[most_dim];
  __shared__ C slopes[tile];
  const ScoreFunction<C> f(a);
  const std::int64_t heads = a.key_heads * a.group;
  for (std::int64_t work = blockIdx.x; work < a.batches * heads * a.queries; work += gridDim.x) {
    const BlockPosition p(work, a.queries, heads);
    const std::int64_t key_head = p.head / a.group;
    const KeyRange keys = keys_of(a, p.batch, p.time);
    const HeadRow<C> dy(a.dy, p.batch, p.time, p.head);
    copy_row(query, a.head_dim, HeadRow<C>(a.q, p.batch, p.time, p.head));
    copy_row(gradient, a.value_dim, dy);
    C mean;  // of the gradients of the row's probabilities
    if (a.y.data == nullptr) {
      mean = HeadRow<C>(a.means, p.batch, p.time, p.head).get(0);
      __syncthreads();
    } else {
      const HeadRow<C> y(a.y, p.batch, p.time, p.head);
      C part = {};
      for (std::int64_t d = threadIdx.x; d < a.value_dim; d += threads)
        part += dy.get(d) * y.get(d);
      mean = sum_block(part);
    }
    const C log_sum = HeadRow<C>(a.log_sums, p.batch, p.time, p.head).get(0);
    C sums[each] = {};
    for (std::int64_t first = keys.first; first < keys.end; first += tile) {
      const std::int64_t key = first + threadIdx.x;
      if (threadIdx.x < tile && key < keys.end) {
        const C score = f.score(dot(a.head_dim, query, HeadRow<C>(a.k, p.batch, key, key_head)));
        const C of_share = dot(a.value_dim, gradient, HeadRow<C>(a.v, p.batch, key, key_head));
        slopes[threadIdx.x] =
            math::exp(score - log_sum) * (of_share - mean) * f.slope(score) * f.scale;
      }
      __syncthreads();
      const std::int64_t count = keys.end - first < tile ? keys.end - first : tile;
      for (int i = 0; i < each; ++i) {
        const std::int64_t d = threadIdx.x + i * threads;
        if (d >= a.head_dim) break;
        for (std::int64_t j = 0; j < count; ++j) {
          sums[i] += slopes[j] * HeadRow<C>(a.k, p.batch, first + j, key_head).get(d);
        }
      }
      __syncthreads();
    }
    const HeadRow<C> dq(a.dq, p.batch, p.time, p.head);
    for (int i = 0; i < each; ++i) {
      const std::int64_t d = threadIdx.x + i * threads;
      if (d < a.head_dim) dq.set(d, sums[i]);
    }
  }
}

/// dk and dv of one key in each block; sums over the heads of its group, in order.
template <class C>
__device__ void attention_keys(const AttentionArguments& a) {
  __shared__ C key_row[most_dim];
  __shared__ C value_row[most_dim];
  __shared__ C slopes[tile];
  __shared__ C shares[tile];
  const ScoreFunction<C> f(a);
  for (std::int64_t work = blockIdx.x; work < a.batches * a.key_heads * a.keys; work += gridDim.x) {
    const BlockPosition p(work, a.keys, a.key_heads);
    copy_row(key_row, a.head_dim, HeadRow<C>(a.k, p.batch, p.time, p.head));
    copy_row(value_row, a.value_dim, HeadRow<C>(a.v, p.batch, p.time, p.head));
    __syncthreads();
    C key_sums[each] = {}, value_sums[each] = {};
    const QueryRange queries = queries_of(a, p.time);
    for (std::int64_t head = p.head * a.group; head < (p.head + 1) * a.group; ++head) {
      for (std::int64_t first = queries.first; first < queries.end; first += tile) {
        if (keys_of(a, p.batch, first).first > p.time)
          break;  // so are the rest, in other documents
        const std::int64_t query = first + threadIdx.x;
        if (threadIdx.x < tile && query < queries.end) {
          const HeadRow<C> dy(a.dy, p.batch, query, head);
          C mean = {};
          if (a.y.data == nullptr) {
            mean = HeadRow<C>(a.means, p.batch, query, head).get(0);
          } else {
            const HeadRow<C> y(a.y, p.batch, query, head);
            for (std::int64_t d = 0; d < a.value_dim; ++d) mean += dy.get(d) * y.get(d);
          }
          const C score = f.score(dot(a.head_dim, key_row, HeadRow<C>(a.q, p.batch, query, head)));
          const bool sees = keys_of(a, p.batch, query).first <= p.time;
          const C share =
              sees ? math::exp(score - HeadRow<C>(a.log_sums, p.batch, query, head).get(0)) : C{};
          shares[threadIdx.x] = share;
          slopes[threadIdx.x] =
              share * (dot(a.value_dim, value_row, dy) - mean) * f.slope(score) * f.scale;
        }
        __syncthreads();
        const std::int64_t count = queries.end - first < tile ? queries.end - first : tile;
        for (int i = 0; i < each; ++i) {
          const std::int64_t d = threadIdx.x + i * threads;
          for (std::int64_t j = 0; j < count; ++j) {
            if (d < a.head_dim) {
              key_sums[i] += slopes[j] * HeadRow<C>(a.q, p.batch, first + j, head).get(d);
            }
            if (d < a.value_dim) {
              value_sums[i] += shares[j] * HeadRow<C>(a.dy, p.batch, first + j, head).get(d);
            }
          }
        }
        __syncthreads();
      }
    }
    const HeadRow<C> dk(a.dk, p.batch, p.time, p.head), dv(a.dv, p.batch, p.time, p.head);
    for (int i = 0; i < each; ++i) {
      const std::int64_t d = threadIdx.x + i * threads;
      if (d < a.head_dim) dk.set(d, key_sums[i]);
      if (d < a.value_dim) dv.set(d, value_sums[i]);
    }
  }
}

/// One thread for each element; that of a row's first one writes the row's log sum, too.
template <class C>
__device__ void attention_merge(const MergeArguments& a) {
  const std::int64_t count = a.batches * a.times * a.heads * a.dim;
  for (std::int64_t i = thread_place(); i < count; i += thread_count()) {
    const std::int64_t d = i % a.dim, row = i / a.dim;
    const std::int64_t head = row % a.heads, time = row / a.heads % a.times;
    const std::int64_t batch = row / a.heads / a.times;
    const auto merged = functions::merge_attention<math::OnDevice<C>>(
        HeadRow<C>(a.log_sums, batch, time, head).get(0),
        HeadRow<C>(a.other_log_sums, batch, time, head).get(0));
    const C y = HeadRow<C>(a.y, batch, time, head).get(d);
    const C other = HeadRow<C>(a.other, batch, time, head).get(d);
    HeadRow<C>(a.merged, batch, time, head).set(d, merged.factor * y + merged.other_factor * other);
    if (d == 0) HeadRow<C>(a.merged_log_sums, batch, time, head).set(0, merged.log_sum);
  }
}

}  // namespace

extern "C" {

/// By one block: the first token whose document is neither its own nor that of the token before (of
/// a row's first token: nor an earlier one), if no problem is known yet.
__global__ void find_wrong_document(const DocumentArguments a) {
  const auto document = [&](std::int64_t row, std::int64_t time) {
    return static_cast<const std::int64_t*>(
        a.documents.data)[row * a.documents.batch + time * a.documents.time];
  };
  const std::int64_t count = a.batches * a.times;
  std::int64_t first = count;
  for (std::int64_t i = threadIdx.x; i < count && first == count; i += blockDim.x) {
    const std::int64_t row = i / a.times, time = i % a.times;
    const std::int64_t own = document(row, time);
    const bool continues =
        time == 0 ? own >= 0 && own <= a.position : own == document(row, time - 1);
    if (own != a.position + time && !continues) first = i;
  }
  first = join_block(first, count, NanMinimum{});
  if (threadIdx.x != 0 || first == count || a.problem->kind != ProblemKind::none) return;
  const std::int64_t row = first / a.times, time = first % a.times;
  a.problem->op = a.op;
  a.problem->value = document(row, time);
  a.problem->place = first;
  a.problem->limit = a.times;
  a.problem->ignored = time == 0 ? 0 : document(row, time - 1);
  a.problem->position = a.position;
  a.problem->kind = ProblemKind::document;
}

__global__ void attention_f32(const AttentionArguments a) { attention<float>(a); }
__global__ void attention_f64(const AttentionArguments a) { attention<double>(a); }
__global__ void attention_queries_f32(const AttentionArguments a) { attention_queries<float>(a); }
__global__ void attention_queries_f64(const AttentionArguments a) { attention_queries<double>(a); }
__global__ void attention_keys_f32(const AttentionArguments a) { attention_keys<float>(a); }
__global__ void attention_keys_f64(const AttentionArguments a) { attention_keys<double>(a); }
__global__ void attention_merge_f32(const MergeArguments a) { attention_merge<float>(a); }
__global__ void attention_merge_f64(const MergeArguments a) { attention_merge<double>(a); }

}  // extern "C"
