export module tessera.models:gguf_form;

import tessera.base;

export namespace tessera::models {

/// How files of ggml's programs (GGUF) have the models of a family: its fields and the keys of
/// config.json. Names of fields lack the architecture's; values are JSON.
struct GgufForm {
  std::string architecture = {};  // empty: there are no such files
  // Which family a file is of, where an architecture has several: the one with most conditions.
  std::map<std::string, std::string> when = {};  // fields with these values, also written
  std::vector<std::string> needs = {};           // fields that are there
  /// Sizes: their keys by fields that must be there. Empty keys: config.json has none.
  std::map<std::string, std::string> sizes = {};
  /// Keys by fields. A sum of keys, "a + b", gives the one that is not known yet.
  std::map<std::string, std::string> keys = {};
  /// Fields that are written from a key, and not read.
  std::map<std::string, std::string> also = {};
  std::map<std::string, std::string> fields = {};  // always with this value, and so written
  std::map<std::string, std::string> config = {};  // keys with a value that these programs assume
  /// Keys that are true where the first layer with such a part has this tensor.
  std::map<std::string, std::string> present = {};
  std::string vocab_key = {};
  std::string tied_key = {};
  std::string head_dim_key = {};     // empty: it is dim / heads
  std::string rope_key = {};         // of the base of wavelengths
  double rope_theta = 10000;         // where a file does not say
  bool pairs = false;                // rows of queries and keys in pairs that are rotated together
  bool norm_offset = false;          // norms are stored with the 1 that is added to them
  bool partial_rope = false;         // a part of a head may be rotated
  bool layer_types = false;          // a list says which layers have a window
  std::int64_t scores_by_width = 0;  // with so many layers, scores are divided by dim / heads
  std::int64_t windows_with = 0;     // only with so many layers there are windows; 0: with any
  bool split_latents = false;   // what makes keys of latent features is apart from that of values
  bool llama3_factors = false;  // a tensor has the factors of llama3's wavelengths
  bool long_factors = false;    // two tensors have those of longrope
  bool only_written = false;    // files of this architecture are read as another family
};

}  // namespace tessera::models
