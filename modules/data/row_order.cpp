module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <utility>
#include <vector>
module tessera.data;

import tessera.base;

namespace tessera::data {

class LeftOutPlaces {
 public:
  /// Of these rows in an epoch of their source, the places before `end`.
  std::int64_t before(const Mixture& mixture, std::size_t source, std::int64_t epoch,
                      std::span<const std::int64_t> rows, std::int64_t end) {
    constexpr std::size_t most = 64;
    const std::lock_guard lock(mutex_);
    if (found_.size() > most) {
      found_.clear();
    }
    auto [at, fresh] = found_.try_emplace({source, epoch});
    std::vector<std::int64_t>& places = at->second;
    if (fresh) {
      for (const std::int64_t row : rows) {
        places.push_back(mixture.place_of({.source = source, .row = row, .epoch = epoch}));
      }
      std::ranges::sort(places);
    }
    return std::ranges::lower_bound(places, end) - places.begin();
  }

 private:
  std::mutex mutex_;
  std::map<std::pair<std::size_t, std::int64_t>, std::vector<std::int64_t>> found_;
};

RowOrder::RowOrder(std::shared_ptr<const Mixture> mixture) : mixture_(std::move(mixture)) {
  parts_.push_back({.rows = std::vector<std::vector<std::int64_t>>(mixture_->sources())});
}

void RowOrder::leave_out(std::int64_t from, std::span<const RowNumber> rows, std::int64_t least) {
  require(from >= parts_.back().from, "data: rows are left out from a turn that has passed");
  Part next = parts_.back();
  next.place = place(from);
  next.from = from;
  next.places = std::make_shared<LeftOutPlaces>();
  for (const RowNumber& row : rows) {
    std::vector<std::int64_t>& of_source = next.rows.at(row.source);
    const auto at = std::ranges::lower_bound(of_source, row.row);
    if (at == of_source.end() || *at != row.row) {
      of_source.insert(at, row.row);
    }
  }
  for (std::size_t i = 0; i < next.rows.size(); ++i) {
    const std::int64_t left = mixture_->source(i).rows() - std::ssize(next.rows[i]);
    if (left < least) {
      fail_input({.wrong = fmt::format("too few rows of source {} are left when {} are left out",
                                       i + 1, next.rows[i].size()),
                  .expected = fmt::format("at least {}", least),
                  .got = fmt::format("{}", left)});
    }
  }
  if (parts_.back().from == from) {
    // The first place of the turn before may be one that is left out now: it is looked for again.
    next.place = parts_.back().place;
    parts_.back() = std::move(next);
    return;
  }
  parts_.push_back(std::move(next));
}

std::int64_t RowOrder::left_out_before(const Part& part, std::int64_t end) const {
  std::int64_t count = 0;
  for (std::size_t i = 0; i < part.rows.size(); ++i) {
    const std::vector<std::int64_t>& rows = part.rows[i];
    if (rows.empty()) {
      continue;
    }
    const std::int64_t of_source = mixture_->places_before(end, i);
    const std::int64_t epoch = of_source / mixture_->source(i).rows();
    count += epoch * std::ssize(rows);
    count += part.places->before(*mixture_, i, epoch, rows, end);
  }
  return count;
}

std::int64_t RowOrder::place_in(const Part& part, std::int64_t turn) const {
  const std::int64_t first = part.place + turn - part.from;
  if (std::ranges::all_of(part.rows, [](const auto& rows) { return rows.empty(); })) {
    return first;
  }
  // The least place with as many kept places before it: from below, it is never passed.
  const std::int64_t before = left_out_before(part, part.place);
  std::int64_t at = first;
  for (;;) {
    const std::int64_t next = first + left_out_before(part, at + 1) - before;
    if (next == at) {
      return at;
    }
    at = next;
  }
}

std::int64_t RowOrder::place(std::int64_t turn) const {
  const auto next = std::ranges::upper_bound(parts_, turn, {}, &Part::from);
  return place_in(*std::prev(next), turn);
}

const RowOrder::Part& RowOrder::part_of_place(std::int64_t place) const {
  const auto next = std::ranges::upper_bound(parts_, place, {}, &Part::place);
  return *std::prev(next);
}

std::int64_t RowOrder::turns_before(std::int64_t place) const {
  const Part& part = part_of_place(place);
  return part.from + (place - part.place) -
         (left_out_before(part, place) - left_out_before(part, part.place));
}

std::optional<std::int64_t> RowOrder::turn_of(std::int64_t place) const {
  const std::int64_t turn = turns_before(place);
  return this->place(turn) == place ? std::optional(turn) : std::nullopt;
}

}  // namespace tessera::data
