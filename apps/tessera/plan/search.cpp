module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <variant>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.tensor;
import tessera.dtensor;
import tessera.nn;
import tessera.app.base;
import tessera.app.config;
import tessera.runs;
import tessera.hub;
import tessera.app.run;

namespace tessera::app {
namespace {

using Outcome = LayoutCandidate::Outcome;

constexpr std::size_t shown = 10;

/// A choice that saves memory and costs time.
struct MemorySaving {
  std::string name;
  std::vector<std::string> overrides = {};
  bool recomputes = false;
};
/// The cheapest first.
const std::vector<MemorySaving>& savings() {
  static const std::string parts = "train.head_rows=1024";
  static const std::string again = "train.activation_checkpointing=true";
  static const std::vector<MemorySaving> all = {
      {.name = ""},
      {.name = "head in parts", .overrides = {parts}},
      {.name = "checkpointing", .overrides = {again}, .recomputes = true},
      {.name = "checkpointing, head in parts", .overrides = {again, parts}, .recomputes = true}};
  return all;
}

std::string first_line(const std::string& text) {
  std::string line = text.substr(0, text.find('\n'));
  constexpr std::size_t longest = 200;
  return line.size() > longest ? line.substr(0, longest) + "..." : line;
}

std::vector<std::string> joined(std::vector<std::string> all,
                                const std::vector<std::string>& more) {
  all.insert(all.end(), more.begin(), more.end());
  return all;
}

class Search {
 public:
  Search(const SearchedRun& wanted, Planner& planner)
      : wanted_(wanted), planner_(planner), base_(load_config(wanted.file, wanted.overrides)) {
    // What the search chooses, and what is said of axes that a candidate does not have.
    for (const auto& [key, value] : {std::pair("graph.mode", "\"\""),
                                     {"mesh.latency_us", "[]"},
                                     {"mesh.bandwidth_gb", "[]"},
                                     {"train.head_rows", "0"},
                                     {"train.activation_checkpointing", "false"}}) {
      if (base_.given.contains(key)) {
        always_.push_back(fmt::format("{}={}", key, value));
      }
    }
    look_at_model();
  }

  SearchResult all() {
    std::vector<std::string> precisions = wanted_.precisions;
    if (precisions.empty()) {
      precisions.emplace_back(name_of(base_.train.precision));
    }
    for (const std::string& precision : precisions) {  // is there such a one?
      load_config(wanted_.file,
                  joined(wanted_.overrides, {fmt::format("train.precision={}", precision)}));
    }
    std::vector<LayoutCandidate> starts;
    for (const RunLayout& layout : layouts_of(question_)) {
      for (const std::string& precision : precisions) {
        LayoutCandidate start{.layout = layout, .precision = precision};
        start.overrides = joined(always_, layout.overrides);
        start.overrides.push_back(fmt::format("train.precision={}", precision));
        start.least = least_of_all(start);
        starts.push_back(std::move(start));
      }
    }
    std::ranges::sort(
        starts, {}, [](const LayoutCandidate& one) { return std::tie(one.least, one.overrides); });
    for (const LayoutCandidate& start : starts) {
      try_layout(start);
    }
    if (result_.planned.empty()) {
      refuse();
    }
    sort();
    if (planner_.measures()) {
      measure_again();
    }
    return std::move(result_);
  }

 private:
  void sort() {
    std::ranges::sort(result_.planned, {}, [](const LayoutCandidate& one) {
      return std::tie(one.step.seconds, one.overrides);
    });
  }

  /// Kernels of candidates were measured at different times: what other programs have done
  /// meanwhile must not decide. All of them are measured again, and the best of them once more.
  void measure_again() {
    for (const std::size_t count : {result_.planned.size(), shown}) {
      planner_.measure_again();
      put_in_time_again(count);
      put_in_time_again(count);  // with the times of all
      sort();
    }
  }

