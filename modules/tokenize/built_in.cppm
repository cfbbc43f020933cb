// The built-in kinds of tokenizers.
module tessera.tokenize:built_in;

import tessera.base;
import tessera.options;
import :tokenizer;

namespace tessera::tokenize {

/// Settings of a folder's tokenizer_config.json, where the options have none.
struct FolderDefaults {
  std::optional<bool> add_bos = std::nullopt;
  std::optional<bool> add_eos = std::nullopt;
};

std::unique_ptr<Tokenizer> bytes_tokenizer();
std::unique_ptr<Tokenizer> hugging_face_tokenizer(const std::string& file);
std::unique_ptr<Tokenizer> sentence_piece_tokenizer(const std::string& file, PluginOptions& options,
                                                    const FolderDefaults& defaults);
/// A file of ranks, or tekken.json.
std::unique_ptr<Tokenizer> tiktoken_tokenizer(const std::string& file, PluginOptions& options,
                                              const FolderDefaults& defaults);
/// Whether a file's beginning is that of a file of ranks: base64, a space, a number.
bool is_tiktoken(const std::string& file);

}  // namespace tessera::tokenize
