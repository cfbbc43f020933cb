// What the tests of styles share. Include it behind the imports of tessera.base, tensor, parallel
// and plugin.
#pragma once
#include <functional>
#include <string>
#include <vector>

namespace parallel_test {

/// The shipped plugins, and nothing else.
tessera::plugin::Host& shipped_styles();

/// The same for the process' host, whose first use follows.
void use_shipped_plugins();

/// Runs `f` on ranks that are threads, each with fresh random streams of the same seed.
void on_ranks(int ranks, const std::function<void(int rank)>& f);

/// Catch's macros are for one thread: a rank throws instead.
void check(bool holds, const std::string& what);

inline bool has(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

/// The text of the error that f throws; empty when it throws none.
std::string error_of(const std::function<void()>& f);

/// The largest |a - b| / (1 + |b|); infinity where the counts differ.
double difference(const std::vector<double>& a, const std::vector<double>& b);

}  // namespace parallel_test
