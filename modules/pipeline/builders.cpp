module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <functional>
#include <string>
#include <string_view>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.pipeline;

import tessera.base;

namespace tessera::pipeline {
namespace {

/// Stage r + k R is on rank r.
std::vector<int> in_a_loop(const PipelineSize& size) {
  std::vector<int> ranks;
  for (int stage = 0; stage < size.ranks * size.stages_per_rank; ++stage) {
    ranks.push_back(stage % size.ranks);
  }
  return ranks;
}

/// The stages go to the last rank and come back.
std::vector<int> in_a_v(const PipelineSize& size) {
  std::vector<int> ranks;
  for (int stage = 0; stage < 2 * size.ranks; ++stage) {
    ranks.push_back(std::min(stage, 2 * size.ranks - 1 - stage));
  }
  return ranks;
}

/// Forwards and backwards of a rank in their orders, `ahead` forwards before the first backward,
/// then in turn.
std::vector<Action> in_turn(const std::vector<Action>& forwards,
                            const std::vector<Action>& backwards, int ahead) {
  std::vector<Action> actions;
  const std::size_t before = std::min(static_cast<std::size_t>(ahead), forwards.size());
  actions.insert(actions.end(), forwards.begin(),
                 forwards.begin() + static_cast<std::ptrdiff_t>(before));
  for (std::size_t i = 0; i < backwards.size(); ++i) {
    if (before + i < forwards.size()) {
      actions.push_back(forwards[before + i]);
    }
    actions.push_back(backwards[i]);
  }
  return actions;
}

/// All micro-batches of the rank's stages, `group` of them at a time in each stage, stages in order
/// or the last one first.
std::vector<Action> passes(const PipelineSize& size, int rank, Work work, int group) {
  std::vector<Action> all;
  for (int first = 0; first < size.micro_batches; first += group) {
    for (int part = 0; part < size.stages_per_rank; ++part) {
      const int chosen = work == Work::forward ? part : size.stages_per_rank - 1 - part;
      for (int m = first; m < std::min(first + group, size.micro_batches); ++m) {
        all.push_back({work, rank + chosen * size.ranks, m});
      }
    }
  }
  return all;
}

void gpipe(const PipelineSize& size, Schedule& schedule) {
  for (int rank = 0; rank < size.ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    for (const Work work : {Work::forward, Work::backward}) {
      const std::vector<Action> all = passes(size, rank, work, size.micro_batches);
      actions.insert(actions.end(), all.begin(), all.end());
    }
  }
}

void one_forward_one_backward(const PipelineSize& size, Schedule& schedule) {
  for (int rank = 0; rank < size.ranks; ++rank) {
    schedule.actions.push_back(in_turn(passes(size, rank, Work::forward, 1),
                                       passes(size, rank, Work::backward, 1),
                                       size.ranks - 1 - rank));
  }
}

void interleaved(const PipelineSize& size, Schedule& schedule) {
  if (size.micro_batches % size.ranks != 0) {
    fail_input({.thing = "pipeline schedule interleaved",
                .wrong = "it cannot use this number of micro-batches",
                .expected = fmt::format("a multiple of the {} ranks of its axis", size.ranks),
                .got = fmt::format("{}", size.micro_batches),
                .advice = "change train.micro_batch or train.batch"});
  }
  for (int rank = 0; rank < size.ranks; ++rank) {
    schedule.actions.push_back(
        in_turn(passes(size, rank, Work::forward, size.ranks),
                passes(size, rank, Work::backward, size.ranks),
                2 * (size.ranks - 1 - rank) + (size.stages_per_rank - 1) * size.ranks));
  }
}

void zero_bubble(const PipelineSize& size, Schedule& schedule) {
  for (int rank = 0; rank < size.ranks; ++rank) {
    std::vector<Action>& actions = schedule.actions.emplace_back();
    const auto add = [&](Work work, int micro_batch) {
      if (micro_batch >= 0 && micro_batch < size.micro_batches) {
        actions.push_back({work, rank, micro_batch});
      }
    };
    const int ahead = size.ranks - rank;
    for (int m = 0; m < ahead; ++m) {
      add(Work::forward, m);
    }
    // Gradients of parameters come `rank` micro-batches late: the gradients that the ranks before
    // wait for come first.
    for (int m = 0; m < size.micro_batches + rank; ++m) {
      add(Work::input_gradient, m);
      add(Work::weight_gradient, m - rank);
      add(Work::forward, m + ahead);
    }
  }
}

/// Places, at each point in time, what is ready: all actions take one unit.
class GreedyScheduler {
 public:
  GreedyScheduler(const PipelineSize& size, Schedule& schedule)
      : schedule_(schedule),
        most_kept_(2 * size.ranks),
        kept_(static_cast<std::size_t>(size.ranks), 0),
        done_(static_cast<std::size_t>(schedule.stages())) {
    schedule_.actions.resize(static_cast<std::size_t>(size.ranks));
  }

