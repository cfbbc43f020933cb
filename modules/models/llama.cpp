module;
#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>
module tessera.models;

import tessera.base;
import tessera.tensor;
import tessera.nn;
import :llama;

namespace tessera::models {

nn::DecoderShape decoder_shape(const ModelSizes& sizes) {
  const ModelValues& values = sizes.values;
  return {.vocab = sizes.vocab,
          .dim = values.integer("dim"),
          .layers = values.integer("layers"),
          .heads = values.integer("heads"),
          .kv_heads = values.integer("kv_heads"),
          .head_dim = values.integer("head_dim"),
          .ffn_dim = values.integer("ffn_dim"),
          .rope_theta = values.number("rope_theta"),
          .norm_eps = values.number("norm_eps"),
          .tie_embeddings = values.flag("tie_embeddings")};
}

namespace {

// The largest sizes of a config and of a config.json.
constexpr std::int64_t widest = std::int64_t{1} << 24;
constexpr std::int64_t most = 100000;

ModelRange from(double low, double high) { return {.low = low, .high = high}; }
constexpr ModelRange positive{.low = 0, .low_open = true};

class Llama final : public ModelFamily {
 public:
  std::vector<ModelKey> keys() const override {
    const auto size = [](std::int64_t value) { return ModelValue(value); };
    constexpr auto wide = static_cast<double>(widest);
    return {{"dim", size(256), "Width of the hidden state.", from(1, wide)},
            {"layers", size(8), "Number of transformer layers.", from(1, 10000)},
            {"heads", size(8), "Query heads of the attention.", from(1, most)},
            {"kv_heads", size(0),
             "Key and value heads; must divide `heads`. 0: as many as `heads`.", from(0, most)},
            {"head_dim", size(0), "Width of a head, even. 0: `dim / heads`.", from(0, wide)},
            {"ffn_dim", size(0),
             "Width of the feed-forward part. 0: 8/3 of `dim`, rounded up to a multiple of 64.",
             from(0, wide)},
            {"rope_theta", 10000.0, "Base of the rotary embedding's wavelengths.", positive},
            {"norm_eps", 1e-5, "The epsilon of RMSNorm.", positive},
            {"tie_embeddings", false, "Use the token embedding as the output matrix too."}};
  }

  std::vector<ModelProblem> complete(ModelSizes& sizes) const override {
    const nn::DecoderShape shape = decoder_shape(sizes);
    std::vector<ModelProblem> problems;
    if (shape.kv_heads > 0 && shape.heads % shape.kv_heads != 0) {
      problems.push_back({{"kv_heads", "heads"},
                          fmt::format("must divide model.heads ({} heads, {} kv_heads)",
                                      shape.heads, shape.kv_heads)});
    }
    if (shape.head_dim == 0 && shape.dim % shape.heads != 0) {
      problems.push_back(
          {{"heads", "dim"},
           fmt::format("must divide model.dim (dim {}, {} heads); or set model.head_dim", shape.dim,
                       shape.heads)});
    } else if (shape.head_extent() % 2 != 0) {
      problems.push_back(
          {{"head_dim", "heads", "dim"},
           fmt::format("the width of a head must be even for the rotary embedding (got {})",
                       shape.head_extent())});
    }
    const std::int64_t ffn = (8 * shape.dim / 3 + 63) / 64 * 64;
    sizes.values.set("kv_heads", shape.kv_heads > 0 ? shape.kv_heads : shape.heads);
    sizes.values.set("head_dim", shape.head_extent());
    sizes.values.set("ffn_dim", shape.ffn_dim > 0 ? shape.ffn_dim : ffn);
    return problems;
  }

  std::string describe(const ModelSizes& sizes) const override {
    const nn::DecoderShape shape = decoder_shape(sizes);
    return fmt::format("dim {}, {} layers, {} heads ({} of keys and values), ffn {}", shape.dim,
                       shape.layers, shape.heads, shape.kv_heads, shape.ffn_dim);
  }

  double parameters(const ModelSizes& sizes) const override {
    const nn::DecoderShape shape = decoder_shape(sizes);
    const auto number = [](std::int64_t value) { return static_cast<double>(value); };
    const double dim = number(shape.dim);
    const double attention =
        dim * number(shape.head_dim) * 2 * (number(shape.heads) + number(shape.kv_heads));
    const double layer = attention + 3 * dim * number(shape.ffn_dim) + 2 * dim;
    return number(shape.vocab) * dim * (shape.tie_embeddings ? 1 : 2) +
           number(shape.layers) * layer + dim;
  }

  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override {
    nn::DecoderShape shape = decoder_shape(sizes);
    shape.dropout = dropout;
    return std::make_shared<nn::DecoderLM>(shape);
  }

  std::string architecture() const override { return "LlamaForCausalLM"; }
  SpecialTokens special_tokens() const override { return {.bos = 1, .eos = 2}; }

