module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>
module tessera.pipeline;

import tessera.base;

namespace tessera::pipeline {
namespace {

using Key = std::pair<int, int>;  // stage and micro-batch

/// Proves one schedule, by going through it.
class Checker {
 public:
  Checker(const Schedule& schedule, const std::string& where)
      : schedule_(schedule), where_(where), at_(schedule.actions.size(), 0) {}

  void run() {
    check_stages();
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      for (const Action& action : actions_of(rank)) {
        check_place(rank, action);
      }
    }
    go();
    check_complete();
    check_kept();
  }

 private:
  [[noreturn]] void refuse(std::string wrong, std::string expected = {}, std::string got = {},
                           std::string details = {}) const {
    fail_input({.where = where_,
                .thing = fmt::format("pipeline schedule '{}'", schedule_.name),
                .wrong = std::move(wrong),
                .expected = std::move(expected),
                .got = std::move(got),
                .details = std::move(details)});
  }

  const std::vector<Action>& actions_of(int rank) const {
    return schedule_.actions[static_cast<std::size_t>(rank)];
  }
  int rank_of(int stage) const { return schedule_.rank_of_stage[static_cast<std::size_t>(stage)]; }

  void check_stages() const {
    if (schedule_.micro_batches < 1) {
      refuse("it has no micro-batches");
    }
    for (int stage = 0; stage < schedule_.stages(); ++stage) {
      if (rank_of(stage) < 0 || rank_of(stage) >= schedule_.ranks()) {
        refuse(fmt::format("stage {} is on a rank that has no actions", stage),
               fmt::format("0 to {}", schedule_.ranks() - 1), fmt::format("{}", rank_of(stage)));
      }
    }
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      if (schedule_.stages_of(rank).empty()) {
        refuse(fmt::format("rank {} has no stage", rank));
      }
    }
  }

  void check_place(int rank, const Action& action) const {
    if (action.stage < 0 || action.stage >= schedule_.stages() || action.micro_batch < 0 ||
        action.micro_batch >= schedule_.micro_batches) {
      refuse(fmt::format("rank {}: {}: there is none", rank, to_string(action)),
             fmt::format("stages 0 to {} and micro-batches 0 to {}", schedule_.stages() - 1,
                         schedule_.micro_batches - 1));
    }
    if (rank_of(action.stage) != rank) {
      refuse(fmt::format("rank {}: {}: the stage is on rank {}", rank, to_string(action),
                         rank_of(action.stage)));
    }
    const bool from_before = action.stage > 0 && schedule_.crosses(action.stage - 1);
    const bool needed =
        action.work == Work::send_activation || action.work == Work::receive_gradient
            ? schedule_.crosses(action.stage)
            : from_before;
    if (!computes(action.work) && !needed) {
      refuse(
          fmt::format("rank {}: {}: there is no other rank on that side", rank, to_string(action)));
    }
  }

  const std::set<Key>& done(Work work) const { return done_[static_cast<std::size_t>(work)]; }
  bool is_done(Work work, int stage, int micro_batch) const {
    return done(work).contains({stage, micro_batch});
  }
  /// Whether the gradient of a stage's input is made.
  bool has_gradient(int stage, int micro_batch) const {
    return is_done(Work::backward, stage, micro_batch) ||
           is_done(Work::input_gradient, stage, micro_batch);
  }

  /// The action without which this one cannot be: on the same rank, before it.
  bool is_ready(const Action& a) const {
    const int s = a.stage;
    const int m = a.micro_batch;
    switch (a.work) {
      case Work::forward:
        return s == 0 || (schedule_.crosses(s - 1) ? is_done(Work::receive_activation, s, m)
                                                   : is_done(Work::forward, s - 1, m));
      case Work::backward:
      case Work::input_gradient:
        return is_done(Work::forward, s, m) &&
               (schedule_.is_last(s) ||
                (schedule_.crosses(s) ? is_done(Work::receive_gradient, s, m)
                                      : has_gradient(s + 1, m)));
      case Work::weight_gradient:
        return is_done(Work::input_gradient, s, m);
      case Work::send_activation:
        return is_done(Work::forward, s, m);
      case Work::send_gradient:
        return has_gradient(s, m);
      case Work::receive_activation:
        return is_done(Work::send_activation, s - 1, m);
      case Work::receive_gradient:
        return is_done(Work::send_gradient, s + 1, m);
    }
    return false;
  }

