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
    set_seed(5);
    model = std::make_shared<nn::DecoderLM>(nn::DecoderShape{.vocab = 11,
                                                             .dim = 8,
                                                             .layers = 3,
                                                             .heads = 4,
                                                             .kv_heads = 2,
                                                             .ffn_dim = 12,
                                                             .tie_embeddings = tied,
                                                             .dropout = 0.1,
                                                             .dtype = DType::f64});
    nn::materialize(*model);
    nn::initialize(*model);
    model->set_activation_checkpointing(checkpointed);
    Tensor tokens = empty({2, 5}, DType::i64);
    for (std::int64_t i = 0; i < 10; ++i) {
      tokens.data<std::int64_t>()[i] = (3 * i) % 11;
    }
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
