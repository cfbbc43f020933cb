// otlp: OpenTelemetry's protocol as JSON over HTTP: numbers of steps as gauges, phases as spans,
// log lines as log records.
#include <fmt/format.h>

#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

import tessera.base;
import tessera.options;
import tessera.sinks;
import tessera.stores;

#include "sink_server.hpp"

namespace http_sinks {
namespace {

using namespace tessera;
using namespace tessera::sinks;
using nlohmann::json;

const std::string thing = "otlp";
constexpr std::size_t longest_config = std::size_t{32} << 10;

// Numbers of opentelemetry-proto.
constexpr int internal_span = 1;
constexpr int status_ok = 1;
constexpr int status_error = 2;
constexpr int no_recorded_value = 1;  // a flag of a point

int severity_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return 5;
    case LogLevel::info:
      return 9;
    case LogLevel::warning:
      return 13;
    case LogLevel::error:
      break;
  }
  return 17;
}

/// Numbers of 64 bits are texts.
std::string nanoseconds(double time) {
  return std::to_string(static_cast<std::uint64_t>(std::llround(std::max(0.0, time) * 1e6)) * 1000);
}
json attribute(const std::string& key, const std::string& value) {
  return {{"key", key}, {"value", {{"stringValue", value}}}};
}
json attribute(const std::string& key, std::int64_t value) {
  return {{"key", key}, {"value", {{"intValue", std::to_string(value)}}}};
}

/// The three kinds of what is sent.
enum Signal : std::size_t { metrics, traces, logs, signal_count };

class OtlpSink final : public Sink {
 public:
  OtlpSink(ServerOptions server, std::string service)
      : server_(std::move(server)), service_(std::move(service)) {}

  void check() const override { check_token(thing, server_); }

  void take(std::span<const Event> events) override {
    if (!client_) {
      client_ = std::make_unique<SinkServer>(thing, server_);
    }
    if (const auto* const start = std::get_if<RunStart>(&events.front().content)) {
      start_ = *start;
      began_ = events.front().time;
    }
    const std::array<json, signal_count> requests = requests_of(events);
    constexpr std::array<const char*, signal_count> paths = {"/v1/metrics", "/v1/traces",
                                                             "/v1/logs"};
    for (std::size_t i = 0; i < signal_count; ++i) {
      // Of events that come again, what was sent is not sent again.
      if (!sent_[i] && !requests[i].is_null()) {
        const SinkAnswer answer = client_->request(
            paths[i], requests[i].dump(-1, ' ', false, json::error_handler_t::replace));
        look_at(answer);
      }
      sent_[i] = true;
    }
    sent_ = {};
  }

 private:
  /// A server may refuse a part of what it takes.
  void look_at(const SinkAnswer& answer) {
    const json parsed = json::parse(answer.body, nullptr, false);
    if (!parsed.is_object() || !parsed.contains("partialSuccess") ||
        !parsed["partialSuccess"].is_object()) {
      return;
    }
    for (const auto& [name, value] : parsed["partialSuccess"].items()) {
      if (name.starts_with("rejected") && value != "0" && value != 0) {
        sent_ = {};
        fail({.thing = thing,
              .wrong =
                  "the server refuses a part: " + cut_text(parsed["partialSuccess"].dump(), 300)});
      }
    }
  }

  json resource() const {
    return {{"attributes",
             json::array(
                 {attribute("service.name", service_), attribute("service.instance.id", start_.run),
                  attribute("service.version", start_.version), attribute("host.name", start_.host),
                  attribute("tessera.run.name", start_.name),
                  attribute("tessera.ranks", start_.ranks)})}};
  }

