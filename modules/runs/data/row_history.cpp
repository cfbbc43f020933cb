module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <iterator>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <tessera/shown.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.data;

namespace tessera::runs {
namespace {

/// The place by which a checkpoint knows it, wherever the run is continued.
std::string kept_name(data::RecordPlace place) {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::absolute(place.file, error);
  if (!error) {
    place.file = path.lexically_normal().string();
  }
  return to_string(place);
}

[[noreturn]] void refuse_part(const data::RecordPlace& place, const std::vector<FoundRow>& found,
                              const data::Mixture& training) {
  constexpr std::size_t most = 3;
  std::string windows;
  for (std::size_t i = 0; i < std::min(most, found.size()); ++i) {
    const data::RowNumber& row = found[i].row;
    windows += (i == 0 ? "" : ", ") +
               to_string(training.source(row.source).records(row.row).front().place);
  }
  fail_input({.thing = shown(to_string(place)),
              .wrong = "no row begins there, as the text is cut into rows",
              .expected = fmt::format("{}{}, of which each has a part of it", windows,
                                      found.size() > most ? ", ..." : "")});
}

}  // namespace

RowHistory::RowHistory(std::shared_ptr<const data::Mixture> training, std::int64_t batch)
    : order_(std::move(training)), batch_(batch) {}

void RowHistory::restore(const Exclusions& all) {
  for (const ExcludedRows& one : all) {
    std::vector<data::RecordPlace> places;
    places.reserve(one.rows.size());
    for (const std::string& row : one.rows) {
      places.push_back(data::parse_record_place(row));
    }
    leave_out(one.from, places);
  }
}

std::int64_t RowHistory::leave_out(std::int64_t from, std::span<const data::RecordPlace> places) {
  if (places.empty()) {
    return 0;
  }
  const std::vector<std::vector<FoundRow>> found = find_rows(training(), places);
  std::vector<data::RowNumber> rows;
  ExcludedRows fresh{.from = from};
  std::map<data::RowNumber, std::vector<LeftOutDocument>> documents = documents_;
  std::set<std::string> names = names_;
  for (std::size_t i = 0; i < places.size(); ++i) {
    if (found[i].empty()) {
      fail_input({.thing = shown(to_string(places[i])),
                  .wrong = "no row of the training has this place",
                  .expected = "a place as 'tessera data where' prints it; rows of the validation "
                              "are not trained on"});
    }
    const bool documented = found[i].front().what.is_document;
    std::string name;
    for (const FoundRow& row : found[i]) {
      if (!documented && !row.begins) {
        continue;
      }
      name = kept_name(row.what.place);
      if (names.contains(name)) {
        continue;
      }
      if (!documented || row.records == 1) {
        rows.push_back(row.row);
        continue;
      }
      std::vector<LeftOutDocument>& of_row = documents[row.row];
      if (std::ranges::find(of_row, row.record, &LeftOutDocument::record) == of_row.end()) {
        of_row.push_back({.from = from, .record = row.record, .what = row.what});
      }
      if (of_row.size() == row.records) {
        rows.push_back(row.row);
      }
    }
    if (name.empty()) {
      refuse_part(places[i], found[i], training());
    }
    if (names.insert(name).second) {
      fresh.rows.push_back(name);
    }
  }
  if (fresh.rows.empty()) {
    return 0;
  }
  order_.leave_out(from * batch_, rows);
  documents_ = std::move(documents);
  names_ = std::move(names);
  const std::int64_t count = std::ssize(fresh.rows);
  if (!excluded_.empty() && excluded_.back().from == from) {
    std::ranges::move(fresh.rows, std::back_inserter(excluded_.back().rows));
  } else {
    excluded_.push_back(std::move(fresh));
  }
  return count;
}

std::vector<data::DocumentPlace> RowHistory::padded(std::int64_t step,
                                                    const data::RowNumber& row) const {
  std::vector<data::DocumentPlace> places;
  if (const auto found = documents_.find(row); found != documents_.end()) {
    for (const LeftOutDocument& document : found->second) {
      if (document.from <= step) {
        places.push_back({document.what.begin, document.what.end});
      }
    }
  }
  return places;
}

std::int64_t RowHistory::trained(std::int64_t step, const data::RowNumber& row) const {
  std::int64_t sum = training().source(row.source).trained(row.row);
  if (const auto found = documents_.find(row); found != documents_.end()) {
    for (const LeftOutDocument& document : found->second) {
      sum -= document.from <= step ? document.what.trained : 0;
    }
  }
  return sum;
}

std::vector<std::vector<std::string>> places_of_step(const RowHistory& history, std::int64_t step) {
  std::vector<std::vector<std::string>> rows;
  for (std::int64_t row = 0; row < history.batch(); ++row) {
    const data::Mixture::SourceRow at = history.at(step, row);
    const std::vector<data::DocumentPlace> padded =
        history.padded(step, {.source = at.source, .row = at.row});
    std::vector<std::string>& places = rows.emplace_back();
    for (const data::RowRecord& record : history.training().source(at.source).records(at.row)) {
      const std::string place = to_string(record.place);
      const bool is_padding =
          std::ranges::find(padded, record.begin, &data::DocumentPlace::begin) != padded.end();
      // Both answers of a pair have one place; of a window, only its beginning names it.
      const bool names = places.empty() || (record.is_document && places.back() != place);
      if (names && !is_padding) {
        places.push_back(place);
      }
    }
  }
  return rows;
}

std::string places_text(const std::vector<std::vector<std::string>>& rows) {
  constexpr std::size_t most = 8;
  std::string text;
  std::size_t count = 0;
  for (const std::vector<std::string>& row : rows) {
    for (const std::string& place : row) {
      if (count++ < most) {
        text += (text.empty() ? "" : ", ") + shown(place);
      }
    }
  }
  return count > most ? fmt::format("{} and {} more", text, count - most) : text;
}

}  // namespace tessera::runs
