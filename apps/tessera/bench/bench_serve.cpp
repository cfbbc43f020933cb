module;
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <ctime>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.ops;
import tessera.nn;
import tessera.runs;
import tessera.app.base;
import tessera.app.commands;
import tessera.text;
import :bench_rows;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t prompt_tokens = 32;
constexpr std::int64_t written_tokens = 32;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// What clients get that ask at the same time.
struct AnswerTimes {
  double processor_seconds = 0;           // of all threads
  double seconds = 0;                     // until the last one has its answer
  std::vector<double> first_tokens = {};  // seconds until each has its first token
};

/// Their prompts have no common beginning; answers are the likeliest tokens.
AnswerTimes serve_clients(text::Engine& engine, std::int64_t vocab, std::int64_t clients) {
  const auto begin = Clock::now();
  const std::clock_t used = std::clock();
  AnswerTimes served;
  for (std::int64_t client = 0; client < clients; ++client) {
    std::vector<std::int64_t> prompt;
    for (std::int64_t i = 0; i < prompt_tokens; ++i) {
      prompt.push_back((client * 7919 + i * i * 31 + clients) % vocab);
    }
    engine.submit({.prompt = std::move(prompt),
                   .tokens = written_tokens,
                   .next =
                       [&, written = std::int64_t{0}](const std::vector<double>& logits) mutable {
                         if (written++ == 0) {
                           served.first_tokens.push_back(seconds_since(begin));
                         }
                         return std::optional(std::ranges::max_element(logits) - logits.begin());
                       },
                   .ended = nullptr});
  }
  while (engine.step()) {
  }
  served.processor_seconds = static_cast<double>(std::clock() - used) / CLOCKS_PER_SEC;
  served.seconds = seconds_since(begin);
  return served;
}

}  // namespace

Json bench_serve(const BenchArguments& arguments) {
  BenchModel model(arguments);
  ops::set_threads(available_cores());
  Json rows = Json::array();
  for (const bool exact : {true, false}) {
    text::Engine engine(model.ranks(), model.vocab(), {.exact = exact});
    serve_clients(engine, model.vocab(), 2);
    for (const std::int64_t clients : {1, 8, 32}) {
      const double before = reading_seconds(model.bytes(), available_cores());
      const AnswerTimes served = serve_clients(engine, model.vocab(), clients);
      const double reading = std::min(before, reading_seconds(model.bytes(), available_cores()));
      const auto tokens = static_cast<double>(clients * written_tokens);
      const auto [first, last] = std::ranges::minmax(served.first_tokens);
      rows.push_back(
          {{"name",
            fmt::format("{}, {} clients{}", model.name(), clients, exact ? "" : ", --fast")},
           {"tokens_per_second", tokens / served.seconds},
           {"processor_ms_per_token", served.processor_seconds * 1000 / tokens},
           {"first_token_seconds", first},
           {"last_first_token_seconds", last},
           {"weights_read_seconds", reading},
           {"peak_memory_mib", static_cast<double>(runs::process_memory().peak) / (1 << 20)}});
    }
  }
  ops::set_threads(1);
  return rows;
}

}  // namespace tessera::app
