module;
#include <cmath>
#include <limits>
module tessera.app.plan;

namespace tessera::app {

double time_by_work(const FailingRun& run) {
  if (run.interval <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  if (run.between <= 0) {
    return 1 + run.write / run.interval;
  }
  return run.between * std::exp(run.restart / run.between) *
         std::expm1((run.interval + run.write) / run.between) / run.interval;
}

double lost_share(const FailingRun& run) { return 1 - 1 / time_by_work(run); }

double best_interval(const FailingRun& run) {
  const double write = run.write;
  const double between = run.between;
  if (between <= 0) {
    return std::numeric_limits<double>::infinity();
  }
  if (write >= 2 * between) {
    return between;
  }
  const double share = write / (2 * between);
  return std::sqrt(2 * write * between) * (1 + std::sqrt(share) / 3 + share / 9) - write;
}

}  // namespace tessera::app
