// Ranks of other processes, which are started again when one of them dies.
module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>
module tessera.text;

import :model_call;
import tessera.base;
import tessera.tensor;
import tessera.nn;
import tessera.hub;

namespace tessera::text {
namespace {

/// What an answer begins with.
enum class AnswerKind : std::int64_t { values, refused };

/// Whether a message is a Call, or has an adapter.
enum class MessageKind : std::int64_t { call, adapter };

Tensor tensor_of(MessageReader& reader, std::int64_t rows, std::int64_t columns) {
  const std::vector<float> values = reader.floats();
  return from_values(std::span<const float>(values), {rows, columns});
}

/// Error: the rank has refused what was asked.
void check_answer(MessageReader& reader) {
  if (static_cast<AnswerKind>(reader.number()) == AnswerKind::refused) {
    const auto kind = static_cast<ErrorKind>(reader.number());
    throw Error(reader.text(), kind);
  }
}

std::span<const float> values_of(const Tensor& matrix) {
  return {matrix.data<float>(), static_cast<std::size_t>(matrix.numel())};
}

}  // namespace

ModelRanks::ModelRanks(nn::LanguageModel& model, std::unique_ptr<RankProcess> there)
    : model_(model), world_(nullptr), context_(-1), there_(std::move(there)) {
  connect();
}

/// Waits for ranks that have started, and gives them the adapters that the others had.
void ModelRanks::connect() {
  while (true) {
    const std::vector<std::int64_t> message = there_->connect();
    MessageReader facts(message);
    slow_because_ = facts.text();
    context_ = static_cast<int>(facts.number());
    chunks_ = facts.number();
    parameters_ = facts.number();
    short_rows_ = facts.number();
    features_ = facts.number();
    adapters_there_ = facts.number() != 0;
    bytes_there_.position = facts.number();
    bytes_there_.state = facts.number();
    if (std::ranges::all_of(sent_, [&](const auto& sent) {
          return try_adapter(sent.first, sent.second.updates, sent.second.name);
        })) {
      return;
    }
  }
}

/// What connect() reads.
std::vector<std::int64_t> ModelRanks::facts() {
  const TextBytes bytes = takes_batches() ? text_bytes() : TextBytes();
  MessageWriter writer;
  writer.add(slow_because_);
  for (const std::int64_t number :
       {static_cast<std::int64_t>(context_), chunks_, parameters_, short_rows_, features_,
        static_cast<std::int64_t>(takes_adapters()), bytes.position, bytes.state}) {
    writer.add(number);
  }
  return writer.take();
}

std::vector<double> ModelRanks::together_there(const Call& call) {
  MessageWriter writer;
  for (const std::int64_t number :
       {static_cast<std::int64_t>(MessageKind::call), static_cast<std::int64_t>(call.kind),
        call.rows, static_cast<std::int64_t>(call.anew), call.likeliest}) {
    writer.add(number);
  }
  for (const std::int64_t value : call.values) {
    writer.add(value);
  }
  const auto answer = there_->call(writer.take());
  if (!answer) {
    ++clears_;
    connect();
    throw RestartedRanks();
  }
  MessageReader reader(*answer);
  check_answer(reader);
  clears_ += reader.number();
  std::vector<double> values;
  values.reserve(reader.rest().size());
  while (!reader.rest().empty()) {
    values.push_back(reader.real());
  }
  return values;
}

/// False: the rank has died.
bool ModelRanks::try_adapter(std::int64_t number, std::span<const hub::LayerUpdate> updates,
                             const std::string& name) {
  MessageWriter writer;
  writer.add(static_cast<std::int64_t>(MessageKind::adapter));
  writer.add(number);
  writer.add(name);
  writer.add(std::ssize(updates));
  for (const hub::LayerUpdate& update : updates) {
    writer.add(update.layer);
    writer.add(update.scale);
    for (const Tensor& matrix : {update.a, update.b}) {
      writer.add(matrix.size(0));
      writer.add(matrix.size(1));
      writer.add(values_of(matrix));
    }
  }
  const auto answer = there_->call(writer.take());
  if (!answer) {
    ++clears_;
    return false;
  }
  MessageReader reader(*answer);
  check_answer(reader);
  sent_.try_emplace(number, SentAdapter{.name = name, .updates = {updates.begin(), updates.end()}});
  return true;
}

void ModelRanks::answer_calls(const MessageSocket& asks) {
  bool there = asks.send(facts());
  while (there) {
    const auto message = asks.receive();
    there = message && asks.send(answer_to(*message));
  }
}

std::vector<std::int64_t> ModelRanks::answer_to(std::span<const std::int64_t> message) {
  MessageReader reader(message);
  MessageWriter answer;
  try {
    std::vector<double> values;
    const std::int64_t clears = clears_;
    if (static_cast<MessageKind>(reader.number()) == MessageKind::adapter) {
      const std::int64_t number = reader.number();
      const std::string name = reader.text();
      std::vector<hub::LayerUpdate> updates(static_cast<std::size_t>(reader.number()));
      for (hub::LayerUpdate& update : updates) {
        update.layer = reader.text();
        update.scale = reader.real();
        for (Tensor* const matrix : {&update.a, &update.b}) {
          const std::int64_t rows = reader.number();
          const std::int64_t columns = reader.number();
          *matrix = tensor_of(reader, rows, columns);
        }
      }
      add_adapter(number, updates, name);
    } else {
      Call call{.kind = static_cast<Call::Kind>(reader.number())};
      call.rows = reader.number();
      call.anew = reader.number() != 0;
      call.likeliest = reader.number();
      call.values.assign(reader.rest().begin(), reader.rest().end());
      values = together(std::move(call));
    }
    answer.add(static_cast<std::int64_t>(AnswerKind::values));
    answer.add(clears_ - clears);
    for (const double value : values) {
      answer.add(value);
    }
  } catch (const Error& error) {
    // Where several ranks compute, the others are within the call, and all must end.
    if (error.kind() != ErrorKind::input || world_ == nullptr || world_->interrupt_requested()) {
      throw;
    }
    world_->throw_if_failed();
    answer = {};
    answer.add(static_cast<std::int64_t>(AnswerKind::refused));
    answer.add(static_cast<std::int64_t>(error.kind()));
    answer.add(std::string(error.what()));
  }
  return answer.take();
}

}  // namespace tessera::text
