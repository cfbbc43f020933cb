export module tessera.app.plan:simulate;

import tessera.base;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :hardware;

// A rank's step in time: its kernels one after the other, its collectives beside them.

export namespace tessera::app {

/// A part of the step, in seconds since its begin.
struct StepSpan {
  PlaceIndex place = {};
  double begin = 0;
  double end = 0;
};

/// A step of one rank, if all ranks are as fast.
struct SimulatedStep {
  std::vector<StepSpan> computing = {};      // kernels of the rank
  std::vector<StepSpan> communicating = {};  // collectives, each while it moves
  std::vector<StepSpan> waiting = {};        // of the rank for collectives, by their places
  double seconds = 0;

  double computed() const;
  double communicated() const;
  double waited() const;
};

/// Seconds of a collective while nothing else moves: see simulate_step.
double collective_seconds(const Program& program, const Instruction& collective,
                          const Hardware& hardware);

/// `kernels`: seconds of each instruction; 0 of what is none. Collectives of a rank are made in
/// their order, one at a time; where the hardware does not overlap, the rank makes each when it
/// waits for it. A collective lasts a latency for each round in which members double, first on a
/// machine and then between machines, and the longer one of what comes from its own machine and
/// from others: a group of some ranks on each of m machines moves what it gathers or sums once
/// between machines, (m - 1) / (n - 1) of what each of its n ranks receives; of an exchange, all of
/// it.
SimulatedStep simulate_step(const Program& program, const ByPlace<double>& kernels,
                            const Hardware& hardware);

}  // namespace tessera::app
