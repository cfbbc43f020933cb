// Which form of context parallel attention is chosen: what is not hidden, by hand for a few sizes.
#include <algorithm>
#include <cstdint>
#include <string>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;

#include "../../../plugins/context_parallel/choice.hpp"

using context::AttentionSize;
using context::exposed;
using context::ExposedSeconds;
using tessera::Link;

namespace {

/// Powers of two, so that sums by hand are exact.
constexpr Link slow_link{.latency = 0x1p-10, .bandwidth = 0x1p20};
constexpr AttentionSize size{.ranks = 4,
                             .batch = 2,
                             .tokens = 64,
                             .heads = 8,
                             .kv_heads = 4,
                             .key_dim = 16,
                             .value_dim = 16,
                             .element_bytes = 2,
                             .sum_bytes = 4};
constexpr double never = 0x1p100;  // operations in a second: computing takes no time

}  // namespace

TEST_CASE("an exchange of heads waits for its four tensors, both ways", "[choice]") {
  // (2 H + 2 KV) D t (n - 1) / n elements of 2 bytes for each sequence.
  const double bytes = 2.0 * (2 * 8 + 2 * 4) * 16 * 64 * 3 / 4 * 2;
  CHECK(exposed(size, slow_link, never).all_to_all == 2 * (4 * 0x1p-10 + bytes * 0x1p-20));
  CHECK(exposed(size, slow_link, 1).all_to_all == exposed(size, slow_link, never).all_to_all);
}

TEST_CASE("a ring waits for what its products do not hide", "[choice]") {
  const double block = 2.0 * 2 * 4 * 16 * 64;  // elements of keys and values
  const double hop = 0x1p-10 + 2 * block * 0x1p-20;
  const double of_gradients = 0x1p-10 + 4 * block * 0x1p-20;
  AttentionSize unbalanced = size;
  unbalanced.balance = false;
  CHECK(exposed(unbalanced, slow_link, never).ring == 3 * (hop + hop + of_gradients));
  CHECK(exposed(unbalanced, slow_link, 1).ring == 0);
  // The last rank has half of the pairs of its own chunk, and all of every other one.
  const double pairs = 2.0 * 8 * 64 * 64;
  const double flops = 2 * (16 + 16) * pairs / hop;  // a whole block takes as long as a hop
  const double own = hop / 2 + (hop + of_gradients - 1.25 * hop);
  CHECK(exposed(unbalanced, slow_link, flops).ring ==
        Approx(own + 2 * (hop + of_gradients - 2.5 * hop)));
}

TEST_CASE("a balanced ring waits for the end of its results, and for what is not hidden before",
          "[choice]") {
  const double latency = 0x1p-10;
  const double block = 2.0 * 2 * 4 * 16 * 64;  // elements of keys and values
  const double queries = 2.0 * 8 * 16 * 64;    // of results too
  const auto seconds = [](double elements, double bytes) { return bytes * elements * 0x1p-20; };
  // Half of the heads of half of the results.
  const double end = latency + seconds(queries / 4, 2);
  CHECK(exposed(size, slow_link, 1).ring == end);
  const double in = 2 * latency + seconds((queries + block) / 2, 2);
  const double gradients_in = 2 * latency + seconds(queries / 2, 2);
  const double gradients_out = latency + seconds(queries / 2, 2);
  const double hop = latency + seconds(block, 2);
  const double hop_of_gradients = latency + seconds(block, 4);
  const double second_keys = 2 * latency + seconds(block / 2, 4);
  CHECK(exposed(size, slow_link, never).ring ==
        Approx(3 * (2 * hop + hop_of_gradients) + second_keys + in + 2 * end + gradients_in +
               gradients_out));
  // A step of the ring, of half of a chunk's pairs, takes as long as keys and queries to come: a
  // quarter of it is the own first half.
  const double flops = 2 * (16 + 16) * (2.0 * 8 * 64 * 64 / 2) / in;
  const double of_hops = std::max(0.0, hop - 0.75 * in) + 2 * std::max(0.0, hop - in);
  const double of_gradients =
      std::max(0.0, hop + hop_of_gradients + second_keys - 2.5 * 0.75 * in) +
      2 * std::max(0.0, hop + hop_of_gradients - 2.5 * in);
  CHECK(exposed(size, slow_link, flops).ring ==
        Approx(of_hops + of_gradients + 0.75 * in + end + std::max(0.0, end - in / 2) +
               std::max(0.0, gradients_in - 2.5 * in / 8) +
               std::max(0.0, gradients_out - 2.5 * in / 8)));
  // With one head of keys nothing is computed in two parts: results wait for nothing before them,
  // and the own first half is computed before gradients come.
  AttentionSize one_head = size;
  one_head.kv_heads = 1;
  CHECK(exposed(one_head, slow_link, 1).ring ==
        Approx(2 * latency + seconds(queries / 2, 2) + seconds(queries / 2, 2)));
}

TEST_CASE("long sequences over many ranks move in a ring, short ones exchange heads", "[choice]") {
  const auto chosen = [](std::int64_t ranks, std::int64_t tokens, const Link& through,
                         std::int64_t window) {
    AttentionSize one = size;
    one.ranks = ranks;
    one.tokens = tokens;
    one.sight.window = window;
    const ExposedSeconds seconds = exposed(one, through, 5e10);
    return std::string(seconds.ring < seconds.all_to_all ? "ring" : "all_to_all");
  };
  const Link fast{.latency = 1e-5, .bandwidth = 5e9};
  CHECK(chosen(4, 8, fast, 0) == "all_to_all");  // latencies of hops
  CHECK(chosen(4, 16384, fast, 0) == "ring");    // all but the end of results is hidden
  CHECK(chosen(2, 16384, fast, 0) == "ring");
  CHECK(chosen(3, 16384, fast, 1000) == "ring");  // keys move once, and nothing else
  CHECK(chosen(4, 1024, {.latency = 1e-5, .bandwidth = 1e7}, 0) ==
        "all_to_all");  // hops are longer
}
