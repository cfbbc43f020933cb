module;
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <set>
#include <sstream>
#include <string>
#include <system_error>
#include <tessera/input_file.hpp>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.runs;

import tessera.base;
import tessera.data;

namespace tessera::runs {

std::string to_json(const Exclusions& all) {
  nlohmann::ordered_json json = nlohmann::ordered_json::array();
  for (const ExcludedRows& one : all) {
    json.push_back({{"from", one.from}, {"rows", one.rows}});
  }
  return json_text(json);
}

Exclusions exclusions_of(const std::string& text, const std::string& where) {
  const nlohmann::json json = parse_json(text, false);
  const auto refuse = [&] {
    fail_input({.thing = where,
                .wrong = "the rows that its run leaves out are not a list of steps and places",
                .advice = "use another checkpoint"});
  };
  if (!json.is_array()) {
    refuse();
  }
  Exclusions all;
  for (const nlohmann::json& one : json) {
    ExcludedRows rows;
    if (!one.is_object() || !one.contains("from") || !one["from"].is_number_integer() ||
        !one.contains("rows") || !one["rows"].is_array()) {
      refuse();
    }
    rows.from = one["from"].get<std::int64_t>();
    for (const nlohmann::json& row : one["rows"]) {
      if (!row.is_string()) {
        refuse();
      }
      rows.rows.push_back(row.get<std::string>());
    }
    if (rows.from < 0 || (!all.empty() && rows.from < all.back().from)) {
      refuse();
    }
    all.push_back(std::move(rows));
  }
  return all;
}

std::int64_t count_of(const Exclusions& all) {
  std::int64_t count = 0;
  for (const ExcludedRows& one : all) {
    count += std::ssize(one.rows);
  }
  return count;
}

std::vector<data::RecordPlace> read_row_places(const std::string& file) {
  constexpr std::size_t most = std::size_t{256} << 20;
  std::istringstream lines(input_text(file, most, "the list of rows"));
  std::vector<data::RecordPlace> places;
  std::set<std::string> seen;
  std::string line;
  for (std::int64_t number = 1; std::getline(lines, line); ++number) {
    const std::size_t end = line.find_last_not_of(" \t\r");
    if (end == std::string::npos || line.starts_with('#')) {
      continue;
    }
    const std::string where = fmt::format("{}:{}", file, number);
    data::RecordPlace place;
    try {
      place = data::parse_record_place(line.substr(0, end + 1));
    } catch (const Error& error) {
      fail_input({.where = where, .wrong = error.what()});
    }
    std::error_code ignored;
    const std::filesystem::path beside = std::filesystem::path(file).parent_path() / place.file;
    if (!std::filesystem::exists(place.file, ignored) && std::filesystem::exists(beside, ignored)) {
      place.file = beside.string();
    }
    if (!seen.insert(to_string(place)).second) {
      fail_input({.where = where,
                  .wrong = fmt::format("{} is named twice", to_string(place)),
                  .advice = "remove one of the lines"});
    }
    places.push_back(std::move(place));
  }
  return places;
}

}  // namespace tessera::runs
