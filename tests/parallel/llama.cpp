// What a Llama communicates in the layout of configs/loss_parallel.toml.
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "catch.hpp"

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
import tessera.app.config;
import tessera.runs;
import tessera.hub;

#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;

namespace {

/// A small model; `overrides` come last, so that they hold.
runs::RunSpec config_with(const std::string& name, const std::vector<std::string>& overrides) {
  std::vector<std::string> all = {"model.dim=32", "model.ffn_dim=48", "data.seq_len=6",
                                  "train.batch=2"};
  all.insert(all.end(), overrides.begin(), overrides.end());
  return load_config(std::string(TESSERA_SOURCE_FOLDER "/configs/") + name, all);
}

/// "all_gather" -> how often.
using Counts = std::map<std::string, int>;

Counts counts_of(const std::vector<Communication>& entries) {
  Counts counts;
  for (const Communication& one : entries) {
    ++counts[one.operation];
  }
  return counts;
}

struct Phases {
  Counts forward;
  Counts backward;
  std::vector<Communication> entries;
};

/// What was communicated in a module or below it, in one direction.
Counts counts_in(const Phases& phases, const std::string& module, bool backward) {
  std::vector<Communication> found;
  for (const Communication& one : phases.entries) {
    if (one.backward == backward &&
        (one.module == module || one.module.starts_with(module + "."))) {
      found.push_back(one);
    }
  }
  return counts_of(found);
}

/// The model and its plan, on this rank.
struct Planned {
  explicit Planned(const runs::RunSpec& config)
      : mesh(runs::make_mesh(config)),
        model(hub::make_model(runs::model_shape(config, runs::open_run_tokenizer(config)),
                              config.model.dropout)),
        plan(*model, mesh, runs::style_entries(config), shipped_styles()) {}

  DeviceMesh mesh;
  std::shared_ptr<nn::LanguageModel> model;
  parallel::ParallelPlan plan;
};

/// Rank 0's collectives of a forward with loss and of its backward.
Phases communicated(const runs::RunSpec& config) {
  Phases phases;
  on_ranks(static_cast<int>(config.ranks()), [&](int rank) {
    Planned run(config);
    run.plan.materialize();
    nn::initialize(*run.model);
    const Tensor tokens = ops::cast(
        full({config.train.batch / run.plan.batch_parts(), config.data.seq_len}, 65), DType::i64);
    const CommunicationReport report;
    const Tensor loss = runs::loss_sum(*run.model, run.plan, tokens, tokens);
    const std::size_t forward = report.entries().size();
    backward(loss);
    if (rank == 0) {
      phases.entries = report.entries();
      const auto middle = phases.entries.begin() + static_cast<std::ptrdiff_t>(forward);
      phases.forward = counts_of({phases.entries.begin(), middle});
      phases.backward = counts_of({middle, phases.entries.end()});
    }
  });
  return phases;
}

}  // namespace

TEST_CASE("each half of a block costs one all-gather and one reduce-scatter, each way") {
  const int halves_of_a_block = 2;
  for (const int layers : {1, 3}) {
    const Phases phases =
        communicated(config_with("loss_parallel.toml", {"model.layers=" + std::to_string(layers)}));
    const int halves = halves_of_a_block * layers;
    // Besides the blocks: the embedding's terms are reduce-scattered, the head's input is gathered,
    // the loss reduces maxima and sums.
    CHECK(phases.forward ==
          Counts{{"all_gather", halves + 1}, {"reduce_scatter", halves + 1}, {"all_reduce", 2}});
    CHECK(phases.backward == Counts{{"all_gather", halves + 1}, {"reduce_scatter", halves + 1}});
    for (int layer = 0; layer < layers; ++layer) {
      for (const char* half : {"self_attn", "mlp"}) {
        const std::string module = "model.layers." + std::to_string(layer) + "." + half;
        INFO(module);
        for (const bool backward : {false, true}) {
          CHECK(counts_in(phases, module, backward) ==
                Counts{{"all_gather", 1}, {"reduce_scatter", 1}});
        }
      }
    }
    CHECK(counts_in(phases, "loss", false) == Counts{{"all_reduce", 2}});
    CHECK(counts_in(phases, "loss", true).empty());
  }
}
