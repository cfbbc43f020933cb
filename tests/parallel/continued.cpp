// A run that is saved in one layout continues in every other one, whatever its state is.

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <system_error>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.tensor;
import tessera.collective;
import tessera.dtensor;
import tessera.program;
import tessera.capture;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.checkpoint;
import tessera.train;
import tessera.runs;
import tessera.app.config;

#include "features.hpp"
#include "saved_run.hpp"
#include "support.hpp"

using namespace tessera;
using namespace tessera::app;
using namespace parallel_test;
using tessera::testing::Folder;

namespace {

using Overrides = std::vector<std::string>;
using Losses = std::vector<double>;

struct State {
  const char* name;
  Set set;
  Overrides overrides;
  double tolerance;
  bool splits_rows = true;  // tensor parallelism would cut blocks of 8-bit state
};

}  // namespace

TEST_CASE("a run that is saved in one layout continues in every other one") {
  use_shipped_plugins();
  const std::vector<Set> layouts = {0,
                                    just(fully_sharded),
                                    just(hybrid),
                                    just(tensor_parallel),
                                    just(fully_sharded) | just(tensor_parallel),
                                    just(sequence_parallel) | just(loss_parallel),
                                    just(fully_sharded) | just(offload)};
  const std::vector<State> states = {
      {"as it is", 0, {}, 1e-5},
      {"8-bit state", 0, {"optimizer.options={state_bits=8}"}, 1e-3, false},
      {"frozen and tied",
       0,
       {"train.freeze=[\"model.layers.0.**\"]", "model.tie_embeddings=true"},
       1e-5},
      {"bf16 with dropout and micro-batches",
       just(bf16) | just(accumulation),
       {"model.dropout=0.1"},
       4e-3},
      {"QLoRA", just(qlora), {}, 1e-5}};
  for (const State& state : states) {
    const auto fits = [&](Set layout) {
      return state.splits_rows || !(has(layout, tensor_parallel) || has(layout, sequence_parallel));
    };
    for (const Set from : layouts) {
      if (!fits(from)) {
        continue;
      }
      const Folder folder;
      const Losses expected =
          save(run_of(state.set | from, state.overrides), folder.path().string());
      const std::string checkpoint = checkpoints_in(folder.path().string()).front();
      for (const Set to : layouts) {
        if (!fits(to)) {
          continue;
        }
        INFO(state.name << ", from " << text_of(from) << " to " << text_of(to));
        const Losses got = continue_from(run_of(state.set | to, state.overrides), checkpoint);
        for (const std::size_t step : {0, 1}) {
          CHECK(std::abs(got[step] - expected[step]) <= state.tolerance * expected[step]);
        }
        if (from == to) {
          CHECK(got == expected);
        }
      }
    }
  }
}
