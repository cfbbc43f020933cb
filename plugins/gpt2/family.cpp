// GPT-2 as a family of models: config keys, sizes, and the format of transformers' GPT2LMHeadModel.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.nn;
import tessera.models;

#include "gpt2.hpp"

namespace {

namespace nn = tessera::nn;
using namespace tessera::models;
using gpt2::Shape;

// The largest sizes of a config and of a config.json.
constexpr std::int64_t widest = std::int64_t{1} << 24;
constexpr std::int64_t most = 100000;

ModelRange from(double low, double high) { return {.low = low, .high = high}; }

Shape shape_of(const ModelSizes& sizes) {
  const ModelValues& values = sizes.values;
  return {.vocab = sizes.vocab,
          .dim = values.integer("dim"),
          .layers = values.integer("layers"),
          .heads = values.integer("heads"),
          .ffn_dim = values.integer("ffn_dim"),
          .positions = values.integer("positions"),
          .norm_eps = values.number("norm_eps"),
          .tie_embeddings = values.flag("tie_embeddings")};
}

std::string block(std::int64_t layer) { return "transformer.h." + std::to_string(layer) + "."; }

class Gpt2 final : public ModelFamily {
 public:
  std::vector<ModelKey> keys() const override {
    const auto size = [](std::int64_t value) { return ModelValue(value); };
    constexpr auto wide = static_cast<double>(widest);
    return {
        {"dim", size(256), "Width of the hidden state.", from(1, wide)},
        {"layers", size(8), "Number of transformer layers.", from(1, 10000)},
        {"heads", size(8), "Heads of the attention; must divide `dim`.", from(1, most)},
        {"ffn_dim", size(0), "Width of the feed-forward part. 0: four times `dim`.", from(0, wide)},
        {"positions", size(0), "Longest sequence. 0: `data.seq_len`.", from(0, wide)},
        {"norm_eps", 1e-5, "The epsilon of the layer norms.", {.low = 0, .low_open = true}},
        {"tie_embeddings", true, "Use the token embedding as the output matrix too."}};
  }

  std::vector<ModelProblem> complete(ModelSizes& sizes) const override {
    const Shape shape = shape_of(sizes);
    std::vector<ModelProblem> problems;
    if (shape.dim % shape.heads != 0) {
      problems.push_back({{"heads", "dim"},
                          "must divide model.dim (dim " + std::to_string(shape.dim) + ", " +
                              std::to_string(shape.heads) + " heads)"});
    }
    sizes.values.set("ffn_dim", shape.ffn_dim > 0 ? shape.ffn_dim : 4 * shape.dim);
    sizes.values.set("positions", shape.positions > 0 ? shape.positions : sizes.max_positions);
    return problems;
  }

  std::string describe(const ModelSizes& sizes) const override {
    const Shape shape = shape_of(sizes);
    return "dim " + std::to_string(shape.dim) + ", " + std::to_string(shape.layers) + " layers, " +
           std::to_string(shape.heads) + " heads, ffn " + std::to_string(shape.ffn_dim) + ", " +
           std::to_string(shape.positions) + " positions";
  }

  double parameters(const ModelSizes& sizes) const override {
    const Shape shape = shape_of(sizes);
    const auto dim = static_cast<double>(shape.dim);
    const auto ffn = static_cast<double>(shape.ffn_dim);
    const double attention = 4 * (dim + 1) * dim;
    const double mlp = (dim + 1) * ffn + (ffn + 1) * dim;
    const double norm = 2 * dim;
    return static_cast<double>(shape.vocab) * dim * (shape.tie_embeddings ? 1 : 2) +
           static_cast<double>(shape.positions) * dim +
           static_cast<double>(shape.layers) * (attention + mlp + 2 * norm) + norm;
  }

  std::int64_t longest_sequence(const ModelSizes& sizes) const override {
    return shape_of(sizes).positions;
  }

  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override {
    Shape shape = shape_of(sizes);
    shape.dropout = dropout;
    return std::make_shared<gpt2::LanguageModel>(shape);
  }

  std::string architecture() const override { return "GPT2LMHeadModel"; }
  SpecialTokens special_tokens() const override { return {.bos = 50256, .eos = 50256}; }

