module;
#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <vector>
module tessera.communication;

import tessera.base;
import tessera.calls;
import tessera.ranks;
import tessera.machines;
import :group_view;
import :operation;
import :state;
import :world;

namespace tessera::collective {

GroupView::GroupView(WorldState& state, GroupBlock* group, Engine* engine)
    : state_(state),
      group_(group),
      engine_(engine),
      members_(reinterpret_cast<Member*>(state.region->at(group->members))),
      rank_(static_cast<int>(std::find(group->ranks(), group->ranks() + group->size, state.rank) -
                             group->ranks())),
      size_(static_cast<int>(group->size)) {
  if (!is_fake() && state.bridge != nullptr) {
    find_machines();
  }
}

void GroupView::find_machines() {
  for (int m = 0; m < size_; ++m) {
    done_counters_.push_back(&members_[m].done);
    if (is_here(m)) {
      continue;
    }
    const int number = state_.bridge->machines().of_rank[static_cast<std::size_t>(global_rank(m))];
    auto at = std::ranges::find(other_machines_, number, &Machine::number);
    if (at == other_machines_.end()) {
      other_machines_.push_back({.number = number, .departures = std::make_shared<Departures>()});
      at = other_machines_.end() - 1;
    }
    at->members.push_back(m);
    done_counters_.back() = &at->departures->done;
  }
}

std::byte* GroupView::result_of(int member, std::size_t array, const Operation& op) const {
  const std::uint64_t offset = publication(member, op.sequence).result;
  return region().at(
      op.form->list ? reinterpret_cast<const std::uint64_t*>(region().at(offset))[array] : offset);
}

void GroupView::wait_for_member(Counter& counter, const Operation& op, int member,
                                bool sent) const {
  state_.wait(counter, op.sequence + 1,
              {.group = group_,
               .call = &op.call,
               .sequence = op.sequence,
               .peer = global_rank(member),
               .self = engine_,
               .sent = sent});
}

void GroupView::wait_until_done(std::uint64_t calls, const Call& call,
                                std::uint64_t sequence) const {
  for (int r = 0; r < size_; ++r) {
    if (r != rank_) {
      state_.wait(done_counter(r), calls,
                  {.group = group_,
                   .call = &call,
                   .sequence = sequence,
                   .peer = global_rank(r),
                   .self = engine_,
                   .sent = !is_here(r)});
    }
  }
}

void GroupView::wait_for_message(Counter& counter, std::uint64_t target, const Call& call,
                                 std::uint64_t number, int from) const {
  state_.wait(counter, target,
              {.group = group_,
               .call = &call,
               .sequence = number,
               .peer = global_rank(from),
               .self = engine_,
               .idle = engine_});
}

}  // namespace tessera::collective
