module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>
module tessera.pipeline;

import tessera.base;

namespace tessera::pipeline {
namespace {

constexpr std::array<std::string_view, work_count> names = {
    "forward",         "backward",           "input gradient", "weight gradient",
    "send activation", "receive activation", "send gradient",  "receive gradient"};

}  // namespace

std::string_view name_of(Work work) { return names[static_cast<std::size_t>(work)]; }

std::string to_string(const Action& action) {
  return fmt::format("{} of stage {}, micro-batch {}", name_of(action.work), action.stage,
                     action.micro_batch);
}

std::vector<int> Schedule::stages_of(int rank) const {
  std::vector<int> found;
  for (int stage = 0; stage < stages(); ++stage) {
    if (rank_of_stage[static_cast<std::size_t>(stage)] == rank) {
      found.push_back(stage);
    }
  }
  return found;
}

bool Schedule::splits_backward() const {
  return std::ranges::any_of(actions, [](const std::vector<Action>& of_rank) {
    return std::ranges::any_of(of_rank,
                               [](const Action& a) { return a.work == Work::weight_gradient; });
  });
}

void add_transfers(Schedule& schedule) {
  for (std::vector<Action>& of_rank : schedule.actions) {
    std::vector<Action> all;
    for (const Action& action : of_rank) {
      const int stage = action.stage;
      const auto add = [&](Work work, bool needed) {
        if (needed) {
          all.push_back({work, stage, action.micro_batch});
        }
      };
      const bool from_before = stage > 0 && schedule.crosses(stage - 1);
      const bool makes_gradient =
          action.work == Work::backward || action.work == Work::input_gradient;
      add(Work::receive_activation, action.work == Work::forward && from_before);
      add(Work::receive_gradient, makes_gradient && schedule.crosses(stage));
      all.push_back(action);
      add(Work::send_activation, action.work == Work::forward && schedule.crosses(stage));
      add(Work::send_gradient, makes_gradient && from_before);
    }
    of_rank = std::move(all);
  }
}

}  // namespace tessera::pipeline
