export module tessera.nn:ragged_batch;

import tessera.base;

export namespace tessera::nn {

/// Some positions of a sequence that follow one another, and are on one rank.
struct PositionRun {
  std::int64_t position = 0;  // the first one
  std::int64_t place = 0;     // of the first one, among all positions that the rank keeps
  std::int64_t count = 0;
};

/// The next tokens of one of the texts in a batch.
struct RaggedRow {
  std::int64_t first = 0;  // the position in the text of the first of these tokens
  std::int64_t count = 1;  // of these tokens
  /// Where keys and values are, for the positions from 0 to first + count - 1 in their order.
  std::vector<PositionRun> kept = {};
  std::int64_t state = 0;  // where recurrent layers keep what they pass on

  inline std::int64_t end() const { return first + count; }
};

/// Tokens of several texts that a model computes as one row [1, T]: each text's next tokens, one
/// text's after the other's. A text begins with the token at position 0.
struct RaggedBatch {
  std::vector<RaggedRow> rows = {};
  std::int64_t places = 0;                // of keys and values: so many are kept, at least
  std::int64_t states = 0;                // of recurrent layers: the same
  std::vector<std::int64_t> scored = {};  // those of the T tokens that have logits, in order
  /// A token's result has the same bits whatever else is in the batch, and however its text is cut
  /// into batches.
  bool exact = true;
};

}  // namespace tessera::nn
