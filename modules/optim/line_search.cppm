// The line search of L-BFGS.
module tessera.optim:line_search;

import tessera.base;
import tessera.tensor;

namespace tessera::optim {

/// A number for each parameter's elements: a vector of the space that is searched.
using Point = std::vector<Tensor>;

/// A step length that was tried: the loss, the gradient and its slope along the direction.
struct Trial {
  double t = 0;
  double loss = 0;
  Point gradient = {};
  double slope = 0;
};

/// Searches from `start` (t = 0) along a direction, with at most `most` evaluations after the first
/// one. Source: Nocedal and Wright, 2006, algorithms 3.5 and 3.6, with c1 = 1e-4 and c2 = 0.9.
Trial strong_wolfe(const std::function<Trial(double)>& evaluate, const Trial& start, double t,
                   double length, double tolerance, std::int64_t most);

}  // namespace tessera::optim
