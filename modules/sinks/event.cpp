module;
#include <chrono>
#include <cstddef>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <tessera/printable.hpp>
#include <variant>
module tessera.sinks;

import tessera.base;

namespace tessera::sinks {

double time_now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

std::string_view word_of(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return "debug";
    case LogLevel::info:
      return "info";
    case LogLevel::warning:
      return "warning";
    case LogLevel::error:
      break;
  }
  return "error";
}

std::string_view word_of(Outcome outcome) {
  switch (outcome) {
    case Outcome::done:
      return "done";
    case Outcome::interrupted:
      return "interrupted";
    case Outcome::failed:
      break;
  }
  return "failed";
}

namespace {

/// Adds the members of each content.
struct Members {
  nlohmann::ordered_json& json;

  void operator()(const RunStart& start) const {
    json["event"] = "start";
    json["run"] = start.run;
    json["name"] = start.name;
    json["version"] = start.version;
    json["host"] = start.host;
    json["ranks"] = start.ranks;
    json["steps"] = start.steps;
    json["done"] = start.done;
    json["continues"] = start.continues;
    json["config"] = parse_ordered_json(start.config);
  }
  void operator()(const StepNumbers& step) const {
    json["event"] = "step";
    json["step"] = step.step;
    json["numbers"] = nlohmann::ordered_json::object();
    for (const auto& [name, value] : step.numbers) {
      json["numbers"][name] = value;
    }
  }
  void operator()(const PhaseSpan& span) const {
    json["event"] = "span";
    json["name"] = span.name;
    json["step"] = span.step;
    json["seconds"] = span.seconds;
  }
  void operator()(const LogLine& line) const {
    json["event"] = "log";
    json["level"] = word_of(line.level);
    json["text"] = line.text;
  }
  void operator()(const RunEnd& end) const {
    json["event"] = "end";
    json["outcome"] = word_of(end.outcome);
    json["step"] = end.step;
    json["text"] = end.text;
  }
};

/// Bytes of the texts.
struct Texts {
  std::size_t operator()(const RunStart& start) const {
    return start.run.size() + start.name.size() + start.version.size() + start.host.size() +
           start.config.size();
  }
  std::size_t operator()(const StepNumbers& step) const {
    std::size_t bytes = step.numbers.size() * sizeof(NamedNumbers::value_type);
    for (const auto& [name, value] : step.numbers) {
      bytes += name.size();
    }
    return bytes;
  }
  std::size_t operator()(const PhaseSpan& span) const { return span.name.size(); }
  std::size_t operator()(const LogLine& line) const { return line.text.size(); }
  std::size_t operator()(const RunEnd& end) const { return end.text.size(); }
};

}  // namespace

std::string to_json(const Event& event) {
  nlohmann::ordered_json json;
  json["time"] = event.time;
  std::visit(Members{json}, event.content);
  // Texts of a run may have any bytes; lines of JSON are UTF-8.
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::size_t bytes_of(const Event& event) {
  return sizeof(Event) + std::visit(Texts{}, event.content);
}

}  // namespace tessera::sinks
