export module tessera.models:decoder_family;

import tessera.base;
import tessera.nn;
import :values;
import :hub_config;
import :family;

// Families of decoders by what distinguishes them: sizes, names and config.json of all of them are
// those of one class.
export namespace tessera::models {

/// A property in which the models of a family differ, besides the sizes that all decoders have.
struct DecoderProperty {
  using Member =
      std::variant<bool nn::DecoderShape::*, std::int64_t nn::DecoderShape::*,
                   double nn::DecoderShape::*, std::vector<std::int64_t> nn::DecoderShape::*>;
  std::string key;              // of [model]
  std::string hub;              // of config.json; null there means false, 0 or nothing
  std::vector<Member> members;  // which it sets, of one type
  ModelValue initial;           // where a config does not give it
  ModelValue absent;            // where config.json lacks it
  std::string doc;
  ModelRange range = {};
  std::string also = "";  // another key of config.json for it: read where `hub` is absent, written
  bool whole = false;     // transformers wants an integer where the number is one
};

/// A key of config.json that must be absent, null or have one value.
struct FixedHubKey {
  std::string key;
  std::string json;
  std::string reason;
  bool written = true;  // by exports: a key of this class in transformers
};

/// The names that a folder has for a layer with experts, after "model.layers.N."; `*` is the number
/// of an expert.
struct HubExperts {
  std::string router = "mlp.gate.weight";
  std::string gate = "mlp.experts.*.gate_proj.weight";
  std::string up = "mlp.experts.*.up_proj.weight";
  std::string down = "mlp.experts.*.down_proj.weight";
  std::string bias = "";  // of the router's choice
  std::string shared = "mlp.shared_expert.";
};

/// What distinguishes a family of decoders.
struct DecoderTraits {
  std::string architecture;  // the class in transformers
  SpecialTokens special_tokens = {.bos = 1, .eos = 2};
  /// Of all its models, besides sizes and properties. Its rope_theta, norm_eps and tie_embeddings
  /// are what a config without these keys has.
  nn::DecoderShape shape = {};
  std::vector<DecoderProperty> properties = {};
  bool scaled_rope = false;   // long sequences may scale the rotary embedding
  bool partial_rope = false;  // rope_parameters says which part of a head is rotated: all of it
  /// Which layers have a window is written as layer_types.
  bool layer_types = false;
  /// Projections of queries, keys and values are one tensor of a folder, and gate_proj and up_proj.
  bool fused = false;
  /// Layers may have experts; the shape and the properties say which.
  std::optional<HubExperts> experts = std::nullopt;
  std::vector<FixedHubKey> fixed_keys = {};
  std::vector<std::string> ignored_keys = {};  // without influence on what is computed
  /// What transformers assumes where config.json lacks a key.
  struct HubDefaults {
    std::int64_t max_positions = 2048;
    std::int64_t head_dim = 0;  // 0: dim / heads
    double rope_theta = 10000;
    double norm_eps = 1e-6;
    bool tie_embeddings = false;
  } absent = {};
};

/// A family of decoders. Others derive from it to add to it.
class DecoderFamily : public ModelFamily {
 public:
  explicit DecoderFamily(DecoderTraits traits) : traits_(std::move(traits)) {}

  std::vector<ModelKey> keys() const override;
  std::vector<ModelProblem> complete(ModelSizes& sizes) const override;
  std::string describe(const ModelSizes& sizes) const override;
  double parameters(const ModelSizes& sizes) const override;
  TensorSplit tensor_split(const ModelSizes& sizes) const override;
  std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes, double dropout) const override;
  std::string architecture() const override { return traits_.architecture; }
  SpecialTokens special_tokens() const override { return traits_.special_tokens; }
  ModelSizes read(HubConfig& config) const override;
  std::vector<HubKey> write(const ModelSizes& sizes) const override;
  std::vector<HubTensor> tensors(const ModelSizes& sizes) const override;
  Layers layers(const ModelSizes& sizes) const override;
  std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const override;

  /// The shape that complete sizes stand for; `dropout` is not among them.
  nn::DecoderShape shape_of(const ModelSizes& sizes) const;

 private:
  void read_properties(HubConfig& config, ModelSizes& sizes) const;
  void read_rope(HubConfig& config, ModelSizes& sizes) const;
  void check_layer_types(HubConfig& config, ModelSizes& sizes) const;
  /// The key of config.json for a key of [model]; `otherwise` where the family has no such key.
  std::string hub_key(std::string_view key, const std::string& otherwise) const;

  DecoderTraits traits_;
};

/// The traits of Llama 2 and 3, for families that are a Llama with something else in its place.
DecoderTraits llama_traits();
/// The traits of Mixtral and of Qwen 2 and 3 MoE, for other families whose layers have experts.
DecoderTraits mixtral_traits();
DecoderTraits qwen2_moe_traits();
DecoderTraits qwen3_moe_traits();

}  // namespace tessera::models

namespace tessera::models {

/// The built-in families by their names (model_type in config.json).
const std::map<std::string, DecoderTraits (*)()>& built_in_decoders();

}  // namespace tessera::models
