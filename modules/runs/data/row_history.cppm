export module tessera.runs:row_history;

import tessera.base;
import tessera.data;
import :exclusions;

export namespace tessera::runs {

/// Which row each step of a run takes. Rows that are left out from some step on are passed over.
/// Where a row has several documents, and not all of them are left out, those are padding from
/// there on, and the row stays.
class RowHistory {
 public:
  /// `batch`: rows of a step.
  RowHistory(std::shared_ptr<const data::Mixture> training, std::int64_t batch);

  /// What a checkpoint has. Errors (input): see leave_out().
  void restore(const Exclusions& all);
  /// From step `from` (steps that are done) on, these are left out too; those that are already
  /// change nothing. Returns how many are new. Errors (input): a place that no row of the training
  /// has; of a text that is cut into windows, a place at which no window begins (the text names
  /// those that have it); less than a batch is left of a source's rows.
  std::int64_t leave_out(std::int64_t from, std::span<const data::RecordPlace> places);

  /// Row `row` of step `step`, both from 0.
  data::Mixture::SourceRow at(std::int64_t step, std::int64_t row) const {
    return order_.at(step * batch_ + row);
  }
  /// Documents of a row that are padding in a step, as positions of the row.
  std::vector<data::DocumentPlace> padded(std::int64_t step, const data::RowNumber& row) const;
  /// Trained positions of a row in a step.
  std::int64_t trained(std::int64_t step, const data::RowNumber& row) const;
  const data::RowOrder& order() const { return order_; }
  const data::Mixture& training() const { return order_.mixture(); }
  std::int64_t batch() const { return batch_; }
  const Exclusions& excluded() const { return excluded_; }

 private:
  struct LeftOutDocument {
    std::int64_t from = 0;  // steps that are done
    std::size_t record = 0;
    data::RowRecord what = {};
  };

  data::RowOrder order_;
  std::int64_t batch_;
  Exclusions excluded_;
  std::set<std::string> names_;  // of all of them
  std::map<data::RowNumber, std::vector<LeftOutDocument>> documents_;
};

/// The places of what a step trains, for people and for data.exclude: "a.jsonl:17", a row each; of
/// a row of several documents, all of them.
std::vector<std::vector<std::string>> places_of_step(const RowHistory& history, std::int64_t step);
/// "a.jsonl:17, a.jsonl:4 and 14 more".
std::string places_text(const std::vector<std::vector<std::string>>& rows);

}  // namespace tessera::runs
