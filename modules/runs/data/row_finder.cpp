module;
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <set>
#include <span>
#include <string>
#include <system_error>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.data;

namespace tessera::runs {
namespace {

std::string canonical(const std::string& path) {
  std::error_code error;
  const std::filesystem::path found =
      std::filesystem::weakly_canonical(std::filesystem::absolute(path, error), error);
  return error ? path : found.string();
}

/// The places that are looked for, by file and number.
class PlaceFinder {
 public:
  explicit PlaceFinder(std::span<const data::RecordPlace> places) : places_(places) {
    for (std::size_t i = 0; i < places.size(); ++i) {
      by_file_[canonical(places[i].file)].emplace(places[i].number, i);
    }
  }

  /// A file of the data, before any of its rows is looked at.
  void know(const std::string& file) {
    if (known_.contains(file)) {
      return;
    }
    known_[file] = canonical(file);
    names_[std::filesystem::path(file).filename().string()].insert(file);
  }

  /// When all files are known: places whose path is that of none of them.
  void adopt_names() {
    std::set<std::string> paths;
    for (const auto& [file, path] : known_) {
      paths.insert(path);
    }
    for (auto at = by_file_.begin(); at != by_file_.end();) {
      const auto named = names_.find(std::filesystem::path(at->first).filename().string());
      if (paths.contains(at->first) || named == names_.end() || named->second.size() != 1) {
        ++at;
        continue;
      }
      auto moved = std::move(at->second);
      at = by_file_.erase(at);
      by_file_[known_.at(*named->second.begin())].merge(moved);
    }
  }

  /// Calls `use` with the number of each place that a record has.
  template <class F>
  void each(const data::RowRecord& record, const F& use) const {
    const auto path = known_.find(record.place.file);
    const auto found = path == known_.end() ? by_file_.end() : by_file_.find(path->second);
    if (found == by_file_.end()) {
      return;
    }
    const std::int64_t last =
        record.place.number + (record.counts_tokens ? record.end - record.begin - 1 : 0);
    for (auto at = found->second.lower_bound(record.place.number);
         at != found->second.end() && at->first <= last; ++at) {
      const data::RecordPlace& place = places_[at->second];
      const std::int64_t end = record.place.token + record.end - record.begin;
      // Of a text that begins in a row before, its later tokens are in this row.
      const bool has_token = record.is_document || record.counts_tokens || place.token == 0 ||
                             (place.token >= record.place.token && place.token < end);
      if (has_token) {
        use(at->second);
      }
    }
  }

 private:
  std::span<const data::RecordPlace> places_;
  std::map<std::string, std::multimap<std::int64_t, std::size_t>> by_file_;
  std::map<std::string, std::string> known_;  // files of the data, and their paths
  std::map<std::string, std::set<std::string>> names_;
};

template <class F>
void each_record(const data::Mixture& training, const F& use) {
  for (std::size_t source = 0; source < training.sources(); ++source) {
    const data::RowSource& rows = training.source(source);
    for (std::int64_t row = 0; row < rows.rows(); ++row) {
      const std::vector<data::RowRecord> records = rows.records(row);
      for (std::size_t i = 0; i < records.size(); ++i) {
        use(data::RowNumber{source, row}, records, i);
      }
    }
  }
}

}  // namespace

std::vector<std::vector<FoundRow>> find_rows(const data::Mixture& training,
                                             std::span<const data::RecordPlace> places) {
  PlaceFinder wanted(places);
  each_record(training, [&](const data::RowNumber&, const auto& records, std::size_t i) {
    wanted.know(records[i].place.file);
  });
  wanted.adopt_names();
  std::vector<std::vector<FoundRow>> found(places.size());
  each_record(training, [&](const data::RowNumber& row, const auto& records, std::size_t i) {
    wanted.each(records[i], [&](std::size_t place) {
      const data::RecordPlace& first = records[0].place;
      found[place].push_back({.row = row,
                              .record = i,
                              .records = records.size(),
                              .what = records[i],
                              .begins = i == 0 && first.number == places[place].number &&
                                        first.token == places[place].token});
    });
  });
  return found;
}

}  // namespace tessera::runs
