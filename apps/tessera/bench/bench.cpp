module;
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tessera/json.hpp>
#include <tessera/printable.hpp>
#include <vector>
module tessera.app.bench;

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.train;
import tessera.app.base;
import tessera.app.commands;
import tessera.app.config;
import tessera.runs;
import tessera.app.run;
import :bench_rows;

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

/// Microseconds of one call: the fastest of several batches.
double microseconds(const std::function<void()>& run, int calls) {
  double best = 1e9;
  for (int batch = 0; batch < 7; ++batch) {
    best = std::min(best, runs::seconds_of([&] {
                      for (int i = 0; i < calls; ++i) {
                        run();
                      }
                    }));
  }
  return best / calls * 1e6;
}

Json bench_gemm(const BenchArguments&) {
  Json rows = Json::array();
  for (const int count : {1, available_cores()}) {
    ops::set_threads(count);
    rows.push_back(
        {{"name", "gemm f32 768"}, {"threads", count}, {"gflops", ops::measure_gemm(0.5) / 1e9}});
  }
  ops::set_threads(1);
  return rows;
}

/// Costs of an operator on small tensors, plain and distributed: the difference is the price of a
/// layout.
Json on_two_ranks(const std::function<Json(collective::World&)>& run);

/// Costs of a small redistribution (of 16 x 8 elements) beside the collective that it consists
/// of, called with pointers.
Json redistributions(collective::World& world) {
  constexpr int calls = 2000;
  const DeviceMesh mesh = DeviceMesh::make({"data"}, {2});
  const Layout whole = Layout::replicated(mesh);
  const Layout sharded = whole.with_placement(0, Shard(0));
  const Tensor all = full({16, 8}, 0.5);
  const Tensor shard = full({8, 8}, 0.5);
  const Tensor into_all = empty({16, 8});
  const Tensor into_shard = empty({8, 8});
  collective::Communicator& group = world.everyone();
  Json rows = Json::array();
  const auto add = [&](const char* name, const Tensor& x, const Layout& to, auto transport) {
    const double transport_us = microseconds(transport, calls);
    const double us = microseconds([&] { redistribute(x, to); }, calls);
    rows.push_back({{"name", name},
                    {"mesh", to_string(mesh)},
                    {"transport_us", transport_us},
                    {"distributed_us", us},
                    {"overhead_us", us - transport_us}});
  };
  add("Shard to Replicate", from_local(shard, sharded), whole,
      [&] { group.all_gather(shard.raw_data(), into_all.raw_data(), shard.numel(), DType::f32); });
  add("Partial to Shard", from_local(all, whole.with_placement(0, Partial())), sharded, [&] {
    group.reduce_scatter(all.raw_data(), into_shard.raw_data(), shard.numel(), DType::f32);
  });
  add("Replicate to Shard", from_local(all, whole), sharded, [] {});
  return rows;
}

Json bench_dispatch(const BenchArguments&) {
  Json rows = on_two_ranks(&redistributions);
  for (const DispatchRow& row : dispatch_rows()) {
    row.distributed();
    const PropagationStatistics before = propagation_statistics();
    const double distributed_us = microseconds(row.distributed, row.calls);
    const PropagationStatistics after = propagation_statistics();
    const double plain_us = microseconds(row.plain, row.calls);
    rows.push_back({{"name", row.name},
                    {"mesh", row.mesh},
                    {"plain_us", plain_us},
                    {"distributed_us", distributed_us},
                    {"overhead_us", distributed_us - plain_us},
                    {"cache_hits", after.hits - before.hits},
                    {"cache_misses", after.misses - before.misses}});
  }
  return rows;
}

/// Rank 0's rows of two ranks that share the cores.
Json on_two_ranks(const std::function<Json(collective::World&)>& run) {
  const std::string text = text_of_ranks({.ranks = 2}, [&](collective::World& world) {
    ops::set_threads(std::max(1, available_cores() / world.size()));
    return json_text(run(world));
  });
  return parse_ordered_json(text);
}

Json bench_collectives(const BenchArguments&) {
  return on_two_ranks([](collective::World& world) {
    Json rows = Json::array();
    for (const collective::CollectiveRate& rate :
         collective::measure_collectives(world.everyone())) {
      rows.push_back({{"name", rate.name},
                      {"ranks", world.size()},
                      {"bytes", rate.bytes},
                      {"us", rate.seconds * 1e6},
                      {"share_of_memcpy", share_cell(rate.share_of_memcpy)}});
    }
    return rows;
  });
}

