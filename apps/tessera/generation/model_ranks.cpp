module;
#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.app.generation;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;

namespace tessera::app {

/// A call as the first rank sends it.
struct ModelRanks::Call {
  enum class Kind : std::int64_t { dismiss, logits, loss };

  Kind kind = Kind::dismiss;
  std::int64_t rows = 0;
  bool anew = false;
  std::vector<std::int64_t> values = {};  // tokens; of a loss, then the targets
};

ModelRanks::ModelRanks(nn::LanguageModel& model, collective::World* world, const DeviceMesh& mesh)
    : model_(model), world_(world), mesh_(mesh) {
  if (mesh_) {
    calls_ = &world->communicator(mesh_.ranks(), "calls of the model");
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

/// One message, and another one for what has no room in it.
void ModelRanks::send(Call& call) {
  constexpr std::size_t head = 4;
  std::array<std::int64_t, 64> message{};
  const std::size_t room = message.size() - head;
  if (leads()) {
    message[0] = static_cast<std::int64_t>(call.kind);
    message[1] = call.rows;
    message[2] = call.anew ? 1 : 0;
    message[3] = std::ssize(call.values);
    std::copy_n(call.values.begin(), std::min(room, call.values.size()), message.begin() + head);
  }
  calls_->broadcast(message.data(), std::ssize(message), DType::i64, 0);
  if (!leads()) {
    call.kind = static_cast<Call::Kind>(message[0]);
    call.rows = message[1];
    call.anew = message[2] != 0;
    call.values.resize(static_cast<std::size_t>(message[3]));
    std::copy_n(message.begin() + head, std::min(room, call.values.size()), call.values.begin());
  }
  if (call.values.size() > room) {
    calls_->broadcast(
        call.values.data() + room,
        std::ssize(call.values) - std::ssize(message) + static_cast<std::int64_t>(head), DType::i64,
        0);
  }
}

Tensor ModelRanks::placed(std::span<const std::int64_t> values, std::int64_t rows) const {
  const Tensor own = from_values(values, {rows, std::ssize(values) / rows});
  return mesh_ ? from_local(own, Layout::replicated(mesh_)) : own;
}

std::vector<double> ModelRanks::computed(const Call& call) {
  const NoGrad no_grad;
  const PlainIsReplicate equal;  // tables and positions that a model computes from lengths
  const std::span<const std::int64_t> values = call.values;
  Tensor result;
  if (call.kind == Call::Kind::loss) {
    keep(false);
    const std::size_t half = values.size() / 2;
    result = model_.loss_sum(placed(values.first(half), 1), placed(values.subspan(half), 1));
  } else {
    keep(slow_because_.empty());
    if (call.anew) {
      for (nn::AttentionCache& layer : cache_.layers) {
        layer.clear();
      }
    }
    const Tensor logits = model_(placed(values, call.rows));
    result = ops::select(logits, 1, logits.size(1) - 1);
  }
  return to_doubles(mesh_ ? full_tensor(result) : result);
}

std::vector<double> ModelRanks::together(Call call) {
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

double ModelRanks::loss_sum(std::span<const std::int64_t> tokens,
                            std::span<const std::int64_t> targets) {
  Call call{.kind = Call::Kind::loss, .rows = 1, .values = {tokens.begin(), tokens.end()}};
  call.values.insert(call.values.end(), targets.begin(), targets.end());
  return together(std::move(call)).at(0);
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

}  // namespace tessera::app
