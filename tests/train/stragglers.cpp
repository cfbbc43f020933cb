// Ranks for which the others wait: found from simulated steps, whose delays are known.
#include <algorithm>
#include <cstdint>
#include <functional>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.collective;
import tessera.train;

using namespace tessera;

namespace {

using Groups = std::vector<std::vector<int>>;

/// Ranks that compute for a time of their own and then wait for the last one, step after step.
class Simulated {
 public:
  Simulated(const Groups& alike, std::vector<double> compute, double share = 0.1)
      : compute(std::move(compute)), waits_(this->compute.size()), stragglers_(alike, share) {}

  /// Returns after how many steps there was a change; 0: none.
  int steps(int count) {
    int changed = 0;
    for (int i = 1; i <= count; ++i) {
      changed = step() && changed == 0 ? i : changed;
    }
    return changed;
  }

  bool step() {
    std::vector<double> took;
    for (const double seconds : compute) {
      took.push_back(seconds * std::max(0.1, 1 + noise * spread_(random_)));
    }
    const double longest = *std::ranges::max_element(took);
    now_ += longest;
    ++step_;
    for (std::size_t r = 0; r < took.size(); ++r) {
      waits_[r].seconds += longest - took[r];
      waits_[r].step = step_ % told_every == 0 || r < 2 ? step_ : waits_[r].step;
      shown_.resize(waits_.size());
      shown_[r] = waits_[r].step == step_ ? waits_[r] : shown_[r];
    }
    return stragglers_.observe(now_, step_,
                               [&](int rank) { return shown_[static_cast<std::size_t>(rank)]; });
  }

  const Stragglers& found() const { return stragglers_; }
  std::vector<int> ranks() const {
    std::vector<int> all;
    for (const Straggler& one : stragglers_.stragglers()) {
      all.push_back(one.rank);
    }
    return all;
  }
  std::string text(const std::function<std::string(int)>& machine_of = [](int) {
    return std::string();
  }) const {
    return stragglers_.text(machine_of);
  }

  std::vector<double> compute;  // seconds of a step
  double noise = 0.05;          // standard deviation, of each step's time
  int told_every = 1;           // steps after which ranks above 1 tell anew

 private:
  std::mt19937 random_{7};
  std::normal_distribution<double> spread_;
  double now_ = 100;
  std::int64_t step_ = 0;
  std::vector<collective::RankWaits> waits_;
  std::vector<collective::RankWaits> shown_;
  Stragglers stragglers_;
};

const std::vector<int> nobody;

}  // namespace

TEST_CASE("ranks that differ by chance are no stragglers, whatever their number") {
  for (const int ranks : {1, 2, 3, 4, 16, 64}) {
    std::vector<int> all(static_cast<std::size_t>(ranks));
    std::iota(all.begin(), all.end(), 0);
    // Half of a step's time: as with ranks that share cores.
    Simulated run({all}, std::vector<double>(all.size(), 0.02));
    run.noise = 0.5;
    CHECK(run.steps(5000) == 0);
    CHECK(run.ranks() == nobody);
  }
}

TEST_CASE("a slow rank is named with what it costs, once, and again when it is over") {
  for (const double step : {0.004, 0.05, 2.0}) {
    Simulated run({{0, 1, 2, 3}}, std::vector<double>(4, step));
    CHECK(run.steps(300) == 0);
    run.compute[2] = 1.5 * step;
    // Most blocks of sixteen, and one more that agrees.
    const int block = std::max(1, static_cast<int>(0.1 / (1.5 * step)) + 1);
    const int after = run.steps(20 * block);
    CHECK(after > 0);
    CHECK(after <= 16 * block);
    CHECK(run.ranks() == std::vector<int>{2});
    CHECK(run.steps(40 * block) == 0);  // it was told
    REQUIRE(run.ranks() == std::vector<int>{2});
    CHECK(run.found().stragglers()[0].seconds == Approx(0.5 * step).epsilon(0.1));
    REQUIRE(run.found().last());
    CHECK(run.found().last()->rank == 2);
    CHECK(run.found().last()->seconds == Approx(0.5 * step).epsilon(0.3));
    CHECK(run.found().step_seconds() == Approx(1.5 * step).epsilon(0.15));
    CHECK(run.text().starts_with("the other ranks wait for rank 2 in every step: "));
    const std::string text = run.text();
    CHECK(std::stod(text.substr(text.find('(') + 1)) == Approx(33).margin(6));
    run.compute[2] = step;
    CHECK(run.steps(40 * block) > 0);
    CHECK(run.ranks() == nobody);
    CHECK(run.text().find("no rank is waited for") != std::string::npos);
  }
}

