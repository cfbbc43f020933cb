export module tessera.models:family;

import tessera.base;
import tessera.plugin;
import tessera.tensor;
import tessera.nn;
import :values;
import :hub_config;
import :gguf_form;

export namespace tessera::models {

/// Where a parameter is in a folder of transformers, if not under its own name and with its own
/// shape. Several parameters may be parts of one tensor.
struct HubTensor {
  std::string parameter;    // its qualified name in the model
  std::string tensor;       // its name in the folder
  bool transposed = false;  // the folder's last two dims are swapped: [in, out], as of Conv1D
  int part = 0;   // the first of its parts, of `parts` equal ones along dim 0 of the parameter's
  int parts = 1;  // layout, which is the folder's last dim where it is transposed
  int parts_taken = 1;  // how many of them it has
  int dim = 0;     // of the folder's tensor, along which the parts are where it is not transposed
  int groups = 1;  // the parts follow one another in each of so many equal groups
  bool alternating = false;  // or they take turns, index by index
  /// The parameter's dim 0 counts tensors of the folder, which lack that dim: their names have the
  /// number, from 0, in the place of `*`. Neither transposed nor a part.
  bool stacked = false;
  bool row = false;   // the folder's tensor is [1, N], the parameter [N]; neither of the above
  bool copy = false;  // a folder has the parameter here again: written, and not read
};

/// A parameter whose shape follows from sizes, for a comparison before anything is built.
struct SizedTensor {
  std::string parameter;
  std::vector<std::string> keys;  // of config.json, one for each dim of the shape
  Dims shape;
};

/// The tokens that transformers assumes where config.json does not say; -1: none.
struct SpecialTokens {
  std::int64_t bos = -1;
  std::int64_t eos = -1;
};

/// Layers that tensor parallelism splits, by patterns over qualified names (docs/styles.md).
struct TensorSplit {
  std::vector<std::string> columns = {};  // what each rank computes of the result stays there
  std::vector<std::string> rows = {};     // the ranks' terms are summed; the result is whole
  std::string logits = {};                // the layer of the logits, by columns; empty: none
};

/// The plugin kind "model": a family of models of the next token. Its name is model.family in a
/// config and model_type in config.json. It has no state: everything about one model is in its
/// sizes. It need not know the keys that all families have: from, adapter, vocab, dropout.
class ModelFamily {
 public:
  static constexpr plugin::Kind plugin_kind{"model"};
  using Factory = std::function<std::unique_ptr<ModelFamily>()>;

  virtual ~ModelFamily();

  // A config.
  /// The keys of [model], in the order of the documentation.
  virtual std::vector<ModelKey> keys() const = 0;
  /// Replaces values that stand for a default ("0: dim / heads"). Returns what does not fit
  /// together; the sizes are then used no further.
  virtual std::vector<ModelProblem> complete(ModelSizes& sizes) const = 0;

  // A model. The sizes are complete.
  /// "dim 256, 8 layers", for the table before a run.
  virtual std::string describe(const ModelSizes& sizes) const = 0;
  /// The number of parameters, tied ones once; sizes may be far too large to be built.
  virtual double parameters(const ModelSizes& sizes) const = 0;
  /// The longest sequence that can be computed; 0: any. 0 is the default.
  virtual std::int64_t longest_sequence(const ModelSizes& sizes) const;
  /// How several ranks hold one model together. The default: they cannot.
  virtual TensorSplit tensor_split(const ModelSizes& sizes) const;
  /// On the meta device. `dropout` is model.dropout.
  virtual std::shared_ptr<nn::LanguageModel> build(const ModelSizes& sizes,
                                                   double dropout) const = 0;

  // Hugging Face's format.
  /// The class in transformers: "LlamaForCausalLM".
  virtual std::string architecture() const = 0;
  /// The class in transformers of such a model that tells the class of a row by a projection
  /// `score` of its last token: "LlamaForSequenceClassification". The default: there is none.
  virtual std::string classifier() const;
  /// That model on the meta device, without a head for tokens. `padding`: the token behind a row's
  /// end. Error: there is no such class.
  virtual std::shared_ptr<nn::DecoderClassifier> build_classifier(const ModelSizes& sizes,
                                                                  std::int64_t classes,
                                                                  std::int64_t padding) const;
  virtual SpecialTokens special_tokens() const;
  /// The sizes of a folder's config.json, complete; problems go to `config`.
  virtual ModelSizes read(HubConfig& config) const = 0;
  /// The keys of config.json that read() reads, and those that it requires to have one value.
  virtual std::vector<HubKey> write(const ModelSizes& sizes) const = 0;
  /// Parameters that have another name or form there; a parameter may have several entries, of
  /// which an export uses the first, and a folder has any one. The default: none.
  virtual std::vector<HubTensor> tensors(const ModelSizes& sizes) const;
  /// Prefix that names of a folder may lack ("transformer."), as transformers' base
  /// model writes them. The default: nothing.
  virtual std::string base_prefix() const;
  /// Patterns of tensors in a folder that are not parameters. The default: none.
  virtual std::vector<std::string> ignored_tensors() const;
  /// Patterns of those that a model of these sizes has no use for. The default: none.
  virtual std::vector<std::string> unused_tensors(const ModelSizes& sizes) const;
  /// Patterns of tensors by which a folder predicts tokens after the next one. They are counted
  /// aloud and not read. The default: none.
  virtual std::vector<std::string> further_tensors(const ModelSizes& sizes) const;
  /// What quantization_config may have as its quant_method: forms that hub::HubWeights unpacks. The
  /// default: none.
  virtual std::vector<std::string> packed_forms() const;
  /// How GGUF files have its models. The default: there are none.
  virtual GgufForm gguf() const;
  /// Their names and forms of the parameters. With GgufForm::split_latents `kv_b_proj.keys` and
  /// `.values` are the two parts of that projection.
  virtual std::vector<HubTensor> gguf_tensors(const ModelSizes& sizes) const;
  /// Text before a layer's number in its name, "model.layers.", and the size that counts them.
  struct Layers {
    std::string prefix;
    std::string key;  // of config.json
    std::int64_t count = 0;
  };
  virtual Layers layers(const ModelSizes& sizes) const = 0;
  /// Parameters that show every size. A stored model is compared with them first, so that the work
  /// depends on what is stored, not on what config.json claims.
  virtual std::vector<SizedTensor> sized_tensors(const ModelSizes& sizes) const = 0;
  /// Sizes of the same model in the words that GGUF files have: what follows from others is a
  /// number of its own. The default: these.
  virtual ModelSizes gguf_sizes(const ModelSizes& sizes) const;
};

/// The family of this name: a built-in one, or what a plugin or a family file provides; it lives as
/// long as the process. Error (input) that begins with `where`: there is none.
const ModelFamily& model_family(std::string_view name, const std::string& where = "model");

/// The names of all families, built-in or found as plugins or files, sorted.
std::vector<std::string> model_families();
/// The names of those that need no plugin.
std::vector<std::string> built_in_families();

}  // namespace tessera::models
