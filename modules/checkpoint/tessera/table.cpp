module;
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <iterator>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>
module tessera.checkpoint;

import tessera.base;
import tessera.placement;
import :checkpoint_index;
import :table;

namespace tessera::checkpoint_detail {
namespace {

/// The text up to a mark, which is taken away with it; nothing when there is no mark.
std::optional<std::string_view> take(std::string_view& text, char mark) {
  const std::size_t at = text.find(mark);
  if (at == std::string_view::npos) {
    return std::nullopt;
  }
  const std::string_view front = text.substr(0, at);
  text.remove_prefix(at + 1);
  return front;
}

bool read_number(std::string_view text, auto& number) {
  const auto [end, problem] = std::from_chars(text.data(), text.data() + text.size(), number);
  return problem == std::errc() && end == text.data() + text.size();
}

}  // namespace

std::string table_text(const std::vector<TableRow>& rows) {
  std::string text;
  for (const TableRow& row : rows) {
    fmt::format_to(std::back_inserter(text), "{} {} {} {} {};", row.tensor,
                   dims_text(row.box.offset), dims_text(row.box.shape), row.begin, row.hashes);
  }
  return text;
}

std::optional<std::vector<TableRow>> table_rows(std::string_view text) {
  std::vector<TableRow> rows;
  while (!text.empty()) {
    const auto tensor = take(text, ' ');
    const auto offset = take(text, ' ');
    const auto shape = take(text, ' ');
    const auto begin = take(text, ' ');
    const auto hashes = take(text, ';');
    TableRow row;
    const bool complete = tensor && offset && shape && begin && hashes;
    if (!complete || !read_number(*tensor, row.tensor) || !read_number(*begin, row.begin)) {
      return std::nullopt;
    }
    const auto first = dims_from_text(*offset);
    const auto extents = dims_from_text(*shape);
    if (!first || !extents) {
      return std::nullopt;
    }
    row.box = {*first, *extents};
    row.hashes = *hashes;
    rows.push_back(row);
  }
  return rows;
}

std::optional<std::string_view> table_in(std::string_view header) {
  const std::string front = fmt::format(R"({{"__metadata__":{{"{}":")", table_name);
  if (!header.starts_with(front)) {
    return std::nullopt;
  }
  header.remove_prefix(front.size());
  return take(header, '"');
}

}  // namespace tessera::checkpoint_detail
