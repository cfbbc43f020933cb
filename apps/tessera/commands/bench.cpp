#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "commands/commands.hpp"
#include "config/config.hpp"
#include "data/dataset.hpp"
#include "llama_config.hpp"
#include "model_shape.hpp"
#include "table.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.autograd;
import tessera.collective;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.optim;
import tessera.parallel;

#include "training/setup.hpp"
#include "training/trainer.hpp"

namespace tessera::app {
namespace {

using Json = nlohmann::ordered_json;

double seconds_of(const std::function<void()>& run) {
  const auto start = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Microseconds of one call: the fastest of several batches.
double microseconds(const std::function<void()>& run, int calls) {
  double best = 1e9;
  for (int batch = 0; batch < 7; ++batch) {
    best = std::min(best, seconds_of([&] {
                      for (int i = 0; i < calls; ++i) {
                        run();
                      }
                    }));
  }
  return best / calls * 1e6;
}

Json bench_gemm() {
  Json rows = Json::array();
  for (const int count : {1, available_cores()}) {
    ops::set_threads(count);
    rows.push_back(
        {{"name", "gemm f32 768"}, {"threads", count}, {"gflops", ops::measure_gemm(0.5) / 1e9}});
  }
  ops::set_threads(1);
  return rows;
}

/// Tensors of one kind, plain or distributed, on which the programs below run.
using Place = std::function<Tensor(const Tensor& whole, bool batch)>;

/// Two layers, forward and backward: each call of forward, backward and accumulation is an
/// operator.
std::function<void()> mlp_step(const Place& place) {
  struct Operands {
    Tensor x, up, down;
  };
  auto operands = std::make_shared<Operands>(Operands{place(full({8, 8}, 0.5), true),
                                                      place(full({16, 8}, 0.25), false),
                                                      place(full({8, 16}, 0.25), false)});
  operands->up.set_requires_grad();
  operands->down.set_requires_grad();
  return [operands] {
    const Tensor hidden = ops::relu(ops::linear(operands->x, operands->up));
    backward(ops::sum(ops::linear(hidden, operands->down)));
    operands->up.grad() = Tensor();
    operands->down.grad() = Tensor();
  };
}

/// AdamW over 300 parameters of 8 x 8.
std::function<void()> adamw_step(const Place& place) {
  std::vector<nn::ParameterPointer> parameters;
  for (int i = 0; i < 300; ++i) {
    auto parameter = std::make_shared<nn::Parameter>(Dims{8, 8}, DType::f32, nn::Initialization{});
    parameter->name = fmt::format("p{}", i);
    parameter->value = place(full({8, 8}, 0.5), false);
    parameter->value.set_requires_grad();
    parameter->value.grad() = place(full({8, 8}, 0.1), false);
    parameters.push_back(std::move(parameter));
  }
  const std::shared_ptr<optim::Optimizer> optimizer = optim::adamw(std::move(parameters), {});
  return [optimizer] { optimizer->step(1e-3); };
}

/// What an operator costs on small tensors, plain and distributed: the difference is the price of a
/// layout. The distributed ones have the same extents on the rank, so the kernels do the same work.
Json bench_dispatch() {
  Json rows = Json::array();
  for (const Dims& shape : {Dims{4}, Dims{2, 2}}) {
    const std::vector<std::string> all = {"data", "tensor"};
    const DeviceMesh mesh = DeviceMesh::make({all.begin(), all.begin() + shape.size()}, shape);
    const Layout whole = Layout::replicated(mesh);
    const Layout sharded = whole.with_placement(0, Shard(0));
    const Place plain = [](const Tensor& x, bool) { return x; };
    const Place spread = [&](const Tensor& x, bool batch) {
      return from_local(x, batch ? sharded : whole);
    };
    const auto add_row = [&](const char* name, const auto& make, int calls = 2000) {
      const std::function<void()> local = make(plain);
      const std::function<void()> distributed = make(spread);
      distributed();
      const PropagationStatistics before = propagation_statistics();
      const double distributed_us = microseconds(distributed, calls);
      const PropagationStatistics after = propagation_statistics();
      const double plain_us = microseconds(local, calls);
      rows.push_back({{"name", name},
                      {"mesh", to_string(mesh)},
                      {"plain_us", plain_us},
                      {"distributed_us", distributed_us},
                      {"overhead_us", distributed_us - plain_us},
                      {"cache_hits", after.hits - before.hits},
                      {"cache_misses", after.misses - before.misses}});
    };
    const auto one_operator = [&](const char* name, auto call) {
      const NoGrad no_grad;
      add_row(name, [&](const Place& place) -> std::function<void()> {
        return [call, x = place(full({8, 8}, 0.5), true), w = place(full({8, 8}, 0.25), false),
                b = place(full({8}, 1.0), false)] { call(x, w, b); };
      });
    };
    using T = const Tensor&;
    one_operator("add", [](T x, T, T) { ops::add(x, x); });
    one_operator("addmm", [](T x, T w, T b) { ops::addmm(b, x, w); });
    one_operator("detach", [](T x, T, T) { ops::detach(x); });
    one_operator("layer_norm", [](T x, T, T b) { ops::layer_norm(x, b, b); });
    add_row("mlp forward and backward", &mlp_step, 500);
    add_row("adamw over 300 parameters", &adamw_step, 20);
  }
  return rows;
}

/// Runs `run` on two ranks and brings rank 0's JSON back through a pipe of the launcher's process.
Json on_two_ranks(const std::function<Json(collective::World&)>& run) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> file(std::tmpfile(), &std::fclose);
  if (!file) {
    fail("bench: no temporary file can be made");
  }
  collective::LaunchOptions options;
  options.ranks = 2;
  const int code = collective::launch(options, [&](collective::World& world) {
    set_current_rank(world.rank());
    ops::set_threads(std::max(1, available_cores() / world.size()));
    const std::string text = run(world).dump();
    if (world.rank() == 0) {
      std::fwrite(text.data(), 1, text.size(), file.get());
      std::fflush(file.get());
    }
    return 0;
  });
  if (code != 0) {
    fail("bench: a rank failed");
  }
  std::rewind(file.get());
  std::string text(1 << 20, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file.get()));
  return Json::parse(text);
}

Json bench_collectives() {
  return on_two_ranks([](collective::World& world) {
    Json rows = Json::array();
    for (const collective::CollectiveRate& rate :
         collective::measure_collectives(world.everyone())) {
      rows.push_back({{"name", rate.name},
                      {"ranks", world.size()},
                      {"bytes", rate.bytes},
                      {"us", rate.seconds * 1e6},
                      {"share_of_memcpy", rate.share_of_memcpy}});
    }
    return rows;
  });
}

/// A step of a Llama of 6 M parameters, fully sharded over two ranks, against the products that the
/// ranks reach together.
Json bench_step() {
  Run run;
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
                            "bench");
  run.shape = model_shape(run.config, 256);
  run.data = std::make_shared<Dataset>(run.config, run.shape.vocab);
  check_plan(run);  // loads the plugins before the ranks start
  return on_two_ranks([&](collective::World& world) {
    Trainer trainer(run);
    for (int i = 0; i < 3; ++i) {
      trainer.step();
    }
    std::vector<double> times;
    for (int i = 0; i < 15; ++i) {
      times.push_back(seconds_of([&] { trainer.step(); }));
    }
    std::sort(times.begin(), times.end());
    const double median = times[times.size() / 2];
    world.everyone().barrier();
    const double mine = ops::measure_gemm(0.3);
    double ceiling = 0;
    world.everyone().all_reduce(&mine, &ceiling, 1, DType::f64);
    rusage usage{};
    getrusage(RUSAGE_SELF, &usage);
    const auto tokens = static_cast<double>(run.config.train.batch * run.config.data.seq_len);
    const double flops = step_flops(run.shape, run.config.train.batch, run.config.data.seq_len);
    return Json::array({{{"name", "llama 6 M, FSDP 2 ranks"},
                         {"tokens_per_second", tokens / median},
                         {"step_ms", median * 1e3},
                         {"gflops", flops / median / 1e9},
                         {"gemm_ceiling_gflops", ceiling / 1e9},
                         {"share_of_ceiling", flops / median / ceiling},
                         {"peak_memory_mib", static_cast<double>(usage.ru_maxrss) / 1024}}});
  });
}

