// L-BFGS: the two loops over the history. As torch.optim.LBFGS, which follows minFunc.
module;
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>
module tessera.optim;

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import :line_search;
import :total;

namespace tessera::optim {
namespace {

double total(const Point& a, const std::function<Tensor(std::size_t)>& term, bool maximum = false) {
  std::vector<Tensor> terms;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].numel() != 0) {
      terms.push_back(ops::cast(term(i), DType::f64));
    }
  }
  const Tensor sum = total_of(std::move(terms), maximum);
  return sum ? sum.item() : 0;
}

double dot(const Point& a, const Point& b) {
  return total(a, [&](std::size_t i) { return ops::sum(ops::mul(a[i], b[i])); });
}
double largest(const Point& a) {
  return total(a, [&](std::size_t i) { return largest_magnitude(a[i]); }, true);
}
double sum_of_magnitudes(const Point& a) {
  return total(a, [&](std::size_t i) { return ops::sum(ops::abs(a[i])); });
}

Point scaled(const Point& a, double factor) {
  Point result;
  for (const Tensor& x : a) {
    result.push_back(ops::mul_scalar(x, factor));
  }
  return result;
}
Point difference(const Point& a, const Point& b) {
  Point result;
  for (std::size_t i = 0; i < a.size(); ++i) {
    result.push_back(ops::sub(a[i], b[i]));
  }
  return result;
}
void add(const Point& to, const Point& x, double factor) { ops::foreach_add_(to, x, factor); }

void check_number(bool good, const char* name, const char* expected, double got) {
  if (!good) {
    fail_input({.thing = "lbfgs",
                .wrong = fmt::format("{} is out of range", name),
                .expected = expected,
                .got = fmt::format("{}", got)});
  }
}

}  // namespace

struct Lbfgs::State {
  std::vector<nn::ParameterPointer> parameters;
  LbfgsOptions options;
  std::int64_t evaluations = 0;
  std::int64_t iterations = 0;
  // State of the last iteration.
  Point direction = {};
  Point gradient = {};
  double t = 0;
  double diagonal = 1;              // the first approximation of the inverse Hessian
  std::vector<Point> changes = {};  // of the gradient, the oldest first
  std::vector<Point> steps = {};
  std::vector<double> factors = {};  // 1 / (change . step)

  Point gradients() const {
    Point all;
    for (const nn::ParameterPointer& p : parameters) {
      const Tensor& gradient_of = p->value.grad();
      if (gradient_of && gradient_of.spec() != p->value.spec()) {
        fail({.thing = "lbfgs",
              .wrong = fmt::format("the gradient of '{}' has the wrong layout", p->name),
              .expected = p->value.is_distributed() ? to_string(*p->value.spec()) : "plain",
              .got = gradient_of.is_distributed() ? to_string(*gradient_of.spec()) : "plain",
              .advice = "call finish() of a parallel::GradientFinisher in the closure"});
      }
      all.push_back(gradient_of ? ops::cast(gradient_of, p->value.dtype())
                                : ops::zeros_like(detached(p->value)));
    }
    return all;
  }
  Point values() const {
    Point all;
    for (const nn::ParameterPointer& p : parameters) {
      all.push_back(detached(p->value));
    }
    return all;
  }
  double evaluate(const std::function<double()>& closure) {
    ++evaluations;
    const NoGrad not_here(true);
    return closure();
  }

  /// The direction in which to search, from the history.
  void turn(const Point& now) {
    if (iterations == 1) {
      direction = scaled(now, -1);
      return;
    }
    Point change = difference(now, gradient);
    Point step = scaled(direction, t);
    const double curvature = dot(change, step);
    if (curvature > 1e-10) {
      if (static_cast<std::int64_t>(changes.size()) == options.history_size) {
        changes.erase(changes.begin());
        steps.erase(steps.begin());
        factors.erase(factors.begin());
      }
      diagonal = curvature / dot(change, change);
      changes.push_back(std::move(change));
      steps.push_back(std::move(step));
      factors.push_back(1 / curvature);
    }
    std::vector<double> shares(changes.size());
    direction = scaled(now, -1);
    for (std::size_t i = changes.size(); i-- > 0;) {
      shares[i] = dot(steps[i], direction) * factors[i];
      add(direction, changes[i], -shares[i]);
    }
    direction = scaled(direction, diagonal);
    for (std::size_t i = 0; i < changes.size(); ++i) {
      const double share = dot(changes[i], direction) * factors[i];
      add(direction, steps[i], shares[i] - share);
    }
  }
};

Lbfgs::Lbfgs(std::vector<nn::ParameterPointer> parameters, const LbfgsOptions& options)
    : state_(std::make_unique<State>()) {
  check_number(options.lr > 0, "lr", "more than 0", options.lr);
  check_number(options.max_iter > 0, "max_iter", "at least 1",
               static_cast<double>(options.max_iter));
  check_number(options.max_eval >= 0, "max_eval", "at least 0",
               static_cast<double>(options.max_eval));
  check_number(options.history_size > 0, "history_size", "at least 1",
               static_cast<double>(options.history_size));
  check_number(options.tolerance_grad >= 0, "tolerance_grad", "at least 0", options.tolerance_grad);
  check_number(options.tolerance_change >= 0, "tolerance_change", "at least 0",
               options.tolerance_change);
  std::ranges::copy_if(parameters, std::back_inserter(state_->parameters),
                       [](const auto& p) { return p->value.requires_grad(); });
  if (state_->parameters.empty()) {
    fail_input("lbfgs: none of the parameters is trained");
  }
  state_->options = options;
  if (options.max_eval == 0) {
    state_->options.max_eval = options.max_iter * 5 / 4;
  }
}

