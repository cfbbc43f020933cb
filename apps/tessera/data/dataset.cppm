export module tessera.app.data:dataset;

import tessera.app.base;
import tessera.app.config;
import :token_source;

// The batches of a run.

export namespace tessera::app {

/// Rows of a batch, row-major [rows, seq_len]: the targets are the inputs shifted by one token.
struct Batch {
  std::int64_t rows = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int64_t> inputs;
  std::vector<std::int64_t> targets;
};

/// The tokens of a run, divided into windows. Which windows a step takes depends only on the config
/// and the step, not on the mesh: each rank reads its own rows.
class Dataset {
 public:
  /// Opens the files. `vocab` is the model's number of token ids (ready-made tokens only).
  /// Throws Error (input) when a file is missing, unreadable or not text, or the data are too
  /// short.
  Dataset(const Config& config, std::int64_t vocab);

  /// Rows [first_row, first_row + count) of step `step` (counted from 0).
  Batch rows(std::int64_t step, std::int64_t first_row, std::int64_t count) const;
  /// The number of the window that is row `row` of step `step` (docs/random-numbers.md).
  std::int64_t window_of(std::int64_t step, std::int64_t row) const;
  /// Whole batches in a validation; 0 when there is none.
  std::int64_t validation_batches() const { return validation_batches_; }
  Batch validation_rows(std::int64_t batch, std::int64_t first_row, std::int64_t count) const;

  /// Reads all tokens once; Error (input) for an id that the model does not have. Reads whole
  /// files: call it once, before the ranks start.
  void check_all() const { source_.tokens->check_all(); }

  std::int64_t tokens() const { return source_.tokens->size(); }
  std::int64_t training_tokens() const { return training_tokens_; }
  std::int64_t windows() const { return windows_; }
  /// The hash of all tokens, validation included; a pass over the files.
  std::string content_hash() const { return source_.tokens->content_hash(); }
  std::size_t files() const { return source_.tokens->files(); }
  /// See TextFiles::left_out.
  const std::string& left_out() const { return source_.left_out; }

 private:
  Batch read_windows(std::int64_t base, const std::vector<std::int64_t>& windows) const;

  OpenedSource source_;
  std::int64_t seq_len_;
  std::int64_t batch_;
  std::uint64_t seed_;
  bool shuffled_;
  std::int64_t training_tokens_ = 0;
  std::int64_t windows_ = 0;
  std::int64_t validation_windows_ = 0;
  std::int64_t validation_batches_ = 0;
};

/// Throws Error (input) unless the batch divides over `parts` (the product of the axes that split
/// it) and each part over micro_batch.
void check_batch_division(const Config& config, std::int64_t parts);

}  // namespace tessera::app
