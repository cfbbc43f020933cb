#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
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
  if (problem.kind == ProblemKind::document) {
    const std::int64_t number = problem.place % problem.limit;
    const std::int64_t token = problem.position + number;
    return {.thing = thing,
            .wrong = fmt::format("documents: token {} of row {} cannot be in the document that "
                                 "begins with token {}",
                                 token, problem.place / problem.limit, problem.value),
            .expected = token == 0    ? "0"
                        : number == 0 ? fmt::format("0 to {}", token)
                                      : fmt::format("{} or {}", problem.ignored, token)};
  }
  if (problem.kind == ProblemKind::some_index) {
    return {.thing = thing,
            .wrong = "an index is out of range",
            .expected = fmt::format("0 to {}", problem.limit - 1)};
  }
  if (problem.kind == ProblemKind::group) {
    return {.thing = thing,
            .wrong = fmt::format("group {} does not fit into the rows", problem.place),
            .expected = fmt::format("0 to {} rows", problem.limit - 1),
            .got = fmt::format("{}", problem.value)};
  }
  if (problem.kind == ProblemKind::position && problem.value < 0) {
    return {
        .thing = thing,
        .wrong = fmt::format("position {} is below 0 (number {})", problem.value, problem.place)};
  }
  if (problem.kind == ProblemKind::position) {
    return {.thing = thing,
            .wrong = fmt::format("position {} is too far", problem.value),
            .expected = fmt::format("less than {}", problem.limit)};
  }
  return {.thing = thing,
          .wrong = fmt::format("target {} of row {} is out of range", problem.value, problem.place),
          .expected =
              fmt::format("0 to {}, or {} to ignore the row", problem.limit - 1, problem.ignored)};
}

}  // namespace tessera::cuda