  void put_in_time_again(std::size_t count) {
    for (std::size_t k = 0; k < std::min(count, result_.planned.size()); ++k) {
      put_in_time(result_.planned[k]);
    }
  }

  /// Error (input): nothing fits. It names what needs least memory, and why others are refused.
  [[noreturn]] void refuse() const {
    const LayoutCandidate* least = nullptr;
    const LayoutCandidate* refused = nullptr;
    for (const LayoutCandidate& one : result_.others) {
      if (one.outcome == Outcome::refused) {
        refused = refused == nullptr ? &one : refused;
      } else if (least == nullptr || one.memory < least->memory) {
        least = &one;
      }
    }
    if (least != nullptr) {
      fail_input({.thing = "plan --search",
                  .wrong = fmt::format("nothing fits: {} needs least, {}", least->layout.name,
                                       format_bytes(static_cast<std::uint64_t>(least->memory))),
                  .expected = fmt::format(
                      "at most {} of a rank",
                      format_bytes(static_cast<std::uint64_t>(planner_.hardware().memory))),
                  .advice = "add ranks, or a style Offload"});
    }
    fail_input({.thing = "plan --search",
                .wrong = refused == nullptr
                             ? fmt::format("no layout of the table has {} ranks", wanted_.ranks)
                             : fmt::format("no layout is possible; {}: {}", refused->layout.name,
                                           refused->refusal),
                .advice = "change the number of ranks or train.batch"});
  }

  /// Sizes and modules of the model, from one sequence on one rank.
  void look_at_model() {
    question_ = {.ranks = wanted_.ranks, .ranks_of_machine = planner_.hardware().ranks};
    for (std::size_t entry = 0; entry < base_.parallel.size(); ++entry) {
      if (base_.parallel[entry].axis.all.empty()) {
        question_.kept.push_back(entry_text(base_, entry));
      }
    }
    constexpr std::int64_t long_sequence = 2048;
    question_.is_long = base_.data.seq_len >= long_sequence || base_.train.batch < wanted_.ranks;
    LayoutCandidate alone{.layout = layouts_of({.kept = question_.kept}).front()};
    alone.overrides = joined(always_, alone.layout.overrides);
    alone.overrides.insert(alone.overrides.end(), {"train.batch=1", "train.micro_batch=0"});
    const runs::Run run = run_of(alone);
    const runs::Trial trial = runs::try_step(run);
    const hub::ModelShape& shape = runs::language_of(run).shape();
    const auto model = runs::training_model(*run.task, run.config);
    question_.modules = patterns_of(shape, *model);
    const auto number = [&](const char* name) {
      const auto found = shape.values.find(name);
      const auto* const value =
          found == shape.values.end() ? nullptr : std::get_if<std::int64_t>(&found->second);
      return value == nullptr ? 0.0 : static_cast<double>(*value);
    };
    const auto frozen = static_cast<double>(
        trial.account.memory.bytes[static_cast<std::size_t>(MemoryCategory::parameter)] -
        trial.stored.values);
    const auto trained =
        static_cast<double>(trial.stored.values + trial.stored.gradients + trial.stored.state);
    parameters_ = static_cast<double>(trial.parameters);
    trained_ = static_cast<double>(trial.parameters - trial.frozen_parameters);
    sizes_ = {
        .stored = trial.bytes_elsewhere > 0 ? 0 : std::max(0.0, frozen) + trained,
        .dim = number("dim"),
        .layers = static_cast<double>(hub::family_of(shape).layers(hub::sizes_of(shape)).count),
        .row_tokens = static_cast<double>(base_.data.seq_len * base_.row_sequences()),
        .flops_of_row = trial.account.model_flops};
  }

  runs::Run run_of(const LayoutCandidate& candidate) const {
    runs::Run run;
    run.config = config_of(wanted_, candidate);
    run.task = wanted_.task;
    run.rates = runs::rates_of(run.config);
    return run;
  }

