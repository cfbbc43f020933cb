export module tessera.pipeline:simulate;

import tessera.base;
import :schedule;

export namespace tessera::pipeline {

/// What one micro-batch costs in a stage. Times in any unit, the same for all.
struct StageCost {
  double forward = 1;
  double input_gradient = 1;
  double weight_gradient = 1;  // a backward takes both
  double kept_bytes = 0;       // of activations, from forward to the end of backward
};
struct Costs {
  std::vector<StageCost> stages = {};  // by stage; empty: 1 each, divided by the stages of a rank
  double transfer = 0;                 // from a send to its receive
};

/// An action with its time.
struct TimedAction {
  Action action;
  double begin = 0;
  double end = 0;
};

/// A step as it runs if every action takes its time and waits for nothing but its inputs.
struct Simulation {
  std::vector<std::vector<TimedAction>> ranks;  // by rank; transfers take no time of a rank
  double end = 0;
  std::vector<double> busy;        // by rank: time in which it computes
  std::vector<double> kept_bytes;  // by rank: at the peak

  /// The share of the ranks' time in which they do not compute.
  double bubble() const;
};

/// Times of a schedule that check() accepts. Error: costs of another number of stages, or costs
/// that are negative.
Simulation simulate(const Schedule& schedule, const Costs& costs = {});

/// The picture of a simulation in text, a line for each rank and one column for each `unit` of
/// time: the number of the micro-batch where it computes, "." where it waits. Above them, what the
/// letters of the kinds of work are.
std::string draw_text(const Schedule& schedule, const Simulation& simulation, double unit);

}  // namespace tessera::pipeline