  /// Advances each rank until it waits for another one, as long as any can.
  void go() {
    for (bool moved = true; moved;) {
      moved = false;
      for (int rank = 0; rank < schedule_.ranks(); ++rank) {
        std::size_t& at = at_[static_cast<std::size_t>(rank)];
        for (; at < actions_of(rank).size(); ++at) {
          const Action& action = actions_of(rank)[at];
          if (!is_ready(action)) {
            if (!receives(action.work)) {
              refuse(fmt::format("rank {}: {}: what it needs is not there by then", rank,
                                 to_string(action)));
            }
            break;
          }
          take(rank, action);
          moved = true;
        }
      }
    }
    std::string waiting;
    for (int rank = 0; rank < schedule_.ranks(); ++rank) {
      const std::size_t at = at_[static_cast<std::size_t>(rank)];
      if (at < actions_of(rank).size()) {
        const Action& action = actions_of(rank)[at];
        const int from = action.stage + (action.work == Work::receive_activation ? -1 : 1);
        waiting += fmt::format("{}rank {}: {}, from rank {}", waiting.empty() ? "" : "\n", rank,
                               to_string(action), rank_of(from));
      }
    }
    if (!waiting.empty()) {
      refuse("it never ends: these ranks wait for what nobody sends any more", {}, {}, waiting);
    }
  }

  void take(int rank, const Action& a) {
    if (!done_[static_cast<std::size_t>(a.work)].insert({a.stage, a.micro_batch}).second ||
        (a.work == Work::backward && is_done(Work::input_gradient, a.stage, a.micro_batch)) ||
        (a.work == Work::input_gradient && is_done(Work::backward, a.stage, a.micro_batch))) {
      refuse(fmt::format("rank {}: {}: it is there a second time", rank, to_string(a)));
    }
    // In order: sums of gradients, of whole backwards and halves, and messages between two ranks,
    // which arrive in the order in which they were sent.
    if (a.work != Work::forward && a.work != Work::input_gradient) {
      int& next = next_[{ends_backward(a.work) ? Work::backward : a.work, a.stage}];
      if (a.micro_batch != next) {
        refuse(fmt::format("rank {}: {}: the micro-batches are not in order", rank, to_string(a)),
               fmt::format("micro-batch {} before", next));
      }
      ++next;
    }
  }

  void check_complete() const {
    for (int s = 0; s < schedule_.stages(); ++s) {
      for (int m = 0; m < schedule_.micro_batches; ++m) {
        const bool whole = is_done(Work::backward, s, m);
        const auto need = [&](Work work, bool there) {
          if (!there) {
            refuse(
                fmt::format("rank {}: {} is missing", rank_of(s), to_string(Action{work, s, m})));
          }
        };
        need(Work::forward, is_done(Work::forward, s, m));
        need(Work::backward, whole || is_done(Work::input_gradient, s, m));
        need(Work::weight_gradient, whole || is_done(Work::weight_gradient, s, m));
      }
    }
  }

  void check_kept() const {
    if (schedule_.most_kept.empty()) {
      return;
    }
    if (schedule_.most_kept.size() != schedule_.actions.size()) {
      refuse("there is not one bound of what is kept for each rank",
             fmt::format("{}", schedule_.actions.size()),
             fmt::format("{}", schedule_.most_kept.size()));
    }
    const std::vector<int> kept = most_kept(schedule_);
    for (std::size_t rank = 0; rank < kept.size(); ++rank) {
      if (kept[rank] > schedule_.most_kept[rank]) {
        refuse(fmt::format("rank {} keeps activations of too many micro-batches", rank),
               fmt::format("at most {}", schedule_.most_kept[rank]), fmt::format("{}", kept[rank]));
      }
    }
  }

  const Schedule& schedule_;
  const std::string& where_;
  std::vector<std::size_t> at_;  // the next action, by rank
  std::array<std::set<Key>, work_count> done_;
  std::map<std::pair<Work, int>, int> next_;
};

}  // namespace

void check(const Schedule& schedule, const std::string& where) { Checker(schedule, where).run(); }

std::vector<int> most_kept(const Schedule& schedule) {
  std::vector<int> most;
  for (const std::vector<Action>& actions : schedule.actions) {
    int kept = 0;
    int peak = 0;
    for (const Action& action : actions) {
      if (action.work == Work::forward) {
        peak = std::max(peak, ++kept);
      } else if (ends_backward(action.work)) {
        --kept;
      }
    }
    most.push_back(peak);
  }
  return most;
}

}  // namespace tessera::pipeline
