#include <algorithm>
#include <cstddef>
#include <tessera/recent_map.hpp>

#include "catch.hpp"

using tessera::RecentMap;

TEST_CASE("a recent map forgets what is not used, and keeps what is") {
  RecentMap<int, int> map(10);
  std::size_t largest = 0;
  for (int i = 0; i < 1000; ++i) {
    CHECK(map.find(i) == nullptr);
    CHECK(map.insert(i, 2 * i) == 2 * i);
    const int* const first = map.find(0);  // used in every round
    REQUIRE(first != nullptr);
    CHECK(*first == 0);
    largest = std::max(largest, map.size());
  }
  CHECK(largest <= 20);
  CHECK(map.find(500) == nullptr);
  for (int i = 991; i < 1000; ++i) {
    REQUIRE(map.find(i) != nullptr);
    CHECK(*map.find(i) == 2 * i);
  }
}

TEST_CASE("a value of a recent map stays where it is for as many calls as it holds") {
  RecentMap<int, int> map(8);
  map.insert(-1, 7);
  for (int begin = 0; begin < 100; begin += 8) {
    int* const value = map.find(-1);
    REQUIRE(value != nullptr);
    for (int i = begin; i < begin + 8; ++i) {
      map.insert(i, i);
      CHECK(*value == 7);  // the address sanitizer finds a value that is gone
    }
    CHECK(map.find(-1) == value);
  }
}
