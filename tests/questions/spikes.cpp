// Steps that are far from those before them, by the definition on docs/questions.md.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.train;

using tessera::SpikeDetector;
using tessera::StepResult;
using tessera::testing::has;
using tessera::testing::input_error;

namespace {

StepResult step_of(double loss, double norm = 1) { return {.loss = loss, .grad_norm = norm}; }

/// Twenty losses around 2, whose median is 2 and whose median absolute deviation is 0.1.
SpikeDetector trained() {
  SpikeDetector detector(4);
  for (int i = 0; i < 20; ++i) {
    detector.add(step_of(2 + (i % 2 == 0 ? 0.1 : -0.1)));
  }
  return detector;
}

}  // namespace

TEST_CASE("a number is a spike where it is more than so many spreads above the median") {
  const SpikeDetector detector = trained();
  const double limit = 2 + 4 * 1.4826 * 0.1;
  CHECK_FALSE(detector.spike(step_of(limit - 1e-6)));
  const auto spike = detector.spike(step_of(limit + 1e-6));
  REQUIRE(spike);
  CHECK(spike->name == "loss");
  CHECK(spike->usual == Approx(2));
  CHECK(spike->spread == Approx(0.14826));
  CHECK_FALSE(detector.spike(step_of(-100)));
  // The norms were all 1: their spread is a hundredth of the median.
  CHECK_FALSE(detector.spike(step_of(2, 1.0399)));
  CHECK(detector.spike(step_of(2, 1.0401))->name == "grad_norm");
}

TEST_CASE("before there are 16 steps, only numbers that are not finite are spikes") {
  SpikeDetector detector(1);
  for (int i = 0; i < 15; ++i) {
    CHECK_FALSE(detector.spike(step_of(i % 2 == 0 ? 1 : 1000)));
    detector.add(step_of(1));
  }
  CHECK_FALSE(detector.spike(step_of(1000)));
  CHECK(detector.spike(step_of(std::numeric_limits<double>::infinity())));
  CHECK(detector.spike(step_of(1, std::nan("")))->name == "grad_norm");
  detector.add(step_of(1));
  CHECK(detector.spike(step_of(1000)));
}

TEST_CASE("spikes are no part of what is usual, and old steps are forgotten") {
  SpikeDetector detector = trained();
  for (int i = 0; i < 50; ++i) {
    detector.add(step_of(i % 11 == 10 ? 2 : 100));  // ten in turn
  }
  CHECK(detector.spike(step_of(100)));
  for (int i = 0; i < 100; ++i) {
    detector.add(step_of(1));
  }
  CHECK(detector.spike(step_of(2)));
}

TEST_CASE("what stays is no spike") {
  SpikeDetector detector = trained();
  const auto stay = [&](int steps) {
    for (int i = 0; i < steps; ++i) {
      CHECK(detector.spike(step_of(2, 50)));
      detector.add(step_of(2, 50));
    }
  };
  stay(11);
  detector.add(step_of(2, 1));  // not in turn
  stay(11);
  detector.add(step_of(2, std::nan("")));  // this never becomes usual
  stay(11);
  // A detector that has loaded this one's state has the same spikes in turn.
  SpikeDetector other(4);
  other.load(detector.state());
  for (SpikeDetector* const one : {&detector, &other}) {
    one->add(step_of(2, 50));
    CHECK_FALSE(one->spike(step_of(2, 50)));
    for (std::size_t i = SpikeDetector::stays; i < SpikeDetector::least; ++i) {
      CHECK_FALSE(one->spike(step_of(2, 5000)));  // too few are known
      one->add(step_of(2, 50));
    }
    CHECK(one->spike(step_of(2, 5000)));
    CHECK_FALSE(one->spike(step_of(2, 1)));
  }
}

TEST_CASE("a detector continues from its text, and refuses others") {
  const SpikeDetector detector = trained();
  SpikeDetector other(4);
  other.load(detector.state());
  CHECK(other.state() == detector.state());
  CHECK(other.spike(step_of(3)));
  for (const char* const text :
       {"", "[]", "{}", R"({"losses": [1]})", R"({"losses": [null], "norms": []})",
        R"({"losses": 3, "norms": []})", R"({"losses": [], "norms": [], "spikes": 1})",
        R"({"losses": [], "norms": [], "spikes": {"losses": [1], "norms": ["a"]}})"}) {
    INFO(text);
    has(input_error([&] { other.load(text); }), "finite numbers");
  }
  CHECK(other.state() == detector.state());
}
