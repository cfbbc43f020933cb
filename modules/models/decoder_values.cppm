module tessera.models:decoder_values;

import tessera.base;
import tessera.ops;
import tessera.nn;
import :values;
import :hub_config;
import :gguf_form;
import :family;
import :decoder_family;

// What the sources of decoder families share.
namespace tessera::models {

// The largest sizes of a config and of a config.json.
constexpr std::int64_t widest = std::int64_t{1} << 24;
constexpr std::int64_t most = 100000;
constexpr std::int64_t most_positions = std::int64_t{1} << 40;
constexpr std::int64_t most_further_layers = 16;  // that predict tokens after the next one

/// Words of layer_types in config.json.
constexpr std::string_view full_layers = "full_attention";
constexpr std::string_view window_layers = "sliding_attention";
constexpr std::string_view chunk_layers = "chunked_attention";

/// What a rotary embedding for long sequences changes.
enum class RopeChange {
  frequencies,  // by the operator's scaling, or not at all
  base,         // the base grows with the row (nn::RotaryOptions::stretch)
  wavelengths   // each has factors of its own (nn::WavelengthFactors)
};

/// A scaling of rotary embeddings, as config.json and as [model] name it.
struct RopeKind {
  ops::RotaryScaling::Kind kind;
  const char* hub;
  const char* key;
  RopeChange change = RopeChange::frequencies;
};
constexpr RopeKind rope_kinds[] = {
    {ops::RotaryScaling::Kind::none, "default", "none"},
    {ops::RotaryScaling::Kind::none, "dynamic", "dynamic", RopeChange::base},
    {ops::RotaryScaling::Kind::none, "longrope", "longrope", RopeChange::wavelengths},
    {ops::RotaryScaling::Kind::linear, "linear", "linear"},
    {ops::RotaryScaling::Kind::llama3, "llama3", "llama3"},
    {ops::RotaryScaling::Kind::yarn, "yarn", "yarn"}};
/// The scaling by its word in [model].
const RopeKind& rope_kind(std::string_view key);

/// Values that do not fit together, with the names of [model] and those of config.json.
struct ValueConflict {
  std::vector<std::string> keys;
  std::string text;
  std::string hub;
};
std::vector<ValueConflict> misfits_of(const nn::DecoderShape& shape);
/// Those of the kinds of layers, and of recurrent ones.
std::vector<ValueConflict> layer_misfits(const nn::DecoderShape& shape);

/// The first layer with a feed-forward part that has experts, or that has none; -1: there is none.
std::int64_t first_layer(const nn::DecoderShape& shape, bool with_experts);

/// The pattern of so many layers, without what repeats.
std::string shortest_pattern(const std::string& pattern, std::int64_t layers);
/// The rows of a weight of a recurrent layer by its module, after the layer's name; 0: it has none.
std::int64_t recurrent_rows(const nn::DecoderShape& shape, std::string_view module);
/// The parameters of a recurrent layer.
double recurrent_parameters(const nn::DecoderShape& shape);
/// How many layers are of this kind.
std::int64_t layers_of_kind(const nn::DecoderShape& shape, nn::LayerKind kind);
/// The first layer of this kind; -1: there is none.
std::int64_t first_of_kind(const nn::DecoderShape& shape, nn::LayerKind kind);

/// The property that sets this member; null: models of the family do not differ in it.
const DecoderProperty* property_of(const DecoderTraits& traits,
                                   std::int64_t nn::DecoderShape::* member);
const DecoderProperty* property_of(const DecoderTraits& traits,
                                   std::vector<std::int64_t> nn::DecoderShape::* member);
const DecoderProperty* property_of(const DecoderTraits& traits,
                                   std::string nn::DecoderShape::* member);

/// Whether the last layer never has a window; `layers`: the property that lists those without one.
bool has_last_global(const DecoderProperty& layers);

/// The property that says what each layer has; null: there is none.
const DecoderProperty* pattern_of(const DecoderTraits& traits);
/// Whether a key lists the layers without a window, and no property does.
bool lists_layers(const DecoderTraits& traits);
/// Whether models of the family can have layers that predict tokens after the next one.
bool has_further_layers(const DecoderTraits& traits);
/// The form of a model; null: the family has no forms.
const DecoderVariant* variant_of(const DecoderTraits& traits, const ModelSizes& sizes);

/// The key of config.json for a key of [model]; `otherwise` where the family has no such key.
std::string hub_key(const DecoderTraits& traits, std::string_view key,
                    const std::string& otherwise);
/// The key of config.json for a size that all decoders have; empty: there is none.
std::string hub_size(const DecoderTraits& traits, const std::string& key);

/// The rotary embedding of a config.json, and that of an export.
void read_rope(const DecoderTraits& traits, HubConfig& config, ModelSizes& sizes);
void write_rope(const DecoderTraits& traits, const ModelSizes& sizes, const nn::DecoderShape& shape,
                std::vector<HubKey>& all);

/// What a folder has for the parameters of a model. `variant`: its form, or null.
std::vector<HubTensor> hub_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape,
                                   const DecoderVariant* variant);
/// The form of GGUF files, with the fields that all decoders have.
GgufForm gguf_form(const DecoderTraits& traits);
/// What GGUF files have for the parameters. `variant`: the model's form, or null.
std::vector<HubTensor> gguf_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape,
                                    const DecoderVariant* variant);
/// See ModelFamily::gguf_sizes.
ModelSizes gguf_sizes(const DecoderTraits& traits, ModelSizes sizes, const nn::DecoderShape& shape);
/// Adds the names of the modules that a folder, or a file, has as one. `own`: the layer's name in
/// the model; `stored`: there.
void add_fused(std::vector<HubTensor>& all, const std::string& layer, const std::string& stored,
               const FusedModule& fused, const nn::DecoderShape& shape);
/// Patterns of tensors that predict tokens after the next one.
std::vector<std::string> further_tensors(const DecoderTraits& traits,
                                         const nn::DecoderShape& shape);
/// Patterns of tensors of keys and values in layers that use those of another one.
std::vector<std::string> unused_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape);
/// Parameters that show every size.
std::vector<SizedTensor> sized_tensors(const DecoderTraits& traits, const nn::DecoderShape& shape);

/// The word of layer_types for a layer.
std::string_view layer_type(const nn::DecoderShape& shape, std::int64_t layer);
/// Those of all layers.
std::vector<std::string> layer_types(const nn::DecoderShape& shape);

/// Sizes of all decoders that have keys of config.json.
std::vector<std::string> decoder_size_keys();
/// The modules with parameters that a decoder can have, those of a layer without its name.
std::vector<std::string> decoder_modules();

}  // namespace tessera::models
