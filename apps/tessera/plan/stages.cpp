module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.plan;

import tessera.base;
import tessera.pipeline;
import tessera.mesh;
import tessera.device;
import tessera.tensor;
import tessera.ops;
import tessera.program;
import tessera.parallel;
import tessera.train;
import tessera.app.base;
import tessera.app.config;
import tessera.hub;
import tessera.runs;

namespace tessera::app {
namespace {

using pipeline::Work;

/// The calls of a rank's step, each by itself: a program whose instructions have operands of their
/// shapes and types, which nothing computes. What each is for is in `parts`.
class CallsOfStages final : public Mode {
 public:
  /// `actions`: the rank's, whose phases are told apart.
  explicit CallsOfStages(const std::vector<pipeline::Action>& actions) {
    program_.rank = current_rank();
    program_.sections.emplace_back();
    for (const pipeline::Action& action : actions) {
      actions_[to_string(action)] = action;
    }
  }

  Tensors call(const Call& call, NextCall& next) override {
    Tensors out = next(call);
    Instruction i{.op = &call.op, .attributes = call.attributes};
    std::map<std::string, int> same;
    for (const Tensor& x : call.in) {
      i.in.push_back(x ? input(x, same) : TensorIndex());
    }
    if (!call.op.in_place) {  // otherwise it returns its operand
      for (const Tensor& x : out) {
        i.out.push_back(x ? made(x) : TensorIndex());
      }
    }
    program_.sections.front().instructions.push_back(std::move(i));
    parts.push_back(part_);
    return out;
  }

  void perform(tessera::Action& action, NextAction& next) override {
    const auto found =
        action.kind == ActionKind::phase ? actions_.find(std::string(action.name)) : actions_.end();
    if (found == actions_.end()) {
      next(action);
      return;
    }
    part_ = &found->second;
    next(action);
    part_ = nullptr;
  }

  const Program& program() const { return program_; }
  /// By place: the action to which the call belongs; null: none.
  std::vector<const pipeline::Action*> parts = {};

 private:
  /// Calls share operands, as nothing is computed; those of one call are apart. `same`: how many
  /// of each form it has already.
  TensorIndex input(const Tensor& x, std::map<std::string, int>& same) {
    const std::string form = fmt::format("{} {}", name_of(x.dtype()), to_string(x.shape()));
    const std::string name = fmt::format("{} {}", form, same[form]++);
    const auto found = program_.inputs.find(name);
    if (found != program_.inputs.end()) {
      return found->second.tensor;
    }
    return program_.inputs[name].tensor = made(x);
  }
  TensorIndex made(const Tensor& x) {
    ProgramTensor of;
    of.shape = x.shape();
    of.dtype = x.dtype();
    return program_.tensors.add(of);
  }

