export module tessera.app.generation:decoding;

import tessera.nn;
import tessera.app.base;

// The logits after texts that grow.

export namespace tessera::app {

/// Rows of tokens, all of one length.
using TokenRows = std::vector<std::vector<std::int64_t>>;

/// Computes the logits after rows of tokens. It keeps the keys and values of the rows that it was
/// given last: rows that continue these cost only their new tokens. A model whose layers take no
/// cache (nn::LanguageModel::set_cache) computes whole rows each time.
class Decoding {
 public:
  /// The model must outlive it; only one exists for a model at a time. `vocab`: the logits of a
  /// token.
  Decoding(nn::LanguageModel& model, std::int64_t vocab);
  ~Decoding();
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  /// Why whole rows are computed each time; empty: they are not.
  const std::string& slow_because() const { return slow_because_; }
  /// The logits [vocab] of each row's next token. Errors: no rows, or rows of different lengths,
  /// or a token that the model does not have.
  std::vector<std::vector<double>> next(const TokenRows& rows);

 private:
  std::size_t kept_tokens(const TokenRows& rows) const;

  nn::LanguageModel& model_;
  std::int64_t vocab_;
  nn::KeyValueCache cache_;
  std::string slow_because_;
  TokenRows kept_;  // the rows whose keys and values the cache has
};

}  // namespace tessera::app
