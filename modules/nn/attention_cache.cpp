module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.nn;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;

namespace tessera::nn {
namespace {

/// Makes room for `added` more tokens of x [B, T, KV, D] after the first `length` of `kept`
/// [B, KV, room, D], in the type `dtype`. A head's tokens are contiguous: attention reads them one
/// head after the other.
void make_room(Tensor& kept, const Tensor& x, DType dtype, std::int64_t length,
               std::int64_t added) {
  constexpr std::int64_t first_room = 256;
  const std::int64_t needed = length + added;
  if (kept && kept.size(2) >= needed) {
    return;
  }
  const std::int64_t room = std::max({needed, first_room, kept ? 2 * kept.size(2) : 0});
  const Tensor larger = empty({x.size(0), x.size(2), room, x.size(3)}, dtype, x.device());
  if (length > 0) {
    ops::copy_(ops::narrow(larger, 2, 0, length), ops::narrow(kept, 2, 0, length));
  }
  kept = larger;
}

/// Makes room for so many places in `kept` [1, KV, places, D] of x [1, T, KV, D], in this type.
void make_places(Tensor& kept, const Tensor& x, DType dtype, std::int64_t places) {
  if (kept && kept.size(2) >= places) {
    return;
  }
  const Tensor larger = empty({1, x.size(2), places, x.size(3)}, dtype, x.device());
  if (kept) {
    ops::copy_(ops::narrow(larger, 2, 0, kept.size(2)), kept);
  }
  kept = larger;
}

/// Tokens of what is kept, as [B, T, KV, D] in the type of queries.
Tensor kept_tokens(const Tensor& kept, std::int64_t first, std::int64_t count, DType dtype) {
  return ops::transpose(ops::cast(ops::narrow(kept, 2, first, count), dtype), 1, 2);
}

/// Writes x [B, T, KV, D] after the first `length` tokens, and returns all of them.
Tensor append_to(Tensor& kept, const Tensor& x, DType dtype, std::int64_t length) {
  make_room(kept, x, dtype, length, x.size(1));
  ops::copy_(ops::narrow(kept, 2, length, x.size(1)), ops::transpose(x, 1, 2));
  return kept_tokens(kept, 0, length + x.size(1), x.dtype());
}

/// Errors: tokens, or sums of them, are split along another axis than `allowed`.
void check_layout(const Tensor& x, int allowed) {
  const Layout& layout = x.layout();
  for (int axis = 0; axis < layout.ndim(); ++axis) {
    const Placement placement = layout.placement(axis);
    if (placement.is_partial() || (placement.is_shard(1) && axis != allowed)) {
      fail({.thing = "attention cache",
            .wrong = fmt::format("tokens are split along axis '{}'", layout.mesh().axis_name(axis)),
            .expected = "whole sequences of some or all heads",
            .got = to_string(placement),
            .advice = allowed < 0 ? "generate without sequence parallelism, or with a cache that "
                                    "is split along this axis"
                                  : "split tokens along the cache's axis only"});
    }
  }
}

/// append_to() of this rank's part: a rank keeps the heads that it computes.
Tensor append_own(Tensor& kept, const Tensor& x, DType dtype, std::int64_t length) {
  if (!x.is_distributed()) {
    return append_to(kept, x, dtype, length);
  }
  check_layout(x, -1);
  Dims shape = x.shape();
  shape[1] += length;
  return make_distributed(append_to(kept, x.local(), dtype, length),
                          Spec::make(x.layout(), shape, x.dtype()));
}

void check_fits(const Tensor& kept, const Tensor& x, const char* what) {
  if (kept &&
      (kept.size(0) != x.size(0) || kept.size(1) != x.size(2) || kept.size(3) != x.size(3))) {
    fail({.thing = "attention cache",
          .wrong = fmt::format("{} do not fit those before", what),
          .expected = fmt::format("[{}, T, {}, {}]", kept.size(0), kept.size(1), kept.size(3)),
          .got = to_string(x.shape()),
          .advice = "clear the cache for another batch"});
  }
}

DType sums_of(DType dtype) { return dtype == DType::f64 ? DType::f64 : DType::f32; }

/// The ranks of an axis that share a sequence, as one of them sees them.
struct SequenceRanks {
  SequenceRanks(const DeviceMesh& mesh, int axis)
      : group(ops::GroupArgument::of(mesh.group(axis, current_rank()))),
        parts{.ranks = mesh.axis_size(axis)},
        rank(group.rank()) {}

