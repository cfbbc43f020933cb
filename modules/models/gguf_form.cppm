export module tessera.models:gguf_form;

import tessera.base;

export namespace tessera::models {

/// A form that files have a parameter in; each can be undone.
enum class GgufTensorForm {
  negative_exp,    // -exp(x)
  column,          // a vector as a matrix of one column
  without_middle,  // a convolution's [channels, 1, taps] as [channels, taps]
  by_key_heads,    // a vector as a row for each key head of recurrent layers
  /// Rows of recurrent value heads: the first ones of all key heads, then the second ones.
  heads_in_turns,
  columns_in_turns  // the same of columns
};

/// A kind of layers by a field that has a value for each layer.
struct GgufLayerKind {
  std::string word;        // in the list of config.json
  std::string field = {};  // 0 or false: not of this kind; empty: of none of the others
  std::string key = {};    // of config.json: the field's value in these layers; empty: true
  /// Of files with such layers; empty: the form's. A model has layers of one architecture.
  std::string architecture = {};
};

/// How fields say what each layer is, which config.json has as a list.
struct GgufLayers {
  std::string key = {};  // of config.json
  bool numbers = false;  // it lists the layers of the first kind by their numbers
  std::string interval =
      {};  // a field: each so many-th layer is of the last kind, without the others
  std::int64_t usual_interval = 0;        // where that field is missing too; 0: that is an error
  std::vector<GgufLayerKind> kinds = {};  // a layer is of the first that fits
};

/// A key of config.json whose value follows from a field.
struct GgufChoice {
  std::string field;
  std::vector<std::pair<std::string, std::string>> values =
      {};                      // of the key, by the field's (JSON)
  std::string otherwise = {};  // of the key, where the field has another value or is missing
};

/// How files of ggml's programs (GGUF) have the models of a family: its fields and the keys of
/// config.json. Names of fields lack the architecture's; values are JSON.
struct GgufForm {
  std::string architecture = {};  // empty: there are no such files
  std::string same_as = {};       // files have its models as those of this built-in family
  // Which family a file is of, where an architecture has several: the one with most conditions.
  std::map<std::string, std::string> when = {};  // fields with these values, also written
  std::vector<std::string> needs = {};           // fields that are there
  /// Sizes: their keys by fields that must be there. Empty keys: config.json has none.
  std::map<std::string, std::string> sizes = {};
  /// Keys by fields. A sum of keys, "a + b", or a product, "a * b", gives the one that is not known
  /// yet; with "a = b" the field is both. "rope_scaling.a" is a part of that object.
  std::map<std::string, std::string> keys = {};
  /// Fields that are written from a key, and not read.
  std::map<std::string, std::string> also = {};
  std::map<std::string, std::string> fields = {};   // always with this value, and so written
  std::map<std::string, std::string> written = {};  // with this value, and not read
  std::map<std::string, std::string> config = {};   // keys with a value that these programs assume
  std::map<std::string, GgufChoice> choices = {};   // by keys
  /// Fields of a number N and keys of a list with each N-th layer.
  std::map<std::string, std::string> every = {};
  GgufLayers layers = {};
  /// Forms of parameters, in their order, by names after the layer's.
  std::map<std::string, std::vector<GgufTensorForm>> forms = {};
  /// Keys that are true where the first layer with such a part has this tensor.
  std::map<std::string, std::string> present = {};
  /// Keys that are true where a layer has the first of these tensors and not the second one.
  std::map<std::string, std::pair<std::string, std::string>> lacking = {};
  /// Fields with a value for each layer, or one for all: the key of layers with a window, and that
  /// of others, which may be null as it is where all have the same.
  std::map<std::string, std::pair<std::string, std::string>> windowed = {};
  /// Fields with a number for each layer: parameters of one value, by names after the layer's.
  std::map<std::string, std::string> numbers = {};
  /// The key that makes feed-forward parts of the last `attention.shared_kv_layers` twice as wide.
  std::string wide_shared = {};
  /// See DecoderTraits::nested_global.
  std::map<std::string, std::map<std::string, std::string>> nested_global = {};
  std::string vocab_key = {};
  std::string tied_key = {};
  std::string head_dim_key = {};     // empty: it is dim / heads
  std::string rope_key = {};         // of the base of wavelengths
  bool rope = true;                  // queries and keys may be rotated
  double rope_theta = 10000;         // where a file does not say
  double log_share = 0.1;            // which part of mscale_all_dim files have
  bool rope_sections = false;        // a list says which pairs are rotated by which position
  bool pairs = false;                // rows of queries and keys in pairs that are rotated together
  bool norm_offset = false;          // norms are stored with the 1 that is added to them
  bool partial_rope = false;         // a part of a head may be rotated
  bool layer_types = false;          // a list says which layers have a window
  std::int64_t scores_by_width = 0;  // with so many layers, scores are divided by dim / heads
  std::int64_t windows_with = 0;     // only with so many layers there are windows; 0: with any
  bool split_latents = false;   // what makes keys of latent features is apart from that of values
  bool llama3_factors = false;  // a tensor has the factors of llama3's wavelengths
  bool long_factors = false;    // two tensors have those of longrope
  bool pair_factors = false;    // a tensor tells the pairs that are rotated from the others
  bool only_written = false;    // files of this architecture are read as another family
};

}  // namespace tessera::models
