module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>
module tessera.app.trace;

import tessera.base;
import tessera.pipeline;

namespace tessera::app {
namespace {

using pipeline::Action;
using pipeline::Work;

/// The number at the begin, which goes.
std::optional<int> take_number(std::string_view& text) {
  int number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc() || number < 0) {
    return std::nullopt;
  }
  text.remove_prefix(static_cast<std::size_t>(end - text.data()));
  return number;
}

bool take(std::string_view& text, std::string_view prefix) {
  const bool there = text.starts_with(prefix);
  text.remove_prefix(there ? prefix.size() : 0);
  return there;
}

/// The inverse of pipeline::to_string.
std::optional<Action> action_of(std::string_view name) {
  for (int i = 0; i < pipeline::work_count; ++i) {
    const auto work = static_cast<Work>(i);
    std::string_view rest = name;
    if (!take(rest, pipeline::name_of(work)) || !take(rest, " of stage ")) {
      continue;
    }
    const std::optional<int> stage = take_number(rest);
    const bool between = take(rest, ", micro-batch ");
    const std::optional<int> micro_batch = take_number(rest);
    if (stage && between && micro_batch && rest.empty()) {
      return Action{work, *stage, *micro_batch};
    }
  }
  return std::nullopt;
}

struct ActionTimes {
  Action action;
  double begin = 0;  // microseconds
  double end = 0;
};

std::vector<ActionTimes> actions_in(const std::vector<FileSlice>& slices) {
  std::vector<ActionTimes> actions;
  for (const FileSlice& slice : slices) {
    if (const std::optional<Action> action = action_of(slice.name)) {
      actions.push_back({*action, slice.begin, slice.end});
    }
  }
  std::ranges::sort(actions, {}, &ActionTimes::begin);
  return actions;
}

/// Over actions, each of which is one or several slices: captured steps may have its instructions
/// at several places.
struct Mean {
  double sum = 0;
  std::set<std::tuple<std::size_t, std::size_t, int>> actions = {};  // rank, step, micro-batch
  bool any() const { return !actions.empty(); }
  double value() const { return any() ? sum / static_cast<double>(actions.size()) : 0; }
};

}  // namespace

StageTimes stage_times(const TraceData& trace, const std::string& file) {
  const auto steps = static_cast<std::size_t>(trace.last_step - trace.first_step + 1);
  struct Span {
    double begin = std::numeric_limits<double>::infinity();
    double end = 0;
  };
  std::vector<Span> spans(steps);
  std::map<std::pair<int, Work>, Mean> means;
  double busy = 0;
  std::set<int> seen;
  for (std::size_t rank = 0; rank < trace.ranks.size(); ++rank) {
    const std::vector<ActionTimes> actions = actions_in(trace.ranks[rank]);
    const std::size_t of_step = actions.size() / steps;  // every step has the same ones
    for (std::size_t i = 0; i < of_step * steps; ++i) {
      const ActionTimes& timed = actions[i];
      Span& span = spans[i / of_step];
      span = {std::min(span.begin, timed.begin), std::max(span.end, timed.end)};
      if (pipeline::computes(timed.action.work)) {
        Mean& mean = means[{timed.action.stage, timed.action.work}];
        mean.sum += (timed.end - timed.begin) / 1000;
        mean.actions.emplace(rank, i / of_step, timed.action.micro_batch);
        busy += (timed.end - timed.begin) / 1000;
      }
      seen.insert(timed.action.stage);
    }
  }
  const auto stages = static_cast<int>(seen.size());
  if (stages > 0 && *seen.rbegin() >= stages) {
    fail_input({.thing = file,
                .wrong = fmt::format("it has actions of stage {}, and of {} stages only",
                                     *seen.rbegin(), stages),
                .advice = "trace all ranks of the run"});
  }
  if (stages == 0) {
    fail_input({.thing = file,
                .wrong = "it is no trace of a model in stages",
                .advice = "trace a run with the style Pipeline"});
  }
  StageTimes times;
  for (int stage = 0; stage < stages; ++stage) {
    const Mean& whole = means[{stage, Work::backward}];
    const Mean& half = means[{stage, Work::input_gradient}];
    times.splits_backward = times.splits_backward || half.any();
    times.stages.push_back({.forward = means[{stage, Work::forward}].value(),
                            .input_gradient = half.any() ? half.value() : whole.value(),
                            .weight_gradient = means[{stage, Work::weight_gradient}].value()});
  }
  double all = 0;
  for (const Span& span : spans) {
    all += (span.end - span.begin) / 1000;
  }
  times.step = all / static_cast<double>(steps);
  times.bubble = 1 - busy / (all * static_cast<double>(trace.ranks.size()));
  return times;
}

}  // namespace tessera::app
