// A rank's trainer: evaluation and back, and runs whose numbers stop being finite.
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "small_model.hpp"
#include "support.hpp"

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
import tessera.train;
import tessera.app.config;
import tessera.runs;
import tessera.hub;

using tessera::testing::small_model;
using namespace tessera;
using namespace tessera::app;
using trainer_test::Folder;
using trainer_test::Result;
using trainer_test::run_program;

namespace {

std::string config_text(const std::string& data) {
  return small_model({.dim = 8, .layers = 1, .heads = 2, .ffn_dim = 12, .dropout = 0.5}) +
         "[data]\ntext = [\"" + data +
         "\"]\nseq_len = 8\nvalidation = 0.3\n[train]\nsteps = 3\nbatch = 4\n";
}

/// Long enough for a few steps and a validation.
std::string write_text(const Folder& folder) {
  std::string text;
  for (int i = 0; i < 100; ++i) {
    text += "some words and more of them, ";
  }
  return folder.write("text.txt", text);
}

runs::Run make_run(const std::string& text) {
  runs::Run run;
  run.config = parse_config(text, "run.toml");
  run.task = runs::open_language_task(run.config);
  return run;
}

/// f() on the one rank of a run.
void on_one_rank(const std::function<void()>& f) {
  collective::LaunchOptions options;
  options.print_error = false;
  collective::run_threads(1, [&](collective::World&) { f(); }, options);
}

std::vector<bool> modes(nn::Module& root) {
  std::vector<bool> modes;
  for (const nn::Module* module : nn::all_modules(root)) {
    modes.push_back(module->is_training());
  }
  return modes;
}

}  // namespace

TEST_CASE("an evaluation scope returns each module to the mode that it had") {
  const Folder folder;
  const auto model =
      hub::make_model(runs::language_of(make_run(config_text(write_text(folder)))).shape(), 0.5);
  model->children()[0].second->train(false);  // frozen by the user
  const std::vector<bool> before = modes(*model);
  REQUIRE(std::count(before.begin(), before.end(), true) > 0);
  REQUIRE(std::count(before.begin(), before.end(), false) > 0);
  {
    const nn::EvaluationScope scope(*model);
    CHECK(modes(*model) == std::vector<bool>(before.size(), false));
  }
  CHECK(modes(*model) == before);
}

TEST_CASE("validation leaves the model in training mode, also when it fails") {
  const Folder folder;
  const std::string data = write_text(folder);
  const runs::Run run = make_run(config_text(data));
  std::vector<bool> after;
  std::vector<bool> after_error;
  std::string error;
  on_one_rank([&] {
    runs::Trainer trainer(run);
    trainer.validate();
    after = modes(trainer.model());
    std::filesystem::resize_file(data, 100);
    try {
      trainer.validate();
    } catch (const Error& thrown) {
      error = thrown.what();
    }
    after_error = modes(trainer.model());
  });
  CHECK(after == std::vector<bool>(after.size(), true));
  CHECK(after_error == after);
  CHECK(error.find(data) != std::string::npos);
}

TEST_CASE("numbers that are not finite end the run with an error, at the last step too") {
  const Folder folder;
  const std::string config = folder.write("run.toml", config_text(write_text(folder)));
  const auto run = [&](const std::string& overrides) {
    return run_program("train " + config + " optimizer.lr=1e300 checkpoint.folder='' " + overrides);
  };
  const std::pair<std::string, std::string> expected[] = {
      {"train.steps=1 data.validation=0.0", "holds values that are NaN or infinite"},
      {"train.steps=3 data.validation=0.0", "step 2: the loss is nan and the gradient norm nan"},
      {"train.steps=3 data.validate_every=1", "after step 1 the validation loss is nan"},
  };
  for (const auto& [overrides, text] : expected) {
    const Result result = run(overrides);
    INFO(overrides << "\n" << result.out << result.error);
    CHECK(result.code == 1);
    CHECK(result.error.find(text) != std::string::npos);
    CHECK((result.out + result.error).find("-nan") == std::string::npos);
  }
}