  double least_of(const LayoutCandidate& candidate, std::int64_t micro_batches,
                  bool recomputes) const {
    if (planner_.measures()) {
      return 0;
    }
    BoundSizes sizes = sizes_;
    sizes.element = candidate.precision == "f32" ? 4 : 2;
    // Of what other styles pack, half a byte of each parameter is gathered at least.
    constexpr double packed = 0.5;
    sizes.gathered = parameters_ * (question_.kept.empty() ? sizes.element : packed);
    sizes.summed = trained_ * sizes.element;
    const double rows = static_cast<double>(base_.train.batch) /
                        static_cast<double>(candidate.layout.batch_parts());
    return least_seconds(candidate.layout,
                         {.micro_batches = micro_batches, .rows = rows, .recomputes = recomputes},
                         sizes, planner_.hardware());
  }

  /// With any micro-batch.
  double least_of_all(const LayoutCandidate& candidate) const {
    const std::int64_t rows =
        std::max<std::int64_t>(base_.train.batch / candidate.layout.batch_parts(), 1);
    double least = least_of(candidate, 1, false);
    for (std::int64_t micro_batches = 2; micro_batches <= rows; micro_batches *= 2) {
      least = std::min(least, least_of(candidate, micro_batches, false));
    }
    return least;
  }

  /// The longest step that is still among the best.
  double limit() const {
    std::vector<double> seconds;
    for (const LayoutCandidate& one : result_.planned) {
      seconds.push_back(one.step.seconds);
    }
    if (seconds.size() < shown) {
      return std::numeric_limits<double>::infinity();
    }
    std::ranges::nth_element(seconds, seconds.begin() + shown - 1);
    return seconds[shown - 1];
  }

  void leave(LayoutCandidate candidate, Outcome outcome) {
    candidate.outcome = outcome;
    result_.others.push_back(std::move(candidate));
  }

  void try_layout(const LayoutCandidate& start) {
    const std::int64_t rows = base_.train.batch / start.layout.batch_parts();
    if (rows < 1 || base_.train.batch % start.layout.batch_parts() != 0) {
      LayoutCandidate refused = start;
      refused.refusal =
          fmt::format("a batch of {} sequences does not give each of {} parts as many",
                      base_.train.batch, start.layout.batch_parts());
      leave(std::move(refused), Outcome::refused);
      return;
    }
    LayoutCandidate kept = start;
    kept.memory = sizes_.stored / static_cast<double>(start.layout.parameter_parts());
    if (does_not_fit(kept.memory)) {
      leave(std::move(kept), Outcome::too_much);
      return;
    }
    if (start.least > limit()) {
      leave(start, Outcome::too_slow);
      return;
    }
    std::optional<LayoutCandidate> last;  // without a plan
    bool any = false;
    for (const MemorySaving& saving : savings()) {
      bool all_rows = false;
      any = try_saving(start, saving, rows, last, all_rows) || any;
      if (all_rows || (last && last->outcome == Outcome::refused && saving.overrides.empty())) {
        break;  // what saves memory is of no use, or the layout is wrong
      }
    }
    if (!any && last) {
      leave(std::move(*last), last->outcome);
    }
  }

  bool does_not_fit(double bytes) const {
    return planner_.hardware().memory > 0 && bytes > planner_.hardware().memory;
  }

