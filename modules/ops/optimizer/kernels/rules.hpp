#pragma once
// The numbers of optimizers' steps, from the settings of their operators. A device's kernels have
// them from here too.

#include <cmath>
#include <cstdint>

#include "optimizer/functions/adadelta.hpp"
#include "optimizer/functions/adagrad.hpp"
#include "optimizer/functions/adam.hpp"
#include "optimizer/functions/adamax.hpp"
#include "optimizer/functions/asgd.hpp"
#include "optimizer/functions/lion.hpp"
#include "optimizer/functions/nadam.hpp"
#include "optimizer/functions/radam.hpp"
#include "optimizer/functions/rmsprop.hpp"
#include "optimizer/functions/rprop.hpp"
#include "optimizer/functions/sgd.hpp"

namespace tessera::kernels {

/// Of settings with these fields; without a decay where that is decoupled from the gradient.
template <class Settings>
functions::OwnGradient gradient_of(const Settings& settings, bool decoupled = false) {
  const double scale = settings.grad_scale;
  const double decay = settings.weight_decay;
  return {.scale = settings.maximize ? -scale : scale, .decay = decoupled ? 0.0 : decay};
}
/// The number that a decoupled decay multiplies the parameter by.
template <class Settings>
double shrink_of(const Settings& settings, bool decoupled = true) {
  return decoupled ? 1.0 - settings.lr * settings.weight_decay : 1.0;
}

/// From ops::AdadeltaStep.
template <class Settings>
functions::Adadelta adadelta_of(const Settings& s) {
  return {.gradient = gradient_of(s), .rate = s.lr, .rho = s.rho, .eps = s.eps};
}

/// From ops::AdagradStep.
template <class Settings>
functions::Adagrad adagrad_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .rate = s.lr / (1.0 + (static_cast<double>(s.step.value) - 1) * s.lr_decay),
          .eps = s.eps,
          .initial = s.initial,
          .first = s.step == 1};
}

/// From ops::AdamStep or ops::RoundedAdamStep.
template <class Settings>
functions::Adam adam_of(const Settings& s, bool decoupled) {
  functions::Adam rule = {.gradient = gradient_of(s, decoupled),
                          .shrink = shrink_of(s, decoupled),
                          .beta1 = s.beta1,
                          .beta2 = s.beta2,
                          .eps = s.eps,
                          .amsgrad = s.amsgrad};
  const auto step = static_cast<double>(s.step.value);
  rule.set_step(s.lr, 1.0 - std::pow(rule.beta1, step),
                std::sqrt(1.0 - std::pow(rule.beta2, step)));
  return rule;
}

/// From ops::AdamaxStep.
template <class Settings>
functions::Adamax adamax_of(const Settings& s) {
  const auto step = static_cast<double>(s.step.value);
  return {.gradient = gradient_of(s),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .step_size = s.lr / (1.0 - std::pow(s.beta1.value, step))};
}

/// From ops::AsgdStep.
template <class Settings>
functions::Asgd asgd_of(const Settings& s) {
  const double before = static_cast<double>(s.step.value) - 1;
  const double rate = s.lr / std::pow(1.0 + s.lambd * s.lr * before, s.alpha.value);
  const double averaged = before - s.t0;
  return {.gradient = gradient_of(s),
          .shrink = 1.0 - s.lambd * rate,
          .rate = rate,
          .weight = 1.0 / (averaged > 1.0 ? averaged : 1.0)};
}

/// From ops::LionStep.
template <class Settings>
functions::Lion lion_of(const Settings& s) {
  return {.gradient = gradient_of(s, true),
          .shrink = shrink_of(s),
          .rate = s.lr,
          .beta1 = s.beta1,
          .beta2 = s.beta2};
}

/// mu_step.
template <class Settings>
double momentum_of(const Settings& s, double step) {
  return s.beta1 * (1.0 - 0.5 * std::pow(0.96, step * s.momentum_decay));
}

/// mu_1 ... mu_step. What is far below the rounding of 1 - product is left out, so this ends
/// after a few hundred factors.
template <class Settings>
double product_of_momenta(const Settings& s) {
  constexpr double nothing = 1e-40;
  double product = 1;
  for (std::int64_t t = 1; t <= s.step && product > nothing; ++t) {
    product *= momentum_of(s, static_cast<double>(t));
  }
  return product;
}

/// From ops::NAdamStep.
template <class Settings>
functions::NAdam nadam_of(const Settings& s) {
  const auto step = static_cast<double>(s.step.value);
  const double mu = momentum_of(s, step);
  const double next = momentum_of(s, step + 1);
  const double product = product_of_momenta(s);
  return {.gradient = gradient_of(s, s.decoupled),
          .shrink = shrink_of(s, s.decoupled),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .gradient_rate = s.lr * (1.0 - mu) / (1.0 - product),
          .moment_rate = s.lr * next / (1.0 - product * next),
          .root_factor = 1.0 / std::sqrt(1.0 - std::pow(s.beta2.value, step))};
}

/// From ops::RAdamStep.
template <class Settings>
functions::RAdam radam_of(const Settings& s) {
  const auto step = static_cast<double>(s.step.value);
  const double power2 = std::pow(s.beta2.value, step);
  const double correction2 = 1.0 - power2;
  // The length of the average of squares: its limit, and that of this step.
  const double limit = 2.0 / (1.0 - s.beta2) - 1.0;
  const double length = limit - 2.0 * step * power2 / correction2;
  const bool adaptive = length > 5.0;
  const double rectification =
      adaptive ? std::sqrt((length - 4.0) * (length - 2.0) * limit /
                           ((limit - 4.0) * (limit - 2.0) * length) * correction2)
               : 1.0;
  return {.gradient = gradient_of(s, s.decoupled),
          .shrink = shrink_of(s, s.decoupled),
          .beta1 = s.beta1,
          .beta2 = s.beta2,
          .eps = s.eps,
          .rate = s.lr / (1.0 - std::pow(s.beta1.value, step)) * rectification,
          .adaptive = adaptive};
}

/// From ops::RMSpropStep.
template <class Settings>
functions::RMSprop rmsprop_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .rate = s.lr,
          .alpha = s.alpha,
          .eps = s.eps,
          .momentum = s.momentum,
          .centered = s.centered};
}

/// From ops::RpropStep.
template <class Settings>
functions::Rprop rprop_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .decrease = s.decrease,
          .increase = s.increase,
          .smallest = s.smallest,
          .largest = s.largest,
          .initial = s.lr,
          .first = s.step == 1};
}

/// From ops::SgdStep.
template <class Settings>
functions::Sgd sgd_of(const Settings& s) {
  return {.gradient = gradient_of(s),
          .rate = s.lr,
          .momentum = s.momentum,
          .dampening = s.dampening,
          .nesterov = s.nesterov,
          .first = s.step == 1};
}

}  // namespace tessera::kernels
