export module tessera.app.data:tokenizer;

import tessera.app.base;

// Between text and token ids.

export namespace tessera::app {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::string_view name() const = 0;
  /// Ids are 0 to vocab()-1.
  virtual std::int64_t vocab() const = 0;
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;
  /// Throws Error (input) for an id that the tokenizer does not have.
  virtual std::string decode(std::span<const std::int64_t> ids) const = 0;
};

/// The tokenizer of that name ("bytes"). Throws Error (input) for an unknown one.
std::unique_ptr<Tokenizer> make_tokenizer(std::string_view name);

/// Throws Error (input), which `place` begins, unless a model in Hugging Face's form with `vocab`
/// tokens takes this tokenizer's ids: it has as many tokens, and its folder has no tokenizer of its
/// own (tokenizer.json, vocab.txt...).
void check_tokenizer_fits(std::string_view name, std::int64_t tokenizer_vocab, std::int64_t vocab,
                          const std::filesystem::path& folder, const std::string& place);

}  // namespace tessera::app
