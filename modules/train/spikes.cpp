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
  std::optional<Spike> found = spike_of("loss", step.loss, usual_.losses, over_);
  return found ? found : spike_of("grad_norm", step.grad_norm, usual_.norms, over_);
}

void SpikeDetector::add(const StepResult& step) {
  const bool is_spike = spike(step).has_value();
  if (is_spike && !(std::isfinite(step.loss) && std::isfinite(step.grad_norm))) {
    spikes_ = {};  // nothing that stays
    return;
  }
  if (!is_spike) {
    spikes_ = {};
  }
  Numbers& numbers = is_spike ? spikes_ : usual_;
  keep(numbers.losses, step.loss);
  keep(numbers.norms, step.grad_norm);
  if (spikes_.losses.size() == stays) {
    usual_ = std::exchange(spikes_, {});
  }
}

std::string SpikeDetector::state() const {
  nlohmann::json state = {{"losses", usual_.losses}, {"norms", usual_.norms}};
  if (!spikes_.losses.empty()) {
    state["spikes"] = {{"losses", spikes_.losses}, {"norms", spikes_.norms}};
  }
  return json_text(state);
}

void SpikeDetector::load(const std::string& state) {
  const nlohmann::json json = parse_json(state, false);
  const auto read = [](const nlohmann::json& from, const char* name) {
    std::vector<double> values;
    const bool is_list = from.is_object() && from.contains(name) && from[name].is_array();
    for (const nlohmann::json& one : is_list ? from[name] : nlohmann::json::array()) {
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
  const auto numbers = [&](const nlohmann::json& from) {
    return Numbers{.losses = read(from, "losses"), .norms = read(from, "norms")};
  };
  Numbers usual = numbers(json);
  spikes_ = json.contains("spikes") ? numbers(json["spikes"]) : Numbers();
  usual_ = std::move(usual);
}

}  // namespace tessera
