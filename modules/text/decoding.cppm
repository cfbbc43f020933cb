export module tessera.text:decoding;

import tessera.base;
import :model_ranks;

// The logits after texts that grow.

export namespace tessera::text {

/// Rows of tokens, all of one length.
using TokenRows = std::vector<std::vector<std::int64_t>>;

/// Computes the logits after rows of tokens. The keys and values of the rows that it was given last
/// are kept: rows that continue these cost only their new tokens. A model whose layers take no
/// cache (nn::LanguageModel::set_cache) computes whole rows each time.
class Decoding {
 public:
  /// The model's ranks must outlive it, and are used by nothing else between two calls of next().
  /// `vocab`: the logits of a token.
  Decoding(ModelRanks& ranks, std::int64_t vocab) : ranks_(ranks), vocab_(vocab) {}
  Decoding(const Decoding&) = delete;
  Decoding& operator=(const Decoding&) = delete;

  /// Why whole rows are computed each time; empty: they are not.
  const std::string& slow_because() const { return ranks_.slow_because(); }
  /// The logits [vocab] of each row's next token. Long rows are read in passes; `wanted` is asked
  /// between two of them, and where it is false the result is empty. What was read is kept. Errors:
  /// no rows, or rows of different lengths; those of ModelRanks.
  std::vector<std::vector<double>> next(const TokenRows& rows,
                                        const std::function<bool()>& wanted = nullptr);

 private:
  std::size_t kept_tokens(const TokenRows& rows) const;

  ModelRanks& ranks_;
  std::int64_t vocab_;
  TokenRows kept_;                  // the rows whose keys and values are kept
  std::int64_t known_clears_ = -1;  // ModelRanks::clears() then
};

}  // namespace tessera::text

namespace tessera::text {

/// Tokens of a row that one pass reads: so many that a pass costs little more than its products,
/// and so few that whoever has gone holds the ranks for about a second.
std::int64_t pass_tokens(const ModelRanks& ranks, std::int64_t vocab, std::int64_t rows);

}  // namespace tessera::text
