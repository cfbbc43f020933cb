// prometheus: a page at a port of this machine with the last numbers of a run, in the text format
// that Prometheus reads. The library answers requests in threads of its own.
#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <prometheus/collectable.h>
#include <prometheus/exposer.h>
#include <prometheus/metric_family.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <variant>
#include <vector>

import tessera.base;
import tessera.options;
import tessera.plugin;
import tessera.sinks;

namespace {

using namespace tessera;
using namespace tessera::sinks;

constexpr std::string_view thing = "prometheus";

// What a receiver has to keep is bounded, whatever the names of a run's numbers are.
constexpr std::size_t most_numbers = 256;
constexpr std::size_t most_phases = 32;
constexpr std::size_t longest_name = 128;

/// A name that Prometheus takes: letters, digits and '_'.
std::string metric_name(std::string_view name) {
  std::string text = "tessera_";
  for (const char c : name.substr(0, longest_name)) {
    const bool allowed =
        (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
    text += allowed ? c : '_';
  }
  return text;
}

using Labels = std::vector<prometheus::ClientMetric::Label>;

prometheus::ClientMetric gauge(double value, Labels labels = {}) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.gauge.value = value;
  return metric;
}
prometheus::ClientMetric counter(double value, Labels labels) {
  prometheus::ClientMetric metric;
  metric.label = std::move(labels);
  metric.counter.value = value;
  return metric;
}

/// What the page shows. The sink writes it, and requests read it.
class Page final : public prometheus::Collectable {
 public:
  void add(const Event& event) {
    const std::lock_guard lock(mutex_);
    time_ = event.time;
    std::visit([this](const auto& content) { add(content); }, event.content);
  }

  std::vector<prometheus::MetricFamily> Collect() const override {
    using prometheus::MetricType;
    const std::lock_guard lock(mutex_);
    std::vector<prometheus::MetricFamily> all = {
        {"tessera_run_info",
         "The run: always 1.",
         MetricType::Gauge,
         {gauge(1, {{"run", start_.run},
                    {"name", start_.name},
                    {"version", start_.version},
                    {"host", start_.host}})}},
        {"tessera_ranks",
         "Its ranks.",
         MetricType::Gauge,
         {gauge(static_cast<double>(start_.ranks))}},
        {"tessera_step",
         "Steps that are done.",
         MetricType::Gauge,
         {gauge(static_cast<double>(step_))}},
        {"tessera_steps_planned",
         "Steps of the whole run.",
         MetricType::Gauge,
         {gauge(static_cast<double>(start_.steps))}},
        {"tessera_event_time_seconds",
         "When the run has told something last, in Unix time.",
         MetricType::Gauge,
         {gauge(time_)}}};
    prometheus::MetricFamily seconds{
        "tessera_phase_seconds_total", "Seconds of each phase.", MetricType::Counter, {}};
    prometheus::MetricFamily times{
        "tessera_phase_count_total", "How often it has ended.", MetricType::Counter, {}};
    for (const auto& [name, phase] : phases_) {
      seconds.metric.push_back(counter(phase.seconds, {{"phase", name}}));
      times.metric.push_back(counter(static_cast<double>(phase.count), {{"phase", name}}));
    }
    prometheus::MetricFamily lines{
        "tessera_log_lines_total", "Lines that the run has logged.", MetricType::Counter, {}};
    for (const auto& [level, count] : lines_) {
      lines.metric.push_back(counter(static_cast<double>(count), {{"level", level}}));
    }
    for (prometheus::MetricFamily* const family : {&seconds, &times, &lines}) {
      all.push_back(std::move(*family));
    }
    for (const auto& [name, number] : numbers_) {
      all.push_back({name,
                     "Of the last step: " + number.name + ".",
                     MetricType::Gauge,
                     {gauge(number.value)}});
    }
    return all;
  }

 private:
  struct Number {
    std::string name;  // the run's
    double value = 0;
  };
  struct Phase {
    double seconds = 0;
    std::uint64_t count = 0;
  };

