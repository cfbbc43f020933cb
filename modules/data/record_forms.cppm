export module tessera.data:record_forms;

import tessera.base;

export namespace tessera::data {

/// Names of members in the records of a source: by what they are (RecordForms::names), how the
/// records call them.
using RecordColumns = std::map<std::string, std::string>;

/// Records as others write them (docs/data.md, "Records of other forms"): ShareGPT
/// (`conversations`), Alpaca (`instruction`, `input`, `output`), and other names of members.
/// Constant, and several threads may use one.
class RecordForms {
 public:
  RecordForms() = default;
  /// Errors (input): a member that is not among names(), without a name, or with that of another.
  explicit RecordForms(RecordColumns columns);

  const RecordColumns& columns() const { return columns_; }
  /// What columns may name.
  static const std::vector<std::string>& names();

  /// The record with the members that ExampleMaker reads; the same text where it has them, or is
  /// no JSON object. Errors (input), without a place: a column that is missing; a message without
  /// its speaker or its text; a record that can be read in two ways.
  std::string standard(std::string_view record) const;

 private:
  RecordColumns columns_;
};

}  // namespace tessera::data
