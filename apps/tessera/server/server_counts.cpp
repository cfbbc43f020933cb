module;
#include <fmt/format.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <string_view>
module tessera.app.server;

import tessera.text;

namespace tessera::app {
namespace {

std::string heading(std::string_view name, std::string_view help, std::string_view type) {
  return fmt::format("# HELP {0} {1}\n# TYPE {0} {2}\n", name, help, type);
}

std::string number(std::string_view name, std::string_view help, std::string_view type,
                   std::int64_t value) {
  return heading(name, help, type) + fmt::format("{} {}\n", name, value);
}

constexpr std::array<std::string_view, 4> ends = {"answered", "failed", "left", "busy"};

}  // namespace

void ServerCounts::Histogram::add(double seconds) {
  for (std::size_t i = 0; i < limits.size(); ++i) {
    counts_[i] += seconds <= limits[i] ? 1 : 0;
  }
  ++all_;
  sum_ += seconds;
}

std::string ServerCounts::Histogram::text(const char* name, const char* help) const {
  std::string lines = heading(name, help, "histogram");
  for (std::size_t i = 0; i < limits.size(); ++i) {
    lines += fmt::format("{}_bucket{{le=\"{}\"}} {}\n", name, limits[i], counts_[i].load());
  }
  return lines + fmt::format("{0}_bucket{{le=\"+Inf\"}} {1}\n{0}_sum {2}\n{0}_count {1}\n", name,
                             all_.load(), sum_.load());
}

void ServerCounts::end(RequestEnd how, double seconds) {
  ++ended_.at(static_cast<std::size_t>(how));
  if (how == RequestEnd::answered) {
    whole_.add(seconds);
  }
}

void ServerCounts::set_engine(const text::EngineCounts& counts) {
  const std::lock_guard lock(mutex_);
  engine_ = counts;
}

std::string ServerCounts::text() const {
  std::int64_t active = begun_;
  std::string lines =
      heading("tessera_requests_total", "Requests for texts, by their ends.", "counter");
  for (std::size_t i = 0; i < ends.size(); ++i) {
    const std::int64_t count = ended_[i];
    active -= count;
    lines += fmt::format("tessera_requests_total{{end=\"{}\"}} {}\n", ends[i], count);
  }
  text::EngineCounts engine;
  {
    const std::lock_guard lock(mutex_);
    engine = engine_;
  }
  return lines +
         number("tessera_texts_computing", "Texts that are computed now.", "gauge",
                engine.computing) +
         number("tessera_texts_waiting", "Texts that wait for memory or a place.", "gauge",
                engine.waiting) +
         number("tessera_pages_used", "Pages of keys and values that texts have now.", "gauge",
                engine.pages) +
         number("tessera_pages_most", "Pages that there can be.", "gauge", engine.most_pages) +
         number("tessera_prompt_tokens_computed_total", "Tokens of prompts that were computed.",
                "counter", engine.read) +
         number("tessera_prompt_tokens_kept_total", "Tokens of prompts that were there already.",
                "counter", engine.kept) +
         number("tessera_guessed_tokens_total", "Tokens that were checked as guesses.", "counter",
                engine.guessed) +
         number("tessera_guessed_tokens_right_total", "Guesses that were right.", "counter",
                engine.right) +
         number("tessera_texts_interrupted_total",
                "Texts that gave back their memory for others and were read again.", "counter",
                engine.interrupted) +
         number("tessera_requests_active", "Requests that wait or are being answered.", "gauge",
                active) +
         number("tessera_prompt_tokens_total", "Tokens of prompts.", "counter", prompt_tokens_) +
         number("tessera_generated_tokens_total", "Tokens that were generated.", "counter",
                generated_tokens_) +
         number("tessera_grammars_compiled_total", "Schemas and grammars that were compiled.",
                "counter", compiled_grammars_) +
         number("tessera_grammars_kept_total", "Those that an earlier request had compiled.",
                "counter", kept_grammars_) +
         first_token_.text("tessera_first_token_seconds",
                           "From a request to the first token of an answer.") +
         whole_.text("tessera_request_seconds", "From a request to the end of its answer.");
}

}  // namespace tessera::app
