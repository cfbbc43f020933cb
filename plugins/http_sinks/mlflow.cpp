// mlflow: a run of MLflow by its REST interface (api/2.0/mlflow): the config as parameters, the
// numbers of steps as metrics, and the outcome. A run of Tessera that is continued continues its
// run there, which it finds by a tag.
#include <fmt/format.h>

#include <cmath>
#include <cstddef>
#include <cstdint>
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

const std::string thing = "mlflow";
const std::string api = "/api/2.0/mlflow/";

// Limits of the server.
constexpr std::size_t most_metrics = 1000;  // of a request
constexpr std::size_t most_parameters = 100;
constexpr std::size_t longest_key = 250;
constexpr std::size_t longest_value = 500;
constexpr std::size_t longest_tag = 5000;
constexpr std::size_t most_of_config = 2000;  // ours: what the list of a config may grow to

/// A key that the server takes.
std::string key_of(std::string_view name) {
  std::string key(name.substr(0, longest_key));
  for (char& c : key) {
    const bool allowed = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
                         (c >= '0' && c <= '9') || c == '_' || c == '-' || c == '.' || c == '/' ||
                         c == ' ';
    c = allowed ? c : '_';
  }
  return key;
}

std::string value_of(const json& value) {
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  return cut_text(text, longest_value);
}

/// JSON has no words for numbers that are not finite; Protocol Buffers' JSON has these.
json number_of(double value) {
  if (std::isnan(value)) {
    return "NaN";
  }
  return std::isinf(value) ? json(value > 0 ? "Infinity" : "-Infinity") : json(value);
}

std::int64_t milliseconds(double time) { return std::llround(time * 1000); }

/// {"train": {"steps": 3}} -> train.steps = 3
void add_parameters(const json& value, const std::string& path, json& parameters) {
  if (parameters.size() >= most_of_config) {
    return;
  }
  const bool list_of_tables = value.is_array() && !value.empty() && value.front().is_object();
  if (value.is_object()) {
    for (const auto& [name, member] : value.items()) {
      add_parameters(member, path.empty() ? name : path + "." + name, parameters);
    }
  } else if (list_of_tables) {
    for (std::size_t i = 0; i < value.size(); ++i) {
      add_parameters(value[i], fmt::format("{}.{}", path, i), parameters);
    }
  } else if (!value.is_null() && value != "" && !path.empty()) {
    parameters.push_back({{"key", key_of(path)}, {"value", value_of(value)}});
  }
}

/// The text at a path of members in an answer. Error: it is not there.
std::string text_at(const SinkAnswer& answer, const std::vector<std::string>& path) {
  const json parsed = json::parse(answer.body, nullptr, false);
  const json* at = &parsed;
  for (const std::string& name : path) {
    if (!at->is_object() || !at->contains(name)) {
      fail({.thing = thing,
            .wrong = fmt::format("the server's answer has no '{}'", name),
            .advice = "is it an MLflow server?"});
    }
    at = &(*at)[name];
  }
  return at->is_string() ? at->get<std::string>() : at->dump();
}

class MlflowSink final : public Sink {
 public:
  MlflowSink(ServerOptions server, std::string experiment, std::string name)
      : server_(std::move(server)), experiment_(std::move(experiment)), name_(std::move(name)) {}

  void check() const override { check_token(thing, server_); }

  void take(std::span<const Event> events) override {
    if (!client_) {
      client_ = std::make_unique<SinkServer>(thing, server_);
    }
    json metrics = json::array();
    for (const Event& event : events) {
      if (const auto* const start = std::get_if<RunStart>(&event.content)) {
        begin(*start, event.time);
      } else if (const auto* const step = std::get_if<StepNumbers>(&event.content)) {
        for (const auto& [name, value] : step->numbers) {
          metrics.push_back({{"key", key_of(name)},
                             {"value", number_of(value)},
                             {"timestamp", milliseconds(event.time)},
                             {"step", step->step}});
        }
      }
    }
    // Numbers that come again are the same to the server.
    for (std::size_t at = 0; at < metrics.size(); at += most_metrics) {
      json part = json::array();
      for (std::size_t i = at; i < std::min(at + most_metrics, metrics.size()); ++i) {
        part.push_back(std::move(metrics[i]));
      }
      post("runs/log-batch", {{"run_id", run()}, {"metrics", std::move(part)}});
    }
    if (const auto* const end = std::get_if<RunEnd>(&events.back().content)) {
      const char* const status = end->outcome == Outcome::done          ? "FINISHED"
                                 : end->outcome == Outcome::interrupted ? "KILLED"
                                                                        : "FAILED";
      if (!end->text.empty()) {
        post("runs/set-tag", {{"run_id", run()},
                              {"key", "tessera.error"},
                              {"value", cut_text(end->text, longest_tag)}});
      }
      post("runs/update",
           {{"run_id", run()}, {"status", status}, {"end_time", milliseconds(events.back().time)}});
    }
  }

