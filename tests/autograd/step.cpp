// A training step of a whole model: which gradients are copied, and that checkpoints change
// nothing.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "catch.hpp"

import tessera.base;
import tessera.tensor;
import tessera.autograd;
import tessera.ops;
import tessera.nn;

#include "small_decoder.hpp"
#include "support.hpp"

using namespace tessera;
using namespace on_graph;

namespace {

class Copies final : public Mode {
 public:
  Tensors call(const Call& call, NextCall& next) override {
    count += call.op.name == "clone" ? 1 : 0;
    return next(call);
  }
  int count = 0;

 private:
  ModeScope scope_{ModeLevel::above_distribution, *this};
};

struct Step {
  std::shared_ptr<nn::DecoderLM> model;
  int copies = 0;
  std::vector<std::vector<double>> gradients;

  Step(bool checkpointed, bool tied) {
    model = small_decoder(checkpointed, tied);
    const Tensor tokens = small_tokens();
    const Tensor logits = (*model)(Tensors{tokens})[0];
    const Tensor loss = model->loss()(Tensors{logits, tokens})[0];
    Copies heard;
    backward(loss);
    copies = heard.count;
    for (const nn::ParameterPointer& parameter : nn::all_parameters(*model)) {
      REQUIRE(parameter->value.grad().defined());
      CHECK(parameter->value.grad().is_contiguous());
      gradients.push_back(to_doubles(parameter->value.grad()));
    }
  }
};

}  // namespace

TEST_CASE("a Llama's backward copies no gradient, and checkpoints give the same ones") {
  for (const bool tied : {false, true}) {
    const Step plain(false, tied);
    const Step checkpointed(true, tied);
    CHECK(plain.copies == 0);
    CHECK(checkpointed.copies == 0);
    CHECK(plain.gradients == checkpointed.gradients);
  }
}
