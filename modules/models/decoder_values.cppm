module tessera.models:decoder_values;

import tessera.base;
import tessera.ops;
import tessera.nn;

// What the sources of decoder families share.
namespace tessera::models {

// The largest sizes of a config and of a config.json.
constexpr std::int64_t widest = std::int64_t{1} << 24;
constexpr std::int64_t most = 100000;
constexpr std::int64_t most_positions = std::int64_t{1} << 40;

/// A scaling of rotary embeddings, as config.json and as [model] name it. "dynamic" is none of the
/// operator's: the base grows with the row (nn::RotaryOptions::stretch).
struct RopeKind {
  ops::RotaryScaling::Kind kind;
  const char* hub;
  const char* key;
};
constexpr RopeKind rope_kinds[] = {{ops::RotaryScaling::Kind::none, "default", "none"},
                                   {ops::RotaryScaling::Kind::none, "dynamic", "dynamic"},
                                   {ops::RotaryScaling::Kind::linear, "linear", "linear"},
                                   {ops::RotaryScaling::Kind::llama3, "llama3", "llama3"},
                                   {ops::RotaryScaling::Kind::yarn, "yarn", "yarn"}};

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

/// Sizes of all decoders that have keys of config.json.
std::vector<std::string> decoder_size_keys();
/// The modules with parameters that a decoder can have, those of a layer without its name.
std::vector<std::string> decoder_modules();

}  // namespace tessera::models
