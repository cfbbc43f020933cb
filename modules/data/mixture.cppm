export module tessera.data:mixture;

import tessera.base;
import :permutation;
import :rows;

export namespace tessera::data {

/// A source of rows, and its share of all rows in relation to the other weights.
struct WeightedRows {
  std::shared_ptr<const RowSource> rows;
  double weight = 1;
};

/// Which row each place of a training takes, of one source or of several: a function of the place,
/// the seed and the weights alone (docs/random-numbers.md). A run that is continued, on whatever
/// mesh, needs nothing but its step.
class Mixture {
 public:
  /// Errors (input): a source without rows; a weight that is not more than 0, or less than a
  /// thousandth of all.
  Mixture(std::vector<WeightedRows> sources, std::uint64_t seed, bool shuffled);

  struct SourceRow {
    std::size_t source = 0;
    std::int64_t row = 0;
    std::int64_t epoch = 0;  // of the source
    friend bool operator==(const SourceRow&, const SourceRow&) = default;
  };
  SourceRow at(std::int64_t place) const;

  /// The place of a source's row in one of its epochs.
  std::int64_t place_of(const SourceRow& row) const;
  /// Of the places before this one, those of a source.
  std::int64_t places_before(std::int64_t place, std::size_t source) const;

  std::size_t sources() const { return sources_.size(); }
  const RowSource& source(std::size_t which) const { return *sources_[which].rows; }
  /// Of a thousand places, how many are of this source.
  std::int64_t quota(std::size_t which) const { return quotas_[which]; }
  /// Rows of all sources together.
  std::int64_t rows() const;

 private:
  /// The order of a source's rows in an epoch; none: that of their numbers.
  std::optional<Permutation> order_of(std::size_t source, std::int64_t epoch) const;
  std::size_t source_at(const Permutation& block, std::int64_t within) const;
  Permutation block_of(std::int64_t place) const;

  std::vector<WeightedRows> sources_;
  std::vector<std::int64_t> quotas_;
  std::uint64_t seed_;
  bool shuffled_;
};

}  // namespace tessera::data
