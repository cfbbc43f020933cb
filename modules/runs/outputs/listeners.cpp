module;
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <tessera/content_hash.hpp>
#include <tessera/log_listener.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.stores;
import tessera.collective;
import tessera.plugin;
import tessera.sinks;

namespace tessera::runs {

RunListener::~RunListener() = default;
void RunListener::step(const StepReport& /*step*/) {}
void RunListener::note(const std::string& /*text*/) {}
void RunListener::span(const sinks::PhaseSpan& /*span*/) {}
void RunListener::end_steps() {}
void RunListener::finish(const sinks::RunEnd& /*end*/) {}

void RunListeners::add(std::unique_ptr<RunListener> listener) {
  all_.push_back(std::move(listener));
}
void RunListeners::step(const StepReport& step) {
  for (const auto& listener : all_) {
    listener->step(step);
  }
}
void RunListeners::note(const std::string& text) {
  for (const auto& listener : all_) {
    listener->note(text);
  }
}
void RunListeners::span(const sinks::PhaseSpan& span) {
  for (const auto& listener : all_) {
    listener->span(span);
  }
}
void RunListeners::end_steps() {
  for (const auto& listener : all_) {
    listener->end_steps();
  }
}
void RunListeners::finish(const sinks::RunEnd& end) {
  if (std::exchange(finished_, true)) {
    return;
  }
  for (const auto& listener : all_) {
    listener->finish(end);
  }
}

sinks::NamedNumbers numbers_of(const StepMetrics& m) {
  sinks::NamedNumbers all = scalars_of(m);
  all.emplace_back("seconds", m.seconds);
  if (m.skipped) {
    all.emplace_back("skipped", 1);
  }
  if (m.save_seconds > 0) {
    all.emplace_back("save_seconds", m.save_seconds);
  }
  for (const auto& [category, bytes] : m.memory_peaks) {
    all.emplace_back("memory_peaks/" + category, static_cast<double>(bytes));
  }
  for (std::size_t i = 0; i < time_use_count; ++i) {
    if (m.ledger.seconds[i] > 0) {
      all.emplace_back(fmt::format("ledger/{}", word_of(static_cast<TimeUse>(i))),
                       m.ledger.seconds[i]);
    }
  }
  if (m.waited_for) {
    all.emplace_back("waited_for/rank", m.waited_for->first);
    all.emplace_back("waited_for/seconds", m.waited_for->second);
  }
  return all;
}

namespace {

class MetricsListener final : public RunListener {
 public:
  explicit MetricsListener(const ListenerSetup& run)
      : is_stream_(is_stream(run.config.log.metrics)),
        owner_(metrics_owner(run.config.log.metrics, run.config.checkpoint.folder)),
        writer_(run.config.log.metrics, run.done) {}
  /// A file begins where the run continues, a stream keeps what it has.
  void step(const StepReport& step) override {
    if (!(step.again && is_stream_)) {
      StepMetrics metrics = step.metrics;
      metrics.checkpoints = owner_;
      try_side_work(SideWork::output, "metrics", [&] { writer_.write(metrics); });
    }
  }
  void finish(const sinks::RunEnd& end) override {
    if (end.outcome == sinks::Outcome::done) {
      try_side_work(SideWork::output, "metrics", [&] { writer_.finish(); });
    }
  }

 private:
  bool is_stream_;
  std::string owner_;
  MetricsWriter writer_;
};

class EventFileListener final : public RunListener {
 public:
  explicit EventFileListener(const ListenerSetup& run)
      : file_(run.config.log.tensorboard, run.done) {}
  void step(const StepReport& step) override {
    try_side_work(SideWork::output, "log.tensorboard", [&] { file_.write(step.metrics); });
  }

 private:
  EventFile file_;
};

class ProgressListener final : public RunListener {
 public:
  explicit ProgressListener(const ListenerSetup& run)
      : progress_(run.begun, run.config.train.steps, run.config.log.every,
                  progress_on_stdout(run.config.machine)) {}
  void step(const StepReport& step) override {
    if (!step.again) {
      progress_.step(step.metrics, step.gemm_share);
    }
  }
  void note(const std::string& text) override { progress_.note(text); }
  void end_steps() override { progress_.finish(); }

