export module tessera.hub:model_tokenizer;

import tessera.base;
import tessera.tokenize;
import tessera.data;

// The tokenizer of a model, in its folder, in a checkpoint, or in a file of its own.

export namespace tessera::hub {

/// A tokenizer and how a run makes tokens of texts and records with it: what a checkpoint remembers
/// of it.
struct ModelTokenizer {
  std::string kind = {};     // "bytes", "tokenizer.json"..., or a plugin's
  std::string path = {};     // its file, absolute; empty where it has none
  std::string hash = {};     // of the file's content
  std::string options = {};  // a JSON object
  /// With the run's own chat template and end tokens.
  tokenize::OpenedTokenizer opened = {};
  std::string template_name = {};            // for errors: its file, or the tokenizer
  bool own_template = false;                 // of data.chat_template
  std::string template_options = "{}";       // a JSON object
  std::vector<std::string> end_tokens = {};  // of data.end_tokens
  data::ExampleOptions records = {};

  std::int64_t vocab() const { return opened.tokenizer->vocab_size(); }
  /// "tokenizer.json of models/llama", for people.
  std::string text() const;
  /// What makes its ids other ones, for a run's fingerprint.
  std::string identity() const;
};

/// The tokenizer in a model's folder, a GGUF file or a checkpoint; where it has none, bytes are
/// tokens. `options`: a JSON object, which `where` names in errors. Errors (input): it cannot be
/// read.
ModelTokenizer folder_tokenizer(const std::string& from, const std::string& options,
                                const std::string& where);
/// That of a kind that needs no file ("bytes", or a plugin's), or of the file or folder `name` in
/// `folder`. Errors (input): there is none of that name, or it cannot be read.
ModelTokenizer named_tokenizer(const std::string& name, const std::filesystem::path& folder,
                               const std::string& options, const std::string& where);

/// Generated texts end with these tokens too. Error (input): it has no such token.
void add_end_tokens(ModelTokenizer& tokenizer, std::vector<std::string> tokens);

/// The template of a file takes the place of the tokenizer's. Error (input): it cannot be read, or
/// is empty.
void set_template(ModelTokenizer& tokenizer, const std::string& file);

/// The template with its variables, as a run uses it; null: the tokenizer has none. Errors (input):
/// it has what is not supported.
std::shared_ptr<const data::ChatTemplate> chat_template_of(const ModelTokenizer& tokenizer);

/// For a model with `vocab` rows: see tokenize::limited. Null stays null.
std::shared_ptr<const ModelTokenizer> limited(std::shared_ptr<const ModelTokenizer> tokenizer,
                                              std::int64_t vocab);

/// Keeps the tokenizer's files, with those beside it that transformers reads, in a folder beside
/// the checkpoints in `folder`; nothing where they are there already. Of a tokenizer in a GGUF file
/// that is the files of tokenize::hub_files, or nothing where it has no such form. Errors (input):
/// a file cannot be read; (run): or written.
void keep_tokenizer(const std::string& folder, const ModelTokenizer& tokenizer);

/// Equal where all that makes tokens of texts and of conversations is equal: the tokenizer's file
/// and options, its special tokens, the template and its variables. Empty: of a plugin's tokenizer.
std::string content_identity(const ModelTokenizer& tokenizer);

/// For a checkpoint's meta data, as a JSON object; "null" where there is none.
std::string to_json(const std::shared_ptr<const ModelTokenizer>& tokenizer);

/// The tokenizer with which a checkpoint's model was trained; null: none, it was trained on ids.
/// `named`: a file or folder with it, instead of the checkpoint's own; empty: that one, or where
/// the checkpoint has no files of it, the one at the path that it names. Errors (input): the
/// checkpoint is of another program; the file is gone, or has another content than when the model
/// was trained.
std::shared_ptr<const ModelTokenizer> stored_tokenizer(std::string_view meta,
                                                       const std::string& checkpoint,
                                                       const std::string& named = "");
/// The folder of a checkpoint's tokenizer, or the GGUF file that it is in; empty: it has none.
std::string stored_tokenizer_folder(std::string_view meta, const std::string& checkpoint);
/// Names of a tokenizer's files, in the folder of a model.
std::span<const std::string_view> tokenizer_file_names();

/// The tokenizer of a model folder or a GGUF file, or the one that is `named`. Without one, bytes
/// are tokens if the model has as many; else there is none. Errors (input): it cannot be read.
ModelTokenizer model_tokenizer(const std::string& folder, std::int64_t vocab,
                               const std::string& named = "");

/// Whether it is a checkpoint of 'tessera train', by its files.
bool is_checkpoint(const std::string& folder);

/// The first file, by name, that shows that a folder has its own tokenizer; "" if there is none.
std::string own_tokenizer_file(const std::string& folder);

/// Throws Error (input), which `place` begins, unless the model in `folder` with `vocab` tokens
/// takes this tokenizer's ids: it has tokens for all of them, and no other tokenizer of its own.
/// Its own one may have more tokens, which no text may have then (limited).
/// With `adds_tokens` the tokenizer may have more tokens, and may be another one whose first tokens
/// are those of the folder's own.
void check_tokenizer_fits(const ModelTokenizer& tokenizer, std::int64_t vocab,
                          const std::string& folder, const std::string& place,
                          bool adds_tokens = false);

}  // namespace tessera::hub
