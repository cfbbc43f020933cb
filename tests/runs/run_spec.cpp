// Descriptions of runs that a program makes, without a config: complete as a config's, and refused
// by field.
#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "catch.hpp"
#include "support.hpp"

import tessera.base;
import tessera.optim;
import tessera.runs;
import tessera.app.config;

namespace runs = tessera::runs;
using trainer_test::has;
using trainer_test::input_error;

namespace {

/// As a program makes it.
runs::RunSpec small() {
  runs::RunSpec spec;
  spec.data.text = {"a.txt"};
  return spec;
}

/// The problems of `small` with a change.
std::string problems_with(const std::function<void(runs::RunSpec&)>& change) {
  runs::RunSpec spec = small();
  change(spec);
  return input_error([&] { runs::checked(std::move(spec)); });
}

/// The values of a config as a program has them: nothing says where they were given.
runs::RunSpec as_of_a_program(runs::RunSpec spec) {
  spec.file.clear();
  spec.given.clear();
  for (runs::StyleConfig& style : spec.parallel) {
    style.where.clear();
  }
  return spec;
}

}  // namespace

TEST_CASE("a program's description has the values of the config that says the same") {
  const std::filesystem::path folder = std::filesystem::path(TESSERA_SOURCE_FOLDER) / "configs";
  int configs = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".toml") {
      continue;
    }
    INFO(entry.path().string());
    const runs::RunSpec config = tessera::app::load_config(entry.path());
    const runs::RunSpec own = runs::checked(as_of_a_program(config));
    CHECK(runs::to_json(own) == runs::to_json(config));
    CHECK(own.train.steps == config.train.steps);
    ++configs;
  }
  CHECK(configs > 15);
}

TEST_CASE("sizes that a program leaves out are the family's, and what it sets is given") {
  runs::RunSpec spec = small();
  spec.model.sizes["layers"] = std::int64_t{3};
  spec.optimizer.lr = 0.5;
  const runs::RunSpec whole = runs::checked(std::move(spec));
  const runs::RunSpec initial = runs::checked(small());
  CHECK(std::get<std::int64_t>(whole.model.sizes.at("layers")) == 3);
  CHECK(whole.model.sizes.at("dim") == initial.model.sizes.at("dim"));
  CHECK(whole.given.contains("model.layers"));
  CHECK(whole.given.contains("optimizer.lr"));
  CHECK_FALSE(whole.given.contains("model.dim"));
  CHECK(whole.place("optimizer.lr") == "optimizer.lr");
}

TEST_CASE("what a config could not say is refused by the field") {
  CHECK(problems_with([](runs::RunSpec&) {}).empty());
  CHECK(problems_with([](runs::RunSpec& s) { s.train.steps = -3; }) ==
        "train.steps: expected an integer at least 1, got -3");
  has(problems_with([](runs::RunSpec& s) { s.optimizer.lr = -1; }),
      "optimizer.lr: expected a finite number");
  CHECK(problems_with([](runs::RunSpec& s) { s.graph.executor = "fast"; }) ==
        "graph.executor: expected \"planned\" or \"compiled\" or \"interpreter\", got \"fast\"");
  has(problems_with([](runs::RunSpec& s) { s.model.sizes["layerz"] = std::int64_t{3}; }),
      "model.sizes: the family 'llama' has no 'layerz'; did you mean 'layers'?");
  has(problems_with([](runs::RunSpec& s) { s.model.family = "nowhere"; }), "nowhere");
  has(problems_with([](runs::RunSpec& s) { s.optimizer.options.text = "[1]"; }),
      "optimizer.options: expected the text of a JSON object, got [1]");
  has(problems_with([](runs::RunSpec& s) { s.data.sources.text = "{"; }),
      "data.sources: expected the text of a JSON array, got {");
  has(problems_with([](runs::RunSpec& s) {
        s.optimizer.schedule = static_cast<tessera::optim::ScheduleKind>(77);
      }),
      "optimizer.schedule: expected constant, cosine, linear, wsd and inverse_sqrt, got no value");
  has(problems_with([](runs::RunSpec& s) { s.log.metrics = std::string("a\0b", 3); }),
      "log.metrics: expected a text without zero bytes");
}

TEST_CASE("all problems are one error, those between fields too") {
  const std::string text = problems_with([](runs::RunSpec& s) {
    s.train.batch = 0;
    s.mesh.axes = {"shard"};
    s.mesh.shape = {2, 2};
    s.parallel = {{.style = "FSDP", .axis = {{"shart"}}, .on = {}}};
  });
  has(text, "the run: ");
  has(text, "train.batch: expected an integer at least 1");
  has(text, "mesh.shape");
  has(text, "parallel[0].axis: the mesh has no axis 'shart'");
  has(text, "parallel[0].on: is empty");
}

TEST_CASE("a description as TOML is read back as the same") {
  runs::RunSpec spec = small();
  spec.train.objective = runs::ObjectiveKind::dpo;
  spec.data.text = {};
  spec.data.jsonl = {"pairs.jsonl"};
  spec.optimizer.schedule = tessera::optim::ScheduleKind::cosine;
  spec.mesh.axes = {"shard"};
  spec.mesh.shape = {2};
  spec.parallel = {{.style = "FSDP",
                    .axis = {{"shard"}},
                    .on = {"model.layers.*", "."},
                    .options = {R"({"keep": true})"}}};
  const runs::RunSpec whole = runs::checked(std::move(spec));
  const std::string text = tessera::app::to_toml(whole);
  const runs::RunSpec back = tessera::app::parse_config(text, "run.toml");
  runs::RunSpec moved = whole;  // paths are absolute in the text
  moved.data.jsonl = back.data.jsonl;
  CHECK(runs::to_json(back) == runs::to_json(moved));
}
