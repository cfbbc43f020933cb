module;
#include <fmt/format.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
module tessera.tensor;

import tessera.base;

namespace tessera {
namespace {

struct Streams {
  std::uint64_t seed = 0;
  std::map<std::string, RandomStream, std::less<>> by_name;  // never erased from: see random_stream
};

Streams& streams() {
  thread_local Streams instance;
  return instance;
}

/// FNV-1a: a stream's number is a function of its name alone.
std::uint64_t number_of(std::string_view name) {
  std::uint64_t hash = 0xcbf29ce484222325ULL;
  for (const char c : name) {
    hash = (hash ^ static_cast<unsigned char>(c)) * 0x100000001b3ULL;
  }
  return hash;
}

void return_to(const RandomPosition& position) {
  set_random_state(position.streams);
  streams().seed = position.seed;
}

}  // namespace

RandomStream& random_stream(std::string_view name) {
  Streams& s = streams();
  auto found = s.by_name.find(name);
  if (found == s.by_name.end()) {
    found = s.by_name.emplace(std::string(name), RandomStream{s.seed, number_of(name), 0}).first;
  }
  return found->second;
}

void set_seed(std::uint64_t seed) {
  Streams& s = streams();
  s.seed = seed;
  for (auto& [name, stream] : s.by_name) {
    stream = {seed, number_of(name), 0};
  }
}

std::uint64_t take_numbers(RandomStream& stream, std::int64_t count) {
  const std::uint64_t first = stream.offset;
  stream.offset += (static_cast<std::uint64_t>(count) + 3) / 4 * 4;
  return first;
}

std::map<std::string, RandomStream> random_state() {
  return {streams().by_name.begin(), streams().by_name.end()};
}

void set_random_state(const std::map<std::string, RandomStream>& state) {
  Streams& s = streams();
  if (!state.empty()) {
    s.seed = state.rbegin()->second.seed;
  }
  set_seed(s.seed);
  for (const auto& [name, stream] : state) {
    random_stream(name) = stream;
  }
}

RandomPosition random_position() {
  return {streams().seed, random_state(), step_context().micro_batch};
}

ReplayScope::ReplayScope(const RandomPosition& position)
    : before_(random_position()),
      context_([&](StepContext& context) { context.micro_batch = position.micro_batch; }) {
  return_to(position);
}

ReplayScope::~ReplayScope() { return_to(before_); }

void begin_micro_batch(StepContext& context, const RandomPosition& step,
                       const MicroBatch& micro_batch) {
  const MicroBatch& m = micro_batch;
  if (m.parts < 1 || m.batch < 1 || m.batch % m.parts != 0 || m.first < 0 || m.rows < 1 ||
      m.padding < 0 || m.padding >= m.rows || m.rows - m.padding > m.batch / m.parts - m.first) {
    fail(fmt::format(
        "micro-batch: rows [{}, {}) of each of {} parts are not rows of a step (expected "
        "{} equal parts of the step's {} rows, and 1 or more rows of each part)",
        m.first, m.first + m.rows, m.parts, m.parts, m.batch));
  }
  return_to(step);
  context.micro_batch = micro_batch;
}

RandomNumbers RandomSource::take(std::string_view what, const Dims& shape) const {
  const auto numbers = [&](std::int64_t count) {
    return RandomNumbers{stream_->seed, stream_->stream, take_numbers(*stream_, count)};
  };
  const std::optional<MicroBatch>& m = step_context().micro_batch;
  if (!by_batch_row_ || !m || m->rows * m->parts == m->batch) {
    return numbers(shape.product());
  }
  const std::int64_t rows = m->rows * m->parts;
  if (shape.empty() || shape[0] % rows != 0) {
    fail(
        {.thing = std::string(what),
         .wrong = fmt::format("dim 0 of {} does not hold the micro-batch's rows", to_string(shape)),
         .expected = fmt::format("a multiple of {}", rows),
         .advice = "draw by batch row only for activations whose dim 0 is the batch, and from "
                   "random_stream(name) for other tensors"});
  }
  const std::int64_t row = shape.product() / rows;  // elements
  RandomNumbers taken = numbers(row * m->batch);
  taken.offset += static_cast<std::uint64_t>(row * m->first);
  taken.run = static_cast<std::uint64_t>(row * m->rows);
  taken.stride = static_cast<std::uint64_t>(row * (m->batch / m->parts));
  return taken;
}

RandomSource by_batch_row(std::string_view stream) {
  RandomSource source(random_stream(stream));
  source.by_batch_row_ = true;
  return source;
}

}  // namespace tessera