 private:
  Progress progress_;
};

std::string key_of_sink(std::size_t entry, const char* leaf) {
  return fmt::format("sinks[{}].{}", entry, leaf);
}

std::unique_ptr<sinks::Sink> make_sink(const RunSpec& config, std::size_t entry) {
  const SinkConfig& sink = config.sinks[entry];
  return at_key(config, key_of_sink(entry, "sink"), [&] {
    return sinks::load_sink(sink.sink, sink.options.text,
                            config.place(key_of_sink(entry, "options")));
  });
}

/// The sinks of a config, which get what the run tells and what this process logs.
class SinksListener final : public RunListener {
 public:
  explicit SinksListener(const ListenerSetup& run) {
    for (std::size_t i = 0; i < run.config.sinks.size(); ++i) {
      stream_->add(std::make_unique<sinks::SinkFeed>(
          fmt::format("sinks[{}] ({})", i, run.config.sinks[i].sink), make_sink(run.config, i)));
    }
    stream_->tell(start_of(run));
    log_.emplace([stream = stream_](const LogEntry& line) {
      stream->tell(sinks::LogLine{.level = static_cast<LogLevel>(line.level),
                                  .text = std::string(line.text)});
    });
  }
  SinksListener(const SinksListener&) = delete;
  SinksListener& operator=(const SinksListener&) = delete;
  ~SinksListener() override {
    if (!finished_) {
      finish({.outcome = sinks::Outcome::failed, .step = last_step_});
    }
  }
  void step(const StepReport& step) override {
    last_step_ = step.metrics.step;
    if (!step.again) {
      stream_->tell(sinks::StepNumbers{.step = last_step_, .numbers = numbers_of(step.metrics)});
    }
  }
  void note(const std::string& text) override {
    stream_->tell(sinks::LogLine{.level = LogLevel::info, .text = text});
  }
  void span(const sinks::PhaseSpan& span) override { stream_->tell(span); }
  void finish(const sinks::RunEnd& end) override {
    finished_ = true;
    stream_->finish(end);
  }

 private:
  static sinks::RunStart start_of(const ListenerSetup& run) {
    const RunSpec& config = run.config;
    std::array<char, 256> host{};
    ::gethostname(host.data(), host.size() - 1);
    return {.run = run.identity,
            .name = config.file.empty() ? "tessera" : config.file.stem().string(),
            .version = plugin::host_version(),
            .host = host.data(),
            .config = to_json(config),
            .ranks = config.ranks(),
            .steps = config.train.steps,
            .done = run.done,
            .continues = run.done > 0 || run.again};
  }

  std::shared_ptr<sinks::EventStream> stream_ = std::make_shared<sinks::EventStream>();
  std::optional<LogListener> log_;
  std::int64_t last_step_ = 0;
  bool finished_ = false;
};

}  // namespace

RunListeners listeners_of(const ListenerSetup& run) {
  RunListeners all;
  if (!run.config.log.metrics.empty()) {
    all.add(std::make_unique<MetricsListener>(run));
  }
  if (!run.config.log.tensorboard.empty()) {
    all.add(std::make_unique<EventFileListener>(run));
  }
  all.add(std::make_unique<ProgressListener>(run));
  if (!run.config.sinks.empty()) {
    all.add(std::make_unique<SinksListener>(run));
  }
  return all;
}

std::string run_identity(const RunSpec& config) {
  namespace fs = std::filesystem;
  const std::string text = config.checkpoint.folder.empty()
                               ? fmt::format("{} {}", sinks::time_now(), ::getpid())
                           : stores::is_address(config.checkpoint.folder)
                               ? config.checkpoint.folder
                               : fs::absolute(config.checkpoint.folder).lexically_normal().string();
  return content_hash(std::as_bytes(std::span(text)));
}

void check_sinks(const RunSpec& config, bool begins) {
  for (std::size_t i = 0; i < config.sinks.size(); ++i) {
    const std::unique_ptr<sinks::Sink> sink = make_sink(config, i);
    if (begins) {
      at_key(config, key_of_sink(i, "options"), [&] { sink->check(); });
    }
  }
}

}  // namespace tessera::runs