  ops::GroupArgument group;
  PositionParts parts;
  std::int64_t rank;
};

/// What one rank's keys and values give queries [B, T, H, D], of which the first has the position
/// `begin`.
class OwnResult {
 public:
  OwnResult(const Tensor& q, const Tensor& keys, const Tensor& values, std::int64_t begin,
            const ops::AttentionBlockOptions& options)
      : q_(q), keys_(keys), values_(values), options_(options) {
    options_.first_query = begin;
    const DType sums = sums_of(q.dtype());
    const Dims shape{q.size(0), q.size(1), q.size(2), values.size(3)};
    result_ = {.y = zeros(shape, sums, q.device()),
               .lse = full({q.size(0), q.size(2), q.size(1)},
                           -std::numeric_limits<double>::infinity(), sums, q.device())};
  }

  /// Positions that every query sees: masks need not look at them, so it is one block.
  void add_seen(const SequenceRanks& sharers, std::int64_t first, std::int64_t end) {
    const std::int64_t place = sharers.parts.kept(sharers.rank, first);
    const std::int64_t count = sharers.parts.kept(sharers.rank, end) - place;
    if (count > 0) {
      add(place, count, {.scale = options_.scale, .softcap = options_.softcap, .causal = false});
    }
  }

  /// Positions that some queries do not see.
  void add_masked(const SequenceRanks& sharers, std::int64_t first, std::int64_t end) {
    for (const PositionRun& run : sharers.parts.runs(sharers.rank, first, end)) {
      ops::AttentionBlockOptions masked = options_;
      masked.first_key = run.position;
      add(run.place, run.count, masked);
    }
  }

  const ops::AttentionBlock& result() const { return result_; }

 private:
  void add(std::int64_t place, std::int64_t count, const ops::AttentionBlockOptions& options) {
    const ops::AttentionBlock block =
        ops::attention_block(q_, kept_tokens(keys_, place, count, q_.dtype()),
                             kept_tokens(values_, place, count, q_.dtype()), options);
    result_ = ops::attention_merge(result_, block);
  }