  void add(const RunStart& start) {
    start_ = start;
    start_.config.clear();
    step_ = start.done;
  }
  void add(const StepNumbers& step) {
    step_ = step.step;
    for (const auto& [name, value] : step.numbers) {
      const std::string shown = metric_name(name);
      const auto found = numbers_.find(shown);
      if (found != numbers_.end() && found->second.name == name) {
        found->second.value = value;
      } else if (found == numbers_.end() && numbers_.size() < most_numbers && !is_taken(shown)) {
        numbers_[shown] = {name.substr(0, longest_name), value};
      }
    }
  }
  void add(const PhaseSpan& span) {
    if (phases_.contains(span.name) || phases_.size() < most_phases) {
      Phase& phase = phases_[span.name];
      phase.seconds += span.seconds;
      ++phase.count;
    }
  }
  void add(const LogLine& line) { ++lines_[std::string(word_of(line.level))]; }
  void add(const RunEnd& end) { step_ = end.step; }

  /// Names of the page itself.
  static bool is_taken(std::string_view name) {
    for (const std::string_view own :
         {"run_info", "ranks", "step", "steps_planned", "event_time_seconds", "phase_seconds_total",
          "phase_count_total", "log_lines_total"}) {
      if (name.substr(std::string_view("tessera_").size()) == own) {
        return true;
      }
    }
    return false;
  }

  mutable std::mutex mutex_;
  double time_ = 0;
  RunStart start_;
  std::int64_t step_ = 0;
  std::map<std::string, Number> numbers_;  // by the names of the page
  std::map<std::string, Phase> phases_;
  std::map<std::string, std::uint64_t> lines_;  // by level
};

class PrometheusSink final : public Sink {
 public:
  PrometheusSink(std::string address, int port) : address_(std::move(address)), port_(port) {}

  void check() const override {
    const bool v6 = is_v6();
    const int family = v6 ? AF_INET6 : AF_INET;
    sockaddr_in6 six{};
    six.sin6_family = AF_INET6;
    six.sin6_port = htons(static_cast<std::uint16_t>(port_));
    sockaddr_in four{};
    four.sin_family = AF_INET;
    four.sin_port = six.sin6_port;
    ::inet_pton(family, address_.c_str(),
                v6 ? static_cast<void*>(&six.sin6_addr) : static_cast<void*>(&four.sin_addr));
    const int socket = ::socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int yes = 1;
    ::setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    const int bound = v6 ? ::bind(socket, reinterpret_cast<const sockaddr*>(&six), sizeof six)
                         : ::bind(socket, reinterpret_cast<const sockaddr*>(&four), sizeof four);
    // Two sockets may be bound to a port at which nobody listens yet.
    const int error = bound == 0 && ::listen(socket, 1) == 0 ? 0 : errno;
    ::close(socket);
    if (error != 0) {
      fail_input({.thing = std::string(thing),
                  .wrong = fmt::format("port {} of {} cannot be used: {}", port_, address_,
                                       std::generic_category().message(error)),
                  .advice = "set another port or address"});
    }
  }

  void take(std::span<const Event> events) override {
    if (!exposer_) {
      open();
    }
    for (const Event& event : events) {
      page_->add(event);
    }
  }

  void finish(double /*seconds*/) override { exposer_.reset(); }

 private:
  bool is_v6() const { return address_.find(':') != std::string::npos; }

  void open() {
    const std::string at = fmt::format("{}:{}", is_v6() ? "[" + address_ + "]" : address_, port_);
    try {
      exposer_ = std::make_unique<prometheus::Exposer>(std::vector<std::string>{
          "listening_ports", at, "num_threads", "2", "request_timeout_ms", "5000"});
    } catch (const std::exception& error) {
      throw UnavailableError(
          {.thing = std::string(thing),
           .wrong = fmt::format("{} cannot be listened at ({})", at, error.what())});
    }
    exposer_->RegisterCollectable(page_);
  }

  std::string address_;
  int port_;
  std::shared_ptr<Page> page_ = std::make_shared<Page>();
  std::unique_ptr<prometheus::Exposer> exposer_;
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<Sink>("prometheus", [](PluginOptions& options) {
    const std::int64_t port = options.integer("port", 9464, {.low = 1, .high = 65535});
    options.document("port", "The port at which Prometheus finds the page /metrics.");
    const std::string address = options.text("address", "127.0.0.1");
    options.document("address",
                     "The address of this machine at which it listens; \"0.0.0.0\": all. Whoever "
                     "reaches it can read the page.");
    in6_addr any{};
    if (::inet_pton(AF_INET, address.c_str(), &any) != 1 &&
        ::inet_pton(AF_INET6, address.c_str(), &any) != 1) {
      options.refuse("address must be an address in digits, such as 127.0.0.1 or ::1");
    }
    return std::make_unique<PrometheusSink>(address, static_cast<int>(port));
  });
}