/// The median seconds of a step, after `before` steps.
double median_step(const runs::Run& run, int before) {
  const collective::World& world = collective::World::current();
  runs::Trainer trainer(run, runs::device_of(run.config, world.number_here(), world.ranks_here()));
  for (int i = 0; i < before; ++i) {
    trainer.step();
  }
  std::vector<double> times;
  for (int i = 0; i < 15; ++i) {
    times.push_back(runs::seconds_of([&] { trainer.step(); }));
  }
  return runs::median(times);
}

/// A step of a Llama of 6 M parameters, fully sharded over two ranks, against the matrix
/// products of both ranks at the same time; and the same step captured. Then a model so small that
/// a step is the host's time.
Json bench_step(const BenchArguments&) {
  constexpr int before = 5;  // a replayed step is recorded until then
  const auto run_of = [](std::vector<std::string> overrides, const std::string& executor) {
    if (!executor.empty()) {
      overrides.insert(overrides.end(), {"graph.capture=true", "graph.executor=" + executor});
    }
    runs::Run run;
    run.config = parse_config(R"(
[model]
dim = 256
layers = 8
heads = 8
kv_heads = 4
ffn_dim = 704
[data]
text = ["/usr/share/perl/5*/pod"]
seq_len = 256
validation = 0
[train]
batch = 8
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
  };
  const std::vector<std::string> small = {"model.dim=64", "model.ffn_dim=96", "data.seq_len=8",
                                          "train.batch=2"};
  const double flops =
      runs::facts_of(run_of({}, "")).trial.account.model_flops;  // and loads the plugins
  return on_two_ranks([&](collective::World& world) {
    Json rows = Json::array();
    const auto row = [&](const std::vector<std::string>& overrides, const std::string& name,
                         const std::string& executor) {
      const runs::Run run = run_of(overrides, executor);
      const double median = median_step(run, before);
      const auto tokens = static_cast<double>(run.config.step_tokens());
      rows.push_back(
          {{"name", name}, {"tokens_per_second", tokens / median}, {"step_ms", median * 1e3}});
      return median;
    };
    const double median = row({}, "llama 6 M, FSDP 2 ranks", "");
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    world.everyone().barrier();
    const double mine = ops::measure_gemm(0.3);
    double ceiling = 0;
    world.everyone().all_reduce(&mine, &ceiling, 1, DType::f64);
    rows.back().update({{"gflops", flops / median / 1e9},
                        {"gemm_ceiling_gflops", ceiling / 1e9},
                        {"share_of_ceiling", share_cell(flops / median / ceiling)},
                        {"peak_memory_mib", static_cast<double>(usage.ru_maxrss) / 1024}});
    row({}, "the same, interpreter", "interpreter");
    row({}, "the same, planned", "planned");
    row({}, "the same, compiled", "compiled");
    row(small, "tiny llama, FSDP 2 ranks", "");
    row(small, "the same tiny llama, interpreter", "interpreter");
    row(small, "the same tiny llama, planned", "planned");
    row(small, "the same tiny llama, compiled", "compiled");
    return rows;
  });
}

}  // namespace

Json share_cell(double share) {
  const std::optional<double> reliable = runs::reliable_share(share);
  return reliable ? Json(*reliable) : Json();
}

namespace {

void print_rows(const std::string& title, const Json& rows) {
  TableRows table;
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const auto& [key, value] : row.items()) {
      cells.push_back(value.is_string() ? value.get<std::string>()
                      : value.is_null() ? key + " -"
                      : value.is_number_float()
                          ? fmt::format("{} {:.4g}", key, printable(value.get<double>()))
                          : fmt::format("{} {}", key, json_text(value)));
    }
    table.push_back(std::move(cells));
  }
  fmt::print("{}\n{}", title, format_table(table));
}

}  // namespace

int run_bench(const BenchArguments& arguments) {
  const std::vector<std::pair<std::string, Json (*)(const BenchArguments&)>> all = {
      {"collectives", &bench_collectives},
      {"step", &bench_step},
      {"gemm", &bench_gemm},
      {"kernels", &bench_kernels},
      {"device", &bench_device},
      {"dispatch", &bench_dispatch},
      {"checkpoint", &bench_checkpoint},
      {"scale", &bench_scale},
      {"tokenizer", &bench_tokenizer},
      {"generate", &bench_generate},
      {"serve", &bench_serve}};
  Json everything = Json::array();
  for (const auto& [name, run] : all) {
    if (arguments.what.empty() ? name == "device" : arguments.what != name) {
      continue;
    }
    const Json rows = run(arguments);
    if (!arguments.json) {
      print_rows(name, rows);
      std::fflush(stdout);
    }
    everything.insert(everything.end(), rows.begin(), rows.end());
  }
  if (arguments.json) {
    fmt::print("{}\n", json_text(everything, 2));
  }
  return 0;
}

}  // namespace tessera::app
