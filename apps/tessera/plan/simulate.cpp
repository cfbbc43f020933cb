module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numeric>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.tensor;
import tessera.collective;
import tessera.program;

namespace tessera::app {
namespace {

using collective::CallKind;
using collective::GroupSpread;

GroupSpread spread_of(const CallGroup& group, int ranks_of_machine) {
  std::map<int, int> on_machine;
  GroupSpread spread;
  for (const int rank : group.ranks) {
    spread.together = std::max(spread.together, ++on_machine[rank / ranks_of_machine]);
  }
  spread.ranks = static_cast<int>(group.ranks.size());
  spread.machines = static_cast<int>(on_machine.size());
  return spread;
}

double seconds_of(std::int64_t received_bytes, CallKind kind, const GroupSpread& spread,
                  const Hardware& hardware) {
  const auto received = static_cast<double>(received_bytes);
  const double between = received * collective::share_between(kind, spread);
  const double latency = collective::rounds_of(spread.together) * hardware.inside.latency +
                         collective::rounds_of(spread.machines) * hardware.between.latency;
  const bool adds = collective::form_of(kind).combine == collective::Combine::reduce;
  const auto rate = [&](const HardwareLink& link) {
    return adds && link.sums > 0 ? link.sums : link.bandwidth;
  };
  return latency +
         std::max((received - between) / rate(hardware.inside), between / rate(hardware.between));
}

double seconds_of(const Program& program, const Instruction& collective, const GroupSpread& spread,
                  const Hardware& hardware) {
  // An operator that does not say what it calls sends what its results hold, to all alike.
  return seconds_of(graph::received_bytes(program, collective),
                    collective.op->communicates.call().value_or(CallKind::broadcast), spread,
                    hardware);
}

double length_of(const std::vector<StepSpan>& spans) {
  return std::accumulate(spans.begin(), spans.end(), 0.0, [](double sum, const StepSpan& span) {
    return sum + span.end - span.begin;
  });
}

/// Two clocks, that of the rank and that of its collectives.
class Clocks {
 public:
  Clocks(const Program& program, const Hardware& hardware)
      : program_(program), hardware_(hardware) {}

  void compute(PlaceIndex place, double seconds) {
    if (seconds > 0) {
      step_.computing.push_back({place, rank_, rank_ + seconds});
      rank_ += seconds;
    }
  }

  /// `waits_for_it`: the rank does, at once.
  void issue(PlaceIndex place, const Instruction& collective, bool waits_for_it) {
    const double seconds = seconds_of_collective(collective);
    if (hardware_.overlaps || waits_for_it) {
      start(place, seconds);
    } else {
      left_[place] = seconds;
    }
    if (waits_for_it) {
      wait(place);
    }
  }

  /// For the collective that was issued at this place.
  void wait(PlaceIndex issued) {
    if (const auto left = left_.find(issued); left != left_.end()) {
      start(issued, left->second);
      left_.erase(left);
    }
    const auto end = ends_.find(issued);
    if (end != ends_.end() && end->second > rank_) {
      step_.waiting.push_back({issued, rank_, end->second});
      rank_ = end->second;
    }
  }

  SimulatedStep finish() {
    step_.seconds = std::max(rank_, collectives_);
    return std::move(step_);
  }

 private:
  double seconds_of_collective(const Instruction& collective) {
    const CallGroup* const group = graph::group_of(collective);
    if (group == nullptr || group->is_alone()) {
      return 0;
    }
    auto spread = spreads_.find(group);
    if (spread == spreads_.end()) {
      spread = spreads_.emplace(group, spread_of(*group, hardware_.ranks)).first;
    }
    return seconds_of(program_, collective, spread->second, hardware_);
  }

  void start(PlaceIndex place, double seconds) {
    const double begin = std::max(rank_, collectives_);
    collectives_ = begin + seconds;
    ends_[place] = collectives_;
    step_.communicating.push_back({place, begin, collectives_});
  }

  const Program& program_;
  const Hardware& hardware_;
  std::map<const CallGroup*, GroupSpread> spreads_ = {};
  double rank_ = 0;
  double collectives_ = 0;
  std::map<PlaceIndex, double> ends_ = {};
  std::map<PlaceIndex, double> left_ = {};  // seconds of those that the rank makes when it waits
  SimulatedStep step_ = {};
};

}  // namespace

double SimulatedStep::computed() const { return length_of(computing); }
double SimulatedStep::communicated() const { return length_of(communicating); }
double SimulatedStep::waited() const { return length_of(waiting); }

double collective_seconds(const Program& program, const Instruction& collective,
                          const Hardware& hardware) {
  const CallGroup* const group = graph::group_of(collective);
  return group == nullptr || group->is_alone()
             ? 0
             : seconds_of(program, collective, spread_of(*group, hardware.ranks), hardware);
}

SimulatedStep simulate_step(const Program& program, const ByPlace<double>& kernels,
                            const Hardware& hardware) {
  const graph::Shadow shadow = graph::shadow_of(program);
  const ByPlace<const Instruction*> places = graph::places_of(program);
  Clocks clocks(program, hardware);
  for (const PlaceIndex place : places.keys()) {
    const Instruction& i = *places[place];
    const PlaceIndex partner = shadow.partners[place];
    if (i.op != nullptr && i.op->completes && partner.exists()) {
      clocks.wait(partner);
    } else if (graph::is_collective(i)) {
      clocks.issue(place, i, !partner.exists());
    } else {
      clocks.compute(place, kernels[place]);
    }
  }
  return clocks.finish();
}

}  // namespace tessera::app
