module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/row_products.hpp>
#include <utility>
#include <vector>
module tessera.text;

import :model_call;
import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.hub;

namespace tessera::text {
namespace {

/// While it exists, the model keeps what it computes in this cache; null: in none.
class CacheScope {
 public:
  CacheScope(nn::LanguageModel& model, nn::KeyValueCache* cache) : model_(model) {
    model_.set_cache(cache);
  }
  ~CacheScope() { model_.set_cache(nullptr); }
  CacheScope(const CacheScope&) = delete;
  CacheScope& operator=(const CacheScope&) = delete;

 private:
  nn::LanguageModel& model_;
};

}  // namespace

namespace {

/// The logarithm of a token's probability, and the ids and logarithms of the likeliest ones.
void add_values(std::vector<double>& values, const TokenLikelihoods& found) {
  values.push_back(found.own.log_probability);
  for (const TokenLikelihood& other : found.likeliest) {
    values.push_back(static_cast<double>(other.token));
    values.push_back(other.log_probability);
  }
}

/// A batch, what is asked of its scored tokens, and its tokens as numbers.
std::vector<std::int64_t> message_of(const nn::RaggedBatch& batch,
                                     std::span<const TokenRequest> asked,
                                     std::span<const std::int64_t> tokens,
                                     std::span<const std::int64_t> adapters = {}) {
  std::vector<std::int64_t> message = {std::ssize(batch.rows), batch.places, batch.states,
                                       batch.exact ? 1 : 0, std::ssize(batch.scored)};
  for (std::size_t i = 0; i < batch.rows.size(); ++i) {
    const nn::RaggedRow& row = batch.rows[i];
    message.insert(message.end(), {i < adapters.size() ? adapters[i] : 0, row.first, row.count,
                                   row.state, std::ssize(row.kept)});
    for (const nn::PositionRun& run : row.kept) {
      message.insert(message.end(), {run.position, run.place, run.count});
    }
  }
  for (std::size_t i = 0; i < asked.size(); ++i) {
    message.insert(message.end(),
                   {batch.scored[i], asked[i].next, asked[i].likeliest, asked[i].states ? 1 : 0});
  }
  message.insert(message.end(), tokens.begin(), tokens.end());
  return message;
}

/// Reads such a message; returns the tokens.
std::span<const std::int64_t> read_message(std::span<const std::int64_t> message,
                                           nn::RaggedBatch& batch, std::vector<TokenRequest>& asked,
                                           std::vector<std::int64_t>& adapters) {
  std::size_t at = 0;
  const auto next = [&] { return message[at++]; };
  const std::int64_t rows = next();
  batch.places = next();
  batch.states = next();
  batch.exact = next() != 0;
  const std::int64_t scored = next();
  for (std::int64_t i = 0; i < rows; ++i) {
    nn::RaggedRow row;
    adapters.push_back(next());
    row.first = next();
    row.count = next();
    row.state = next();
    for (std::int64_t runs = next(); runs > 0; --runs) {
      nn::PositionRun run;
      run.position = next();
      run.place = next();
      run.count = next();
      row.kept.push_back(run);
    }
    batch.rows.push_back(std::move(row));
  }
  for (std::int64_t i = 0; i < scored; ++i) {
    batch.scored.push_back(next());
    const std::int64_t token = next();
    const std::int64_t likeliest = next();
    asked.push_back({.next = token, .likeliest = likeliest, .states = next() != 0});
  }
  return message.subspan(at);
}

/// Within it, the model's calls are of this batch.
class BatchScope {
 public:
  BatchScope(nn::KeyValueCache& cache, const nn::RaggedBatch& batch) : cache_(cache) {
    cache_.set_batch(&batch);
    if (batch.exact) {
      rows_.emplace();
    }
  }
  ~BatchScope() { cache_.set_batch(nullptr); }
  BatchScope(const BatchScope&) = delete;
  BatchScope& operator=(const BatchScope&) = delete;