  ModelSizes read(HubConfig& config) const override {
    check_fixed(config);
    ModelSizes sizes;
    sizes.vocab = config.size("vocab_size", widest);
    const std::int64_t dim = config.size("n_embd", widest);
    const std::int64_t heads = config.size("n_head", most);
    sizes.max_positions = config.size("n_positions", widest, 1024);
    sizes.values.set("dim", dim);
    sizes.values.set("layers", config.size("n_layer", most));
    sizes.values.set("heads", heads);
    sizes.values.set("ffn_dim", config.size("n_inner", widest, 4 * dim));
    sizes.values.set("positions", sizes.max_positions);
    sizes.values.set("norm_eps", config.positive("layer_norm_epsilon", 1e-5));
    sizes.values.set("tie_embeddings", config.flag("tie_word_embeddings", true));
    if (config.sound() && dim % heads != 0) {
      config.problem("n_head " + std::to_string(heads) + " does not divide n_embd " +
                     std::to_string(dim));
    }
    return sizes;
  }

  std::vector<HubKey> write(const ModelSizes& sizes) const override {
    const Shape shape = shape_of(sizes);
    return {{"vocab_size", shape.vocab},
            {"n_embd", shape.dim},
            {"n_layer", shape.layers},
            {"n_head", shape.heads},
            {"n_inner", shape.ffn_dim},
            {"n_positions", shape.positions},
            {"layer_norm_epsilon", shape.norm_eps},
            {"tie_word_embeddings", shape.tie_embeddings},
            {"activation_function", "gelu_new"},
            {"scale_attn_weights", true},
            {"scale_attn_by_inverse_layer_idx", false}};
  }

  // transformers' Conv1D has the weight [in, out], and one for queries, keys and values.
  std::vector<HubTensor> tensors(const ModelSizes& sizes) const override {
    std::vector<HubTensor> all;
    for (std::int64_t layer = 0; layer < shape_of(sizes).layers; ++layer) {
      const std::string attention = block(layer) + "attn.";
      const std::string mlp = block(layer) + "mlp.";
      int part = 0;
      for (const char* projection : {"q_proj", "k_proj", "v_proj"}) {
        all.push_back(
            {attention + projection + ".weight", attention + "c_attn.weight", true, part, 3});
        all.push_back(
            {attention + projection + ".bias", attention + "c_attn.bias", false, part, 3});
        ++part;
      }
      all.push_back({attention + "o_proj.weight", attention + "c_proj.weight", true});
      all.push_back({attention + "o_proj.bias", attention + "c_proj.bias"});
      all.push_back({mlp + "c_fc.weight", mlp + "c_fc.weight", true});
      all.push_back({mlp + "c_proj.weight", mlp + "c_proj.weight", true});
    }
    return all;
  }

  TensorSplit tensor_split(const ModelSizes&) const override {
    return {
        .columns = {"transformer.h.*.attn.{q,k,v}_proj", "transformer.h.*.mlp.c_fc"},
        .rows = {"transformer.wte", "transformer.h.*.attn.o_proj", "transformer.h.*.mlp.c_proj"},
        .logits = "lm_head"};
  }

  std::string base_prefix() const override { return "transformer."; }

  // Masks that old folders hold.
  std::vector<std::string> ignored_tensors() const override {
    return {"**.attn.bias", "**.attn.masked_bias"};
  }

  Layers layers(const ModelSizes& sizes) const override {
    return {"transformer.h.", "n_layer", shape_of(sizes).layers};
  }

  std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const override {
    const Shape shape = shape_of(sizes);
    return {{"transformer.wte.weight", {"vocab_size", "n_embd"}, {shape.vocab, shape.dim}},
            {"transformer.wpe.weight", {"n_positions", "n_embd"}, {shape.positions, shape.dim}},
            {block(0) + "attn.q_proj.weight", {"n_embd", "n_embd"}, {shape.dim, shape.dim}},
            {block(0) + "mlp.c_fc.weight", {"n_inner", "n_embd"}, {shape.ffn_dim, shape.dim}}};
  }

 private:
  static void check_fixed(HubConfig& config) {
    config.only("activation_function", "\"gelu_new\"", "the feed-forward part is GELU by tanh");
    config.only("scale_attn_weights", "true", "scores are divided by the root of a head's width");
    config.only("scale_attn_by_inverse_layer_idx", "false",
                "scores are divided by the root of a head's width");
    // The probabilities of dropout are model.dropout's, whatever the folder says.
    const std::vector<std::string> ignored = {"attn_pdrop",
                                              "embd_pdrop",
                                              "resid_pdrop",
                                              "n_ctx",
                                              "reorder_and_upcast_attn",
                                              "summary_activation",
                                              "summary_first_dropout",
                                              "summary_proj_to_labels",
                                              "summary_type",
                                              "summary_use_proj"};
    config.ignore(ignored);
  }
};

}  // namespace

void register_plugin(tessera::plugin::Registrar& registrar) {
  registrar.add<ModelFamily>("gpt2", [] { return std::make_unique<Gpt2>(); });
}
