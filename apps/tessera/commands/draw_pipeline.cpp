module;
#include <fmt/format.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>
module tessera.app.commands;

import tessera.pipeline;
import tessera.app.base;
import :draw_pipeline;

namespace tessera::app {

using namespace pipeline;

namespace {

constexpr std::string_view weight_gradient_colour = "#9fc7a5";

std::string_view colour_of(Work work) {
  return work == Work::forward           ? colour::forward
         : work == Work::weight_gradient ? weight_gradient_colour
                                         : colour::backward;
}

}  // namespace

std::string draw_pipeline(const Schedule& schedule, const Simulation& simulation) {
  constexpr double top = 40;
  Timeline out(0, simulation.end);
  out.text(12, 20, "start",
           fmt::format("{}: {} on {}, {} micro-batches, bubble {:.1f}%", schedule.name,
                       count_text(schedule.stages(), "stage"), count_text(schedule.ranks(), "rank"),
                       schedule.micro_batches, 100 * simulation.bubble()));
  double y = top;
  for (std::size_t rank = 0; rank < simulation.ranks.size(); ++rank) {
    std::vector<Bar> bars;
    for (const TimedAction& timed : simulation.ranks[rank]) {
      if (computes(timed.action.work)) {
        const bool several = schedule.stages() > schedule.ranks();
        bars.push_back(
            {.begin = timed.begin,
             .end = timed.end,
             .colour = colour_of(timed.action.work),
             .label = several ? fmt::format("{}.{}", timed.action.stage, timed.action.micro_batch)
                              : fmt::format("{}", timed.action.micro_batch)});
      }
    }
    out.row(fmt::format("rank {}", rank), bars, y);
    y += Timeline::row_height + 4;
  }
  out.legend({{{colour::forward, "forward"},
               {colour::backward, schedule.splits_backward() ? "input gradient" : "backward"},
               {weight_gradient_colour, "weight gradient"}}},
             y + 12);
  return out.svg(y + 40);
}

}  // namespace tessera::app
