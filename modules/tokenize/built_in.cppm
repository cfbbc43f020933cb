// The built-in kinds of tokenizers.
module tessera.tokenize:built_in;

import tessera.base;
import tessera.options;
import :tokenizer;
import :open;

namespace tessera::tokenize {

/// A token that a file beside the tokenizer names.
struct FolderToken {
  std::string content;
  std::string from;      // the file and its field
  std::int64_t id = -1;  // as the file has it; -1: it has none
  bool whole = false;    // the settings below replace those of the tokenizer's own file
  bool role = false;     // bos_token and its like, which are special
  bool special = true;
  bool normalized = false;
  bool single_word = false;
  bool strip_left = false;
  bool strip_right = false;
};

/// What tokenizer_config.json, special_tokens_map.json and added_tokens.json say of a folder's
/// tokenizer, by the rules of transformers.
struct FolderDefaults {
  // Where the options have none.
  std::optional<bool> add_bos = std::nullopt;
  std::optional<bool> add_eos = std::nullopt;
  std::vector<FolderToken> tokens = {};           // in the order in which they get their ids
  std::map<std::string, FolderToken> roles = {};  // "bos_token"...; they are in tokens
};

/// Error (input): a file is damaged, or has a token that is not one.
FolderDefaults folder_defaults(const std::string& folder);

std::unique_ptr<Tokenizer> bytes_tokenizer();
/// Added tokens have the ids that Hugging Face's library gives them: those of the vocabulary, or
/// the following ones, in the order of the file and then of the folder.
std::unique_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file,
                                                  const FolderDefaults& defaults);
/// From the text of such a file, which `where` names in errors. Added tokens have the ids that the
/// text says.
std::unique_ptr<Tokenizer> hugging_face_tokenizer_of(std::string_view json,
                                                     const std::string& where);
std::unique_ptr<Tokenizer> sentence_piece_tokenizer(const std::string& file, PluginOptions& options,
                                                    const FolderDefaults& defaults);
/// From the bytes of such a file, which `where` names in errors.
std::unique_ptr<Tokenizer> sentence_piece_tokenizer_of(const std::string& bytes,
                                                       const std::string& where,
                                                       PluginOptions& options,
                                                       const FolderDefaults& defaults);
/// That of a GGUF file; the options are those of SentencePiece where it is one.
std::unique_ptr<Tokenizer> gguf_tokenizer(const std::string& file, PluginOptions& options);
/// A file of ranks, or tekken.json.
std::unique_ptr<Tokenizer> tiktoken_tokenizer(const std::string& file, PluginOptions& options,
                                              const FolderDefaults& defaults);
/// Whether a file's beginning is that of a file of ranks: base64, a space, a number.
bool is_tiktoken(const std::string& file);
/// The added tokens of a tokenizer.json's tokenizer, with their ids and settings, as the file lists
/// them; empty: of another tokenizer.
std::string added_tokens_json(const Tokenizer& tokenizer);
/// The tokenizer of a GGUF file as a tokenizer.json. Error (input): it has none.
std::string gguf_as_tokenizer_json(const OpenedTokenizer& opened);
/// Special tokens and chat templates of the GGUF file.
void describe_gguf(OpenedTokenizer& opened);

}  // namespace tessera::tokenize
