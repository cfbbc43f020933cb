export module tessera.data:row_order;

import tessera.base;
import :mixture;

namespace tessera::data {

/// The places of rows that are left out, in order, by source and epoch; found when they are needed.
class LeftOutPlaces;

}  // namespace tessera::data

export namespace tessera::data {

/// A row of a source, in every epoch.
struct RowNumber {
  std::size_t source = 0;
  std::int64_t row = 0;
  friend auto operator<=>(const RowNumber&, const RowNumber&) = default;
};

/// Which row each turn of a training takes: those of a mixture in their order, but for rows that
/// are left out from some turn on. The rows after one that is left out move forward, so no other
/// row is repeated or skipped. A function of the mixture and of what was left out when.
class RowOrder {
 public:
  explicit RowOrder(std::shared_ptr<const Mixture> mixture);

  /// From turn `from` on, these rows are left out too. Errors (input): less than `least` rows of a
  /// source are left. Error: a turn before the last one that was given.
  void leave_out(std::int64_t from, std::span<const RowNumber> rows, std::int64_t least = 1);

  /// The place in the mixture that a turn takes.
  std::int64_t place(std::int64_t turn) const;
  Mixture::SourceRow at(std::int64_t turn) const { return mixture_->at(place(turn)); }
  /// The turn that takes a place of the mixture; none: it is left out.
  std::optional<std::int64_t> turn_of(std::int64_t place) const;
  /// The turns that are needed to take, or leave out, all places before this one.
  std::int64_t turns_before(std::int64_t place) const;
  const Mixture& mixture() const { return *mixture_; }

 private:
  /// Turns between two changes of what is left out.
  struct Part {
    std::int64_t from = 0;                        // turn
    std::int64_t place = 0;                       // of that turn
    std::vector<std::vector<std::int64_t>> rows;  // left out, by source
    std::shared_ptr<LeftOutPlaces> places = {};   // of them
  };
  /// Of the places before `end`, in all epochs, those that a part leaves out.
  std::int64_t left_out_before(const Part& part, std::int64_t end) const;
  std::int64_t place_in(const Part& part, std::int64_t turn) const;
  const Part& part_of_place(std::int64_t place) const;

  std::shared_ptr<const Mixture> mixture_;
  std::vector<Part> parts_;
};

}  // namespace tessera::data