  void run() {
    const std::size_t all = 3 * done_.size() * static_cast<std::size_t>(schedule_.micro_batches);
    int idle = 0;  // units of time in which nothing was placed
    for (std::size_t placed = 0; placed < all; ++now_) {
      ++idle;
      for (int rank = 0; rank < schedule_.ranks(); ++rank) {
        if (place(rank)) {
          ++placed;
          idle = 0;
        }
      }
      require(idle < 2, "pipeline schedule: nothing more can be placed within the bound of memory");
    }
  }

 private:
  /// When the actions of a stage ended, by kind and micro-batch.
  struct StageEnds {
    std::vector<int> forward;
    std::vector<int> input_gradient;
    std::vector<int> weight_gradient;
  };

  bool ended(const std::vector<int>& ends, std::size_t micro_batch) const {
    return micro_batch < ends.size() && ends[micro_batch] <= now_;
  }

  /// Places the first that is ready: gradients that others wait for, then forwards, then gradients
  /// of parameters; of each kind that of the later stage.
  bool place(int rank) {
    const std::vector<int> stages = schedule_.stages_of(rank);
    const auto first = [&](auto ready, Work work, std::vector<int> StageEnds::* ends) {
      for (auto stage = stages.rbegin(); stage != stages.rend(); ++stage) {
        std::vector<int>& made = done_[static_cast<std::size_t>(*stage)].*ends;
        const std::size_t next = made.size();
        if (next < static_cast<std::size_t>(schedule_.micro_batches) && ready(*stage, next)) {
          made.push_back(now_ + 1);
          schedule_.actions[static_cast<std::size_t>(rank)].push_back(
              {work, *stage, static_cast<int>(next)});
          return true;
        }
      }
      return false;
    };
    int& kept = kept_[static_cast<std::size_t>(rank)];
    const auto gradient_is_there = [&](int stage, std::size_t m) {
      const auto s = static_cast<std::size_t>(stage);
      return ended(done_[s].forward, m) &&
             (schedule_.is_last(stage) || ended(done_[s + 1].input_gradient, m));
    };
    // A forward of a rank's first stage leaves room for one of its second stage: without it no
    // gradient would come back that makes room.
    const auto input_is_there = [&](int stage, std::size_t m) {
      const int room = most_kept_ - kept - (stage == stages.front() ? 1 : 0);
      return room > 0 &&
             (stage == 0 || ended(done_[static_cast<std::size_t>(stage) - 1].forward, m));
    };
    const auto half_is_made = [&](int stage, std::size_t m) {
      return ended(done_[static_cast<std::size_t>(stage)].input_gradient, m);
    };
    if (first(gradient_is_there, Work::input_gradient, &StageEnds::input_gradient)) {
      return true;
    }
    if (first(input_is_there, Work::forward, &StageEnds::forward)) {
      ++kept;
      return true;
    }
    if (first(half_is_made, Work::weight_gradient, &StageEnds::weight_gradient)) {
      --kept;
      return true;
    }
    return false;
  }

