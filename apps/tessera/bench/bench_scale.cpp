module;
#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <numeric>
#include <string>
#include <tessera/json.hpp>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.collective;
import tessera.program;
import tessera.checkpoint;
import tessera.train;
import tessera.app.base;
import tessera.app.commands;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :bench_rows;

// What many ranks do besides computing, on a machine that has few cores: each path is the one that
// a run takes, with the real number of ranks.
namespace tessera::app {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

/// A number of /proc/self/status in MiB.
double status_mib(const std::string& name) {
  std::ifstream lines("/proc/self/status");
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with(name + ":")) {
      return std::stod(line.substr(name.size() + 1)) / 1024;
    }
  }
  return 0;
}

/// The time of `run`, and the memory that the process has more meanwhile.
struct Cost {
  double seconds = 0;
  double mib = 0;
};
Cost cost_of(const std::function<void()>& run) {
  std::ofstream("/proc/self/clear_refs") << 5;  // the peak restarts
  const double before = status_mib("VmRSS");
  const double seconds = runs::seconds_of(run);
  return {seconds, std::max(0.0, status_mib("VmHWM") - before)};
}

/// `done`: the ranks whose work was done one after the other; 0: all worked at the same time.
Json row(const std::string& name, int ranks, const Cost& cost, int done) {
  return {{"name", name},
          {"ranks", ranks},
          {"seconds", cost.seconds},
          {"rank_ms", done == 0 ? Json() : Json(1e3 * cost.seconds / done)},
          {"memory_mib", cost.mib}};
}

/// Some ranks of all, spread evenly.
std::vector<int> some_of(int ranks) {
  constexpr int wanted = 16;
  std::vector<int> some(static_cast<std::size_t>(std::min(ranks, wanted)));
  for (std::size_t i = 0; i < some.size(); ++i) {
    some[i] = static_cast<int>(i * static_cast<std::size_t>(ranks) / some.size());
  }
  return some;
}

/// 8 B parameters, fully sharded.
std::map<std::string, SimulatedTensor> sharded(int ranks) {
  const Layout layout = Layout::make(DeviceMesh::make({"shard"}, {ranks}), {Shard(0)});
  return llama_state({.dim = 4096, .ffn = 14336, .vocab = 128256, .layers = 32, .groups = 4},
                     layout, layout);
}

/// A run of a small Llama that all ranks shard.
runs::Run fully_sharded_run(int ranks) {
  const std::vector<std::string> overrides = {fmt::format("mesh.shape=[{}]", ranks),
                                              fmt::format("train.batch={}", ranks)};
  runs::Run run;
  run.config = parse_config(R"(
[model]
dim = 32
layers = 4
heads = 2
ffn_dim = 64
[data]
text = ["/usr/share/perl/5*/pod"]
seq_len = 8
validation = 0
[graph]
capture = true
executor = "planned"
[mesh]
axes = ["shard"]
shape = [2]
[[parallel]]
style = "FSDP"
axis = "shard"
on = ["model.layers.*", "."]
)",
                            "bench", overrides);
  run.task = runs::open_language_task(run.config);
  return run;
}

/// A step is captured; ranks start, meet, and compare its programs, as threads, whose memory is
/// that of one process.
void add_programs(Json& rows, int ranks) {
  const runs::Run run = fully_sharded_run(ranks);
  Program program;
  rows.push_back(row("plan and capture a step", ranks,
                     cost_of([&] { program = runs::capture_step(run); }), 1));
  constexpr int most = 16384;  // threads that a process can have by the usual limits
  if (ranks > most) {
    return;
  }
  const collective::LaunchOptions quiet = {.report_seconds = 1e6};  // so many take turns on a core
  const Cost meet = cost_of([&] {
    collective::run_threads(
        ranks, [](collective::World& world) { world.everyone().barrier(); }, quiet);
  });
  rows.push_back(row("start and meet", ranks, meet, 0));
  double seconds = 0;
  const Cost all = cost_of([&] {
    collective::run_threads(
        ranks,
        [&](collective::World& world) {
          world.everyone().barrier();
          const double own = runs::seconds_of([&] {
            compare_programs(world, &program);
            world.everyone().barrier();
          });
          seconds = world.rank() == 0 ? own : seconds;
        },
        quiet);
  });
  rows.push_back(row("compare their programs", ranks, {seconds, all.mib}, ranks));
}

/// Ranks save a checkpoint, and three quarters as many load it.
void add_checkpoint(Json& rows, int ranks) {
  const ScratchFolder folder("bench");
  const std::string path = (fs::path(folder.path()) / "checkpoint").string();
  const std::map<std::string, SimulatedTensor> saved = sharded(ranks);
  rows.push_back(row("plan a save, its headers and index", ranks,
                     cost_of([&] { save_without_data(path, saved, ranks); }), ranks));
  const int fewer = std::max(1, ranks * 3 / 4);
  const std::vector<int> some = some_of(fewer);
  const std::map<std::string, SimulatedTensor> wanted = sharded(fewer);
  const Cost load = cost_of([&] {
    for (const int rank : some) {
      find_parts(path, wanted, rank);
    }
  });
  rows.push_back(row(fmt::format("find its parts for {} ranks", fewer), ranks, load,
                     static_cast<int>(some.size())));

  // From memory to memory: which rank sends what to whom.
  std::vector<int> all(static_cast<std::size_t>(ranks));
  std::iota(all.begin(), all.end(), 0);
  const Cost moves = cost_of([&] {
    for (const auto& [name, tensor] : wanted) {
      transfers(saved.at(name).layout, all, tensor.layout, some, tensor.info.shape);
    }
  });
  rows.push_back(row(fmt::format("plan the transfers to {} ranks", fewer), ranks, moves,
                     static_cast<int>(some.size())));
}

}  // namespace

Json bench_scale(const BenchArguments& arguments) {
  runs::facts_of(fully_sharded_run(2));  // loads the plugins
  Json rows = Json::array();
  for (int ranks = 64; ranks <= arguments.ranks; ranks *= 4) {
    add_programs(rows, ranks);
    add_checkpoint(rows, ranks);
  }
  return rows;
}

}  // namespace tessera::app
