module;
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <thread>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.ops;
import tessera.runs;
import tessera.app.base;
import tessera.app.commands;
import :bench_rows;
import :kernel_rows;

// `tessera bench kernels`: each kernel beside the bound that the machine sets.
namespace tessera::app {
namespace {

/// The rows of one number of threads. Kernel and bound take turns, and the fastest of each counts:
/// other programs only add to it.
void measure(const std::vector<KernelRow>& rows, int threads, nlohmann::ordered_json& all) {
  constexpr int rounds = 21;
  ops::set_threads(threads);
  const double flops_per_second = ops::measure_gemm(0.2);
  for (const KernelRow& row : rows) {
    row.run();  // its pages, and oneDNN's kernels
    double seconds = 1e9;
    BoundTime bound{1e9, ""};
    if (row.bound == KernelBound::products) bound = {row.flops / flops_per_second, "products"};
    for (int round = 0; round < rounds; ++round) {
      if (seconds < 0.01) {
        row.run();  // wakes the threads
      }
      seconds = std::min(seconds, runs::seconds_of(row.run));
      if (row.bound != KernelBound::products) {
        // Our threads spin for two milliseconds after a loop.
        std::this_thread::sleep_for(std::chrono::milliseconds(threads > 1 ? 3 : 0));
        const BoundTime measured = time_of_bound(row, threads);
        if (measured.seconds < bound.seconds) bound = measured;
      }
      if ((seconds > 0.1 && round >= 2) || (seconds > 0.02 && round >= 6)) {
        break;
      }
    }
    nlohmann::ordered_json cells = {
        {"name", row.name}, {"threads", threads}, {"us", seconds * 1e6}};
    if (row.flops > 0) {
      cells["gflops"] = row.flops / seconds / 1e9;
    } else {
      cells["gb_per_second"] = (row.read + row.written) / seconds / 1e9;
    }
    cells["bound"] = bound.name;
    cells["share_of_bound"] = share_cell(bound.seconds / seconds);
    all.push_back(std::move(cells));
  }
}

}  // namespace

nlohmann::ordered_json bench_kernels(const BenchArguments& arguments) {
  std::vector<KernelRow> rows = kernel_rows(arguments.elements);
  std::erase_if(rows, [&](const KernelRow& row) {
    return row.name.find(arguments.only) == std::string::npos;
  });
  nlohmann::ordered_json all = nlohmann::ordered_json::array();
  for (const int threads : std::set<int>{1, available_cores()}) {
    measure(rows, threads, all);
  }
  ops::set_threads(1);
  return all;
}

}  // namespace tessera::app
