export module tessera.models:hub_config;

import tessera.base;

export namespace tessera::models {

/// The rotary embedding of a config.json. Kinds are those of transformers: "default", "linear",
/// "dynamic", "llama3", "yarn", "longrope"; a number that its kind does not have keeps the value
/// here.
struct HubRope {
  double theta = 10000;
  std::string kind = "default";
  double factor = 1;
  double original_positions = 0;
  double low = 1;   // llama3: low_freq_factor, yarn: beta_slow
  double high = 4;  // llama3: high_freq_factor, yarn: beta_fast
  double amplitude = 1;
  bool whole_dims = true;  // yarn: truncate
  double share = 0;        // partial_rotary_factor; 0: it is not given
  double alpha = 0;        // dynamic: the base is multiplied by alpha ^ (dims / (dims - 2)) instead
  double score_scale = 1;  // of attention over latent features, by mscale_all_dim
  double growth = 0;       // llama_4_scaling_beta, and the positions of pretraining beside it
  double growth_period = 0;
  std::vector<double> short_factors = {};  // longrope: of wavelengths, in rows of at most
  std::vector<double> long_factors = {};   // original_positions, and in longer ones
  bool operator==(const HubRope& other) const;
};

/// What else a family's rope_parameters may have.
struct RopeParts {
  bool share = false;  // partial_rotary_factor
  bool alpha = false;
  bool growth = false;  // llama_4_scaling_beta, which must be there
  std::vector<std::string> ignored = {};
  std::string absent = "";  // rope_parameters (JSON) where config.json has none
};

/// The keys of a config.json by what a family makes of them.
struct HubKeyUse {
  std::vector<std::string> read;     // they give sizes and properties
  std::vector<std::string> absent;   // they would, and are not there or null: a default counts
  std::vector<std::string> fixed;    // they must have the value that they have
  std::vector<std::string> ignored;  // without influence on what is computed
  std::vector<std::string> unknown;
};

/// The keys of a config.json in Hugging Face's format, which a family reads one by one. Everything
/// that is wrong with them is collected, and a key that is null is treated as absent.
class HubConfig {
 public:
  // Each returns a value that can be used where the file's is wrong, and notes the problem.
  /// A size from 1 to `limit` that must be there.
  std::int64_t size(const std::string& key, std::int64_t limit);
  /// Reads a size; `otherwise` where it is absent.
  std::int64_t size(const std::string& key, std::int64_t limit, std::int64_t otherwise);
  /// Reads an integer from `low` to `high`; `otherwise` where it is absent.
  std::int64_t integer(const std::string& key, double low, std::int64_t high,
                       std::int64_t otherwise);
  double positive(const std::string& key, double otherwise);
  /// Reads a number from 0 to below 1.
  double rate(const std::string& key, double otherwise);
  bool flag(const std::string& key, bool otherwise);
  /// Reads a text, or "true" or "false" of one of these; `otherwise` where it is absent.
  std::string text(const std::string& key, const std::string& otherwise);
  /// Whether the key is there and not null.
  bool has(const std::string& key) const;
  /// Whether the key is there and has this text.
  bool is_text(const std::string& key, const std::string& text);
  /// Whether the key has one of these values (JSON); where it is absent, whether `otherwise` is
  /// one.
  bool is_one_of(const std::string& key, std::span<const std::string> values,
                 const std::string& otherwise);
  /// Reads a list of texts, or a text as a list of its letters; empty where it is absent.
  std::vector<std::string> words(const std::string& key);
  /// Reads one of two numbers from 0 on; 0 for infinity, `otherwise` where the key is absent.
  double one_of_two(const std::string& key, std::int64_t which, double otherwise);
  /// Whether the key is there and null, which the reads above treat as absent.
  bool is_null(const std::string& key) const;
  /// Reads a list of texts; empty where it is absent.
  std::vector<std::string> texts(const std::string& key);
  /// Reads a list of numbers from 0 to `limit`; empty where it is absent.
  std::vector<std::int64_t> numbers(const std::string& key, std::int64_t limit);
  /// Reads a list of numbers from 0 to below 1; empty where it is absent.
  std::vector<double> rates(const std::string& key);
  /// The rotary embedding, from the top, rope_scaling (older writers) or rope_parameters; `layers`:
  /// of layers of this type, where they differ. `theta`: its base where none is given; `partial`: a
  /// part of a head may be rotated. Any other kind than these is a problem, and so are a
  /// rope_scaling and rope_parameters that differ.
  HubRope rope(std::span<const std::string> kinds, double theta = 10000,
               const std::string& layers = "", RopeParts parts = {});
  /// The base of the rotary embedding in layers of this type; `otherwise` where rope_parameters
  /// does not tell them apart. Any scaling of it is a problem.
  double rope_theta_of(const std::string& layers, double otherwise);

