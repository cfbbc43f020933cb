module;
#include <fmt/format.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <variant>
module tessera.optim;

import tessera.base;
import tessera.tensor;

namespace tessera::optim {

GradScaler::GradScaler(const GradScalerOptions& options)
    : options_(options), scale_(options.init_scale) {
  const auto check = [](const char* name, bool good, const char* expected, double got) {
    if (!good) {
      fail_input({.thing = "gradient scaler",
                  .wrong = fmt::format("{} is out of range", name),
                  .expected = expected,
                  .got = fmt::format("{}", got)});
    }
  };
  check("init_scale", options.init_scale > 0 && std::isfinite(options.init_scale),
        "more than 0 and finite", options.init_scale);
  check("growth_factor", options.growth_factor > 1 && std::isfinite(options.growth_factor),
        "more than 1 and finite", options.growth_factor);
  check("backoff_factor", options.backoff_factor > 0 && options.backoff_factor < 1,
        "more than 0 and less than 1", options.backoff_factor);
  check("growth_interval", options.growth_interval > 0, "at least 1",
        static_cast<double>(options.growth_interval));
}

void GradScaler::update(bool found_nonfinite) {
  if (found_nonfinite) {
    scale_ *= options_.backoff_factor;
    finite_steps_ = 0;
    return;
  }
  if (++finite_steps_ == options_.growth_interval) {
    const double grown = scale_ * options_.growth_factor;
    scale_ = std::isfinite(static_cast<float>(grown)) ? grown : scale_;
    finite_steps_ = 0;
  }
}

StateDict GradScaler::state() const {
  StateDict state;
  state.scalars["scale"] = scale_;
  state.scalars["growth_tracker"] = finite_steps_;
  return state;
}

void GradScaler::load(const StateDict& state) {
  const auto missing = [](const std::string& name) {
    fail_input({.thing = "gradient scaler",
                .wrong = fmt::format("the saved state has no good '{}'", name),
                .advice = "it was saved without a scaler, or is damaged"});
  };
  const auto scale = state.scalars.find("scale");
  if (scale == state.scalars.end() || !std::holds_alternative<double>(scale->second) ||
      !(std::get<double>(scale->second) > 0) || !std::isfinite(std::get<double>(scale->second))) {
    missing("scale");
  }
  const auto steps = state.scalars.find("growth_tracker");
  if (steps == state.scalars.end() || !std::holds_alternative<std::int64_t>(steps->second) ||
      std::get<std::int64_t>(steps->second) < 0) {
    missing("growth_tracker");
  }
  scale_ = std::get<double>(scale->second);
  finite_steps_ = std::get<std::int64_t>(steps->second);
}

}  // namespace tessera::optim