  /// Null: there is nothing of this kind.
  std::array<json, signal_count> requests_of(std::span<const Event> events) const {
    std::map<std::string, json> points;
    json spans = json::array();
    json records = json::array();
    for (const Event& event : events) {
      if (const auto* const step = std::get_if<StepNumbers>(&event.content)) {
        add_points(points, event.time, *step);
      } else if (const auto* const span = std::get_if<PhaseSpan>(&event.content)) {
        spans.push_back(span_of(event.time, *span));
      } else if (const auto* const line = std::get_if<LogLine>(&event.content)) {
        records.push_back(record_of(event.time, line->level, line->text));
      } else if (const auto* const start = std::get_if<RunStart>(&event.content)) {
        json record = record_of(event.time, LogLevel::info, "the run starts");
        record["attributes"] =
            json::array({attribute("tessera.config", cut_text(start->config, longest_config)),
                         attribute("tessera.done", start->done)});
        records.push_back(std::move(record));
      } else if (const auto* const end = std::get_if<RunEnd>(&event.content)) {
        const bool failed = end->outcome == Outcome::failed;
        json record = record_of(event.time, failed ? LogLevel::error : LogLevel::info,
                                fmt::format("the run ends: {}{}{}", word_of(end->outcome),
                                            end->text.empty() ? "" : ": ", end->text));
        record["attributes"] = json::array({attribute("tessera.step", end->step)});
        records.push_back(std::move(record));
        spans.push_back(root_span(event.time, failed));
      }
    }
    json gauges = json::array();
    for (auto& [name, all] : points) {
      gauges.push_back({{"name", name}, {"gauge", {{"dataPoints", std::move(all)}}}});
    }
    return {wrapped("resourceMetrics", "scopeMetrics", "metrics", std::move(gauges)),
            wrapped("resourceSpans", "scopeSpans", "spans", std::move(spans)),
            wrapped("resourceLogs", "scopeLogs", "logRecords", std::move(records))};
  }

  json wrapped(const char* outer, const char* scope, const char* name, json items) const {
    if (items.empty()) {
      return nullptr;
    }
    json inner = {{"scope", {{"name", "tessera"}}}};
    inner[name] = std::move(items);
    json of_resource = {{"resource", resource()}};
    of_resource[scope] = json::array({std::move(inner)});
    json request;
    request[outer] = json::array({std::move(of_resource)});
    return request;
  }

  static void add_points(std::map<std::string, json>& points, double time,
                         const StepNumbers& step) {
    const auto add = [&](const std::string& name, double value) {
      json point = {{"timeUnixNano", nanoseconds(time)}};
      if (std::isfinite(value)) {
        point["asDouble"] = value;
      } else {
        point["flags"] = no_recorded_value;
      }
      points[name].push_back(std::move(point));
    };
    add("tessera.step", static_cast<double>(step.step));
    for (const auto& [name, value] : step.numbers) {
      std::string whole = "tessera." + name;
      for (char& c : whole) {
        c = c == '/' ? '.' : c;
      }
      add(whole, value);
    }
  }

  // A run that is continued has a trace for each of its parts.
  std::string root_id() const {
    return id_of(fmt::format("root {} {}", start_.run, began_)).substr(0, 16);
  }
  std::string trace_id() const { return id_of(fmt::format("trace {} {}", start_.run, began_)); }

  /// Its id follows from what it is: one that comes again is the same.
  json span_of(double time, const PhaseSpan& span) const {
    return {
        {"traceId", trace_id()},
        {"spanId",
         id_of(fmt::format("{} {} {} {}", start_.run, span.name, span.step, time)).substr(0, 16)},
        {"parentSpanId", root_id()},
        {"name", span.name},
        {"kind", internal_span},
        {"startTimeUnixNano", nanoseconds(time - span.seconds)},
        {"endTimeUnixNano", nanoseconds(time)},
        {"attributes", json::array({attribute("tessera.step", span.step)})}};
  }
  json root_span(double time, bool failed) const {
    return {{"traceId", trace_id()},
            {"spanId", root_id()},
            {"name", "run"},
            {"kind", internal_span},
            {"startTimeUnixNano", nanoseconds(began_)},
            {"endTimeUnixNano", nanoseconds(time)},
            {"status", {{"code", failed ? status_error : status_ok}}}};
  }
  static json record_of(double time, LogLevel level, const std::string& text) {
    return {{"timeUnixNano", nanoseconds(time)},
            {"observedTimeUnixNano", nanoseconds(time)},
            {"severityNumber", severity_of(level)},
            {"severityText", word_of(level)},
            {"body", {{"stringValue", text}}}};
  }

  ServerOptions server_;
  std::string service_;
  std::unique_ptr<SinkServer> client_;
  RunStart start_;
  double began_ = 0;
  std::array<bool, signal_count> sent_{};
};

}  // namespace

std::unique_ptr<Sink> make_otlp_sink(PluginOptions& options) {
  ServerOptions server = read_server_options(options, "http://127.0.0.1:4318");
  const std::string service = options.text("service", "tessera");
  options.document("service", "The name of the service (service.name).");
  return std::make_unique<OtlpSink>(std::move(server), service);
}

}  // namespace http_sinks
