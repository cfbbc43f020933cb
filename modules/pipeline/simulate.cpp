module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>
module tessera.pipeline;

import tessera.base;

namespace tessera::pipeline {
namespace {

double time_of(const StageCost& cost, Work work) {
  switch (work) {
    case Work::forward:
      return cost.forward;
    case Work::backward:
      return cost.input_gradient + cost.weight_gradient;
    case Work::input_gradient:
      return cost.input_gradient;
    case Work::weight_gradient:
      return cost.weight_gradient;
    default:
      return 0;
  }
}

std::vector<StageCost> costs_of(const Schedule& schedule, const Costs& costs) {
  if (!costs.stages.empty()) {
    if (costs.stages.size() != static_cast<std::size_t>(schedule.stages())) {
      fail({.thing = "pipeline simulation",
            .wrong = "the costs are those of other stages",
            .expected = fmt::format("{}", schedule.stages()),
            .got = fmt::format("{}", costs.stages.size())});
    }
    return costs.stages;
  }
  std::vector<StageCost> all;
  for (const int rank : schedule.rank_of_stage) {
    const double part = 1.0 / static_cast<double>(schedule.stages_of(rank).size());
    all.push_back({.forward = part, .input_gradient = part, .weight_gradient = part});
  }
  return all;
}

void check_costs(const std::vector<StageCost>& stages, double transfer) {
  for (const StageCost& c : stages) {
    for (const double value :
         {c.forward, c.input_gradient, c.weight_gradient, c.kept_bytes, transfer}) {
      if (!(value >= 0) || !std::isfinite(value)) {
        fail({.thing = "pipeline simulation",
              .wrong = "a cost is no number of 0 or more",
              .got = fmt::format("{}", value)});
      }
    }
  }
}

}  // namespace

double Simulation::bubble() const {
  double all = 0;
  for (const double of_rank : busy) {
    all += of_rank;
  }
  return end > 0 ? 1 - all / (end * static_cast<double>(busy.size())) : 0;
}

Simulation simulate(const Schedule& schedule, const Costs& costs) {
  const std::vector<StageCost> stages = costs_of(schedule, costs);
  check_costs(stages, costs.transfer);
  const std::size_t ranks = schedule.actions.size();
  Simulation result{.ranks = std::vector<std::vector<TimedAction>>(ranks),
                    .busy = std::vector<double>(ranks, 0),
                    .kept_bytes = std::vector<double>(ranks, 0)};
  std::vector<double> now(ranks, 0);
  std::vector<double> kept(ranks, 0);
  std::map<std::tuple<Work, int, int>, double> sent;  // when a message is there
  const auto sender = [](const Action& a) {
    return a.work == Work::receive_activation
               ? std::tuple{Work::send_activation, a.stage - 1, a.micro_batch}
               : std::tuple{Work::send_gradient, a.stage + 1, a.micro_batch};
  };
  const auto take = [&](std::size_t rank, const Action& a) {
    if (receives(a.work)) {
      const auto message = sent.find(sender(a));
      if (message == sent.end()) {
        return false;
      }
      now[rank] = std::max(now[rank], message->second);
    }
    const StageCost& cost = stages[static_cast<std::size_t>(a.stage)];
    const double begin = now[rank];
    now[rank] += time_of(cost, a.work);
    result.ranks[rank].push_back({.action = a, .begin = begin, .end = now[rank]});
    result.busy[rank] += now[rank] - begin;
    if (!computes(a.work) && !receives(a.work)) {
      sent[{a.work, a.stage, a.micro_batch}] = now[rank] + costs.transfer;
    }
    if (a.work == Work::forward) {
      kept[rank] += cost.kept_bytes;
      result.kept_bytes[rank] = std::max(result.kept_bytes[rank], kept[rank]);
    } else if (ends_backward(a.work)) {
      kept[rank] -= cost.kept_bytes;
    }
    return true;
  };
  for (bool moved = true; moved;) {
    moved = false;
    for (std::size_t rank = 0; rank < ranks; ++rank) {
      while (result.ranks[rank].size() < schedule.actions[rank].size() &&
             take(rank, schedule.actions[rank][result.ranks[rank].size()])) {
        moved = true;
      }
    }
  }
  result.end = *std::ranges::max_element(now);
  return result;
}

std::string draw_text(const Schedule& schedule, const Simulation& simulation, double unit) {
  constexpr std::array<char, 4> letters = {'F', 'B', 'I', 'W'};
  const std::size_t digits = fmt::format("{}", schedule.micro_batches - 1).size();
  const bool parts = schedule.stages() > schedule.ranks();
  // A letter for the work, one for which of the rank's stages, and the micro-batch.
  const std::size_t cell = digits + (parts ? 3 : 2);
  std::string text;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    const std::vector<int> stages = schedule.stages_of(static_cast<int>(rank));
    std::string row;
    const auto column = [&](double time) {
      return static_cast<std::size_t>(std::llround(time / unit)) * cell;
    };
    for (const TimedAction& timed : simulation.ranks[rank]) {
      if (!computes(timed.action.work)) {
        continue;
      }
      while (row.size() < column(timed.begin)) {
        row += '.' + std::string(cell - 1, ' ');
      }
      const auto part = std::ranges::find(stages, timed.action.stage) - stages.begin();
      std::string label(1, letters[static_cast<std::size_t>(timed.action.work)]);
      if (parts) {
        label += static_cast<char>('a' + part % 26);
      }
      label += fmt::format("{}", timed.action.micro_batch);
      label.resize(std::max(label.size() + 1, column(timed.end) - row.size()), ' ');
      row += label;
    }
    while (row.size() < column(simulation.end)) {
      row += '.' + std::string(cell - 1, ' ');
    }
    row.erase(row.find_last_not_of(' ') + 1);
    text += fmt::format("rank {:<3} {}\n", rank, row);
  }
  return text;
}

}  // namespace tessera::pipeline
