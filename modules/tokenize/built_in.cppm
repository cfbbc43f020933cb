// The built-in kinds of tokenizers.
module tessera.tokenize:built_in;

import tessera.base;
import tessera.options;
import :tokenizer;
import :open;

namespace tessera::tokenize {

/// Settings of a folder's tokenizer_config.json, where the options have none.
struct FolderDefaults {
  std::optional<bool> add_bos = std::nullopt;
  std::optional<bool> add_eos = std::nullopt;
};

std::unique_ptr<Tokenizer> bytes_tokenizer();
std::unique_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file);
/// From the text of such a file, which `where` names in errors.
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
/// Special tokens and chat templates of the GGUF file.
void describe_gguf(OpenedTokenizer& opened);

}  // namespace tessera::tokenize
