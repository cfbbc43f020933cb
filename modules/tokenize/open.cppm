export module tessera.tokenize:open;

import tessera.base;
import tessera.options;
import :tokenizer;

export namespace tessera::tokenize {

/// A tokenizer with what the files beside it say.
struct OpenedTokenizer {
  std::shared_ptr<const Tokenizer> tokenizer;
  std::string kind;  // "tokenizer.json", "sentencepiece", "tiktoken", "gguf"
  std::string file;
  /// From the tokenizer's own file, tokenizer_config.json, special_tokens_map.json and
  /// generation_config.json; later ones decide.
  SpecialTokens special;
  /// A template in Jinja, from tokenizer_config.json or chat_template.jinja; empty where there is
  /// none. `chat_templates` has those with a name besides "default".
  std::string chat_template;
  std::map<std::string, std::string> chat_templates;
};

/// Opens the tokenizer of a folder, or one file; the kind follows from the files: tokenizer.json
/// first, then tokenizer.model, tekken.json, then the one file with the ending .model or .tiktoken,
/// then model.gguf.
/// Options are those of the kind (make_tokenizer). Errors (input): there is none; a file is damaged
/// or needs what is not supported, with the field and its value.
OpenedTokenizer open_tokenizer(const std::string& path,
                               const PluginOptions& options = PluginOptions());

/// The same tokenizer for a model (`model`: its path) that has rows for ids below `rows` only:
/// a text with another token is an Error (input) that names the token and its place. Of the special
/// tokens, those without a row are left out. Error (input): eos is one of them.
OpenedTokenizer limited(const OpenedTokenizer& opened, std::int64_t rows, const std::string& model);

/// A tokenizer by its kind, built-in or from a plugin. Built-in kinds and their options:
/// "bytes": every byte is a token; no path.
/// "tokenizer.json": a file of Hugging Face's library.
/// "sentencepiece": add_bos (true where the model has one), add_eos (false).
/// "tiktoken": pattern ("gpt2", "cl100k", "o200k", "llama3", "llama4", "qwen", or a regular
///   expression; by default the one that the file is known for), special_tokens (texts; their ids
///   follow on the ranks), add_bos (false; a token among them, by name: bos). tekken.json too.
/// "gguf": a GGUF file; the options are those of "sentencepiece" where it is one.
/// Errors (input) that begin with `where`: there is no such kind.
std::shared_ptr<const Tokenizer> make_tokenizer(std::string_view kind, const std::string& path = "",
                                                const PluginOptions& options = PluginOptions(),
                                                const std::string& where = "tokenizer");

/// A tokenizer, with its templates, as fields of a GGUF file ("tokenizer.ggml.tokens"...): a JSON
/// object as tessera/gguf.hpp has it. There are at least `vocab` tokens. Error (input): GGUF cannot
/// express it.
std::string gguf_fields(const OpenedTokenizer& opened, std::int64_t vocab);

/// A tokenizer of the kinds "gguf" and "bytes" as the files that transformers reads in a folder, by
/// their names: tokenizer.json with the same ids, tokenizer_config.json and the templates. The
/// other kinds have files of their own, and none here. Error (input): they cannot express it.
std::map<std::string, std::string> hub_files(const OpenedTokenizer& opened);

/// Whether a kind is built-in.
bool is_built_in_kind(std::string_view kind);
/// The names of all kinds, built-in or found as plugins, sorted.
std::vector<std::string> tokenizer_kinds();

}  // namespace tessera::tokenize