 private:
  nn::KeyValueCache& cache_;
  std::optional<RowProducts> rows_;
};

}  // namespace

TokenLikelihoods read_likelihoods(std::span<const double> values, std::int64_t token) {
  TokenLikelihoods found;
  found.own = {.token = token, .log_probability = values[0]};
  for (std::size_t at = 1; at < values.size(); at += 2) {
    found.likeliest.push_back(
        {.token = static_cast<std::int64_t>(values[at]), .log_probability = values[at + 1]});
  }
  return found;
}

ModelRanks::ModelRanks(nn::LanguageModel& model, collective::World* world, const DeviceMesh& mesh,
                       int context, std::optional<DType> keys,
                       std::unique_ptr<AdapterLayers> adapters)
    : model_(model), world_(world), mesh_(mesh), context_(context), adapters_(std::move(adapters)) {
  cache_.kept = keys;
  if (context_ >= 0) {
    chunks_ = mesh_.axis_size(context_);
    cache_.axis = context_;
  }
  if (mesh_) {
    calls_ = &world->communicator(mesh_.ranks(), "calls of the model");
  }
  std::int64_t elements = 0;
  for (const nn::ParameterPointer& parameter : nn::all_parameters(model)) {
    elements += local_of(parameter->value).numel();
  }
  parameters_ = std::max(elements, parameters_);
  if (const auto* const decoder = dynamic_cast<const nn::DecoderLM*>(&model_)) {
    short_rows_ = decoder->shape().rope_factors.limit;
  }
  try {
    keep(true);
  } catch (const Error& error) {
    slow_because_ = error.what();
  }
}

ModelRanks::~ModelRanks() {
  if (keeps_) {
    model_.set_cache(nullptr);
  }
}

bool ModelRanks::leads() const { return calls_ == nullptr || calls_->rank() == 0; }

void ModelRanks::keep(bool keeps) {
  if (keeps != keeps_) {
    model_.set_cache(keeps ? &cache_ : nullptr);
    keeps_ = keeps;
  }
}

void ModelRanks::check_others() const {
  if (there_ && there_->ended()) {
    fail({.thing = "ranks", .wrong = "they have ended, and are not started again"});
  }
  if (world_ != nullptr) {
    world_->throw_if_failed();
  }
}

bool ModelRanks::interrupted() const { return world_ != nullptr && world_->interrupt_requested(); }

void ModelRanks::check_interrupt() const {
  if (interrupted()) {
    throw Error("interrupted", ErrorKind::interrupted);
  }
}

void ModelRanks::end_process() const {
  // Ranks of other processes end with this one.
  if (world_ != nullptr) {
    world_->publish_error("interrupted", ErrorKind::interrupted);
  }
  std::_Exit(0);
}

/// One message, and another one for what has no room in it.
void ModelRanks::send(Call& call) {
  constexpr std::size_t head = 5;
  std::array<std::int64_t, 64> message{};
  const std::size_t room = message.size() - head;
  if (leads()) {
    message[0] = static_cast<std::int64_t>(call.kind);
    message[1] = call.rows;
    message[2] = call.anew ? 1 : 0;
    message[3] = std::ssize(call.values);
    message[4] = call.likeliest;
    std::copy_n(call.values.begin(), std::min(room, call.values.size()), message.begin() + head);
  }
  calls_->broadcast(message.data(), std::ssize(message), DType::i64, 0);
  if (!leads()) {
    call.kind = static_cast<Call::Kind>(message[0]);
    call.rows = message[1];
    call.anew = message[2] != 0;
    call.values.resize(static_cast<std::size_t>(message[3]));
    call.likeliest = message[4];
    std::copy_n(message.begin() + head, std::min(room, call.values.size()), call.values.begin());
  }
  if (call.values.size() > room) {
    calls_->broadcast(
        call.values.data() + room,
        std::ssize(call.values) - std::ssize(message) + static_cast<std::int64_t>(head), DType::i64,
        0);
  }
}

Tensor ModelRanks::placed(std::span<const std::int64_t> values, std::int64_t rows,
                          bool chunked) const {
  Tensor all = from_values(values, {rows, std::ssize(values) / rows});
  if (!mesh_) {
    return all;
  }
  const Layout layout = Layout::replicated(mesh_);
  return distribute(all, chunked ? layout.with_placement(context_, Shard(1)) : layout);
}

Tensor ModelRanks::last_logits(std::span<const std::int64_t> tokens, std::int64_t rows) {
  const std::int64_t count = std::ssize(tokens) / rows;
  // A few tokens cost every rank what one of them costs: a pass over its weights.
  constexpr std::int64_t fewest_of_rank = 4;
  const bool chunked = chunks_ > 1 && count >= chunks_ * fewest_of_rank;
  if (chunked && count % chunks_ != 0) {
    // What the ranks cannot divide is read by all of them afterwards.
    const std::int64_t even = count - count % chunks_;
    std::vector<std::int64_t> first;
    std::vector<std::int64_t> rest;
    for (std::int64_t row = 0; row < rows; ++row) {
      const auto begin = tokens.begin() + row * count;
      first.insert(first.end(), begin, begin + even);
      rest.insert(rest.end(), begin + even, begin + count);
    }
    static_cast<void>(last_logits(first, rows));
    return last_logits(rest, rows);
  }
  const Tensor logits = model_(placed(tokens, rows, chunked));
  if (!chunked) {
    return ops::select(logits, 1, logits.size(1) - 1);
  }
  // The last token of each rank; that of the last rank is the last one.
  const Tensor& own = logits.local();
  Dims shape = logits.shape();
  shape[1] = chunks_;
  const Tensor last =
      from_local(ops::contiguous(ops::narrow(own, 1, own.size(1) - 1, 1)), logits.layout(), shape);
  return ops::select(full_tensor(last), 1, chunks_ - 1);
}

std::vector<double> ModelRanks::scored_values(std::span<const std::int64_t> message, bool learns) {
  nn::RaggedBatch batch;
  std::vector<TokenRequest> asked;
  std::vector<std::int64_t> adapters;
  const auto tokens = read_message(message, batch, asked, adapters);
  const BatchScope scope(cache_, batch);
  const AdapterLayers::Batch adapted(adapters_.get(), batch, adapters, learns);
  const auto whole = [](const Tensor& x) {
    return ops::select(x.is_distributed() ? full_tensor(x) : x, 0, 0);
  };
  const bool asks_states = std::ranges::any_of(asked, &TokenRequest::states);
  const bool asks_logits =
      learns || !asks_states || !std::ranges::all_of(asked, &TokenRequest::states);
  const Tensor placed_tokens = placed(tokens, 1, false);
  const Tensor last = asks_states ? model_.last_states(placed_tokens) : Tensor();
  const Tensor states = asks_states ? whole(last) : Tensor();
  const Tensor rows = !asks_logits  ? Tensor()
                      : asks_states ? whole(model_.logits_of(last))
                                    : whole(model_(placed_tokens));
  const Tensor& any = asks_states ? states : rows;
  const bool only_scored = any.size(0) == std::ssize(batch.scored);
  const auto asks_all_logits = [](const TokenRequest& one) { return !one.states && one.next < 0; };
  if (only_scored && std::ranges::all_of(asked, asks_all_logits)) {
    return to_doubles(rows);  // megabytes, once
  }
  std::vector<double> values;
  for (std::size_t i = 0; i < asked.size(); ++i) {
    const auto at = only_scored ? static_cast<std::int64_t>(i) : batch.scored[i];
    const std::vector<double> row = to_doubles(ops::select(asked[i].states ? states : rows, 0, at));
    if (asked[i].states || asked[i].next < 0) {
      values.insert(values.end(), row.begin(), row.end());
    } else {
      add_values(values, likelihoods_of(row, asked[i].next, asked[i].likeliest));
    }
  }
  return values;
}

/// A message has the adapter's number, and of each layer its number and the update's rank.
void ModelRanks::take_updates(std::span<const std::int64_t> message) {
  const std::int64_t adapter = message[0];
  for (std::size_t at = 1; at < message.size(); at += 2) {
    const Dims& shape = adapters_->shape(message[at]);
    const std::int64_t rank = message[at + 1];
    Tensor a = empty({rank, shape[1]}, DType::f32);
    Tensor b = empty({shape[0], rank}, DType::f32);
    if (leads()) {
      const hub::LayerUpdate& update = sent_updates_[at / 2];
      ops::copy_(a, update.a);
      ops::copy_(b, ops::mul_scalar(update.b, update.scale));
    }
    if (calls_ != nullptr) {
      calls_->broadcast(a.data<float>(), a.numel(), DType::f32, 0);
      calls_->broadcast(b.data<float>(), b.numel(), DType::f32, 0);
    }
    adapters_->add(adapter, message[at], a, b);
  }
}

Tensor ModelRanks::loss(std::span<const std::int64_t> tokens,
                        std::span<const std::int64_t> targets) {
  // Tokens that are not scored make equal chunks; no token before them sees them.
  std::vector<std::int64_t> read(tokens.begin(), tokens.end());
  std::vector<std::int64_t> scored(targets.begin(), targets.end());
  while (std::ssize(read) % chunks_ != 0) {
    read.push_back(read.back());
    scored.push_back(model_.loss().ignore_index());
  }
  const bool chunked = chunks_ > 1;
  return model_.loss_sum(placed(read, 1, chunked), placed(scored, 1, chunked));
}

std::vector<double> ModelRanks::likelihood_values(std::span<const std::int64_t> tokens,
                                                  std::int64_t likeliest) {
  // The logits of few tokens are in memory at a time: a text of its own, with its own cache.
  constexpr std::int64_t tokens_at_once = 32;
  nn::KeyValueCache own;
  own.axis = cache_.axis;
  const bool keeps = slow_because_.empty() && short_rows_ == 0;
  keep(false);
  const CacheScope scope(model_, keeps ? &own : nullptr);
  std::vector<double> values;
  const std::int64_t count = std::ssize(tokens) - 1;
  const std::int64_t part = keeps ? tokens_at_once : count;
  for (std::int64_t begin = 0; begin < count; begin += part) {
    const auto size = std::min(part, count - begin);
    const auto read =
        tokens.subspan(static_cast<std::size_t>(begin), static_cast<std::size_t>(size));
    const Tensor logits = model_(placed(read, 1, false));
    const std::vector<double> all =
        to_doubles(logits.is_distributed() ? full_tensor(logits) : logits);
    const std::size_t vocab = all.size() / read.size();
    for (std::size_t i = 0; i < read.size(); ++i) {
      add_values(values,
                 likelihoods_of(std::span(all).subspan(i * vocab, vocab),
                                tokens[static_cast<std::size_t>(begin) + i + 1], likeliest));
    }
  }
  return values;
}

std::vector<std::int64_t> ModelRanks::tokens_to_read(const Call& call) {
  if (short_rows_ == 0 || !keeps_) {
    return call.values;
  }
  rows_.resize(static_cast<std::size_t>(call.rows));
  const std::int64_t before = std::ssize(rows_.front());
  const std::ptrdiff_t count = std::ssize(call.values) / call.rows;
  for (std::size_t row = 0; row < rows_.size(); ++row) {
    const auto begin = call.values.begin() + static_cast<std::ptrdiff_t>(row) * count;
    rows_[row].insert(rows_[row].end(), begin, begin + count);
  }
  if (before == 0 || before > short_rows_ || before + count <= short_rows_) {
    return call.values;
  }
  // The keys and values of deeper layers are others in a long row: all of them are made again.
  cache_.clear();
  std::vector<std::int64_t> whole;
  for (const std::vector<std::int64_t>& row : rows_) {
    whole.insert(whole.end(), row.begin(), row.end());
  }
  return whole;
}

std::vector<double> ModelRanks::computed(const Call& call) {
  const NoGrad no_grad;
  const PlainIsReplicate equal;  // tables and positions that a model computes from lengths
  const std::span<const std::int64_t> values = call.values;
  if (call.kind == Call::Kind::likelihoods) {
    return likelihood_values(values, call.likeliest);
  }
  if (call.kind == Call::Kind::add_adapter) {
    take_updates(values);
    return {};
  }
  if (call.kind == Call::Kind::drop_adapter) {
    adapters_->drop(values[0]);
    return {};
  }
  Tensor result;
  if (call.kind == Call::Kind::loss) {
    keep(false);
    const std::size_t half = values.size() / 2;
    result = loss(values.first(half), values.subspan(half));
  } else {
    keep(slow_because_.empty());
    const bool learns = call.kind == Call::Kind::first_batch;
    const bool in_batches = learns || call.kind == Call::Kind::batch;
    if (call.anew || std::exchange(in_batches_, in_batches) != in_batches) {
      cache_.clear();
      ++clears_;
      rows_.clear();
    }
    if (in_batches) {
      return scored_values(values, learns);
    }
    result = last_logits(tokens_to_read(call), call.rows);
  }
  return to_doubles(result.is_distributed() ? full_tensor(result) : result);
}

std::vector<double> ModelRanks::together(Call call) {
  if (there_) {
    return together_there(call);
  }
  check_interrupt();
  if (calls_ == nullptr) {
    return computed(call);
  }
  send(call);
  try {
    return computed(call);
  } catch (const Error& error) {
    // The others are within this call: whoever catches the error cannot go on.
    world_->publish_error(error.what(), error.kind());
    throw;
  }
}

std::vector<double> ModelRanks::next_logits(std::span<const std::int64_t> tokens, std::int64_t rows,
                                            bool anew) {
  return together({.kind = Call::Kind::logits,
                   .rows = rows,
                   .anew = anew,
                   .values = {tokens.begin(), tokens.end()}});
}

TextBytes ModelRanks::text_bytes() {
  if (there_) {
    return bytes_there_;
  }
  // Two texts of two tokens and of one, whose last ones are scored: three numbers that differ.
  const nn::RaggedBatch several{.rows = {{.count = 2, .kept = {{.count = 2}}},
                                         {.kept = {{.place = 2, .count = 1}}, .state = 1}},
                                .places = 3,
                                .states = 2,
                                .scored = {1, 2}};
  const std::vector<std::int64_t> tokens(3);
  const bool states = model_.has_head();
  const std::vector<TokenRequest> both(2, {.states = states});
  const auto found = together({.kind = Call::Kind::first_batch,
                               .rows = 1,
                               .anew = true,
                               .values = message_of(several, both, tokens)});
  features_ = states ? std::ssize(found) / 2 : 0;
  nn::RaggedBatch batch{
      .rows = {{.kept = {{.count = 1}}}}, .places = 1, .states = 1, .scored = {0}};
  const std::int64_t token = 0;
  const TokenRequest asked;
  static_cast<void>(
      together({.kind = Call::Kind::batch,
                .rows = 1,
                .anew = true,
                .values = message_of(batch, std::span(&asked, 1), std::span(&token, 1))}));
  TextBytes bytes;
  for (const nn::AttentionCache& layer : cache_.layers) {
    bytes.position += layer.bytes();
  }
  for (const nn::RecurrentState& state : cache_.states) {
    bytes.state += state.bytes();
  }
  return bytes;
}

std::vector<double> ModelRanks::batch_values(const nn::RaggedBatch& batch,
                                             std::span<const std::int64_t> tokens,
                                             std::span<const TokenRequest> asked,
                                             std::span<const std::int64_t> adapters) {
  require(asked.size() == batch.scored.size(), "model: what is asked is not what is scored");
  return together(
      {.kind = Call::Kind::batch, .rows = 1, .values = message_of(batch, asked, tokens, adapters)});
}

void ModelRanks::add_adapter(std::int64_t number, std::span<const hub::LayerUpdate> updates,
                             const std::string& name) {
  require(takes_adapters() && number != 0, "model: it takes no adapters");
  if (there_) {
    while (!try_adapter(number, updates, name)) {
      connect();
    }
    return;
  }
  const std::vector<std::int64_t> layers = adapters_->numbers_of(updates, name);
  Call call{.kind = Call::Kind::add_adapter, .values = {number}};
  for (std::size_t i = 0; i < layers.size(); ++i) {
    call.values.insert(call.values.end(), {layers[i], updates[i].a.size(0)});
  }
  sent_updates_ = updates;
  static_cast<void>(together(std::move(call)));
  sent_updates_ = {};
}

void ModelRanks::drop_adapter(std::int64_t number) {
  sent_.erase(number);
  try {
    static_cast<void>(together({.kind = Call::Kind::drop_adapter, .values = {number}}));
  } catch (const RestartedRanks&) {
    return;  // without it
  }
}

double ModelRanks::loss_sum(std::span<const std::int64_t> tokens,
                            std::span<const std::int64_t> targets) {
  Call call{.kind = Call::Kind::loss, .rows = 1, .values = {tokens.begin(), tokens.end()}};
  call.values.insert(call.values.end(), targets.begin(), targets.end());
  return together(std::move(call)).at(0);
}

std::vector<TokenLikelihoods> ModelRanks::likelihoods(std::span<const std::int64_t> tokens,
                                                      std::int64_t likeliest) {
  const std::vector<double> values = together({.kind = Call::Kind::likelihoods,
                                               .rows = 1,
                                               .likeliest = likeliest,
                                               .values = {tokens.begin(), tokens.end()}});
  const std::size_t count = tokens.size() - 1;
  const std::size_t of_token = values.size() / count;
  std::vector<TokenLikelihoods> all(count);
  for (std::size_t i = 0; i < count; ++i) {
    all[i] = read_likelihoods(std::span(values).subspan(i * of_token, of_token), tokens[i + 1]);
  }
  return all;
}

nn::LanguageModel& ModelRanks::model() {
  keep(false);
  return model_;
}

void ModelRanks::follow() {
  while (true) {
    Call call;
    send(call);
    if (call.kind == Call::Kind::dismiss) {
      return;
    }
    static_cast<void>(computed(call));
  }
}

void ModelRanks::dismiss() {
  if (calls_ != nullptr) {
    Call call;
    send(call);
  }
}

}  // namespace tessera::text
