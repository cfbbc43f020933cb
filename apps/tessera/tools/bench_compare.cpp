module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.tools;

import tessera.base;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import tessera.app.peer;
import tessera.app.commands;
import :bench_compare;

// `tessera bench compare`.
namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

/// The rounds of one program.
struct Side {
  std::vector<double> seconds;  // of a step, in each round
  double peak_bytes = 0;
  std::vector<double> losses;

  void add(const TrainedSteps& round) {
    seconds.push_back(usual_seconds(round));
    peak_bytes = std::max(peak_bytes, round.peak_bytes);
    losses = round.losses;
  }
};

struct Comparison {
  Side here;
  Side torch;

  /// How much faster this program is, in each round.
  std::vector<double> ratios() const {
    std::vector<double> all;
    for (std::size_t i = 0; i < here.seconds.size(); ++i) {
      all.push_back(torch.seconds[i] / here.seconds[i]);
    }
    return all;
  }
  double largest_loss_difference() const {
    double largest = 0;
    for (std::size_t i = 0; i < here.losses.size(); ++i) {
      largest = std::max(largest, std::abs(here.losses[i] - torch.losses[i]));
    }
    return largest;
  }
};

Json side_json(const Side& side, double tokens) {
  return {{"tokens_per_second", tokens / runs::median(side.seconds)},
          {"step_seconds", runs::median(side.seconds)},
          {"peak_bytes_of_rank_0", side.peak_bytes},
          {"last_loss", side.losses.back()}};
}

void print_json(const Comparison& comparison, const std::string& version, double tokens) {
  Json torch = {{"version", version}};
  torch.update(side_json(comparison.torch, tokens));
  const Json json = {{"tessera", side_json(comparison.here, tokens)},
                     {"pytorch", torch},
                     {"ratios", comparison.ratios()},
                     {"ratio", runs::median(comparison.ratios())},
                     {"largest_loss_difference", comparison.largest_loss_difference()}};
  fmt::print("{}\n", json_text(json, 2));
}

std::vector<std::string> side_row(const std::string& name, const Side& side, double tokens) {
  return {name, format_count(tokens / runs::median(side.seconds)),
          fmt::format("{:.1f} ms", 1e3 * runs::median(side.seconds)),
          format_bytes(static_cast<std::uint64_t>(side.peak_bytes)),
          fmt::format("{:.4f}", side.losses.back())};
}

void print_table(const Comparison& comparison, const std::string& torch, double tokens) {
  fmt::print("{}", format_table({{"", "tokens/s", "step", "memory of rank 0", "last loss"},
                                 side_row("Tessera", comparison.here, tokens),
                                 side_row(torch, comparison.torch, tokens)}));
  const std::vector<double> ratios = comparison.ratios();
  fmt::print(
      "Tessera is {:.2f} times as fast ({:.2f} to {:.2f} in {} rounds); losses differ by at most "
      "{:.1e}\n",
      runs::median(ratios), *std::ranges::min_element(ratios), *std::ranges::max_element(ratios),
      ratios.size(), comparison.largest_loss_difference());
}

runs::Run run_to_compare(const TrainArguments& arguments, std::int64_t steps) {
  runs::Run run;
  run.config = load_run_config(arguments);
  const auto task = runs::open_language_task(run.config);
  run.config = runs::with_data(std::move(run.config), task->data());
  if (run.config.train.steps < steps) {
    fail_input({.where = run.config.place("train.steps"),
                .wrong = "the run is shorter than the comparison",
                .expected = fmt::format("at least {} steps", steps),
                .got = fmt::format("{}", run.config.train.steps),
                .advice = "set --steps"});
  }
  run.task = task;
  return run;
}

}  // namespace

int run_bench_compare(const TrainArguments& arguments, const BenchCompareArguments& compared) {
  const runs::Run run = run_to_compare(arguments, compared.steps);
  const TorchLayout layout = torch_layout(run);
  const Torch torch(compared.python);
  const ScratchFolder folder("compare");
  std::vector<std::string> words = plugin_words(arguments);
  words.insert(words.begin(), arguments.overrides.begin(), arguments.overrides.end());
  Comparison comparison;
  for (int round = 0; round < compared.rounds; ++round) {
    const TrainedSteps here =
        train_first_steps(arguments.config, words, run.config, compared.steps, folder.path());
    if (round == 0) {
      torch.write(run, layout, here.lr, compared.compile, folder.path());
    }
    comparison.here.add(here);
    comparison.torch.add(torch.train(folder.path(), run.config.ranks()));
  }
  const auto tokens = static_cast<double>(run.config.step_tokens());
  if (compared.json) {
    print_json(comparison, torch.version(), tokens);
    return 0;
  }
  fmt::print("{} of {} tokens, {}, {} of {}\n", count_text(compared.steps, "step"),
             run.config.step_tokens(), name_of(layout), count_text(run.config.ranks(), "rank"),
             count_text(runs::threads_of_rank(run.config), "thread"));
  print_table(comparison,
              fmt::format("PyTorch {}{}", torch.version(), compared.compile ? ", compiled" : ""),
              tokens);
  return 0;
}

}  // namespace tessera::app
