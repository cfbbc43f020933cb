module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <limits>
#include <map>
#include <optional>
#include <string>
#include <system_error>
#include <tessera/json_reading.hpp>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.checkpoint;
import tessera.app.base;
import tessera.hub;
import tessera.runs;

// `tessera runs` and `tessera plot`: what metrics files say of runs.
namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using Metrics = std::vector<runs::StepMetrics>;

/// The metrics of a file that has some; nothing for any other file.
std::optional<Metrics> metrics_of(const fs::path& file) {
  std::error_code ignored;
  if (file.extension() != ".jsonl" || !fs::is_regular_file(file, ignored)) {
    return std::nullopt;
  }
  try {
    Metrics metrics = runs::read_metrics(file);
    return metrics.empty() ? std::nullopt : std::optional(std::move(metrics));
  } catch (const Error&) {
    return std::nullopt;  // other JSON lines
  }
}

/// The metrics files in a folder and below it, by their paths.
std::map<fs::path, Metrics> metrics_in(const std::string& folder) {
  std::map<fs::path, Metrics> found;
  std::error_code error;
  fs::recursive_directory_iterator next(folder, fs::directory_options::skip_permission_denied,
                                        error);
  for (const fs::recursive_directory_iterator end; !error && next != end; next.increment(error)) {
    if (auto metrics = metrics_of(next->path())) {
      found.emplace(next->path(), std::move(*metrics));
    }
  }
  if (error) {
    fail_input(
        {.thing = folder, .wrong = fmt::format("the folder cannot be read ({})", error.message())});
  }
  return found;
}

/// What `tessera runs` prints of one run.
struct RunSummary {
  std::string name;    // of its folder, or of the file where that is the folder which was named
  std::string model;   // from the last checkpoint; empty: there is none
  std::string config;  // "adamw, lr 0.004, batch 16"
  std::int64_t step = 0;
  std::optional<std::int64_t> steps;  // that were asked for
  double loss = 0;
  std::optional<std::pair<double, std::int64_t>> validation;  // the best one, and its step
  double seconds = 0;
  runs::TimeBook ledger = {};  // of rank 0, until the last step
};

/// Adds what the last checkpoint of the run says of it.
void add_checkpoint(RunSummary& run, const fs::path& folder) {
  try {
    const std::optional<std::string> last = latest_checkpoint(folder.string());
    if (!last) {
      return;
    }
    const CheckpointReader reader(*last);
    const hub::ModelShape model = hub::stored_model(reader.meta(), *last);
    run.model =
        fmt::format("{} {}", model.family, format_count(static_cast<double>(model.parameters())));
    reading_json(*last, [&] {
      const nlohmann::json config =
          parse_json(reader.meta()).value("config", nlohmann::json::object());
      const auto value = [&](const char* key) {
        return config.value(nlohmann::json::json_pointer(key), nlohmann::json());
      };
      run.config = fmt::format(
          "{}, lr {}, batch {}",
          value("/optimizer/name").is_string() ? value("/optimizer/name").get<std::string>() : "?",
          json_text(value("/optimizer/lr")), json_text(value("/train/batch")));
      if (value("/train/steps").is_number_integer()) {
        run.steps = value("/train/steps").get<std::int64_t>();
      }
    });
  } catch (const Error&) {
    run.model = "?";  // a damaged checkpoint, or of a family whose plugin is not there
  }
}

RunSummary summary_of(const fs::path& file, const Metrics& metrics, const std::string& root) {
  RunSummary run;
  const fs::path folder = file.parent_path();
  std::error_code ignored;
  run.name = fs::equivalent(folder, root, ignored) ? file.filename().string()
                                                   : fs::relative(folder, root, ignored).string();
  run.step = metrics.back().step;
  run.loss = metrics.back().loss;
  for (const runs::StepMetrics& one : metrics) {
    run.seconds += (std::isfinite(one.seconds) ? one.seconds : 0) + one.save_seconds;
    run.ledger += one.ledger;
    if (one.validation_loss && (!run.validation || *one.validation_loss < run.validation->first)) {
      run.validation = std::pair(*one.validation_loss, one.step);
    }
  }
  if (metrics.back().checkpoints && !metrics.back().checkpoints->empty()) {
    add_checkpoint(run, folder / *metrics.back().checkpoints);
  }
  return run;
}

nlohmann::ordered_json json_of(const RunSummary& run) {
  nlohmann::ordered_json json = {
      {"run", run.name}, {"model", run.model}, {"config", run.config}, {"step", run.step}};
  json["steps"] = run.steps ? nlohmann::ordered_json(*run.steps) : nlohmann::ordered_json();
  json["loss"] = run.loss;
  json["best_validation"] =
      run.validation ? nlohmann::ordered_json(run.validation->first) : nlohmann::ordered_json();
  json["best_validation_step"] =
      run.validation ? nlohmann::ordered_json(run.validation->second) : nlohmann::ordered_json();
  json["seconds"] = run.seconds;
  json["goodput"] = run.ledger.total() > 0 ? nlohmann::ordered_json(run.ledger.goodput())
                                           : nlohmann::ordered_json();
  for (std::size_t i = 0; i < runs::time_use_count; ++i) {
    const auto use = static_cast<runs::TimeUse>(i);
    json["ledger"][std::string(runs::word_of(use))] = run.ledger[use];
  }
  return json;
}

/// A curve: its name, and points of steps and numbers.
struct Curve {
  std::string title;
  std::vector<std::pair<std::int64_t, double>> points;
};

/// A number of a step's metrics, by its name in the file; NaN where it has none.
double number_of(const runs::StepMetrics& m, const std::string& metric) {
  const std::map<std::string, double> numbers = {
      {"loss", m.loss},
      {"validation_loss", m.validation_loss.value_or(std::numeric_limits<double>::quiet_NaN())},
      {"grad_norm", m.grad_norm},
      {"lr", m.lr},
      {"tokens_per_second", m.tokens_per_second}};
  return numbers.at(metric);
}

