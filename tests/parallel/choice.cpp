// Which form of context parallel attention is chosen: what is not hidden, by hand for a few sizes.
#include <cstdint>
#include <string>

#include "catch.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;

#include "../../plugins/context_parallel/choice.hpp"

using context::AttentionSize;
using context::Exposed;
using context::exposed;
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
  // Halves are exchanged as queries, keys and results, and as their gradients in the type of sums.
  const double queries = 2.0 * 8 * 16 * 64;
  const double halves =
      6 * 0x1p-10 +
      (2 * (queries + block + queries) + 2 * queries + 4 * (queries + block)) / 2 * 0x1p-20;
  CHECK(exposed(size, slow_link, 1).ring == Approx(halves));
}

TEST_CASE("long sequences over many ranks move in a ring, short ones exchange heads", "[choice]") {
  const auto chosen = [](std::int64_t ranks, std::int64_t tokens, const Link& through,
                         std::int64_t window) {
    AttentionSize one = size;
    one.ranks = ranks;
    one.tokens = tokens;
    one.sight.window = window;
    const Exposed seconds = exposed(one, through, 5e10);
    return std::string(seconds.ring < seconds.all_to_all ? "ring" : "all_to_all");
  };
  const Link fast{.latency = 1e-5, .bandwidth = 5e9};
  CHECK(chosen(4, 8, fast, 0) == "all_to_all");      // latencies of hops
  CHECK(chosen(4, 16384, fast, 0) == "ring");        // all but halves is hidden
  CHECK(chosen(2, 16384, fast, 0) == "all_to_all");  // halves are as much as heads
  CHECK(chosen(3, 16384, fast, 1000) == "ring");     // keys move once, and nothing else
  CHECK(chosen(4, 1024, {.latency = 1e-5, .bandwidth = 1e7}, 0) ==
        "all_to_all");  // hops are longer
}
