// The reference of apps/examples/capacity.cpp: a Mixtral that is written with the limit in it, by
// another formula.
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

import tessera.base;
import tessera.placement;
import tessera.plugin;
import tessera.tensor;
import tessera.ops;
import tessera.dtensor;
import tessera.nn;
import tessera.models;

namespace {

using namespace tessera;

class LimitedMixture : public nn::Module {
 public:
  explicit LimitedMixture(const nn::MixtureOptions& options)
      : experts_per_token_(options.experts_per_token) {
    gate_ = add_child<nn::Linear>("gate", options.expert.dim, options.experts, false,
                                  options.expert.standard_deviation, options.expert.dtype);
    experts_ = add_child<nn::Experts>("experts", options);
  }
  std::string_view kind() const override { return "LimitedMixture"; }
  std::vector<std::string> input_names() const override { return {"hidden_states"}; }

  Tensors forward(const Tensors& inputs) override {
    const Tensor& hidden = input(inputs, 0);
    const Tensor logits = (*gate_)(hidden);
    const DType wide = DType::f32;
    const auto [weights, chosen] =
        ops::topk(ops::softmax(ops::cast(logits, wide), -1), experts_per_token_);
    const Tensor scaled = ops::div(weights, ops::sum(weights, {-1}, true));
    const std::int64_t rows = chosen.size(1) * chosen.size(2);
    const std::int64_t experts = logits.size(-1);
    const std::int64_t capacity = (5 * rows + 4 * experts - 1) / (4 * experts);  // 1.25 shares
    const Tensor marks =
        ops::cast(ops::one_hot(ops::reshape(chosen, {chosen.size(0), rows}), experts), wide);
    const Tensor later = from_local(ops::tril(full({rows, rows}, 1, wide, hidden.device()), -1),
                                    Layout::replicated(hidden.layout().mesh()));
    const Tensor before = ops::sum(ops::mul(ops::matmul(later, marks), marks), {-1});
    const Tensor kept =
        ops::lt(ops::reshape(before, chosen.shape()), static_cast<double>(capacity));
    return {(*experts_)({hidden, ops::where(kept, scaled, ops::zeros_like(scaled)), chosen})[0]};
  }

 private:
  std::int64_t experts_per_token_;
  nn::Child gate_, experts_;
};

class LimitedMixtral final : public models::DecoderFamily {
 public:
  LimitedMixtral() : DecoderFamily(models::decoder_traits("mixtral")) {}

  std::shared_ptr<nn::LanguageModel> build(const models::ModelSizes& sizes,
                                           double dropout) const override {
    nn::DecoderShape shape = shape_of(sizes);
    shape.dropout = dropout;
    auto model = std::make_shared<nn::DecoderLM>(shape);
    nn::replace_modules(*model, "model.layers.*.mlp", [&](const std::shared_ptr<nn::Module>&) {
      return std::make_shared<LimitedMixture>(shape.mixture());
    });
    return model;
  }
};

}  // namespace

void register_plugin(plugin::Registrar& registrar) {
  registrar.add<models::ModelFamily>("limited_mixtral",
                                     [] { return std::make_unique<LimitedMixtral>(); });
}
