export module tessera.app.generation:text_model;

import tessera.tokenize;
import tessera.nn;
import tessera.app.base;
import tessera.app.model;

// A trained model, ready to read and write text.

export namespace tessera::app {

/// The model of a checkpoint of 'tessera train', of a folder in Hugging Face's format or of a GGUF
/// file, in this process alone, with its tokenizer. Weights of other types are computed with in
/// float32.
class TextModel {
 public:
  /// `tokenizer`: a folder or file with it; empty: the one that the model has.
  /// Errors (input): there is no such model; its weights do not fit its sizes; its tokenizer is not
  /// there, has changed, or has more tokens than the model.
  explicit TextModel(const std::string& path, const std::string& tokenizer = "");

  const std::string& path() const { return path_; }
  const ModelShape& shape() const { return shape_; }
  nn::LanguageModel& model() const { return *model_; }
  /// Error (input): the model was trained on token ids, and no tokenizer was named.
  const tokenize::OpenedTokenizer& tokenizer() const;
  /// Whether a text ends at this token, by the model (config.json's and generation_config.json's
  /// eos_token_id) or by its tokenizer's files.
  bool ends_at(std::int64_t token) const;
  /// The longest sequence that can be computed; 0: any.
  std::int64_t longest() const;
  /// The longest sequence that the model is meant for: what config.json says, and longest().
  std::int64_t usual_length() const;
  /// Bytes of all parameters, which each token reads once.
  std::int64_t parameter_bytes() const;

 private:
  void open_checkpoint(const std::string& tokenizer);
  void open_folder(const std::string& tokenizer);
  void make();

  std::string path_;
  ModelShape shape_;
  tokenize::OpenedTokenizer tokenizer_;  // without one: null
  std::shared_ptr<nn::LanguageModel> model_;
};

}  // namespace tessera::app