  Schedule& schedule_;
  int most_kept_;
  std::vector<int> kept_;        // by rank
  std::vector<StageEnds> done_;  // by stage
  int now_ = 0;
};

void zero_bubble_v(const PipelineSize& size, Schedule& schedule) {
  GreedyScheduler(size, schedule).run();
}

/// Everything about a kind.
struct Builder {
  ScheduleKind kind;
  std::vector<int> (*ranks)(const PipelineSize&);
  void (*build)(const PipelineSize&, Schedule&);
};

constexpr std::array<Builder, 5> builders = {
    {{{"gpipe", "all forwards, then all backwards", 1, 0}, in_a_loop, gpipe},
     {{"1f1b", "one forward, one backward", 1, 1}, in_a_loop, one_forward_one_backward},
     {{"interleaved", "1f1b with several stages a rank", 2, 0}, in_a_loop, interleaved},
     {{"zero_bubble", "1f1b whose weight gradients fill the bubble", 1, 1}, in_a_loop, zero_bubble},
     {{"zero_bubble_v", "the same with two stages a rank, in the form of a V", 2, 2},
      in_a_v,
      zero_bubble_v}}};

constexpr auto kinds = [] {
  std::array<ScheduleKind, builders.size()> all;
  std::ranges::transform(builders, all.begin(), &Builder::kind);
  return all;
}();

const Builder& builder_of(std::string_view kind) {
  const auto found =
      std::ranges::find(builders, kind, [](const Builder& b) { return b.kind.name; });
  if (found == builders.end()) {
    const std::vector<std::string> names = schedule_kind_names();
    fail_input({.thing = "pipeline schedule",
                .wrong = fmt::format("there is no '{}'{}", shown(kind), did_you_mean(kind, names)),
                .expected = fmt::format("{}", fmt::join(names, ", "))});
  }
  return *found;
}

void check_size(const Builder& builder, const PipelineSize& size) {
  const std::string thing = fmt::format("pipeline schedule {}", builder.kind.name);
  for (const auto& [what, value] : {std::pair{"ranks", size.ranks},
                                    {"stages a rank", size.stages_per_rank},
                                    {"micro-batches", size.micro_batches}}) {
    if (value < 1) {
      fail_input({.thing = thing,
                  .wrong = fmt::format("a pipeline has no {}", what),
                  .expected = "1 or more",
                  .got = fmt::format("{}", value)});
    }
  }
  const int least = builder.kind.least_stages_per_rank;
  const int most = builder.kind.most_stages_per_rank;
  if (size.stages_per_rank < least || (most != 0 && size.stages_per_rank > most)) {
    fail_input({.thing = thing,
                .wrong = "it cannot have this number of stages a rank",
                .expected = fmt::format("{}{}", least, most == least ? "" : " or more"),
                .got = fmt::format("{}", size.stages_per_rank),
                .advice = size.stages_per_rank == 1 ? "choose 1f1b or zero_bubble"
                                                    : "choose interleaved"});
  }
}

}  // namespace

std::span<const ScheduleKind> schedule_kinds() { return kinds; }

const ScheduleKind* find_schedule_kind(std::string_view name) {
  const auto found = std::ranges::find(kinds, name, &ScheduleKind::name);
  return found == kinds.end() ? nullptr : &*found;
}

std::vector<std::string> schedule_kind_names() {
  std::vector<std::string> names;
  for (const ScheduleKind& kind : kinds) {
    names.emplace_back(kind.name);
  }
  return names;
}

Schedule make_schedule(std::string_view kind, const PipelineSize& size) {
  const Builder& builder = builder_of(kind);
  check_size(builder, size);
  Schedule schedule{.name = std::string(kind),
                    .micro_batches = size.micro_batches,
                    .rank_of_stage = builder.ranks(size)};
  builder.build(size, schedule);
  add_transfers(schedule);
  schedule.most_kept = most_kept(schedule);
  return schedule;
}

}  // namespace tessera::pipeline
