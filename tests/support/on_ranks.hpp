// Ranks that are threads of the test. The header has no type of a module: include it before the
// imports.
#pragma once
#include <functional>
#include <initializer_list>

namespace tessera::testing {

/// Runs `f` on so many ranks at once, each a thread with its own World::current(), current_rank()
/// and random streams of one seed. Rethrows the first error: a rank fails by check() (errors.hpp),
/// as Catch's assertions are for one thread. No wait of a rank lasts longer than a minute.
void on_ranks(int ranks, const std::function<void(int rank)>& f);

/// The same for one number of ranks after the other.
void on_ranks(std::initializer_list<int> counts, const std::function<void(int rank)>& f);

}  // namespace tessera::testing