  Program program_ = {};
  std::map<std::string, pipeline::Action> actions_ = {};
  const pipeline::Action* part_ = nullptr;
};

/// Kernels with the host's time, and collectives beside them.
struct PartTime {
  double computing = 0;
  double communicating = 0;
  double seconds(const Hardware& hardware) const {
    return hardware.overlaps ? std::max(computing, communicating) : computing + communicating;
  }
};

/// What one rank of the axis does.
struct PlaceTimes {
  std::map<std::pair<int, Work>, PartTime> actions = {};  // of a stage, all micro-batches
  PartTime rest = {};
  StepTimes sums = {};  // of everything, one after the other
};

/// A step of a rank on the meta device, in the state that training settles in.
struct RecordedPlace {
  std::unique_ptr<const CallsOfStages> calls = {};
  double host = 0;  // seconds of all calls together, besides kernels and collectives
  pipeline::Schedule schedule = {};
  std::vector<int> ranks = {};  // of the axis
};
/// Of the calling rank.
RecordedPlace record_place(const runs::Run& run, const runs::StepSetup& setup,
                           const runs::Trial& trial, const Planner& planner) {
  ops::set_threads(runs::threads_of_rank(run.config));
  runs::Trainer trainer(run, setup);
  trainer.set_capture(false);
  const parallel::Stages& stages = *trainer.plan().stages();
  RecordedPlace place{.schedule = stages.schedule(static_cast<int>(trial.rows / trial.micro)),
                      .ranks = stages.group().group->ranks};
  MetaReads reads;
  const ModeScope answers(ModeLevel::below_distribution, reads);
  const PlannedMemoryScope planned;
  trainer.step();  // makes what stays
  auto calls = std::make_unique<CallsOfStages>(
      place.schedule.actions[static_cast<std::size_t>(stages.place())]);
  {
    const ModeScope watched(ModeLevel::below_distribution, *calls);
    trainer.step();
  }
  place.calls = std::move(calls);
  place.host = planner.waits_for_host(run.config) ? runs::host_seconds(trainer) : 0;
  return place;
}

/// Kernels may be measured for it, by ranks of their own: not within `as_rank`.
PlaceTimes times_of(const RecordedPlace& place, const DeviceMesh& mesh, Planner& planner) {
  const CallsOfStages& calls = *place.calls;
  const Program& program = calls.program();
  const ByPlace<double> kernels = planner.kernel_seconds(program);
  PlaceTimes times;
  SimulatedStep step;
  const auto places = graph::places_of(program);
  const double host_of_call = place.host / std::max(1.0, static_cast<double>(places.size()));
  double now = 0;
  for (const PlaceIndex at : places.keys()) {
    const pipeline::Action* const part = calls.parts[static_cast<std::size_t>(at.number)];
    PartTime& to = part == nullptr ? times.rest : times.actions[{part->stage, part->work}];
    const bool collective = graph::is_collective(*places[at]);
    const double seconds =
        collective ? collective_seconds(program, *places[at], planner.hardware()) : kernels[at];
    (collective ? to.communicating : to.computing) += seconds;
    to.computing += host_of_call;
    if (seconds > 0) {
      (collective ? step.communicating : step.computing).push_back({at, now, now + seconds});
    }
    now += seconds;
  }
  times.sums = sums_of(program, step, mesh);
  times.sums.calling = place.host;
  return times;
}

/// The seconds in which hidden states move from one stage to the next.
double transfer_seconds(const runs::Run& run, const runs::Trial& trial,
                        const std::vector<int>& ranks, const Hardware& hardware) {
  const auto dim =
      static_cast<double>(hub::sizes_of(runs::language_of(run).shape()).values.integer("dim"));
  const double element = run.config.train.precision == DType::f32 ? 4 : 2;
  const double bytes =
      static_cast<double>(trial.micro * run.config.row_sequences() * run.config.data.seq_len) *
      dim * element;
  const bool inside = ranks[0] / hardware.ranks == ranks[1] / hardware.ranks;
  const HardwareLink& link = inside ? hardware.inside : hardware.between;
  return link.latency + bytes / link.bandwidth;
}

}  // namespace

StagedStep plan_stages(const runs::Run& run, const runs::Trial& trial, Planner& planner) {
  runs::StepSetup setup = runs::setup_of(run);
  setup.states = std::make_shared<StageStates>();
  const StepScope kernels(
      [&](StepContext& step) { step.planned_device = runs::device_of(run.config, 0, 1).type; });
  std::vector<RecordedPlace> recorded(1);
  as_rank(0, [&] { recorded[0] = record_place(run, setup, trial, planner); });
  const std::vector<int> ranks = recorded[0].ranks;
  for (std::size_t place = 1; place < ranks.size(); ++place) {
    as_rank(ranks[place], [&] { recorded.push_back(record_place(run, setup, trial, planner)); });
  }
  std::vector<PlaceTimes> places;
  for (const RecordedPlace& place : recorded) {
    places.push_back(times_of(place, setup.mesh, planner));
  }
  const Hardware& hardware = planner.hardware();
  StagedStep all{.schedule = recorded[0].schedule};
  const double micro_batches = all.schedule.micro_batches;
  for (int stage = 0; stage < all.schedule.stages(); ++stage) {
    auto& actions = places[static_cast<std::size_t>(
                               all.schedule.rank_of_stage[static_cast<std::size_t>(stage)])]
                        .actions;
    const auto mean = [&](Work work) {
      return actions[{stage, work}].seconds(hardware) / micro_batches;
    };
    all.costs.stages.push_back({.forward = mean(Work::forward),
                                .input_gradient = mean(Work::backward) + mean(Work::input_gradient),
                                .weight_gradient = mean(Work::weight_gradient)});
  }
  all.costs.transfer = ranks.size() < 2 ? 0 : transfer_seconds(run, trial, ranks, hardware);
  all.simulation = simulate(all.schedule, all.costs);
  double after = 0;
  for (const PlaceTimes& place : places) {
    all.rest.push_back(place.rest.seconds(hardware));
    after = std::max(after, all.rest.back());
  }
  const auto longest = std::ranges::max_element(
      places, {}, [](const PlaceTimes& place) { return place.sums.computing; });
  all.times = longest->sums;
  all.times.seconds = all.simulation.end + after;
  // What passes beside kernels is in the times of actions; the ranks wait for nothing else.
  all.times.waiting = 0;
  for (const auto& [action, time] : longest->actions) {
    if (computes(action.second)) {
      all.times.waiting += time.seconds(hardware) - time.computing;
    }
  }
  all.times.waiting += longest->rest.seconds(hardware) - longest->rest.computing;
  return all;
}

TableRows staged_rows(const StagedStep& step) {
  return {{"pipeline",
           fmt::format("{}: {} on {}, {} micro-batches, bubble {:.1f}%; {:.3g} ms "
                       "between two stages",
                       step.schedule.name, count_text(step.schedule.stages(), "stage"),
                       count_text(step.schedule.ranks(), "rank"), step.schedule.micro_batches,
                       100 * step.simulation.bubble(), 1e3 * step.costs.transfer)}};
}

std::string staged_table(const StagedStep& step, const runs::Trial& trial) {
  TableRows rows = {
      {"ranks", "stages", "forward ms", "backward ms", "computes", "after ms", "memory"}};
  for (std::size_t rank = 0; rank < step.rest.size(); ++rank) {
    double forward = 0;
    double backward = 0;
    for (const int stage : step.schedule.stages_of(static_cast<int>(rank))) {
      const pipeline::StageCost& cost = step.costs.stages[static_cast<std::size_t>(stage)];
      forward += cost.forward;
      backward += cost.input_gradient + cost.weight_gradient;
    }
    rows.push_back(
        {fmt::format("{}", rank), trial.places[rank].stages, fmt::format("{:.3g}", 1e3 * forward),
         fmt::format("{:.3g}", 1e3 * backward),
         fmt::format("{:.1f}%", 100 * step.simulation.busy[rank] / step.simulation.end),
         fmt::format("{:.3g}", 1e3 * step.rest[rank]),
         format_bytes(static_cast<std::uint64_t>(trial.places[rank].memory.total_peak))});
  }
  return format_table(rows);
}

std::string staged_json(const ForecastRun& run, const StagedStep& step) {
  nlohmann::ordered_json all = parse_ordered_json(planned_json(run));
  auto stages = nlohmann::ordered_json::array();
  for (const pipeline::StageCost& cost : step.costs.stages) {
    stages.push_back({{"forward_seconds", cost.forward},
                      {"input_gradient_seconds", cost.input_gradient},
                      {"weight_gradient_seconds", cost.weight_gradient}});
  }
  all["pipeline"] = {{"schedule", step.schedule.name},
                     {"micro_batches", step.schedule.micro_batches},
                     {"seconds", step.simulation.end},
                     {"bubble", step.simulation.bubble()},
                     {"transfer_seconds", step.costs.transfer},
                     {"stages", stages},
                     {"seconds_after", step.rest}};
  return json_text(all, 2) + "\n";
}

}  // namespace tessera::app
