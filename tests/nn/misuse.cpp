// Ordinary mistakes with modules are errors that say what to do.
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "catch.hpp"
#include "errors.hpp"

import tessera.base;
import tessera.tensor;
import tessera.ops;
import tessera.nn;

using namespace tessera;

using tessera::testing::error_of;
namespace {

/// Adds what a test tells it to.
class Builder final : public nn::Module {
 public:
  explicit Builder(const std::function<void(Builder&)>& build) { build(*this); }
  std::string_view kind() const override { return "Builder"; }
  Tensors forward(const Tensors&) override { return {}; }
  void parameter_named(const std::string& name, bool defined = true) {
    add_parameter(
        name, defined ? std::make_shared<nn::Parameter>(Dims{2}, DType::f32, nn::Initialization{})
                      : nullptr);
  }
  void child_named(const std::string& name, bool defined = true) {
    attach(name, defined ? std::make_shared<nn::Dropout>(0.1) : nullptr);
  }
};

std::string build(const std::function<void(Builder&)>& f) {
  return error_of([&] { const Builder builder(f); });
}

}  // namespace

TEST_CASE("a module without its input says which one is missing") {
  nn::DecoderShape shape;
  shape.vocab = shape.dim = shape.heads = shape.kv_heads = shape.ffn_dim = 4;
  shape.head_dim = 2;
  shape.layers = 1;
  const std::vector<std::pair<std::string, std::shared_ptr<nn::Module>>> layers = {
      {"input", std::make_shared<nn::Linear>(2, 3, true, 0.1)},
      {"input", std::make_shared<nn::Embedding>(2, 3, 0.1)},
      {"hidden_states", std::make_shared<nn::RMSNorm>(2, 1e-5)},
      {"input", std::make_shared<nn::Dropout>(0.5)},
      {"input", std::make_shared<nn::CrossEntropyLoss>()},
      {"hidden_states",
       std::make_shared<nn::Attention>(nn::AttentionOptions{.dim = 4, .heads = 2})},
      {"hidden_states", std::make_shared<nn::GatedMLP>(shape.feed_forward())},
      {"hidden_states", std::make_shared<nn::DecoderBlock>(shape, 0)},
      {"input_ids", std::make_shared<nn::Decoder>(shape)},
      {"input_ids", std::make_shared<nn::DecoderLM>(shape)}};
  for (const auto& [input, layer] : layers) {
    layer->set_names("net");
    nn::materialize(*layer);
    const std::string kind(layer->kind());
    INFO(kind);
    const std::string expected = "module 'net': " + kind + ": input '" + input +
                                 "' is missing (expected a tensor, got an undefined one); pass it "
                                 "in the call";
    for (const bool training : {true, false}) {
      layer->train(training);
      CHECK(error_of([&] { (*layer)(Tensors{}); }) == expected);
      CHECK(error_of([&] { (*layer)(Tensor()); }) == expected);
      CHECK(error_of([&] { layer->by_name({}); }) == expected);
    }
    // A hook that looks at its inputs finds them undefined, not outside of the list.
    layer->add_pre_hook([](nn::Module& module, Tensors& inputs) {
      CHECK(inputs.size() == module.input_names().size());
      CHECK(!inputs[0].defined());
    });
    CHECK(error_of([&] { (*layer)(Tensors{}); }) == expected);
  }
  nn::CrossEntropyLoss loss;
  loss.set_names("loss");
  CHECK(error_of([&] { loss(full({2, 3}, 1)); }).find("input 'target' is missing") !=
        std::string::npos);
}

TEST_CASE("more inputs than a module has are an error") {
  nn::Linear linear(2, 3, false, 0.1);
  linear.set_names("up");
  nn::materialize(linear);
  const Tensor x = full({1, 2}, 1);
  CHECK(error_of([&] { linear({x, x}); }) ==
        "module 'up': Linear: got too many inputs (expected at most 1: input, got 2)");
  try {
    linear(full({1, 4}, 1));
    FAIL("no error");
  } catch (const Error& error) {
    CHECK(error.fields().module.value_or("none") == "up");
    CHECK_FALSE(error.fields().backward);
    CHECK(error.fields().thing == "linear");
  }
}

