// Programs of torch.export compute and learn what PyTorch does with them.
#include <algorithm>
#include <string>
#include <vector>

#include "catch.hpp"
#include "difference.hpp"

import tessera.base;
import tessera.checkpoint;
import tessera.exported;
import tessera.nn;
import tessera.tensor;

using namespace tessera;
using namespace exported_test;

TEST_CASE("a stored program computes and learns what PyTorch does") {
  for (const std::string name : {"gpt2", "bert", "convolutions"}) {
    const Differences found = differences(stored(), name);
    INFO(name << ": outputs " << found.outputs << ", gradients " << found.gradients << ", steps "
              << found.steps << ", losses " << found.losses);
    CHECK(found.outputs < 1e-5);
    CHECK(found.gradients < 1e-5);
    CHECK(found.steps < 1e-5);
    CHECK(found.losses < 1e-5);
  }
}

TEST_CASE("blocks of a program that compute their activations again give the same") {
  const Differences found = differences(stored(), "gpt2", Way::recompute);
  CHECK(found.largest() < 1e-5);
}

TEST_CASE("a program is trained by FSDP on two ranks") {
  for (const std::string name : {"gpt2", "bert", "convolutions"}) {
    const Differences found = differences(stored(), name, Way::sharded);
    INFO(name << ": outputs " << found.outputs << ", gradients " << found.gradients << ", steps "
              << found.steps << ", losses " << found.losses);
    CHECK(found.largest() < 2e-5);
  }
}

TEST_CASE("a program has modules and parameters under their names") {
  const auto model = exported::load_exported(stored() + "/gpt2.pt2");
  std::vector<std::string> names;
  for (const nn::Module* module : nn::all_modules(*model)) {
    names.push_back(module->name() + " " + std::string(module->kind()));
  }
  CHECK(std::ranges::find(names, "model.transformer.h.0.attn GPT2Attention") != names.end());
  CHECK(std::ranges::find(names, "model.transformer.h ModuleList") != names.end());
  CHECK(model->blocks() ==
        std::vector<std::string>{"model.transformer.h.0", "model.transformer.h.1"});
  const auto parameters = nn::named_parameters(*model);
  const auto find = [&](const std::string& name) {
    for (const auto& [other, parameter] : parameters) {
      if (other == name) {
        return parameter;
      }
    }
    return nn::ParameterPointer();
  };
  REQUIRE(find("model.lm_head.weight"));
  CHECK(find("model.lm_head.weight") == find("model.transformer.wte.weight"));  // tied
}

TEST_CASE("a hook of an inner module runs once for each call of it") {
  const auto model = exported::load_exported(stored() + "/gpt2.pt2");
  int calls = 0;
  for (nn::Module* module : nn::all_modules(*model)) {
    if (module->name() == "model.transformer.h.1.mlp") {
      module->add_pre_hook([&](nn::Module&, Tensors&) { ++calls; });
    }
  }
  (*model)({full({2, 6}, 5, DType::i64)});
  CHECK(calls == 1);
}

TEST_CASE("a program takes other batches and lengths where it was exported with dynamic ones") {
  const auto model = exported::load_exported(stored() + "/gpt2.pt2");
  const Tensors outputs = (*model)(Tensors{full({3, 11}, 5, DType::i64)});
  CHECK(outputs[0].shape() == Dims{3, 11, 64});
}
