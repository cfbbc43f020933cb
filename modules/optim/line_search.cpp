module;
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <utility>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.tensor;
import :line_search;

namespace tessera::optim {
namespace {

/// The minimum of the cubic polynomial through two trials, within the bounds.
double interpolated(const Trial& a, const Trial& b, double low, double high) {
  const Trial& x1 = a.t <= b.t ? a : b;
  const Trial& x2 = a.t <= b.t ? b : a;
  const double d1 = a.slope + b.slope - 3 * (a.loss - b.loss) / (a.t - b.t);
  const double square = d1 * d1 - a.slope * b.slope;
  if (!(square >= 0)) {
    return (low + high) / 2;
  }
  const double d2 = std::sqrt(square);
  const double position =
      x2.t - (x2.t - x1.t) * ((x2.slope + d2 - d1) / (x2.slope - x1.slope + 2 * d2));
  return std::min(std::max(position, low), high);
}

}  // namespace

Trial strong_wolfe(const std::function<Trial(double)>& evaluate, const Trial& start, double t,
                   double length, double tolerance, std::int64_t most) {
  constexpr double c1 = 1e-4;
  constexpr double c2 = 0.9;
  const auto too_high = [&](const Trial& x) {
    return x.loss > start.loss + c1 * x.t * start.slope;
  };
  const auto is_flat = [&](const Trial& x) { return std::abs(x.slope) <= -c2 * start.slope; };
  Trial last = start;
  Trial now = evaluate(t);
  std::int64_t tried = 0;
  std::vector<Trial> bracket;
  while (tried < most) {
    if (too_high(now) || (tried > 1 && now.loss >= last.loss)) {
      bracket = {last, now};
      break;
    }
    if (is_flat(now)) {
      return now;
    }
    if (now.slope >= 0) {
      bracket = {last, now};
      break;
    }
    const double next = interpolated(last, now, now.t + 0.01 * (now.t - last.t), now.t * 10);
    last = std::exchange(now, evaluate(next));
    ++tried;
  }
  if (bracket.empty()) {
    bracket = {start, now};
  }
  bool little_progress = false;
  std::size_t low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
  while (tried < most) {
    const double first = std::min(bracket[0].t, bracket[1].t);
    const double second = std::max(bracket[0].t, bracket[1].t);
    if ((second - first) * length < tolerance) {
      break;
    }
    double next = interpolated(bracket[0], bracket[1], first, second);
    // Trials near a border of the bracket twice in a row are moved inwards.
    const double margin = 0.1 * (second - first);
    if (std::min(second - next, next - first) < margin) {
      if (little_progress || next >= second || next <= first) {
        next = std::abs(next - second) < std::abs(next - first) ? second - margin : first + margin;
        little_progress = false;
      } else {
        little_progress = true;
      }
    } else {
      little_progress = false;
    }
    now = evaluate(next);
    ++tried;
    const std::size_t high = 1 - low;
    if (too_high(now) || now.loss >= bracket[low].loss) {
      bracket[high] = now;
      low = bracket[0].loss <= bracket[1].loss ? 0 : 1;
      continue;
    }
    const bool done = is_flat(now);
    if (!done && now.slope * (bracket[high].t - bracket[low].t) >= 0) {
      bracket[high] = bracket[low];
    }
    bracket[low] = now;
    if (done) {
      break;
    }
  }
  return bracket[low];
}

}  // namespace tessera::optim
