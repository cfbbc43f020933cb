export module tessera.models:decoder_family;

import tessera.base;
import tessera.nn;
import :values;
import :hub_config;
import :family;
import :gguf_form;

// Families of decoders by what distinguishes them: sizes, names and config.json of all of them are
// those of one class.
namespace tessera::models {

template <auto First, auto... Rest>
auto& member_at(auto& object) {
  if constexpr (sizeof...(Rest) == 0) {
    return object.*First;
  } else {
    return member_at<Rest...>(object.*First);
  }
}

}  // namespace tessera::models

export namespace tessera::models {

/// Where a shape has a member of this type.
template <class Field>
using DecoderField = Field& (*)(nn::DecoderShape&);
/// The member of a shape by a path of members: decoder_field<&nn::DecoderShape::experts>.
template <auto... Path>
constexpr auto decoder_field =
    +[](nn::DecoderShape& shape) -> auto& { return member_at<Path...>(shape); };
/// A member of nn::DecoderShape, or of a part of it, that a family or a model of it sets.
using DecoderMember =
    std::variant<DecoderField<bool>, DecoderField<std::int64_t>, DecoderField<double>,
                 DecoderField<std::vector<std::int64_t>>, DecoderField<std::vector<double>>,
                 DecoderField<nn::Activation>, DecoderField<nn::HeadNorm>,
                 DecoderField<nn::NormOptions::Kind>, DecoderField<nn::RouterScore>,
                 DecoderField<nn::GroupScore>, DecoderField<std::string>,
                 DecoderField<nn::RecurrentRule>, DecoderField<nn::OutputGate>>;

class HubForm;

/// A property in which the models of a family differ, besides the sizes that all decoders have.
struct DecoderProperty {
  using Member = DecoderMember;
  std::string key;              // of [model]
  std::string hub;              // of config.json; null there means false, 0 or nothing
  std::vector<Member> members;  // which it sets, of one type
  ModelValue initial;           // where a config does not give it
  ModelValue absent;            // where config.json lacks it
  std::string doc;
  ModelRange range = {};
  std::shared_ptr<const HubForm> form = nullptr;  // null: the usual one of the value's type
};

/// What a form reads from, and where its values go.
struct HubInput {
  HubConfig& config;
  ModelSizes& sizes;
  std::set<std::string> replaced = {};  // see HubForm::replaces; those whose list is there
};

/// What a form writes, and to where.
struct HubOutput {
  const ModelSizes& sizes;
  const nn::DecoderShape& shape;
  std::span<const DecoderProperty> properties;  // of the family
  std::vector<HubKey>& keys;
};

/// How config.json has the value of a property.
class HubForm {
 public:
  virtual ~HubForm();
  /// Sets the property's value; problems go to the config.
  virtual void read(const DecoderProperty& property, HubInput& in) const = 0;
  /// Adds the keys of an export.
  virtual void write(const DecoderProperty& property, const HubOutput& out) const = 0;
  /// Whether a property with such a value can have this form.
  virtual bool fits(const ModelValue& value) const = 0;
  /// The key of a property N, each so many-th layer, that is its smallest value where config.json
  /// has this property's list; an export's list has the layers of both. Empty: none.
  virtual std::string replaces() const { return ""; }
};

/// A key of config.json that must be absent, null or have one value.
struct FixedHubKey {
  std::string key;
  std::string json;
  std::string reason;
  bool written = true;  // by exports: a key of this class in transformers
};

/// The names that a folder has for a layer with experts, after the layer's; `*` is the number of an
/// expert. Without a name for `gate` it has only tensors of all experts.
struct HubExperts {
  std::string router = "mlp.gate.weight";
  std::string gate = "mlp.experts.*.gate_proj.weight";
  std::string up = "mlp.experts.*.up_proj.weight";
  std::string down = "mlp.experts.*.down_proj.weight";
  std::string bias = "";  // of the router's choice
  bool bias_row = false;  // it is [1, experts] there
  std::string shared = "mlp.shared_expert.";
  std::string shared_gate = "mlp.shared_expert_gate.";
  // All experts in one tensor: the gates before the other half of the first projection.
  std::string gate_up = "mlp.experts.gate_up_proj";
  std::string all_down = "mlp.experts.down_proj";
  // With biases: of the router's logits, and of all experts.
  std::string logit_bias = "mlp.gate.bias";
  std::string gate_up_bias = "mlp.experts.gate_up_proj_bias";
  std::string down_bias = "mlp.experts.down_proj_bias";
  bool transposed = false;   // tensors of all experts are [experts, in, out]
  bool alternating = false;  // rows of gates and of the other half take turns
  bool packed = false;       // a folder may have them in MXFP4 (hub::HubWeights)
};

/// How many heads of keys and values there are.
enum class KeyHeads {
  counted,  // as many as their key says
  one,
  all  // as many as heads
};

/// A form of a family's models that flags of config.json tell apart.
struct DecoderVariant {
  std::string name;  // the value of [model].form
  /// The values (JSON) that keys of config.json can have; an export writes the last one.
  std::map<std::string, std::vector<std::string>> flags = {};
  KeyHeads key_heads = KeyHeads::counted;
  std::vector<std::pair<DecoderMember, ModelValue>> members = {};
  std::map<std::string, std::string> modules = {};  // see DecoderTraits::hub_modules
};

/// The forms of a family's models.
struct DecoderVariants {
  std::string doc;
  std::map<std::string, std::string> absent =
      {};                                // of each flag (JSON), where config.json lacks it
  std::vector<DecoderVariant> all = {};  // the first one whose flags fit counts
};

/// Layers and tensors by which a folder predicts tokens after the next one.
struct FurtherTokens {
  std::vector<std::string> keys = {};     // of config.json: how many layers
  bool after_layers = false;              // their numbers follow those of the other layers
  std::vector<std::string> tensors = {};  // patterns
  /// With after_layers: tensors that a folder has again in each such layer, by their names there.
  std::map<std::string, std::string> copies = {};
};

/// Modules of a layer that a folder has as one, whose parts follow one another along dim 0.
struct FusedModule {
  std::string stored;              // after the layer's name
  std::vector<std::string> parts;  // the model's modules, after the layer's name
  /// Of queries, keys and values: each key head has its own queries, key and value in a row.
  bool by_key_heads = false;
  bool by_heads = false;  // each query head has its part of each
};

/// GGUF files of a family: what is not the same for all decoders.
struct DecoderGguf {
  GgufForm form = {};
  std::map<std::string, std::string> modules = {};  // other names than usual, by the model's
  std::vector<FusedModule> fused = {};              // by the file's names
  /// Further ones of models of a form (DecoderVariant), by its name.
  std::map<std::string, std::map<std::string, std::string>> form_modules = {};
};

/// What distinguishes a family of decoders.
struct DecoderTraits {
  std::string architecture;     // the class in transformers
  std::string classifier = {};  // see ModelFamily::classifier; empty: there is none
  SpecialTokens special_tokens = {.bos = 1, .eos = 2};
  /// Of all its models, besides sizes and properties. Its rope_theta, norm_eps and tie_embeddings
  /// are what a config without these keys has.
  nn::DecoderShape shape = {};
  std::vector<DecoderProperty> properties = {};
  bool scaled_rope = false;   // long sequences may scale the rotary embedding
  bool partial_rope = false;  // rope_parameters says which part of a head is rotated
  bool rope_keys = true;      // config.json has keys of the rotary embedding
  bool rope_alpha = false;    // see HubRope::alpha
  std::vector<std::string> ignored_rope = {};  // parts of rope_parameters without effect
  bool rope_growth = false;                    // see HubRope::growth
  /// rope_parameters has the bases of layers with a window and of others apart.
  bool rope_by_layers = false;
  /// Layers without a window may rotate a share of the pairs of a whole head ("proportional").
  bool rope_by_pairs = false;
  /// Which layers have a window is written as layer_types.
  bool layer_types = false;
  /// Keys of config.json for sizes that it has under other names than Llama's, by their keys of
  /// [model] ("vocab" and "max_positions" besides); empty: it has none, and the size is what a
  /// config has without it.
  std::map<std::string, std::string> hub_sizes = {};
  /// A folder's names of modules by the model's: "lm_head", "model.norm"; of those in a layer after
  /// the layer's name: "self_attn.q_proj". "model.layers.*" is the layer.
  std::map<std::string, std::string> hub_modules = {};
  std::vector<FusedModule> fused = {};
  /// Objects of config.json whose parts are read as keys: names of keys by those of parts.
  std::map<std::string, std::map<std::string, std::string>> nested = {};
  /// The same of objects that have such an object for each layer without a window, by its number.
  std::map<std::string, std::map<std::string, std::string>> nested_global = {};
  /// Keys of config.json that may be a list with the same number for each layer.
  std::vector<std::string> each_layer = {};
  std::map<std::string, std::string> older_keys = {};  // keys by their names in older folders
  DecoderVariants variants = {};                       // none: all models have one form
  FurtherTokens further = {};
  std::vector<std::string> ignored_tensors = {};  // of a folder; patterns
  /// Layers may have experts; the shape and the properties say which.
  std::optional<HubExperts> experts = std::nullopt;
  DecoderGguf gguf = {};
  std::vector<FixedHubKey> fixed_keys = {};
  std::vector<std::string> ignored_keys = {};  // without influence on what is computed
  /// What transformers assumes where config.json lacks a key.
  struct HubDefaults {
    std::int64_t max_positions = 2048;
    std::int64_t head_dim = 0;  // 0: dim / heads
    std::int64_t kv_heads = 0;  // 0: as many as heads
    double ffn_per_dim = 0;     // ffn_dim is so many times dim; 0: the key must be there
    double rope_theta = 10000;
    std::string rope = "";          // rope_parameters, JSON
    std::int64_t global_every = 0;  // each so many-th layer is one of `global_layers`; 0: none is
    double rotary_share = 1;
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
  std::string classifier() const override { return traits_.classifier; }
  std::shared_ptr<nn::DecoderClassifier> build_classifier(const ModelSizes& sizes,
                                                          std::int64_t classes,
                                                          std::int64_t padding) const override;
  SpecialTokens special_tokens() const override { return traits_.special_tokens; }
  ModelSizes read(HubConfig& config) const override;
  std::vector<HubKey> write(const ModelSizes& sizes) const override;
  std::vector<HubTensor> tensors(const ModelSizes& sizes) const override;
  std::vector<std::string> ignored_tensors() const override;
  std::vector<std::string> unused_tensors(const ModelSizes& sizes) const override;
  std::vector<std::string> further_tensors(const ModelSizes& sizes) const override;
  std::vector<std::string> packed_forms() const override;
  GgufForm gguf() const override;
  std::vector<HubTensor> gguf_tensors(const ModelSizes& sizes) const override;
  ModelSizes gguf_sizes(const ModelSizes& sizes) const override;
  Layers layers(const ModelSizes& sizes) const override;
  std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const override;