Lbfgs::~Lbfgs() = default;

std::int64_t Lbfgs::evaluations() const { return state_->evaluations; }

double Lbfgs::step(const std::function<double()>& closure) {
  const NoGrad no_grad;
  State& s = *state_;
  const LbfgsOptions& o = s.options;
  const std::int64_t before = s.evaluations;
  const double first_loss = s.evaluate(closure);
  if (!std::isfinite(first_loss)) {
    fail({.thing = "lbfgs", .wrong = fmt::format("the loss is {}", first_loss)});
  }
  LinePoint now{.loss = first_loss, .gradient = s.gradients()};
  if (largest(now.gradient) <= o.tolerance_grad) {
    return first_loss;
  }
  for (std::int64_t iteration = 1; iteration <= o.max_iter; ++iteration) {
    ++s.iterations;
    s.turn(now.gradient);
    s.gradient = now.gradient;
    const double last_loss = now.loss;
    s.t = s.iterations == 1 ? std::min(1.0, 1 / sum_of_magnitudes(now.gradient)) * o.lr : o.lr;
    now.slope = dot(now.gradient, s.direction);
    if (now.slope > -o.tolerance_change) {
      break;
    }
    const Point values = s.values();
    if (o.strong_wolfe) {
      Point start;
      for (const Tensor& x : values) {
        start.push_back(ops::clone(x));
      }
      const auto move = [&](double t) {
        for (std::size_t i = 0; i < values.size(); ++i) {
          ops::copy_(values[i], start[i]);
        }
        add(values, s.direction, t);
      };
      const auto evaluate = [&](double t) {
        move(t);
        LinePoint trial{.t = t, .loss = s.evaluate(closure), .gradient = s.gradients()};
        trial.slope = dot(trial.gradient, s.direction);
        return trial;
      };
      now.t = 0;
      now = strong_wolfe(evaluate, now, s.t, largest(s.direction), o.tolerance_change,
                         o.max_eval - (s.evaluations - before));
      s.t = now.t;
      move(s.t);
    } else {
      add(values, s.direction, s.t);
      if (iteration != o.max_iter) {  // nothing would read it
        now = {.loss = s.evaluate(closure), .gradient = s.gradients()};
      }
    }
    if (iteration == o.max_iter || s.evaluations - before >= o.max_eval ||
        largest(now.gradient) <= o.tolerance_grad ||
        largest(s.direction) * std::abs(s.t) <= o.tolerance_change ||
        std::abs(now.loss - last_loss) < o.tolerance_change) {
      break;
    }
  }
  return first_loss;
}

StateDict Lbfgs::state() const {
  const State& s = *state_;
  StateDict dict;
  const auto store = [&](const std::string& name, const Point& point) {
    for (std::size_t i = 0; i < point.size(); ++i) {
      dict.tensors.emplace(name + "." + s.parameters[i]->name, point[i]);
    }
  };
  store("direction", s.direction);
  store("gradient", s.gradient);
  for (std::size_t k = 0; k < s.changes.size(); ++k) {
    store(fmt::format("change{}", k), s.changes[k]);
    store(fmt::format("step{}", k), s.steps[k]);
    dict.scalars[fmt::format("factor{}", k)] = s.factors[k];
  }
  dict.scalars["history"] = static_cast<std::int64_t>(s.changes.size());
  dict.scalars["iterations"] = s.iterations;
  dict.scalars["evaluations"] = s.evaluations;
  dict.scalars["t"] = s.t;
  dict.scalars["diagonal"] = s.diagonal;
  return dict;
}

void Lbfgs::load(const StateDict& state) {
  State loaded{.parameters = state_->parameters, .options = state_->options};
  const auto refuse = [](const std::string& name) {
    fail_input({.thing = "lbfgs",
                .wrong = fmt::format("the saved state has no good '{}'", name),
                .advice = "it belongs to other parameters or layouts"});
  };
  const auto scalar = [&]<class T>(const std::string& name, T& value) {
    const auto found = state.scalars.find(name);
    if (found == state.scalars.end() || !std::holds_alternative<T>(found->second)) {
      refuse(name);
    }
    value = std::get<T>(found->second);
  };
  const auto point = [&](const std::string& name) {
    Point all;
    for (const nn::ParameterPointer& p : loaded.parameters) {
      const std::string of_parameter = name + "." + p->name;
      const auto found = state.tensors.find(of_parameter);
      if (found == state.tensors.end() || found->second.spec() != p->value.spec() ||
          !(found->second.shape() == p->value.shape()) ||
          found->second.dtype() != p->value.dtype()) {
        refuse(of_parameter);
      }
      all.push_back(ops::clone(found->second));
    }
    return all;
  };
  const NoGrad no_grad;
  std::int64_t history = 0;
  scalar("history", history);
  scalar("iterations", loaded.iterations);
  scalar("evaluations", loaded.evaluations);
  scalar("t", loaded.t);
  scalar("diagonal", loaded.diagonal);
  if (loaded.iterations > 0) {
    loaded.direction = point("direction");
    loaded.gradient = point("gradient");
  }
  for (std::int64_t k = 0; k < history; ++k) {
    loaded.changes.push_back(point(fmt::format("change{}", k)));
    loaded.steps.push_back(point(fmt::format("step{}", k)));
    scalar(fmt::format("factor{}", k), loaded.factors.emplace_back());
  }
  state_ = std::make_unique<State>(std::move(loaded));
}

}  // namespace tessera::optim
