// Several adapters of one model: against PEFT's own logits.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"
#include "folder.hpp"

import tessera.base;
import tessera.text;

using nlohmann::json;
using tessera::testing::has;
using tessera::testing::input_error;
using tessera::testing::read_file;

namespace text = tessera::text;

namespace {

const std::string reference = std::string(TESSERA_SOURCE_FOLDER) + "/tests/reference/data/";

std::string folder_of(const std::string& adapter) { return reference + "adapters/" + adapter; }

json expected_of(const std::string& adapter) {
  return json::parse(read_file(folder_of(adapter) + "/expected.json"));
}

std::string base_of(const json& expected) {
  return reference + expected.value("base", std::string("folders/plain"));
}

}  // namespace

TEST_CASE("texts of an adapter by its number have PEFT's logits, beside the model's own") {
  for (const std::string name : {"lora", "rslora", "patterns", "conv1d", "fused", "sinks"}) {
    INFO(name);
    const json expected = expected_of(name);
    text::ModelFiles files(base_of(expected));
    files.adapters = true;
    const text::TextModel model(files);
    text::Engine engine(model.ranks(), model.shape().vocab);
    model.ranks().add_adapter(7, model.read_adapter(folder_of(name)), name);
    double with = 0;
    double without = 0;
    const auto submit = [&](const std::vector<std::int64_t>& prompt, std::int64_t adapter,
                            const std::vector<double>& stored, double& largest) {
      engine.submit({.prompt = prompt,
                     .adapter = adapter,
                     .next = [&largest, stored](const std::vector<double>& logits) {
                       for (std::size_t i = 0; i < logits.size(); ++i) {
                         largest = std::max(largest, std::abs(logits[i] - stored[i]));
                       }
                       return std::optional<std::int64_t>(0);
                     }});
    };
    for (std::size_t row = 0; row < expected["input_ids"].size(); ++row) {
      const auto ids = expected["input_ids"][row].get<std::vector<std::int64_t>>();
      for (std::size_t at = 0; at < ids.size(); ++at) {
        const auto stored = expected["logits"][row][at].get<std::vector<double>>();
        const std::vector<std::int64_t> prompt(ids.begin(),
                                               ids.begin() + static_cast<std::ptrdiff_t>(at) + 1);
        submit(prompt, 7, stored, with);
        submit(prompt, 0, stored, without);
      }
    }
    while (engine.step()) {
    }
    CHECK(with < 3e-5);
    CHECK(without > 1e-2);
  }
}

TEST_CASE("what is more than updates of rows cannot be one of several adapters") {
  const auto error = [](const std::string& name) {
    const text::TextModel model(base_of(expected_of(name)));
    return input_error([&] { static_cast<void>(model.read_adapter(folder_of(name))); });
  };
  has(error("dora"), "DoRA, whose update depends on the weight: ");
  has(error("conv1d_dora"), "DoRA, whose update depends on the weight: ");
  has(error("saved_head"), "weights beside the updates (modules_to_save)");
  has(error("saved_head"), "merge it with --adapter");
}
