#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

import tessera.base;
import tessera.tensor;

#include "problem.hpp"

namespace tessera::cuda {
namespace {

std::string operator_name(int id) {
  const std::vector<const Op*> all = all_ops();
  const auto found = std::ranges::find(all, id, &Op::id);
  return found == all.end() ? "cuda" : (*found)->name;
}

}  // namespace

ErrorFields problem_fields(const Problem& problem) {
  const std::string thing = operator_name(problem.op);
  if (problem.kind == ProblemKind::index) {
    return {.thing = thing,
            .wrong = fmt::format("index {} is out of range", problem.value),
            .expected = fmt::format("0 to {}", problem.limit - 1)};
  }
  return {.thing = thing,
          .wrong = fmt::format("target {} of row {} is out of range", problem.value, problem.place),
          .expected =
              fmt::format("0 to {}, or {} to ignore the row", problem.limit - 1, problem.ignored)};
}

}  // namespace tessera::cuda
