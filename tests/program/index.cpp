// Indices of one kind of thing, and tensors that others take the place of.
#include <string>
#include <type_traits>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.program;
import tessera.passes;

#include "program_text.hpp"

using namespace tessera;

namespace {

template <class Values, class Key>
concept Reads = requires(const Values& values, Key key) { values[key]; };
template <class Key>
concept Moves = requires(Key key) { key + 1; };

std::vector<int> numbers_between(int begin, int end) {
  std::vector<int> numbers;
  for (const PlaceIndex place : Indices(PlaceIndex(begin), PlaceIndex(end))) {
    numbers.push_back(place.number);
  }
  return numbers;
}

}  // namespace

TEST_CASE("a number of one kind selects nothing of another one") {
  STATIC_REQUIRE(Reads<ByTensor<int>, TensorIndex>);
  STATIC_REQUIRE(!Reads<ByTensor<int>, PlaceIndex>);
  STATIC_REQUIRE(!Reads<ByTensor<int>, int>);
  STATIC_REQUIRE(!std::is_convertible_v<int, TensorIndex>);
  STATIC_REQUIRE(!std::is_convertible_v<TensorIndex, int>);
  STATIC_REQUIRE(Moves<PlaceIndex>);
  STATIC_REQUIRE(!Moves<TensorIndex>);
  CHECK(!TensorIndex().exists());
  CHECK(to_text(TensorIndex()) == "-");
  CHECK(to_text(TensorIndex(12)) == "%12");
}

TEST_CASE("ranges of places end before their end, and may be empty") {
  CHECK(numbers_between(2, 5) == std::vector<int>{2, 3, 4});
  CHECK(numbers_between(3, 3).empty());
  CHECK(numbers_between(5, 2).empty());
}

TEST_CASE("a tensor takes the place of others in operands and outputs") {
  Program program = graph_test::program(
      "input %0: f32[2] = x\n"
      "section gradients\n"
      "  %1: f32[2] = neg(%0)\n"
      "  %2: f32[2] = neg(%1)\n"
      "section update\n"
      "  %3: f32[2] = add(%1, %2; alpha=1)\n"
      "output %2 = y\n"
      "output %3 = z\n");
  graph::Replacement replacement(program);
  replacement.replace(TensorIndex(1), TensorIndex(0));
  replacement.replace(TensorIndex(2), TensorIndex(1));  // whose place %0 has taken
  replacement.remove(PlaceIndex(1));
  CHECK(replacement.instead_of(TensorIndex(2)) == TensorIndex(0));
  CHECK(replacement.instead_of(TensorIndex(3)) == TensorIndex(3));
  replacement.apply(program);
  CHECK(graph_test::body_of(program) ==
        "input %0: f32[2] = x\n"
        "section gradients\n"
        "  %1: f32[2] = neg(%0)\n"
        "section update\n"
        "  %3: f32[2] = add(%0, %0; alpha=1)\n"
        "output %0 = y\n"
        "output %3 = z\n");
}
