module;
#include <algorithm>
#include <range/v3/view/drop_last.hpp>
#include <range/v3/view/zip.hpp>
#include <sstream>
#include <string>
#include <tessera/shown.hpp>
#include <tessera/utf8.hpp>
module tessera.app.base;

import tessera.base;

namespace tessera::app {
namespace {

using ranges::views::drop_last;
using ranges::views::zip;

std::size_t width_of(const std::string& text) {
  return static_cast<std::size_t>(count_characters(text));
}

}  // namespace

std::string format_table(const TableRows& table, const std::string& indent) {
  TableRows rows = table;  // a cell may be a name in a file of somebody else
  for (auto& row : rows) {
    std::ranges::transform(row, row.begin(),
                           [](const std::string& cell) { return terminal_text(cell); });
  }
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (auto [width, cell] : zip(widths, row | drop_last(1))) {  // the last cell is not padded
      width = std::max(width, width_of(cell));
    }
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line = indent;
    for (std::size_t i = 0; i < row.size(); ++i) {
      line += row[i];
      if (i + 1 < row.size()) {
        line += std::string(widths[i] - width_of(row[i]) + 2, ' ');
      }
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

std::string wrap_text(const std::string& text, const std::string& first,
                      const std::string& indent) {
  constexpr std::size_t most = 100;
  std::istringstream words(text);
  std::string lines = first;
  std::size_t width = width_of(first);
  bool begins = true;
  for (std::string word; words >> word; begins = false) {
    const std::size_t wide = width_of(word);
    if (!begins && width + 1 + wide > most) {
      lines += '\n' + indent + word;
      width = width_of(indent) + wide;
    } else {
      lines += (begins ? "" : " ") + word;
      width += (begins ? 0 : 1) + wide;
    }
  }
  return lines;
}

}  // namespace tessera::app
