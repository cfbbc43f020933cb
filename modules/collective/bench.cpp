module;
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>
module tessera.collective;

import tessera.base;
import tessera.communication;
import :bench;

namespace tessera::collective {
namespace {

using Clock = std::chrono::steady_clock;

/// The call that a measurement repeats; it receives the number of the round, so that buffers
/// rotate.
using Body = std::function<void(int round)>;

/// Time per call of the slowest rank in the fastest batch: other programs only add to it.
double measure(Communicator& c, int calls, const Body& body) {
  constexpr int batches = 15;
  double best = 0;
  int round = 0;
  for (int batch = -1; batch < batches; ++batch) {  // the first warms up
    c.barrier();
    const auto begin = Clock::now();
    for (int i = 0; i < calls; ++i) {
      body(round++);
    }
    double seconds = std::chrono::duration<double>(Clock::now() - begin).count() / calls;
    c.all_reduce(&seconds, &seconds, 1, DType::f64, ReduceOp::max);
    if (batch >= 0) {
      best = batch == 0 ? seconds : std::min(best, seconds);
    }
  }
  return best;
}

/// Buffers of one size, used in turn, so that a call does not find all of its data in the cache
/// only because the call before it was the same.
template <class Memory>
struct Rotation {
  std::vector<Memory> buffers;
  std::byte* at(int round) {
    return reinterpret_cast<std::byte*>(
        buffers[static_cast<std::size_t>(round) % buffers.size()].data());
  }
};

}  // namespace

std::vector<CollectiveRate> measure_collectives(Communicator& c,
                                                const std::vector<std::size_t>& sizes) {
  const auto ranks = static_cast<std::size_t>(c.size());
  std::vector<CollectiveRate> rates;
  for (const std::size_t bytes : sizes) {
    const auto count = static_cast<std::int64_t>(bytes / 4);
    const std::int64_t row = count / c.size();
    const std::size_t row_bytes = static_cast<std::size_t>(row) * 4;
    constexpr std::size_t turns = 4;
    Rotation<SharedBuffer> shared;
    Rotation<std::vector<float>> own;
    Rotation<std::vector<float>> out;
    for (std::size_t i = 0; i < turns; ++i) {
      shared.buffers.push_back(c.allocate(bytes));
      std::memset(shared.buffers.back().data(), 0, bytes);
      own.buffers.emplace_back(bytes / 4);
      out.buffers.emplace_back(bytes / 4);
    }
    const int calls =
        static_cast<int>(std::clamp<std::size_t>((std::size_t{4} << 20) / bytes, 1, 50));
    const std::size_t remote = row_bytes * (ranks - 1);
    const auto add = [&](const std::string& name, std::size_t received, const Body& body) {
      const double copying = measure(c, calls, [&](int i) {
        // At most as much at a time as the buffers hold.
        for (std::size_t left = received; left > 0; left -= std::min(left, bytes)) {
          std::memcpy(out.at(i), own.at(i), std::min(left, bytes));
        }
      });
      const double seconds = measure(c, calls, body);
      rates.push_back(
          {name, bytes, seconds, static_cast<double>(received), copying, copying / seconds});
    };
    const auto own_row = static_cast<std::size_t>(c.rank()) * row_bytes;
    add("all_gather in place", remote,
        [&](int i) { c.all_gather(shared.at(i) + own_row, shared.at(i), row, DType::f32); });
    const auto all_kinds = [&](const char* suffix, const std::function<std::byte*(int)>& source) {
      add(std::string("all_gather") + suffix, row_bytes * ranks,
          [&](int i) { c.all_gather(source(i), out.at(i), row, DType::f32); });
      add(std::string("reduce_scatter") + suffix, remote,
          [&](int i) { c.reduce_scatter(source(i), out.at(i), row, DType::f32); });
      // A sum receives its own piece from all peers, and their pieces.
      add(std::string("all_reduce") + suffix, 2 * remote,
          [&](int i) { c.all_reduce(source(i), source(i), count, DType::f32); });
    };
    all_kinds("", [&](int i) { return shared.at(i); });
    all_kinds(" (private)", [&](int i) { return own.at(i); });
  }
  return rates;
}

}  // namespace tessera::collective
