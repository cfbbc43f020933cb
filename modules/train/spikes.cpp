module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.train;

import tessera.base;

namespace tessera {
namespace {

double median(std::vector<double> values) {
  const auto middle = values.begin() + std::ssize(values) / 2;
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) {
    return *middle;
  }
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

std::optional<Spike> spike_of(const char* name, double value, const std::vector<double>& before,
                              double over) {
  constexpr double normal = 1.4826;      // standard deviations in a median absolute deviation
  constexpr double least_spread = 0.01;  // of the median
  const bool known = before.size() >= SpikeDetector::least;
  const double usual = before.empty() ? 0 : median(before);
  std::vector<double> distances(before.size());
  std::ranges::transform(before, distances.begin(),
                         [&](double one) { return std::abs(one - usual); });
  const double spread =
      before.empty() ? 0 : std::max(normal * median(distances), least_spread * std::abs(usual));
  const bool is_spike = !std::isfinite(value) || (known && value > usual + over * spread);
  return is_spike ? std::optional(Spike{name, value, usual, spread}) : std::nullopt;
}

void keep(std::vector<double>& values, double value) {
  if (values.size() == SpikeDetector::window) {
    values.erase(values.begin());
  }
  values.push_back(value);
}

}  // namespace

SpikeDetector::SpikeDetector(double over) : over_(over) {
  if (!(over > 0) || !std::isfinite(over)) {
    fail({.thing = "spikes",
          .wrong = "the limit is not a number of spreads",
          .expected = "a finite number above 0",
          .got = fmt::format("{}", over)});
  }
}

std::optional<Spike> SpikeDetector::spike(const StepResult& step) const {
  std::optional<Spike> found = spike_of("loss", step.loss, losses_, over_);
  return found ? found : spike_of("grad_norm", step.grad_norm, norms_, over_);
}

void SpikeDetector::add(const StepResult& step) {
  if (!spike(step)) {
    keep(losses_, step.loss);
    keep(norms_, step.grad_norm);
  }
}

std::string SpikeDetector::state() const {
  return json_text(nlohmann::json{{"losses", losses_}, {"norms", norms_}});
}

void SpikeDetector::load(const std::string& state) {
  const nlohmann::json json = parse_json(state, false);
  const auto read = [&](const char* name) {
    std::vector<double> values;
    const bool is_list = json.is_object() && json.contains(name) && json[name].is_array();
    for (const nlohmann::json& one : is_list ? json[name] : nlohmann::json::array()) {
      values.push_back(one.is_number() ? one.get<double>() : NAN);
    }
    if (!is_list || values.size() > window ||
        !std::ranges::all_of(values, [](double one) { return std::isfinite(one); })) {
      fail_input({.thing = "spikes",
                  .wrong = fmt::format("the state has no list '{}' of at most {} finite numbers",
                                       name, window),
                  .advice = "use another checkpoint"});
    }
    return values;
  };
  std::vector<double> losses = read("losses");
  norms_ = read("norms");
  losses_ = std::move(losses);
}

}  // namespace tessera