TEST_CASE("another slow rank is told too; one below the share is not") {
  Simulated run({{0, 1, 2, 3, 4}}, std::vector<double>(5, 0.05));
  run.compute[1] = 0.053;  // 6%
  CHECK(run.steps(200) == 0);
  run.compute[1] = 0.07;
  CHECK(run.steps(60) > 0);
  CHECK(run.ranks() == std::vector<int>{1});
  run.compute[1] = 0.05;
  run.compute[4] = 0.07;
  CHECK(run.steps(100) > 0);
  CHECK(run.ranks() == std::vector<int>{4});
}

TEST_CASE("one step that lasts long is no reason for a warning") {
  Simulated run({{0, 1, 2, 3}}, std::vector<double>(4, 0.05));
  for (int i = 0; i < 40; ++i) {
    CHECK(run.steps(9) == 0);
    run.compute[3] = 0.5;
    CHECK_FALSE(run.step());
    run.compute[3] = 0.05;
  }
}

TEST_CASE("a slow machine is named, also where its ranks tell late what they have waited") {
  Simulated run({{0, 1, 2, 3}}, std::vector<double>(4, 0.03));
  run.told_every = 5;
  CHECK(run.steps(200) == 0);
  run.compute[2] = run.compute[3] = 0.045;
  CHECK(run.steps(100) > 0);
  CHECK(run.ranks() == std::vector<int>{2, 3});
  const auto machine_of = [](int rank) { return std::string(rank < 2 ? "left" : "right"); };
  CHECK(run.text(machine_of).find("for machine 'right' (ranks 2 and 3) in every step") !=
        std::string::npos);
  const auto other = [](int rank) { return std::string(rank < 1 ? "left" : "right"); };
  CHECK(run.text(other).find("for ranks 2 and 3 on machine 'right' in every step") !=
        std::string::npos);
}

TEST_CASE("stages that differ by nature are no stragglers; a rank slower than its stage's is one") {
  Simulated run({{0, 1}, {2, 3}}, {0.02, 0.02, 0.05, 0.05});
  CHECK(run.steps(500) == 0);
  run.compute[3] = 0.08;
  CHECK(run.steps(60) > 0);
  CHECK(run.ranks() == std::vector<int>{3});
}

TEST_CASE("a stage of one rank is compared with itself, and with how the others change") {
  Simulated run({{0}, {1}, {2}}, {0.02, 0.04, 0.05});
  CHECK(run.steps(500) == 0);
  run.compute = {0.03, 0.06, 0.075};  // all ranks: longer sequences, or another program
  CHECK(run.steps(100) == 0);
  run.compute = {0.05, 0.12, 0.15};  // a machine with other work, by which one is hit more
  CHECK(run.steps(100) == 0);
  run.compute = {0.02, 0.04, 0.05};
  CHECK(run.steps(100) == 0);
  run.compute[1] = 0.08;
  CHECK(run.steps(60) > 0);
  CHECK(run.ranks() == std::vector<int>{1});
  CHECK(run.found().stragglers()[0].seconds == Approx(0.04).epsilon(0.15));
  run.compute[1] = 0.04;
  CHECK(run.steps(100) > 0);
  CHECK(run.ranks() == nobody);
}

TEST_CASE("a rank that has told nothing yet is not judged") {
  Stragglers found({{0, 1}}, 0.1);
  for (int step = 1; step < 100; ++step) {
    CHECK_FALSE(found.observe(0.2 * step, step, [&](int rank) {
      return rank == 0 ? collective::RankWaits{.step = step, .seconds = 0.1 * step}
                       : collective::RankWaits{};
    }));
  }
  CHECK(found.stragglers().empty());
}