void print_rows(const std::string& title, const Json& rows) {
  TableRows table;
  for (const Json& row : rows) {
    std::vector<std::string> cells;
    for (const auto& [key, value] : row.items()) {
      cells.push_back(value.is_string()         ? value.get<std::string>()
                      : value.is_number_float() ? fmt::format("{} {:.4g}", key, value.get<double>())
                                                : fmt::format("{} {}", key, value.dump()));
    }
    table.push_back(std::move(cells));
  }
  fmt::print("{}\n{}", title, format_table(table));
}

}  // namespace

int run_bench(const BenchArguments& arguments) {
  const std::vector<std::pair<std::string, Json (*)()>> all = {{"collectives", &bench_collectives},
                                                               {"step", &bench_step},
                                                               {"gemm", &bench_gemm},
                                                               {"dispatch", &bench_dispatch}};
  Json everything = Json::array();
  for (const auto& [name, run] : all) {
    if (!arguments.what.empty() && arguments.what != name) {
      continue;
    }
    const Json rows = run();
    if (!arguments.json) {
      print_rows(name, rows);
      std::fflush(stdout);
    }
    everything.insert(everything.end(), rows.begin(), rows.end());
  }
  if (arguments.json) {
    fmt::print("{}\n", everything.dump(2));
  }
  return 0;
}

}  // namespace tessera::app