TEST_CASE("a module that returns nothing has no first output") {
  Builder nothing([](Builder&) {});
  CHECK(nothing(Tensors{}).empty());
  CHECK(error_of([&] { nothing(full({1}, 1)); }).find("returned no output") != std::string::npos);
}

TEST_CASE("parameters and children need a name of their own and an object") {
  CHECK(build([](Builder& b) { b.parameter_named("w"); }) == "no error");
  CHECK(build([](Builder& b) {
          b.parameter_named("w");
          b.parameter_named("w");
        }) == "module: it has a parameter 'w' already; use another name");
  CHECK(build([](Builder& b) {
          b.child_named("a");
          b.child_named("a");
        }) == "module: it has a child 'a' already; use another name");
  CHECK(build([](Builder& b) { b.parameter_named(""); }) ==
        "module: a parameter was added without a name");
  CHECK(build([](Builder& b) { b.child_named("a", false); }) ==
        "module: a child was added without an object");
  CHECK(build([](Builder& b) { b.parameter_named("w", false); }) ==
        "module: a parameter was added without an object");
}

TEST_CASE("a parameter is shared only with one of the same shape and type") {
  nn::Linear linear(2, 3, false, 0.1);
  linear.set_names("head");
  const auto shared = [&](const Dims& shape, DType dtype) {
    return error_of([&] {
      linear.set_parameter("weight",
                           std::make_shared<nn::Parameter>(shape, dtype, nn::Initialization{}));
    });
  };
  CHECK(shared({3, 2}, DType::f32) == "no error");
  CHECK(shared({2, 3}, DType::f32) ==
        "module 'head' (Linear): parameter 'weight' cannot be shared (expected f32[3, 2], got "
        "f32[2, 3])");
  CHECK(shared({3, 2}, DType::bf16).find("expected f32[3, 2], got bf16[3, 2]") !=
        std::string::npos);
  CHECK(error_of([&] { linear.set_parameter("weight", nullptr); }).find("got no parameter") !=
        std::string::npos);
  CHECK(error_of([&] { linear.set_parameter("bias", nullptr); }).find("has no parameter 'bias'") !=
        std::string::npos);
  CHECK(error_of([&] { linear.parameter("wieght"); }).find("has no parameter 'wieght'") !=
        std::string::npos);
}

TEST_CASE("a Llama's shape is checked before anything is built") {
  const auto refused = [](const std::function<void(nn::DecoderShape&)>& change) {
    nn::DecoderShape shape;
    shape.vocab = shape.dim = 8;
    shape.heads = shape.kv_heads = shape.ffn_dim = 4;
    shape.layers = 1;
    change(shape);
    return error_of([&] { const nn::DecoderLM model(shape); });
  };
  CHECK(refused([](nn::DecoderShape&) {}) == "no error");
  CHECK(refused([](nn::DecoderShape& s) { s.layers = 0; }) ==
        "model.layers: must be at least 1 (got 0)");
  CHECK(refused([](nn::DecoderShape& s) { s.vocab = -1; }) ==
        "model.vocab: must be at least 1 (got -1)");
  CHECK(refused([](nn::DecoderShape& s) { s.kv_heads = 3; }).starts_with("model.kv_heads: "));
  CHECK(refused([](nn::DecoderShape& s) { s.dim = 10; }).starts_with("model.heads: "));
  CHECK(refused([](nn::DecoderShape& s) {
          s.head_dim = 3;
        }).find("even number of a head's features") != std::string::npos);
  const auto experts = [&](std::int64_t all, std::int64_t per_token, std::int64_t every) {
    return refused([&](nn::DecoderShape& s) {
      s.experts = all;
      s.experts_per_token = per_token;
      s.experts_every = every;
    });
  };
  CHECK(experts(4, 4, 1) == "no error");
  CHECK(experts(4, 5, 1).starts_with("mixture of experts: a token has at least one expert"));
  CHECK(experts(4, 0, 1).ends_with("(got 4 experts, 0 per token)"));
  CHECK(experts(4, 2, 0) == "model.experts_every: must be at least 1 (got 0)");
}