  /// The key must be absent, null or have this value (JSON); `reason` follows in the error.
  void only(const std::string& key, const std::string& json, const std::string& reason);
  /// Checks each entry of a list.
  void only_entries(const std::string& key, const std::string& json, const std::string& reason);
  /// Reads the parts of an object as keys with these names; a part without a name is a problem, and
  /// so is one whose key is there with another value.
  void unfold(const std::string& key, const std::map<std::string, std::string>& names);
  /// The same of an object with such an object for each of some layers, all with the same parts.
  /// Returns the numbers of the layers.
  std::vector<std::int64_t> unfold_layers(const std::string& key,
                                          const std::map<std::string, std::string>& names);
  /// The key may be a list with an equal entry for each of `layers`: then it is read as this entry.
  void one_for_layers(const std::string& key, const std::string& layers);
  /// Reads what an older name of a key has as the key's value. Both with different values are a
  /// problem.
  void rename(const std::string& older, const std::string& key);
  /// Keys that do not change what is computed, besides those of every model in transformers.
  void ignore(std::span<const std::string> keys);

  void problem(std::string text);
  /// Whether there is no problem so far: only then do values fit to be compared with each other.
  bool sound() const;

 protected:
  struct State;
  explicit HubConfig(std::shared_ptr<State> state);

  std::shared_ptr<State> state_;
};

/// A whole config.json, for who opens it. A key that no read asked for and that is not known to be
/// without effect is a problem: it may make another model.
class HubConfigFile : public HubConfig {
 public:
  /// `name` begins the errors. Errors (input): the text is not a JSON object, or names a key twice.
  HubConfigFile(std::string_view json, std::string name);

  /// Checks the keys of all decoders: the class, the tasks of the weights, and those below.
  /// `packed`: the quantizations of weights that can be read (ModelFamily::packed_forms).
  void check_common(const std::string& architecture, std::span<const std::string> packed = {});
  /// Checks the keys of all models: quantization, pruned heads, code and files of the folder's own.
  void check_folder(std::span<const std::string> packed = {});
  /// The class that the folder names; "" where it names none. Several are a problem.
  std::string architecture();
  /// The names of what a classifier tells apart: those of id2label by their numbers, or "LABEL_0"
  /// and so on, num_labels of them, or two.
  std::vector<std::string> labels();
  /// The labels of a head that gives a row one class of two or more; another task is a problem.
  std::vector<std::string> class_labels();
  /// Error (input) that lists the problems, if there are any.
  void throw_if_any() const;
  const std::vector<std::string>& problems() const;
  /// What the reads so far made of the keys.
  HubKeyUse use() const;
  /// Ends the reading: an error names the keys that nobody understands.
  void finish();
  /// Token ids below `vocab`: none for null, one, or a list; `otherwise` where the key is absent
  /// (none if that is not from 0 to vocab).
  std::vector<std::int64_t> tokens(const std::string& key, std::int64_t vocab,
                                   std::int64_t otherwise);
  /// The type of the weights by its name in PyTorch, from dtype or torch_dtype (older writers);
  /// "" where neither is there.
  std::string dtype();
  /// Keys that an export passes on: a JSON object of those that were not read.
  std::string others() const;
};

/// A key that an export writes into config.json.
struct HubKey {
  std::string key;
  std::string json;
  HubKey(std::string name, bool value);
  HubKey(std::string name, std::int64_t value);
  HubKey(std::string name, double value);
  HubKey(std::string name, const char* text);
  /// A value that is JSON already.
  static HubKey raw(std::string name, std::string json);
  /// A list of texts.
  static HubKey list(std::string name, std::span<const std::string> texts);
};

/// The keys of a classifier's labels: what HubConfigFile::labels reads.
std::vector<HubKey> label_keys(std::span<const std::string> labels);

}  // namespace tessera::models
