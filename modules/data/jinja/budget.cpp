#include "jinja/budget.hpp"

#include <fmt/format.h>

namespace tessera::data::jinja {
namespace {

constexpr const char* simpler = "use a simpler template, or a shorter conversation";

}  // namespace

void Budget::check_written(std::size_t bytes) const {
  if (bytes > limits_.text) {
    throw Problem(fmt::format("the text is too long (expected at most {} MiB)", limits_.text >> 20),
                  simpler);
  }
}

void Budget::out_of_steps() const {
  throw Problem(fmt::format("the template takes more than {} steps", limits_.steps), simpler);
}

void Budget::out_of_memory() const {
  throw Problem(
      fmt::format("the values of the template take more than {} MiB", limits_.memory >> 20),
      simpler);
}

void Budget::too_deep() const {
  throw Problem(fmt::format("tags, expressions and macros are nested too deeply (expected at most "
                            "{} levels)",
                            limits_.levels),
                simpler);
}

}  // namespace tessera::data::jinja
