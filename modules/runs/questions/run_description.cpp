module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/json.hpp>
#include <tessera/shown.hpp>
#include <tuple>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.checkpoint;

namespace tessera::runs {
namespace {

namespace fs = std::filesystem;

bool differ(double a, double b, double tolerance) {
  if (std::bit_cast<std::uint64_t>(a) == std::bit_cast<std::uint64_t>(b)) {
    return false;
  }
  if (tolerance == 0 || !std::isfinite(a) || !std::isfinite(b)) {
    return !(std::isnan(a) && std::isnan(b));
  }
  return std::abs(a - b) > tolerance * std::max(std::abs(a), std::abs(b));
}

std::vector<StepMetrics> metrics_of(const RunDescription& run) {
  std::error_code ignored;
  if (run.metrics.empty() || !fs::is_regular_file(run.metrics, ignored)) {
    fail_input({.thing = shown(run.folder),
                .wrong = run.metrics.empty()
                             ? "the run has written no metrics file, so there are no numbers to "
                               "compare"
                             : fmt::format("its metrics file is gone: {}", shown(run.metrics)),
                .advice = "name the step by --step"});
  }
  return read_metrics(run.metrics);
}

}  // namespace

std::string RunDescription::value(const std::string& key) const {
  const nlohmann::json all = parse_json(config, false);
  const std::size_t dot = key.find('.');
  const std::string section = key.substr(0, dot);
  if (!all.is_object() || !all.contains(section)) {
    return "null";
  }
  const nlohmann::json& found = all[section];
  if (dot == std::string::npos) {
    return json_text(found);
  }
  const std::string name = key.substr(dot + 1);
  return found.is_object() && found.contains(name) ? json_text(found[name]) : "null";
}

RunDescription describe_run(const std::string& folder, std::int64_t step) {
  RunDescription run{.folder = folder, .saved = saved_checkpoints(folder)};
  const std::string& path = describing_checkpoint(run.saved, step).path;
  const CheckpointReader reader(path, OpenFiles::when_read);
  run.fingerprint = stored_fingerprint(reader.meta(), path);
  const nlohmann::json meta = parse_json(reader.meta(), false);
  if (!meta.is_object() || !meta.contains("config") || !meta["config"].is_object()) {
    fail_input({.thing = path, .wrong = "it has no config of its run"});
  }
  const nlohmann::json& config = meta["config"];
  run.config = json_text(config);
  const auto member = [&](const char* section, const char* name) {
    const auto found = config.find(section);
    return found != config.end() && found->is_object() ? found->value(name, nlohmann::json())
                                                       : nlohmann::json();
  };
  if (const nlohmann::json steps = member("train", "steps"); steps.is_number_integer()) {
    run.steps = steps.get<std::int64_t>();
  }
  run.steps = std::max(run.steps, run.saved.back().step);
  const nlohmann::json metrics = member("log", "metrics");
  if (metrics.is_string() && !metrics.get<std::string>().empty()) {
    const nlohmann::json started = meta.value("started", nlohmann::json::object());
    const nlohmann::json from =
        started.is_object() ? started.value("folder", nlohmann::json()) : nlohmann::json();
    std::error_code ignored;
    const bool there = from.is_string() && fs::is_directory(from.get<std::string>(), ignored);
    run.metrics = ((there ? fs::path(from.get<std::string>()) : fs::current_path(ignored)) /
                   metrics.get<std::string>())
                      .string();
  }
  return run;
}

void check_one_config(const RunDescription& first, const RunDescription& second) {
  std::vector<std::string> differing;
  bool of_model = false;
  const auto compare = [&](const Fingerprint& a, const Fingerprint& b, bool both) {
    for (const auto& [key, value] : a) {
      const auto other = b.find(key);
      if (key == "data.content" || key == "graph.transforms" ||
          (other != b.end() && (both || other->second == value))) {
        continue;
      }
      differing.push_back(key);
      of_model = of_model || key.starts_with("model");
    }
  };
  compare(first.fingerprint, second.fingerprint, false);
  compare(second.fingerprint, first.fingerprint, true);
  if (!differing.empty()) {
    const std::string words = join_words(differing);
    fail_input(
        {.thing = fmt::format("{} and {}", shown(first.folder), shown(second.folder)),
         .wrong = fmt::format(
             "{}: {} differ{}",
             of_model ? "they are runs of different models" : "they are not runs of one config",
             words, differing.size() == 1 ? "s" : ""),
         .expected = "two runs of one config, on other layouts, devices, builds or machines"});
  }
}

bool same_layout(const RunDescription& first, const RunDescription& second) {
  constexpr std::array keys = {"mesh.axes",         "mesh.shape",      "parallel",
                               "train.micro_batch", "train.head_rows", "graph.mode"};
  return std::ranges::all_of(
      keys, [&](const char* key) { return first.value(key) == second.value(key); });
}

MetricsComparison compare_metrics(const RunDescription& first, const RunDescription& second,
                                  double tolerance) {
  std::map<std::int64_t, StepMetrics> others;
  for (StepMetrics& metrics : metrics_of(second)) {
    others.insert_or_assign(metrics.step, std::move(metrics));
  }
  MetricsComparison comparison;
  for (const StepMetrics& a : metrics_of(first)) {
    const auto found = others.find(a.step);
    if (found == others.end()) {
      continue;
    }
    const StepMetrics& b = found->second;
    comparison.from_beginning = comparison.from_beginning || a.step == 1;
    ++comparison.compared;
    const std::array<std::tuple<const char*, double, double>, 3> numbers = {
        {{"loss", a.loss, b.loss},
         {"gradient norm", a.grad_norm, b.grad_norm},
         {"learning rate", a.lr, b.lr}}};
    for (const auto& [what, x, y] : numbers) {
      if (differ(x, y, tolerance)) {
        comparison.first = DifferingStep{.step = a.step, .what = what, .first = x, .second = y};
        return comparison;
      }
    }
  }
  if (comparison.compared == 0) {
    fail_input({.thing = fmt::format("{} and {}", shown(first.folder), shown(second.folder)),
                .wrong = "their metrics files have no step in common",
                .advice = "name the step by --step"});
  }
  return comparison;
}

}  // namespace tessera::runs
