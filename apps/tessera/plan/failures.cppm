export module tessera.app.plan:failures;

import tessera.base;
import tessera.app.base;

// What failures of ranks cost a long training.

export namespace tessera::app {

/// A training whose ranks fail at random: the times between failures have an exponential
/// distribution. All times in seconds.
struct FailingRun {
  double between = 0;   // the mean from one failure to the next, of all ranks together; 0: none
  double write = 0;     // in which the run stands still for a checkpoint
  double restart = 0;   // from a failure until the run computes again, the loading included
  double interval = 0;  // computing from one checkpoint to the next; 0: none is written
};

/// The expected time in which the run computes one interval's work and has written it, by the time
/// of this work itself: M e^(R / M) (e^((T + W) / M) - 1) / T. Work that a failure takes is
/// computed again, writing and restarting may fail too. J. Daly, "A higher order estimate of the
/// optimum checkpoint interval for restart dumps", FGCS 22 (2006), equation 20.
double time_by_work(const FailingRun& run);
/// The share of the time that is lost: 1 - 1 / time_by_work.
double lost_share(const FailingRun& run);

/// The interval that loses least, but for a small error: Daly's equation 37, which is Young's
/// sqrt(2 W M) for short writes. Infinite where nothing fails.
double best_interval(const FailingRun& run);

}  // namespace tessera::app