  /// Micro-batches from the largest that fits, as long as smaller ones are faster. Returns whether
  /// any was put in time; `all_rows`: that with all rows at once was.
  bool try_saving(const LayoutCandidate& start, const MemorySaving& saving, std::int64_t rows,
                  std::optional<LayoutCandidate>& last, bool& all_rows) {
    double best = std::numeric_limits<double>::infinity();
    bool any = false;
    for (std::int64_t micro = rows; micro >= 1; micro /= 2) {
      if (rows % micro != 0) {
        continue;
      }
      LayoutCandidate candidate = start;
      candidate.micro_batch = micro;
      candidate.savings = saving.name;
      candidate.overrides = joined(candidate.overrides, saving.overrides);
      candidate.overrides.push_back(fmt::format("train.micro_batch={}", micro == rows ? 0 : micro));
      candidate.least = least_of(start, rows / micro, saving.recomputes);
      if (candidate.least > std::min(best, limit())) {
        if (!last) {  // what does not fit says more
          last = std::move(candidate);
          last->outcome = Outcome::too_slow;
        }
        break;
      }
      ++result_.tried;
      put_in_time(candidate);
      if (candidate.outcome == Outcome::planned) {
        any = true;
        all_rows = all_rows || micro == rows;
        const bool faster = candidate.step.seconds < best;
        best = std::min(best, candidate.step.seconds);
        result_.planned.push_back(std::move(candidate));
        if (!faster) {
          break;
        }
      } else {
        last = std::move(candidate);
        if (last->outcome == Outcome::refused) {
          break;
        }
      }
    }
    return any;
  }

  void put_in_time(LayoutCandidate& candidate) {
    try {
      const runs::Run run = run_of(candidate);
      const runs::Trial trial = runs::try_step(run);
      runs::check_device_kernels(run.config, trial.missing_kernels);
      candidate.memory = static_cast<double>(trial.account.memory.total_peak);
      if (does_not_fit(candidate.memory)) {
        candidate.outcome = Outcome::too_much;
        return;
      }
      candidate.step =
          is_staged(trial) ? plan_stages(run, trial, planner_).times : planner_.step_of(run, trial);
      candidate.step_tokens = static_cast<double>(run.config.step_tokens());
    } catch (const Error& error) {
      if (error.kind() != ErrorKind::input) {
        throw;
      }
      candidate.outcome = Outcome::refused;
      candidate.refusal = first_line(error.what());
    }
  }

  const SearchedRun& wanted_;
  Planner& planner_;
  runs::RunSpec base_;
  std::vector<std::string> always_ = {};
  LayoutQuestion question_ = {};
  BoundSizes sizes_ = {};
  double parameters_ = 0;  // of the model
  double trained_ = 0;     // of them
  SearchResult result_ = {};
};

}  // namespace

runs::RunSpec config_of(const SearchedRun& run, const LayoutCandidate& candidate) {
  return load_config(run.file, joined(run.overrides, candidate.overrides));
}

SearchResult search_layouts(const SearchedRun& run, Planner& planner) {
  if (const runs::RunSpec config = load_config(run.file, run.overrides);
      config.train.is_layout_free()) {
    fail_input(
        {.where = config.place("train.reproducible"),
         .wrong = "a search chooses micro-batches, and with \"layout\" they are virtual shards",
         .advice = "search with train.reproducible=run"});
  }
  return Search(run, planner).all();
}

void run_best(const SearchedRun& run, SearchResult& result, std::size_t count,
              const std::vector<std::string>& words) {
  constexpr int rounds = 3;  // of all of them, as other programs on the machine come and go
  constexpr std::int64_t steps = 12;
  count = std::min(count, result.planned.size());
  const ScratchFolder folder("search");
  std::vector<std::vector<double>> seconds(count);
  for (int round = 0; round < rounds; ++round) {
    for (std::size_t k = 0; k < count; ++k) {
      const LayoutCandidate& one = result.planned[k];
      const std::vector<std::string> overrides =
          joined(joined(run.overrides, one.overrides), {"optimizer.warmup=1", "data.validation=0"});
      const runs::RunSpec config = load_config(run.file, overrides);
      seconds[k].push_back(usual_seconds(
          train_first_steps(run.file, joined(words, overrides), config, steps, folder.path())));
    }
  }
  for (std::size_t k = 0; k < count; ++k) {
    result.planned[k].run = runs::median(seconds[k]);
  }
  const auto end = result.planned.begin() + static_cast<std::ptrdiff_t>(count);
  std::ranges::sort(result.planned.begin(), end, {}, &LayoutCandidate::run);
}

}  // namespace tessera::app
