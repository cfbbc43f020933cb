// Pictures of layouts. A layout cuts a tensor into a grid of boxes: each dim into ranges, by the
// axes that shard it alone.
module;
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <range/v3/view/enumerate.hpp>
#include <range/v3/view/zip.hpp>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>
module tessera.placement;

import tessera.base;
import tessera.mesh;

namespace tessera {
namespace {

using ranges::views::enumerate;
using ranges::views::zip;

using Range = std::pair<std::int64_t, std::int64_t>;  // begin, end

std::string text_of(Range range) { return fmt::format("{}:{}", range.first, range.second); }

Range range_of(const LocalPart& part, int dim) {
  return {part.offset[dim], part.offset[dim] + part.shape[dim]};
}

/// The non-empty ranges into which a dim is cut, ascending. Dim -1: a row or column of its own for
/// tensors that have too few dims.
std::vector<Range> ranges_of(const Layout& layout, const Dims& shape, int dim) {
  if (dim < 0) {
    return {{0, 1}};
  }
  std::set<Range> found;
  for (const int rank : layout.mesh().ranks()) {
    const Range range = range_of(local_part(shape, layout, rank), dim);
    if (range.first < range.second) {
      found.insert(range);
    }
  }
  return {found.begin(), found.end()};
}

std::string sign_of(Placement partial) {
  constexpr std::string_view signs[] = {"+", " avg ", " max ", " min ", "*"};
  return partial.is_norm() ? fmt::format(" norm({}) ", partial.norm_order())
                           : std::string(signs[static_cast<int>(partial.reduce_op())]);
}

/// The ranks that hold one box: terms joined by their reduction's sign, copies by commas. Several
/// reductions are written one in the other: "(0+1) max (2+3)".
std::string holders(const Layout& layout, const std::vector<int>& ranks, int axis) {
  if (axis == layout.ndim() || ranks.size() == 1) {
    return fmt::format("{}", fmt::join(ranks, ","));
  }
  const Placement placement = layout.placement(axis);
  std::vector<std::vector<int>> by_coordinate(
      static_cast<std::size_t>(layout.mesh().axis_size(axis)));
  for (const int rank : ranks) {
    by_coordinate[static_cast<std::size_t>(layout.mesh().coordinate_of(rank, axis))].push_back(
        rank);
  }
  std::erase_if(by_coordinate, [](const auto& list) { return list.empty(); });
  std::vector<std::string> parts;
  parts.reserve(by_coordinate.size());
  for (const auto& list : by_coordinate) {
    parts.push_back(holders(layout, list, axis + 1));
    if (by_coordinate.size() > 1 && placement.is_partial() &&
        parts.back().find_first_not_of("0123456789") != std::string::npos) {
      parts.back() = "(" + parts.back() + ")";
    }
  }
  return fmt::format(
      "{}", fmt::join(parts, placement.is_partial() ? sign_of(placement) : std::string(",")));
}

/// Dims that a picture shows: two (rows, columns), -1 where the tensor lacks them.
struct Grid {
  int row_dim = -1;
  int column_dim = -1;
  std::vector<Range> rows;
  std::vector<Range> columns;
  std::vector<std::vector<std::string>> labels;  // of the ranks, by row and column
};

/// The dims to show: the sharded ones first, then the last ones; in their own order.
std::pair<int, int> shown_dims(const Layout& layout, int dims) {
  if (dims <= 1) {
    return {-1, dims - 1};
  }
  std::vector<int> order;
  for (int dim = 0; dim < dims; ++dim) {
    if (layout.shard_count(dim) > 1) {
      order.push_back(dim);
    }
  }
  for (int dim = dims - 1; dim >= 0; --dim) {
    if (layout.shard_count(dim) == 1) {
      order.push_back(dim);
    }
  }
  return std::minmax(order[0], order[1]);
}

Grid grid_of(const Layout& layout, const Dims& shape) {
  Grid grid;
  std::tie(grid.row_dim, grid.column_dim) = shown_dims(layout, shape.size());
  grid.rows = ranges_of(layout, shape, grid.row_dim);
  grid.columns = ranges_of(layout, shape, grid.column_dim);
  for (const Range row : grid.rows) {
    grid.labels.emplace_back();
    for (const Range column : grid.columns) {
      std::vector<int> ranks;
      for (const int rank : layout.mesh().ranks()) {
        const LocalPart part = local_part(shape, layout, rank);
        const bool here = (grid.row_dim < 0 || range_of(part, grid.row_dim) == row) &&
                          (grid.column_dim < 0 || range_of(part, grid.column_dim) == column);
        if (here && part.shape.product() > 0) {
          ranks.push_back(rank);
        }
      }
      grid.labels.back().push_back(holders(layout, ranks, 0));
    }
  }
  return grid;
}

std::string heading(const Layout& layout, const Dims& shape) {
  std::string text =
      fmt::format("{} {} on {}", to_string(shape), to_string(layout), to_string(layout.mesh()));
  if (!layout.has_default_order()) {
    for (int dim = 0; dim <= layout.top_dim(); ++dim) {
      const auto axes = layout.axes_sharding(dim);
      if (!std::is_sorted(axes.begin(), axes.end())) {
        std::vector<std::string> names;
        names.reserve(axes.size());
        for (const int axis : axes) {
          names.push_back("'" + layout.mesh().axis_name(axis) + "'");
        }
        text += fmt::format("; dim {} is cut by {}", dim, fmt::join(names, ", then "));
      }
    }
  }
  return text;
}

std::string centred(std::string_view text, std::size_t width) {
  const std::size_t before = (width - text.size()) / 2;
  return std::string(before, ' ') + std::string(text) +
         std::string(width - text.size() - before, ' ');
}

/// Boxes in proportion to nothing: what matters is who holds which range.
std::string picture(const Grid& grid) {
  std::vector<std::size_t> widths;
  for (const auto& [c, column] : enumerate(grid.columns)) {
    std::size_t width = grid.column_dim < 0 ? 1 : text_of(column).size();
    for (const auto& row : grid.labels) {
      width = std::max(width, row[c].size());
    }
    widths.push_back(width + 2);
  }
  std::size_t margin = 0;
  for (const Range row : grid.rows) {
    margin = std::max(margin, grid.row_dim < 0 ? 0 : text_of(row).size());
  }
  const std::string indent(margin + 3, ' ');
  std::string text = indent;
  std::string border = indent + "+";
  for (const auto& [column, width] : zip(grid.columns, widths)) {
    text +=
        (grid.column_dim < 0 ? std::string(width + 1, ' ') : " " + centred(text_of(column), width));
    border += std::string(width, '-') + "+";
  }
  text.erase(text.find_last_not_of(' ') + 1);
  text += (text.empty() ? "" : "\n") + border + "\n";
  for (const auto& [row, labels] : zip(grid.rows, grid.labels)) {
    text += fmt::format("  {:>{}} |", grid.row_dim < 0 ? "" : text_of(row), margin);
    for (const auto& [label, width] : zip(labels, widths)) {
      text += centred(label, width) + "|";
    }
    text += "\n" + border + "\n";
  }
  return text;
}

/// One colour for each box, told apart also by those who see no red and green.
std::string_view colour_of(std::size_t number) {
  constexpr std::array<std::string_view, 8> colours = {"#a6cee3", "#fdd49e", "#b2df8a", "#cab2d6",
                                                       "#ffff99", "#d9d9d9", "#fbb4ae", "#80cdc1"};
  return colours[number % colours.size()];
}

/// Pixels at which the ranges of a dim begin, in proportion to their lengths but none too small
/// for its text; one more for the end.
std::vector<int> places(const std::vector<Range>& ranges, int begin, int length, int minimum) {
  std::int64_t total = 1;
  for (const Range range : ranges) {
    total += range.second - range.first;
  }
  std::vector<int> at = {begin};
  for (const Range range : ranges) {
    const auto share = static_cast<int>((range.second - range.first) * length / total);
    at.push_back(at.back() + std::max(share, minimum));
  }
  return at;
}

}  // namespace

std::string draw_text(const Layout& layout, const Dims& shape) {
  check_layout_fits(layout, shape.size(), "draw");
  std::string text = heading(layout, shape) + "\n\n";
  if (shape.size() <= 2 && shape.product() > 0) {
    text += picture(grid_of(layout, shape)) + "\n";
  }
  for (const int rank : layout.mesh().ranks()) {
    const LocalPart part = local_part(shape, layout, rank);
    std::vector<std::string> ranges;
    for (int dim = 0; dim < shape.size(); ++dim) {
      ranges.push_back(text_of(range_of(part, dim)));
    }
    std::vector<std::string> coordinates;
    for (int axis = 0; axis < layout.ndim(); ++axis) {
      coordinates.push_back(fmt::format("{} {}", layout.mesh().axis_name(axis),
                                        layout.mesh().coordinate_of(rank, axis)));
    }
    text += fmt::format("  rank {} ({}): [{}]{}\n", rank, fmt::join(coordinates, ", "),
                        fmt::join(ranges, ", "), part.shape.product() == 0 ? ", empty" : "");
  }
  return text;
}

std::string draw_svg(const Layout& layout, const Dims& shape) {
  check_layout_fits(layout, shape.size(), "draw");
  const Grid grid = grid_of(layout, shape);
  std::size_t longest = 1;
  for (const auto& row : grid.labels) {
    for (const std::string& label : row) {
      longest = std::max(longest, label.size());
    }
  }
  constexpr int left = 70;
  constexpr int top = 64;
  const std::vector<int> x =
      places(grid.columns, left, 320, std::max(56, 14 + 8 * static_cast<int>(longest)));
  const std::vector<int> y = places(grid.rows, top, 240, 40);
  const std::string caption = heading(layout, shape);
  const int width = std::max(x.back() + 20, 24 + 7 * static_cast<int>(caption.size()));
  std::string svg = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{}\" height=\"{}\" "
      "font-family=\"sans-serif\" font-size=\"13\">\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n"
      "<text x=\"12\" y=\"22\">{}</text>\n",
      width, y.back() + 24, escape_markup(caption));
  const auto write = [&](int at_x, int at_y, std::string_view anchor, std::string_view text) {
    svg += fmt::format("<text x=\"{}\" y=\"{}\" text-anchor=\"{}\">{}</text>\n", at_x, at_y, anchor,
                       escape_markup(text));
  };
  for (std::size_t c = 0; c < grid.columns.size() && grid.column_dim >= 0; ++c) {
    write((x[c] + x[c + 1]) / 2, top - 8, "middle", text_of(grid.columns[c]));
  }
  for (std::size_t r = 0; r < grid.rows.size(); ++r) {
    if (grid.row_dim >= 0) {
      write(left - 8, (y[r] + y[r + 1]) / 2 + 5, "end", text_of(grid.rows[r]));
    }
    for (std::size_t c = 0; c < grid.columns.size(); ++c) {
      svg += fmt::format(
          "<rect x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" fill=\"{}\" stroke=\"#333333\"/>\n",
          x[c], y[r], x[c + 1] - x[c], y[r + 1] - y[r], colour_of(r * grid.columns.size() + c));
      write((x[c] + x[c + 1]) / 2, (y[r] + y[r + 1]) / 2 + 5, "middle", grid.labels[r][c]);
    }
  }
  return svg + "</svg>\n";
}

}  // namespace tessera