 private:
  /// Each of its steps once, also where it is called again after a failure.
  void begin(const RunStart& start, double time) {
    if (has_begun_) {
      return;
    }
    if (experiment_id_.empty()) {
      experiment_id_ = find_experiment();
    }
    if (run_.empty()) {
      find_or_create(start, time);
    }
    if (!is_continued_) {
      if (!parameters_) {
        parameters_ = json::array();
        add_parameters(json::parse(start.config, nullptr, false), "", *parameters_);
      }
      while (!parameters_->empty()) {
        const std::size_t count = std::min(most_parameters, parameters_->size());
        const auto end = parameters_->begin() + static_cast<std::ptrdiff_t>(count);
        post("runs/log-batch", {{"run_id", run()}, {"params", json(parameters_->begin(), end)}});
        parameters_->erase(parameters_->begin(), end);
      }
    } else {
      post("runs/update", {{"run_id", run()}, {"status", "RUNNING"}});
    }
    has_begun_ = true;
  }

  std::string find_experiment() {
    constexpr long not_found = 404;
    const std::string path =
        api + "experiments/get-by-name?experiment_name=" + http::escaped(experiment_, false);
    const SinkAnswer answer = client_->request(path, {}, not_found);
    if (answer.code != not_found) {
      return text_at(answer, {"experiment", "experiment_id"});
    }
    // Another run may create it now.
    constexpr long bad_request = 400;
    const SinkAnswer made = client_->request(api + "experiments/create",
                                             json{{"name", experiment_}}.dump(), bad_request);
    return made.code != bad_request
               ? text_at(made, {"experiment_id"})
               : text_at(client_->request(path, {}), {"experiment", "experiment_id"});
  }

  /// A run with this tag; empty: there is none.
  std::string find_run(const std::string& tag, const std::string& value) {
    const SinkAnswer answer = client_->request(
        api + "runs/search", json{{"experiment_ids", json::array({experiment_id_})},
                                  {"filter", fmt::format("tags.`{}` = '{}'", tag, value)},
                                  {"order_by", json::array({"attributes.start_time DESC"})},
                                  {"max_results", 1}}
                                 .dump());
    const json parsed = json::parse(answer.body, nullptr, false);
    const bool found = parsed.is_object() && parsed.contains("runs") && parsed["runs"].is_array() &&
                       !parsed["runs"].empty();
    return found ? text_at({.body = parsed["runs"][0].dump()}, {"info", "run_id"}) : "";
  }

  void find_or_create(const RunStart& start, double time) {
    const std::string text = fmt::format("{} {}", start.run, time);
    const std::string this_start = id_of(text);
    if (start.continues) {
      run_ = find_run("tessera.run", start.run);
      is_continued_ = !run_.empty();
    } else if (tried_to_create_) {  // its answer may have been lost
      run_ = find_run("tessera.start", this_start);
    }
    if (run_.empty()) {
      tried_to_create_ = true;
      json tags = json::array();
      for (const auto& [key, value] :
           {std::pair<std::string, std::string>{"tessera.run", start.run},
            {"tessera.start", this_start},
            {"tessera.version", start.version},
            {"tessera.host", start.host},
            {"mlflow.source.name", start.name}}) {
        tags.push_back({{"key", key}, {"value", value}});
      }
      const SinkAnswer made = post("runs/create", {{"experiment_id", experiment_id_},
                                                   {"run_name", name_.empty() ? start.name : name_},
                                                   {"start_time", milliseconds(time)},
                                                   {"tags", tags}});
      run_ = text_at(made, {"run", "info", "run_id"});
    }
  }

  const std::string& run() const {
    if (run_.empty()) {
      fail({.thing = thing, .wrong = "the run has not told its start"});
    }
    return run_;
  }

  SinkAnswer post(const std::string& path, const json& body) {
    return client_->request(api + path, body.dump(-1, ' ', false, json::error_handler_t::replace));
  }

  ServerOptions server_;
  std::string experiment_;
  std::string name_;
  std::unique_ptr<SinkServer> client_;
  std::string experiment_id_;
  std::string run_;                 // its id there
  std::optional<json> parameters_;  // that are not sent
  bool is_continued_ = false;
  bool tried_to_create_ = false;
  bool has_begun_ = false;
};

}  // namespace

std::unique_ptr<Sink> make_mlflow_sink(PluginOptions& options) {
  ServerOptions server = read_server_options(options, "http://127.0.0.1:5000");
  const std::string experiment = options.text("experiment", "tessera");
  options.document("experiment", "The experiment to which the run belongs; it is made if need be.");
  const std::string name = options.text("name", "");
  options.document("name", "The name of the run there. Empty: that of the config.");
  if (experiment.empty() || experiment.size() > longest_key) {
    options.refuse("experiment must have 1 to 250 bytes");
  }
  return std::make_unique<MlflowSink>(std::move(server), experiment, name);
}

}  // namespace http_sinks