  const Tensor& q_;
  const Tensor& keys_;
  const Tensor& values_;
  ops::AttentionBlockOptions options_;
  ops::AttentionBlock result_;
};

/// For each query of [B, T] from `begin` on, where its chunk begins.
Tensor begins_of_chunks(const Tensor& q, std::int64_t begin, std::int64_t chunk) {
  const TokenPositions positions{.given = {}, .before = begin};
  const Tensor size = full({}, static_cast<double>(chunk), DType::i64, q.device());
  const Tensor first = ops::mul(ops::floor_divide(numbers_of(q, positions), size), size);  // (T)
  return ops::contiguous(ops::expand(first, {q.size(0), q.size(1)}));
}

ops::AttentionBlock own_result(const Tensor& q, const Tensor& keys, const Tensor& values,
                               std::int64_t begin, ops::AttentionBlockOptions options,
                               std::int64_t chunk, const SequenceRanks& sharers) {
  if (chunk > 0) {
    options.documents = begins_of_chunks(q, begin, chunk);
  }
  OwnResult own(q, keys, values, begin, options);
  const std::int64_t end = begin + q.size(1);
  if (!options.causal) {
    own.add_seen(sharers, 0, end);
    return own.result();
  }
  // The last query sees the positions from `seen` on, the first one those from `lowest` to its own.
  const auto first_of = [&](std::int64_t query) {
    if (chunk > 0) {
      return query / chunk * chunk;
    }
    return options.window > 0 ? std::max<std::int64_t>(0, query + 1 - options.window) : 0;
  };
  const std::int64_t lowest = first_of(begin);
  const std::int64_t seen = first_of(end - 1);
  if (seen > begin) {
    own.add_masked(sharers, lowest, end);
    return own.result();
  }
  own.add_masked(sharers, lowest, seen);
  own.add_seen(sharers, seen, begin + 1);
  own.add_masked(sharers, begin + 1, end);
  return own.result();
}

/// The results of all ranks, merged in their order: of this rank's chunk of the queries (`chunks`),
/// or of all.
ops::AttentionBlock merged(const ops::AttentionBlock& own, bool chunks,
                           const SequenceRanks& sharers) {
  const std::int64_t batch = own.y.size(0);
  const std::int64_t width = own.y.size(3);
  const std::int64_t all = batch * sharers.group.size();
  // y and the sums in one message, the batches of the ranks one after the other.
  const Tensor sums = ops::transpose(own.lse, 1, 2);  // (B, T, H)
  // (B, T, H, D + 1)
  const Tensor both =
      ops::cat({{own.y, ops::reshape(sums, {sums.size(0), sums.size(1), sums.size(2), 1})}}, 3);
  // (ranks * B, T or this rank's chunk of it, H, D + 1)
  const Tensor exchanged = chunks ? ops::all_to_all(both, 0, all, 1, sharers.group)
                                  : ops::all_gather(both, 0, all, sharers.group);
  ops::AttentionBlock result;
  for (int rank = 0; rank < sharers.group.size(); ++rank) {
    const Tensor theirs = ops::narrow(exchanged, 0, rank * batch, batch);
    const ops::AttentionBlock block{.y = ops::narrow(theirs, 3, 0, width),
                                    .lse = ops::transpose(ops::select(theirs, 3, width), 1, 2)};
    result = rank == 0 ? block : ops::attention_merge(result, block);
  }
  return result;
}

/// Writes x [1, T, KV, D], the tokens of a batch, into their places, in this type.
void keep_rows(Tensor& kept, const Tensor& x, DType dtype, const RaggedBatch& batch) {
  make_places(kept, x, dtype, batch.places);
  const Tensor by_head = ops::transpose(x, 1, 2);  // (1, KV, T, D)
  std::int64_t token = 0;                          // of the row's first one
  for (const RaggedRow& row : batch.rows) {
    for (const PositionRun& run : row.kept) {
      const std::int64_t from = std::max(row.first, run.position);
      const std::int64_t count = std::min(row.end(), run.position + run.count) - from;
      if (count > 0) {
        ops::copy_(ops::narrow(kept, 2, run.place + from - run.position, count),
                   ops::narrow(by_head, 2, token + from - row.first, count));
      }
    }
    token += row.count;
  }
}

/// What is kept of all tokens of a row, as [1, T, KV, D] in the type of queries: as it is where it
/// is in one piece and has that type.
Tensor kept_of_row(const Tensor& kept, const RaggedRow& row, DType dtype) {
  std::vector<Tensor> pieces;
  for (const PositionRun& run : row.kept) {
    const std::int64_t count = std::min(run.count, row.end() - run.position);
    if (count > 0) {
      pieces.push_back(ops::narrow(kept, 2, run.place, count));
    }
  }
  return ops::transpose(ops::cast(pieces.size() == 1 ? pieces[0] : ops::cat(pieces, 2), dtype), 1,
                        2);
}

/// This rank's part y of a result, which is laid out as its queries are.
Tensor laid_out_as(const Tensor& q, const Tensor& y) {
  if (!q.is_distributed()) {
    return y;
  }
  Dims shape = q.shape();
  shape[3] = y.size(3);
  return make_distributed(y, Spec::make(q.layout(), shape, q.dtype()));
}

/// Those of the heads that this rank has of q.
Tensor own_sinks(const Tensor& sinks, const Tensor& q) {
  if (!sinks.is_distributed()) {
    return sinks;
  }
  const Layout of_q = q.layout();
  Layout layout = Layout::replicated(of_q.mesh());
  for (const int axis : of_q.axes_sharding(2)) {
    layout = layout.with_placement(axis, Shard(0));
  }
  return redistribute(sinks, layout).local();
}

}  // namespace

std::int64_t PositionParts::kept(std::int64_t rank, std::int64_t length) const {
  const std::int64_t round = block * ranks;
  return length / round * block + std::clamp<std::int64_t>(length % round - rank * block, 0, block);
}

std::vector<PositionRun> PositionParts::runs(std::int64_t rank, std::int64_t begin,
                                             std::int64_t end) const {
  std::vector<PositionRun> found;
  for (std::int64_t position = begin; position < end;) {
    const std::int64_t next = std::min(end, (position / block + 1) * block);
    if (owner(position) == rank) {
      found.push_back(
          {.position = position, .place = kept(rank, position), .count = next - position});
    }
    position = next;
  }
  return found;
}

void AttentionCache::set_batch(const RaggedBatch* batch, Tensor positions) {
  require(batch == nullptr || !is_split(),
          "attention cache: one that is split over ranks has no batches of several texts");
  batch_ = batch;
  positions_ = std::move(positions);
}

TokenPositions AttentionCache::positions_of(const Tensor& given) const {
  if (batch_ == nullptr || given) {
    return {.given = given, .before = length_};
  }
  return {.given = positions_, .before = 0, .batch = batch_};
}

std::int64_t bytes_of(const Tensor& kept) {
  return kept ? local_of(kept).numel() * static_cast<std::int64_t>(size_of(kept.dtype())) : 0;
}

std::int64_t AttentionCache::bytes() const { return bytes_of(keys_) + bytes_of(values_); }

void AttentionCache::append(Tensor& keys, Tensor& values) {
  require(!attends(), "attention cache: a split one has no rank with all keys; call attend()");
  check_fits(keys_, local_of(keys), "keys");
  check_fits(values_, local_of(values), "values");
  const std::int64_t added = keys.size(1);
  keys = append_own(keys_, keys, kept_.value_or(keys.dtype()), length_);
  values = append_own(values_, values, kept_.value_or(values.dtype()), length_);
  length_ += added;
}

Tensor AttentionCache::attend(const Tensor& q, const Tensor& keys, const Tensor& values,
                              const ops::AttentionBlockOptions& options, std::int64_t chunk,
                              const Tensor& sinks) {
  const NoGrad no_gradients;
  if (batch_ != nullptr) {
    return attend_rows(q, keys, values, options, chunk, sinks);
  }
  if (!is_split()) {
    return attend_whole(q, keys, values, options);
  }
  require(q.is_distributed(), "attention cache: a split one needs distributed tensors");
  for (const Tensor* const x : {&q, &keys, &values}) {
    if (!*x) {
      continue;
    }
    check_layout(*x, axis_);
    const Placement along = x->layout().placement(axis_);
    if (along != q.layout().placement(axis_) || (!along.is_shard(1) && !along.is_replicate()) ||
        !shards_evenly(x->shape(), x->layout())) {
      fail({.thing = "attention cache",
            .wrong = fmt::format("queries, keys and values do not have equal chunks of the tokens"
                                 " along axis '{}'",
                                 q.layout().mesh().axis_name(axis_)),
            .expected = "Shard(1) or Replicate, of all three",
            .got = to_string(*x->spec())});
    }
  }
  const SequenceRanks sharers(q.layout().mesh(), axis_);
  const auto of_all_tokens = [&](const Tensor& x) {
    return redistribute(x, x.layout().with_placement(axis_, Replicate())).local();
  };
  const Tensor own_q = of_all_tokens(q);  // (B, T, H, D)
  const std::int64_t begin = keys ? length_ : length_ - own_q.size(1);
  const std::int64_t end = begin + own_q.size(1);
  const std::int64_t before = sharers.parts.kept(sharers.rank, begin);
  const std::int64_t added = sharers.parts.kept(sharers.rank, end) - before;
  const auto keep = [&](Tensor& kept, const Tensor& x, const char* what) {
    const Tensor all = of_all_tokens(x);
    check_fits(kept, all, what);
    make_room(kept, all, kept_.value_or(all.dtype()), before, added);
    for (const PositionRun& run : sharers.parts.runs(sharers.rank, begin, end)) {
      ops::copy_(ops::narrow(kept, 2, run.place, run.count),
                 ops::transpose(ops::narrow(all, 1, run.position - begin, run.count), 1, 2));
    }
  };
  if (keys) {
    keep(keys_, keys, "keys");
    keep(values_, values, "values");
    length_ = end;
  }
  const ops::AttentionBlock own = own_result(own_q, keys_, values_, begin, options, chunk, sharers);
  const ops::AttentionBlock all = merged(own, q.layout().placement(axis_).is_shard(1), sharers);
  const Tensor y = sinks ? with_sinks(all, own_sinks(sinks, q), q.dtype())
                         : ops::cast(ops::contiguous(all.y), q.dtype());
  return laid_out_as(q, y);
}

Tensor AttentionCache::attend_whole(const Tensor& q, const Tensor& keys, const Tensor& values,
                                    const ops::AttentionBlockOptions& options) {
  require(!!keys, "attention cache: another layer's keys are inputs where a cache does not attend");
  check_fits(keys_, local_of(keys), "keys");
  ops::AttentionBlockOptions at = options;
  at.first_query = length_;
  const std::int64_t added = keys.size(1);
  const auto append_as_kept = [&](Tensor& kept, const Tensor& x) {
    return local_of(append_own(kept, x, kept_.value_or(x.dtype()), length_));
  };
  const Tensor all = append_as_kept(keys_, keys);
  const Tensor of_values = values ? append_as_kept(values_, values) : all;
  length_ += added;
  const ops::AttentionBlock block = ops::attention_block(local_of(q), all, of_values, at);
  return laid_out_as(q, ops::cast(block.y, q.dtype()));
}

Tensor AttentionCache::attend_rows(const Tensor& q, const Tensor& keys, const Tensor& values,
                                   const ops::AttentionBlockOptions& options, std::int64_t chunk,
                                   const Tensor& sinks) {
  for (const Tensor* const x : {&q, &keys, &values}) {
    if (*x && x->is_distributed()) {
      check_layout(*x, -1);
    }
  }
  const Tensor& own_q = local_of(q);  // (1, T, H, D)
  require(own_q.size(0) == 1, "attention cache: a batch of several texts is one row of tokens");
  if (keys) {
    keep_rows(keys_, local_of(keys), kept_.value_or(keys.dtype()), *batch_);
  }
  if (values) {
    keep_rows(values_, local_of(values), kept_.value_or(values.dtype()), *batch_);
  }
  const Tensor begins = zeros({1, own_q.size(1)}, DType::i64, own_q.device());
  std::vector<Tensor> results;
  std::int64_t begin = 0;
  for (const RaggedRow& row : batch_->rows) {
    const Tensor row_q = ops::narrow(own_q, 1, begin, row.count);
    ops::AttentionBlockOptions of_row = options;
    of_row.first_query = row.first;
    if (chunk > 0) {
      of_row.documents = begins_of_chunks(row_q, row.first, chunk);
    } else if (batch_->exact && options.causal) {
      // One document: a single query is computed as one of many is.
      of_row.documents = ops::narrow(begins, 1, 0, row.count);
    }
    const Tensor row_keys = kept_of_row(keys_, row, q.dtype());
    const ops::AttentionBlock block = ops::attention_block(
        row_q, row_keys, values_ ? kept_of_row(values_, row, q.dtype()) : row_keys, of_row);
    results.push_back(sinks ? with_sinks(block, own_sinks(sinks, q), q.dtype()) : block.y);
    begin += row.count;
  }
  require(begin == own_q.size(1), "attention cache: the batch has another number of tokens");
  return laid_out_as(q, results.size() == 1 ? results[0] : ops::cat(results, 1));
}

void KeyValueCache::set_batch(const RaggedBatch* now) {
  batch = now;
  batch_positions = Tensor();
  if (now != nullptr) {
    std::vector<std::int64_t> numbers;
    for (const RaggedRow& row : now->rows) {
      for (std::int64_t position = row.first; position < row.end(); ++position) {
        numbers.push_back(position);
      }
    }
    batch_positions = from_values(std::span<const std::int64_t>(numbers), {std::ssize(numbers)});
  }
  for (AttentionCache& layer : layers) {
    layer.set_batch(now, batch_positions);
  }
  for (RecurrentState& state : states) {
    state.batch = now;
    if (now != nullptr && std::ssize(state.of_texts) < now->states) {
      state.of_texts.resize(static_cast<std::size_t>(now->states));
    }
  }
}

Tensor KeyValueCache::positions(std::int64_t count) const {
  if (batch != nullptr) {
    return batch_positions;
  }
  std::vector<std::int64_t> numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), length());
  return from_values(std::span<const std::int64_t>(numbers), {count});
}

Tensor KeyValueCache::scored(const Tensor& hidden) const {
  if (batch == nullptr || std::ssize(batch->scored) == hidden.size(1)) {
    return hidden;
  }
  const std::span<const std::int64_t> tokens = batch->scored;
  return ops::index_select(hidden, from_values(tokens, {std::ssize(tokens)}), 1);
}

std::int64_t KeyValueCache::length() const {
  require(batch == nullptr,
          "cache: each text of its batch has a length; a family that computes positions itself "
          "takes them from KeyValueCache::positions()");
  const std::int64_t of_states = states.empty() ? 0 : states.front().length;
  return layers.empty() ? of_states : layers.front().length();
}

std::int64_t KeyValueCache::bytes() const {
  std::int64_t sum = 0;
  for (const AttentionCache& layer : layers) {
    sum += layer.bytes();
  }
  for (const RecurrentState& state : states) {
    sum += state.bytes();
  }
  return sum;
}

void KeyValueCache::clear() {
  for (AttentionCache& layer : layers) {
    layer.clear();
  }
  for (RecurrentState& state : states) {
    state = {};
  }
}

}  // namespace tessera::nn
