export module tessera.runs:dataset;

import tessera.base;
import tessera.data;
import tessera.hub;
import :exclusions;
import :row_history;
import :run_model;
import :sources;
import :spec;

// The batches of a run.

export namespace tessera::runs {

/// Sequences of a batch, row-major [rows, seq_len]: the targets are the inputs shifted by one
/// token; data::ignored_target where the loss does not count. Of preferences, rows 2 i and 2 i + 1
/// are the chosen and the rejected answer of pair i. With data.packing there is also, of each
/// token, the number of the first token of its document in the row, and its position in it. Of
/// labelled texts, the targets are the row's class at each of its tokens; of tagged ones, the class
/// of the token, where it has one. Of images, seq_len is 1:
/// the input is the image's number in its source, and the target its class.
struct Batch {
  std::int64_t rows = 0;
  std::int64_t seq_len = 0;
  std::vector<std::int64_t> inputs = {};
  std::vector<std::int64_t> targets = {};
  std::vector<std::int64_t> documents = {};
  std::vector<std::int64_t> positions = {};
  /// Of texts with labels: so many tokens of each row are no padding.
  std::vector<std::int64_t> lengths = {};
  std::vector<std::uint8_t> pixels = {};  // of images, [rows, height, width, 3]
};

/// The data of a run as rows: windows over tokens, documents, pairs of answers, or images. Which
/// rows a step takes depends only on the config and the step, not on the mesh: each rank reads its
/// own rows.
class Dataset {
 public:
  /// Opens the files, and finds what is wrong in them. `vocab` is the model's number of token ids
  /// (ready-made tokens only). Throws Error (input) when a file is missing, unreadable or not text,
  /// has a wrong record, or the data are too short.
  Dataset(const RunSpec& config, std::int64_t vocab);
  /// With what is open already, such as the run's tokenizer. `known_labels`: of the model; the
  /// classes are these if they have all labels of the data, and data.labels names no others. Error
  /// (input) with file and line: a label that data.labels does not name, or that only a validation
  /// has.
  /// `continued`: the checkpoint from which on data.exclude holds. Errors (input), of its rows: see
  /// read_row_places and RowHistory::leave_out.
  Dataset(const RunSpec& config, DataReader reader,
          const std::vector<std::string>& known_labels = {}, const ContinuedRows& continued = {});

  /// Sequences of a row; see RunSpec::row_sequences.
  std::int64_t row_sequences() const { return row_sequences_; }
  /// Rows [first_row, first_row + count) of step `step` (counted from 0).
  Batch rows(std::int64_t step, std::int64_t first_row, std::int64_t count) const {
    return rows(*history_, step, first_row, count);
  }
  /// The same in a run that has left out other rows since it began.
  Batch rows(const RowHistory& history, std::int64_t step, std::int64_t first_row,
             std::int64_t count) const;
  /// Which row of which source is row `row` of step `step` (docs/random-numbers.md).
  data::Mixture::SourceRow place_of(std::int64_t step, std::int64_t row) const {
    return history_->at(step, row);
  }
  /// Its number in its source.
  std::int64_t window_of(std::int64_t step, std::int64_t row) const {
    return place_of(step, row).row;
  }
  /// Positions of a step, of all rows, whose loss counts.
  std::int64_t trained(std::int64_t step) const { return trained(*history_, step); }
  std::int64_t trained(const RowHistory& history, std::int64_t step) const;
  /// Which row each step takes, with what is left out when the run begins or continues.
  const RowHistory& history() const { return *history_; }
  /// So many rows are left out from there on that were not before.
  std::int64_t newly_excluded() const { return newly_excluded_; }

  /// Batches in a validation, whole ones or a single one that is not; 0 when there is none.
  std::int64_t validation_batches() const { return validation_batches_; }
  Batch validation_rows(std::int64_t batch, std::int64_t first_row, std::int64_t count) const;
  /// Rows of a validation: fewer than a batch where there are no more; the rest of it is padding.
  std::int64_t validation_used() const { return validation_used_; }
  /// Positions of a whole validation whose loss counts.
  std::int64_t validation_trained() const { return validation_trained_; }

  /// Reads all ready-made tokens once; Error (input) for an id that the model does not have. Reads
  /// whole files: call it once, before the ranks start.
  void check_all() const;

  std::int64_t tokens() const;  // of all files; of images, how many there are
  std::int64_t training_tokens() const { return training_tokens_; }
  /// Rows of all sources.
  std::int64_t windows() const { return training_->rows(); }
  const data::Mixture& training() const { return *training_; }
  const std::vector<OpenedSource>& sources() const { return sources_; }
  /// Of the positions of all rows, those that are not padding, and those whose loss counts.
  double used_share() const { return used_share_; }
  /// Documents to train on; texts are none.
  std::int64_t documents() const { return documents_; }
  double trained_share() const { return trained_share_; }
  /// The hash of all data, validation included; a pass over the files.
  std::string content_hash() const;
  std::size_t files() const;
  /// What is in files or below named folders and is not used.
  std::string left_out() const;
  const std::shared_ptr<const hub::ModelTokenizer>& tokenizer() const { return reader_.tokenizer; }
  /// Whether rows are images.
  bool has_images() const { return reader_.images.has_value(); }
  /// What the model makes of a row that is an image.
  std::int64_t image_tokens() const { return reader_.image_tokens; }
  /// The names of the classes of labelled texts, by their numbers; empty: these are none.
  const std::vector<std::string>& labels() const { return labels_; }

 private:
  using RowSources = std::vector<std::shared_ptr<const data::RowSource>>;
  void find_labels(const RunSpec& config, const std::vector<std::string>& known);
  void divide(const RunSpec& config);
  void set_validation(const RunSpec& config, RowSources rows, std::int64_t tokens);
  std::int64_t validation_row(std::int64_t number) const;
  Batch empty_batch(std::int64_t rows) const;
  void fill(Batch& batch, std::int64_t at, const data::RowSource& source, std::int64_t row) const;
  void measure();
  void leave_out(const RunSpec& config, const ContinuedRows& continued);
  void pad(Batch& batch, std::int64_t at, std::span<const data::DocumentPlace> places) const;

  DataReader reader_;
  std::vector<OpenedSource> sources_;
  std::vector<std::string> labels_;
  std::vector<OpenedSource> validation_sources_;  // of data.validation_files
  std::int64_t seq_len_;
  std::int64_t row_sequences_;
  std::int64_t batch_;
  bool packs_;
  std::int64_t padding_ = 0;  // a token
  std::shared_ptr<const data::Mixture> training_;
  std::unique_ptr<const RowHistory> history_;
  std::int64_t newly_excluded_ = 0;
  RowSources validation_;
  std::int64_t training_tokens_ = 0;
  std::int64_t validation_windows_ = 0;
  std::int64_t validation_batches_ = 0;
  std::int64_t validation_used_ = 0;
  std::int64_t validation_trained_ = 0;
  std::int64_t documents_ = 0;
  double used_share_ = 1;
  double trained_share_ = 1;
};

/// The steps in which `data` are trained on train.epochs times; train.steps where there are none.
std::int64_t steps_of(const RunSpec& config, const Dataset& data);

/// The same run with what its data determine: the number of its steps in the place of its epochs;
/// data.seq_len where rows are images. Errors (input): the schedule does not fit these steps.
RunSpec with_data(RunSpec spec, const Dataset& data);

/// Throws Error (input) unless the batch divides over `parts` (the product of the axes that split
/// it) and each part over micro_batch.
void check_batch_division(const RunSpec& config, std::int64_t parts);

}  // namespace tessera::runs
