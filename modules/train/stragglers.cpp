module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <numeric>
#include <optional>
#include <string>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;
import tessera.mesh;
import tessera.collective;
import tessera.parallel;
import :stragglers;

namespace tessera {
namespace {

constexpr double errors_above = 4;  // standard errors of a mean
// On a machine with other work all ranks take longer, and some of them 1.2 times as much longer as
// others, for minutes.
constexpr double much_growth = 1.5;

/// Of a list that is not empty, which it sorts.
double median(std::vector<double>& values) {
  std::ranges::sort(values);
  return (values[(values.size() - 1) / 2] + values[values.size() / 2]) / 2;
}

/// The median of a sorted list of at least two without its element at `left_out`.
double median_without(const std::vector<double>& sorted, std::size_t left_out) {
  const auto at = [&](std::size_t i) { return sorted[i < left_out ? i : i + 1]; };
  const std::size_t size = sorted.size() - 1;
  return (at((size - 1) / 2) + at(size / 2)) / 2;
}

double median_of(const std::array<double, Stragglers::window>& values) {
  std::vector<double> copy(values.begin(), values.end());
  return median(copy);
}

struct Mean {
  double value = 0;
  double error = 0;  // its standard error
};
Mean mean_of(const std::array<double, Stragglers::window>& values) {
  const auto count = static_cast<double>(values.size());
  const double mean = std::accumulate(values.begin(), values.end(), 0.0) / count;
  double squares = 0;
  for (const double value : values) {
    squares += (value - mean) * (value - mean);
  }
  return {mean, std::sqrt(squares / (count - 1) / count)};
}

std::string milliseconds(double seconds) { return fmt::format("{:.3g} ms", 1e3 * seconds); }

}  // namespace

std::vector<std::vector<int>> ranks_alike(const parallel::ParallelPlan& plan) {
  const parallel::Stages* const stages = plan.stages();
  if (stages == nullptr) {
    const auto all = plan.mesh().ranks();
    return {{all.begin(), all.end()}};
  }
  const DeviceMesh& mesh = stages->mesh();
  std::vector<std::vector<int>> alike(static_cast<std::size_t>(mesh.axis_size(stages->axis())));
  for (const int rank : mesh.ranks()) {
    alike[static_cast<std::size_t>(mesh.coordinate_of(rank, stages->axis()))].push_back(rank);
  }
  return alike;
}

Stragglers::Stragglers(std::vector<std::vector<int>> alike, double share)
    : alike_(std::move(alike)), share_(share) {
  for (std::size_t g = 0; g < alike_.size(); ++g) {
    for (const int rank : alike_[g]) {
      ranks_.resize(std::max(ranks_.size(), static_cast<std::size_t>(rank) + 1));
      ranks_[static_cast<std::size_t>(rank)].group = static_cast<int>(g);
    }
    if (alike_[g].size() == 1) {
      alone_.push_back(alike_[g].front());
    }
  }
}

bool Stragglers::observe(double now, std::int64_t step,
                         const std::function<collective::RankWaits(int)>& waits_of) {
  if (begun_ >= 0 && (now - begun_ < block_seconds || step <= first_)) {
    return false;
  }
  const bool complete = begun_ >= 0;
  step_seconds_ = complete ? (now - begun_) / static_cast<double>(step - first_) : 0;
  last_step_ = step;
  begin_block(now, step, waits_of);
  if (!complete) {
    return false;
  }
  last_.reset();
  for (const std::vector<int>& ranks : alike_) {
    if (ranks.size() > 1) {
      compare_alike(ranks);
    }
  }
  if (alone_.size() > 1) {
    compare_with_before();
  }
  ++blocks_;
  return tell();
}

void Stragglers::watch(const collective::World& world, std::int64_t step) {
  const std::chrono::duration<double> now = std::chrono::steady_clock::now().time_since_epoch();
  if (observe(now.count(), step, [&](int rank) { return world.waits_of(rank); })) {
    log(LogLevel::warning, text([&](int rank) { return world.machine_of(rank); }));
  }
}

void Stragglers::begin_block(double now, std::int64_t step,
                             const std::function<collective::RankWaits(int)>& waits_of) {
  begun_ = now;
  first_ = step;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    Rank& rank = ranks_[r];
    if (rank.group < 0) {
      continue;
    }
    const collective::RankWaits told = waits_of(static_cast<int>(r));
    // A rank of another machine may have told nothing new: then it waits as it did.
    if (rank.before.step >= 0 && told.step > rank.before.step) {
      rank.waited =
          (told.seconds - rank.before.seconds) / static_cast<double>(told.step - rank.before.step);
    }
    rank.before = told;
  }
}

