export module tessera.runs:row_finder;

import tessera.base;
import tessera.data;

export namespace tessera::runs {

/// A row of a training that has something of a place: a whole document, or tokens of a text.
struct FoundRow {
  data::RowNumber row = {};
  std::size_t record = 0;   // which of the row's
  std::size_t records = 0;  // that the row has
  data::RowRecord what = {};
  bool begins = false;  // the row's first record begins at exactly this place
};

/// For each place, the rows of all sources that have it, in their order; none: the training has no
/// such row. A file may be named by another path to it; where no file of the data has the path, by
/// its name alone, if only one has that. Reads the places of all rows. Error (input): as
/// RowSource::records.
std::vector<std::vector<FoundRow>> find_rows(const data::Mixture& training,
                                             std::span<const data::RecordPlace> places);

}  // namespace tessera::runs