  ModelSizes read(HubConfig& config) const override {
    check_fixed(config);
    ModelSizes sizes;
    sizes.vocab = config.size("vocab_size", widest);
    const std::int64_t dim = config.size("hidden_size", widest);
    const std::int64_t heads = config.size("num_attention_heads", most);
    const std::int64_t key_heads = config.size("num_key_value_heads", most, heads);
    const std::int64_t given_head = config.size("head_dim", widest, 0);
    sizes.max_positions = config.size("max_position_embeddings", std::int64_t{1} << 40, 2048);
    sizes.values.set("dim", dim);
    sizes.values.set("layers", config.size("num_hidden_layers", most));
    sizes.values.set("heads", heads);
    sizes.values.set("kv_heads", key_heads);
    sizes.values.set("head_dim", given_head > 0 ? given_head : dim / heads);
    sizes.values.set("ffn_dim", config.size("intermediate_size", widest));
    sizes.values.set("rope_theta", config.rope_theta());
    sizes.values.set("norm_eps", config.positive("rms_norm_eps", 1e-6));
    sizes.values.set("tie_embeddings", config.flag("tie_word_embeddings", false));
    if (config.sound()) {
      check_heads(config, decoder_shape(sizes), given_head);
    }
    return sizes;
  }

  std::vector<HubKey> write(const ModelSizes& sizes) const override {
    const nn::DecoderShape shape = decoder_shape(sizes);
    const HubKey theta("rope_theta", shape.rope_theta);
    return {{"vocab_size", shape.vocab},
            {"hidden_size", shape.dim},
            {"intermediate_size", shape.ffn_dim},
            {"num_hidden_layers", shape.layers},
            {"num_attention_heads", shape.heads},
            {"num_key_value_heads", shape.kv_heads},
            {"head_dim", shape.head_dim},
            {"rms_norm_eps", shape.norm_eps},
            // transformers 4 reads the first, transformers 5 the second.
            theta,
            HubKey::raw("rope_parameters",
                        fmt::format(R"({{"rope_theta": {}, "rope_type": "default"}})", theta.json)),
            {"tie_word_embeddings", shape.tie_embeddings},
            {"hidden_act", "silu"},
            {"attention_bias", false},
            {"attention_dropout", 0.0},
            {"mlp_bias", false},
            {"max_position_embeddings", sizes.max_positions}};
  }

  Layers layers(const ModelSizes& sizes) const override {
    return {"model.layers.", "num_hidden_layers", sizes.values.integer("layers")};
  }

  std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const override {
    const nn::DecoderShape shape = decoder_shape(sizes);
    return {{"model.embed_tokens.weight", {"vocab_size", "hidden_size"}, {shape.vocab, shape.dim}},
            {"model.layers.0.self_attn.q_proj.weight",
             {"num_attention_heads times head_dim", "hidden_size"},
             {shape.heads * shape.head_dim, shape.dim}},
            {"model.layers.0.self_attn.k_proj.weight",
             {"num_key_value_heads times head_dim", "hidden_size"},
             {shape.kv_heads * shape.head_dim, shape.dim}},
            {"model.layers.0.mlp.gate_proj.weight",
             {"intermediate_size", "hidden_size"},
             {shape.ffn_dim, shape.dim}}};
  }

 private:
  static void check_fixed(HubConfig& config) {
    config.only("hidden_act", "\"silu\"", "the feed-forward part is SwiGLU");
    config.only("attention_bias", "false", "the linear layers have no bias");
    config.only("mlp_bias", "false", "the linear layers have no bias");
    config.only("attention_dropout", "0.0", "attention probabilities are not dropped");
    config.only("partial_rotary_factor", "1.0", "the whole head is rotated");
    config.only("sliding_window", "null", "a token attends to all earlier tokens");
    config.only("attention_chunk_size", "null", "a token attends to all earlier tokens");
    config.only_entries("layer_types", "\"full_attention\"",
                        "a token attends to all earlier tokens");
    config.only_entries("mlp_layer_types", "\"dense\"", "every feed-forward part is dense");
  }

  static void check_heads(HubConfig& config, const nn::DecoderShape& shape, std::int64_t given_head) {
    if (given_head == 0 && shape.dim % shape.heads != 0) {
      config.problem(fmt::format("num_attention_heads {} does not divide hidden_size {}",
                                 shape.heads, shape.dim));
    }
    if (shape.heads % shape.kv_heads != 0) {
      config.problem(fmt::format("num_key_value_heads {} does not divide num_attention_heads {}",
                                 shape.kv_heads, shape.heads));
    }
    if (shape.head_dim % 2 != 0) {
      config.problem(
          fmt::format("head_dim {} is odd; the rotary embedding needs pairs", shape.head_dim));
    }
  }
};

}  // namespace

std::unique_ptr<ModelFamily> llama_family() { return std::make_unique<Llama>(); }

}  // namespace tessera::models
