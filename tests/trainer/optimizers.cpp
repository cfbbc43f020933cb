// The example of docs/optimizers.md, as a config and as the optimizer that it makes.
#include <cstddef>
#include <string>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.plugin;
import tessera.mesh;
import tessera.placement;
import tessera.tensor;
import tessera.ops;
import tessera.nn;
import tessera.optim;
import tessera.parallel;
import tessera.app.config;
import tessera.runs;
import tessera.hub;

using namespace tessera;
using namespace tessera::app;

namespace {

runs::RunSpec example() {
  const std::string page =
      trainer_test::read_file(std::string(TESSERA_SOURCE_FOLDER) + "/docs/optimizers.md");
  const std::string mark = "```toml\n";
  const std::size_t begin = page.find(mark) + mark.size();
  return parse_config(
      "[data]\ntext = [\"a.txt\"]\n" + page.substr(begin, page.find("```", begin) - begin),
      "run.toml", std::vector<std::string>{"model.dim=32", "model.heads=2", "model.layers=2"});
}

}  // namespace

TEST_CASE("the page's groups of parameters have the settings that it says") {
  const runs::RunSpec config = example();
  const auto model =
      hub::make_model(runs::model_shape(config, runs::open_run_tokenizer(config)), 0);
  std::vector<nn::ParameterPointer> parameters;
  for (const nn::ParameterPointer& p : nn::all_parameters(*model)) {
    p->value = full(p->value.shape(), 1, DType::f64);
    p->value.set_requires_grad();
    p->value.grad() = full(p->value.shape(), 0, DType::f64);
    parameters.push_back(p);
  }
  // With gradients of 0, AdamW leaves p (1 - lr decay).
  const auto optimizer = runs::make_optimizer(config, parameters);
  optimizer->step(config.optimizer.lr);
  for (const nn::ParameterPointer& p : parameters) {
    const bool vocabulary =
        p->name.find("embed_tokens") != std::string::npos || p->name.starts_with("lm_head");
    const bool free = p->name.find("q_proj.weight") != std::string::npos ||
                      p->name.find("k_proj.weight") != std::string::npos || p->value.dims() < 2;
    INFO(p->name);
    CHECK(to_doubles(p->value)[0] ==
          Approx(1 - (vocabulary ? 1e-4 : 3e-4) * (free ? 0 : 0.1)).epsilon(1e-12));
  }
}