void Stragglers::judge(int number, double delay) {
  Rank& rank = ranks_[static_cast<std::size_t>(number)];
  rank.delays[rank.judged++ % window] = delay / step_seconds_;
  if (rank.judged >= window) {
    const Mean mean = mean_of(rank.delays);
    rank.slow = mean.value - (rank.slow ? 0 : errors_above * mean.error) > share_;
  }
  if (!last_ || delay > last_->seconds) {
    last_ = Straggler{.rank = number, .seconds = delay};
  }
}

void Stragglers::compare_alike(const std::vector<int>& ranks) {
  std::vector<std::pair<double, int>> waited;
  for (const int rank : ranks) {
    waited.emplace_back(ranks_[static_cast<std::size_t>(rank)].waited, rank);
  }
  std::ranges::sort(waited);
  if (waited.front().first < 0) {
    return;  // not all have told
  }
  std::vector<double> sorted;
  for (const auto& [seconds, rank] : waited) {
    sorted.push_back(seconds);
  }
  for (std::size_t i = 0; i < waited.size(); ++i) {
    judge(waited[i].second, median_without(sorted, i) - sorted[i]);
  }
}

void Stragglers::compare_with_before() {
  std::vector<std::pair<double, int>> growth;
  for (const int number : alone_) {
    Rank& rank = ranks_[static_cast<std::size_t>(number)];
    if (rank.waited < 0) {
      return;
    }
    // Threads of a rank that wait at once may have waited for longer than the step.
    const double busy = std::max(step_seconds_ - rank.waited, 1e-3 * step_seconds_);
    rank.busy[blocks_ % window] = busy;
    if (blocks_ + 1 >= window) {
      const double now = median_of(rank.busy);
      rank.usual = rank.usual < 0 ? now : std::min(rank.usual, now);
      growth.emplace_back(busy / rank.usual, number);
    }
  }
  if (growth.empty()) {
    return;
  }
  std::ranges::sort(growth);
  std::vector<double> sorted;
  for (const auto& [factor, rank] : growth) {
    sorted.push_back(factor);
  }
  for (std::size_t i = 0; i < growth.size(); ++i) {
    const double usual = ranks_[static_cast<std::size_t>(growth[i].second)].usual;
    const double others = median_without(sorted, i);
    judge(growth[i].second, sorted[i] > much_growth * others ? usual * (sorted[i] - others) : 0);
  }
}

bool Stragglers::tell() {
  std::vector<int> slow;
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (ranks_[r].slow) {
      slow.push_back(static_cast<int>(r));
    }
  }
  const bool again = slow == slow_;
  slow_ = std::move(slow);
  const bool told = std::ranges::equal(slow_, told_, {}, {}, &Straggler::rank);
  if (!again && !told) {
    return false;
  }
  told_.clear();
  for (const int rank : slow_) {
    const Mean share = mean_of(ranks_[static_cast<std::size_t>(rank)].delays);
    told_.push_back({.rank = rank, .seconds = share.value * step_seconds_});
  }
  return !told;
}

std::string Stragglers::text(const std::function<std::string(int)>& machine_of) const {
  if (told_.empty()) {
    return fmt::format("since step {}, no rank is waited for", last_step_);
  }
  std::map<std::string, std::pair<std::vector<int>, std::size_t>> machines;  // slow ones, all
  double delay = 0;
  for (const Straggler& one : told_) {
    machines[machine_of(one.rank)].first.push_back(one.rank);
    delay = std::max(delay, one.seconds);
  }
  for (std::size_t r = 0; r < ranks_.size(); ++r) {
    if (const auto at = machines.find(machine_of(static_cast<int>(r))); at != machines.end()) {
      ++at->second.second;
    }
  }
  std::vector<std::string> who;
  for (const auto& [machine, ranks] : machines) {
    const std::string numbers = numbers_text("rank", ranks.first);
    who.push_back(machine.empty() ? numbers
                  : ranks.first.size() == ranks.second
                      ? fmt::format("machine '{}' ({})", machine, numbers)
                      : fmt::format("{} on machine '{}'", numbers, machine));
  }
  return fmt::format("the other ranks wait for {} in every step: {} of {} ({:.0f}%), to step {}",
                     fmt::join(who, " and "), milliseconds(delay), milliseconds(step_seconds_),
                     100 * delay / step_seconds_, last_step_);
}

}  // namespace tessera