/// Each point is the mean of `average` numbers, at the last one's step.
Curve curve_of(const std::string& title, const Metrics& metrics, const PlotArguments& arguments) {
  Curve curve{.title = title, .points = {}};
  double sum = 0;
  int count = 0;
  for (const runs::StepMetrics& one : metrics) {
    const double number = number_of(one, arguments.metric);
    if (!std::isfinite(number)) {
      continue;
    }
    sum += number;
    if (++count == arguments.average) {
      curve.points.emplace_back(one.step, sum / count);
      sum = 0;
      count = 0;
    }
  }
  return curve;
}

/// The metrics file of a run that was named by it or by its folder.
Curve curve_of_run(const std::string& named, const PlotArguments& arguments) {
  std::error_code ignored;
  if (!fs::is_directory(named, ignored)) {
    return curve_of(named, runs::read_metrics(named), arguments);
  }
  const std::map<fs::path, Metrics> found = metrics_in(named);
  if (found.size() != 1) {
    std::vector<std::string> names;
    for (const auto& [file, metrics] : found) {
      names.push_back(file.string());
    }
    fail_input({.thing = named,
                .wrong = found.empty() ? "there is no metrics file in the folder"
                                       : fmt::format("there are several metrics files, {}",
                                                     join_words(names)),
                .advice = "name a metrics file (log.metrics)"});
  }
  return curve_of(named, found.begin()->second, arguments);
}

/// A text of gnuplot's language in single quotes.
std::string quoted_text(std::string_view text) {
  std::string out = "'";
  for (const char c : text) {
    out += c == '\'' ? "''" : std::string(1, static_cast<unsigned char>(c) < ' ' ? ' ' : c);
  }
  return out + "'";
}

/// gnuplot's commands for both pictures, in files of the folder.
std::string commands_for(const std::vector<Curve>& curves, const PlotArguments& arguments,
                         const fs::path& folder) {
  std::string script;
  std::string plot = "plot ";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    script += fmt::format("$run{} << EOD\n", i);
    for (const auto& [step, number] : curves[i].points) {
      script += fmt::format("{} {}\n", step, number);
    }
    script += "EOD\n";
    plot += fmt::format("{}$run{} using 1:2 with lines lw 2 title {}", i == 0 ? "" : ", ", i,
                        quoted_text(curves[i].title));
  }
  script += fmt::format(
      "set xlabel 'step'\nset ylabel {}\nset key top right noenhanced\nset ylabel noenhanced\n",
      quoted_text(arguments.metric));
  script += fmt::format("set terminal dumb size 100,30 ascii\nset output {}\n{}\n",
                        quoted_text((folder / "text").string()), plot);
  script += fmt::format(
      "set terminal svg size 760,420 font 'sans-serif,13' background rgb 'white'\nset output "
      "{}\n{}\n",
      quoted_text((folder / "svg").string()), plot);
  return script + "set output\n";
}

}  // namespace

int run_runs(const std::string& folder, bool json) {
  const std::map<fs::path, Metrics> found = metrics_in(folder);
  if (found.empty()) {
    fail_input({.thing = folder,
                .wrong = "there is no metrics file in the folder or below it",
                .advice = "runs write them where log.metrics says"});
  }
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  TableRows rows = {
      {"run", "model", "config", "steps", "loss", "best validation", "time", "goodput"}};
  for (const auto& [file, metrics] : found) {
    const RunSummary run = summary_of(file, metrics, folder);
    all.push_back(json_of(run));
    rows.push_back(
        {run.name, run.model.empty() ? "-" : run.model, run.config.empty() ? "-" : run.config,
         run.steps ? fmt::format("{} of {}", run.step, *run.steps) : fmt::format("{}", run.step),
         fmt::format("{:.4f}", run.loss),
         run.validation ? fmt::format("{:.4f} at {}", run.validation->first, run.validation->second)
                        : "-",
         format_duration(run.seconds),
         run.ledger.total() > 0 ? fmt::format("{:.1f}%", 100 * run.ledger.goodput()) : "-"});
  }
  fmt::print("{}", json ? json_text(all, 1) + "\n" : format_table(rows));
  return 0;
}

int run_plot(const PlotArguments& arguments) {
  std::vector<Curve> curves;
  for (const std::string& run : arguments.runs) {
    curves.push_back(curve_of_run(run, arguments));
    if (curves.back().points.empty()) {
      fail_input(
          {.thing = run,
           .wrong = fmt::format("it has no {} of {} steps", arguments.metric, arguments.average),
           .advice = "choose another --metric, or a smaller --average"});
    }
  }
  const ScratchFolder scratch("plot");
  const fs::path folder = scratch.path();
  const std::string script = (folder / "script").string();
  write_text(script, commands_for(curves, arguments, folder));
  const ProgramResult drawn =
      tessera::run_program({"gnuplot", script}, Patience(), "plot: waits for gnuplot", "fails");
  if (drawn.code != 0) {
    fail_input({.thing = "plot",
                .wrong = drawn.code < 0
                             ? fmt::format("gnuplot cannot be started: {}", drawn.output)
                             : fmt::format("gnuplot has failed: {}", shown(drawn.output, 400)),
                .advice = "install gnuplot (package gnuplot-nox)"});
  }
  fmt::print("{}", read_input((folder / "text").string()));
  if (!arguments.svg.empty()) {
    write_output("plot", arguments.svg, read_input((folder / "svg").string()));
    fmt::print("picture written: {}\n", arguments.svg);
  }
  return 0;
}

}  // namespace tessera::app
