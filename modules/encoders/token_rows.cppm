export module tessera.encoders:token_rows;

import tessera.base;
import tessera.tensor;
import tessera.tokenize;

export namespace tessera::encoders {

/// Texts as rows of one length, for an encoder.
struct TokenRows {
  Tensor ids;            // i64 [texts, T]; after a text's end `padding`
  Tensor mask;           // i64 [texts, T]: 1 of a text's tokens, 0 after its end
  std::int64_t cut = 0;  // so many texts were longer than `longest`
};

/// Texts as the tokenizer's tokens, with those that it adds. Special tokens that are written in a
/// text are text. A text of more than `longest` tokens loses those before an added last one. Errors
/// (input): there are no texts; `longest` is too small for what is added; a token that the model's
/// `vocab` has no row for.
TokenRows token_rows(const tokenize::Tokenizer& tokenizer, std::span<const std::string> texts,
                     std::int64_t longest, std::int64_t vocab, std::int64_t padding = 0);

}  // namespace tessera::encoders
