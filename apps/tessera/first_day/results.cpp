module;
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <string>
#include <string_view>
#include <system_error>
#include <tessera/json.hpp>
#include <utility>
#include <vector>
module tessera.app.first_day;

import tessera.base;
import tessera.app.base;
import :results;

namespace tessera::app::first_day {
namespace {

using Json = nlohmann::ordered_json;
constexpr int format_version = 1;
constexpr std::size_t longest_problem = 2000;

std::string system_reason(int error) { return std::generic_category().message(error); }

[[noreturn]] void not_written(const std::string& path, const std::string& why) {
  fail_input({.thing = path,
              .wrong = "the results cannot be written",
              .got = why,
              .advice = "make room on the disk, or name another file: --results FILE; what was "
                        "written before is kept"});
}

/// The line of a result, with its texts cut to `most` bytes each.
std::string line_of(const Result& result, std::size_t most) {
  Json line = {{"part", result.part},
               {"item", result.item},
               {"status", result.status},
               {"seconds", result.seconds}};
  if (!result.problem.empty()) {
    line["problem"] = result.problem.substr(0, std::min(most, longest_problem));
  }
  if (result.facts != "{}" && result.facts.size() <= most) {
    line["facts"] = parse_json(result.facts);
  }
  // Output of programs may be anything.
  return line.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Result result_of(const nlohmann::json& line) {
  return {.part = line.value("part", ""),
          .item = line.value("item", ""),
          .status = line.value("status", ""),
          .seconds = line.value("seconds", 0.0),
          .problem = line.value("problem", ""),
          .facts = json_text(line.value("facts", nlohmann::json::object()))};
}

/// The lines that end.
std::vector<std::string_view> whole_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  for (std::size_t end = text.find('\n'); end != std::string_view::npos; end = text.find('\n')) {
    lines.push_back(text.substr(0, end));
    text.remove_prefix(end + 1);
  }
  return lines;
}

}  // namespace

const Result* Results::find(const std::string& part, const std::string& item) const {
  const auto found = std::ranges::find_if(
      items, [&](const Result& r) { return r.part == part && r.item == item; });
  return found == items.end() ? nullptr : &*found;
}

Results read_results(const std::string& path) {
  const std::string text = read_input(path);
  const auto refuse = [&](const std::string& wrong) {
    fail_input(
        {.thing = path, .wrong = wrong, .advice = "name a file that run.sh of a pack has written"});
  };
  const std::vector<std::string_view> lines = whole_lines(text);
  const auto is_too_large = text.size() > 4 * ResultFile::most_bytes;
  const nlohmann::json first =
      lines.empty() || is_too_large ? nlohmann::json() : parse_json_object(lines[0]).value;
  if (!first.is_object() || !first.contains("first_day") ||
      !first["first_day"].is_number_integer()) {
    refuse("it is not a file of results");
  }
  if (first["first_day"].get<int>() != format_version) {
    fail_input({.thing = path,
                .wrong = "it has results in another version of the format",
                .expected = std::to_string(format_version),
                .got = json_text(first["first_day"]),
                .advice = "make the page with the Tessera that has made the pack"});
  }
  Results results{.pack = json_text(first), .items = {}};
  for (std::size_t i = 1; i < lines.size(); ++i) {
    const ParsedJson line = parse_json_object(lines[i]);
    Result result;
    try {
      result = line.problem.empty() ? result_of(line.value) : Result{};
    } catch (const nlohmann::json::exception&) {
      result = {};
    }
    if (result.part.empty() || result.status.empty()) {
      refuse(fmt::format("line {} is damaged", i + 1));
    }
    const auto before = std::ranges::find_if(results.items, [&](const Result& r) {
      return r.part == result.part && r.item == result.item;
    });
    if (before == results.items.end()) {
      results.items.push_back(std::move(result));
    } else {
      *before = std::move(result);
    }
  }
  return results;
}

ResultFile::ResultFile(std::string path, const std::string& pack) : path_(std::move(path)) {
  Json first = {{"first_day", format_version}};
  first.update(parse_ordered_json(pack));
  std::string text = json_text(first) + "\n";
  if (std::filesystem::exists(path_)) {
    const Results before = read_results(path_);
    if (json_text(parse_json(before.pack)) != json_text(parse_json(json_text(first)))) {
      fail_input({.thing = path_,
                  .wrong = "it has the results of another pack, or of another GPU",
                  .expected = json_text(first),
                  .got = before.pack,
                  .advice = "move it away, or name another file: --results FILE"});
    }
    for (const Result& result : before.items) {
      text += line_of(result, longest_problem * 100);
    }
  } else {
    make_folders(std::filesystem::absolute(path_).parent_path().string(), path_);
  }
  if (const std::string why = write_file(path_, text); !why.empty()) {
    not_written(path_, why);
  }
}

void ResultFile::add(const Result& result) {
  std::error_code ignored;
  const std::size_t size = std::filesystem::file_size(path_, ignored);
  constexpr std::size_t reserve = 1 << 17;
  const std::size_t most = size + reserve < most_bytes ? most_bytes - reserve - size : 200;
  const std::string line = line_of(result, most);
  if (size + line.size() > most_bytes) {
    not_written(path_, fmt::format("it would have more than {} bytes", most_bytes));
  }
  const int file = open(path_.c_str(), O_WRONLY | O_APPEND | O_CLOEXEC);
  const ssize_t written = file < 0 ? -1 : write(file, line.data(), line.size());
  const int error = written < 0 ? errno : ENOSPC;
  const bool whole = written == static_cast<ssize_t>(line.size()) && fsync(file) == 0;
  if (!whole && written > 0) {  // a part of a line must not stay
    [[maybe_unused]] const int cut = ftruncate(file, static_cast<off_t>(size));
  }
  if (file >= 0) {
    close(file);
  }
  if (!whole) {
    not_written(path_, system_reason(error));
  }
}

}  // namespace tessera::app::first_day