  /// The shape that complete sizes stand for; `dropout` is not among them.
  nn::DecoderShape shape_of(const ModelSizes& sizes) const;

 private:
  // Of config.json.
  void read_sizes(HubConfig& config, ModelSizes& sizes) const;
  void read_variant(HubConfig& config, ModelSizes& sizes) const;
  void read_properties(HubConfig& config, ModelSizes& sizes) const;
  void read_global_layers(HubConfig& config, ModelSizes& sizes) const;
  void check_layer_types(HubConfig& config, ModelSizes& sizes) const;
  /// Errors: entries of nested_global that are not of the layers without a window.
  void check_global_objects(HubConfig& config, const ModelSizes& sizes) const;
  void write_sizes(const ModelSizes& sizes, std::vector<HubKey>& all) const;
  void write_properties(const ModelSizes& sizes, const nn::DecoderShape& shape,
                        std::vector<HubKey>& all) const;
  DecoderTraits traits_;
};

/// The traits of a built-in family, for others that are like it. Error (input): there is no such
/// family.
DecoderTraits decoder_traits(std::string_view family);

/// A member of nn::DecoderShape by the name that family files have for it: its own.
struct NamedDecoderMember {
  std::string name;
  DecoderMember member;
};
/// All that a family can set, sorted by name; sizes and what every model gives are not among them.
std::span<const NamedDecoderMember> decoder_members();
/// The words for the values of a member that is an enumeration; empty: it is none.
std::vector<std::string> words_of(const DecoderMember& member);
/// Sets a member to a value. Errors: it has another type, or no such word.
void set_member(nn::DecoderShape& shape, const DecoderMember& member, const ModelValue& value);

}  // namespace tessera::models
