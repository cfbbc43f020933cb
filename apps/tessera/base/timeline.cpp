module;
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
module tessera.app.base;

namespace tessera::app {

std::string_view colour_of_collective(std::string_view name) {
  return name.find("gather") != std::string_view::npos   ? colour::gather
         : name.find("reduce") != std::string_view::npos ? colour::reduction
                                                         : colour::other_collective;
}

std::string unit_of(const std::string& module) {
  std::size_t begin = 0;
  std::size_t end = module.size();
  for (std::size_t at = 0; at < module.size();) {
    const std::size_t dot = std::min(module.find('.', at), module.size());
    const std::string_view part = std::string_view(module).substr(at, dot - at);
    if (!part.empty() && part.find_first_not_of("0123456789") == std::string_view::npos) {
      end = dot;
      begin = at == 0 ? 0 : module.rfind('.', at - 2) + 1;  // npos + 1 is 0
      break;
    }
    at = dot + 1;
  }
  return module.substr(begin, end - begin);
}

void add_bar(std::vector<Bar>& row, const Bar& bar, double shortest_gap) {
  if (!row.empty() && row.back().colour == bar.colour && row.back().label == bar.label &&
      bar.begin - row.back().end < shortest_gap) {
    row.back().end = std::max(row.back().end, bar.end);
  } else {
    row.push_back(bar);
  }
}

void Timeline::text(double at_x, double at_y, std::string_view anchor, std::string_view what) {
  out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at_x, at_y,
                      anchor, escape_markup(what));
}

void Timeline::line(double x1, double y1, double x2, double y2, std::string_view colour) {
  out_ +=
      fmt::format("<line x1=\"{:.1f}\" y1=\"{:.1f}\" x2=\"{:.1f}\" y2=\"{:.1f}\" stroke=\"{}\"/>\n",
                  x1, y1, x2, y2, colour);
}

void Timeline::area(std::span<const std::pair<double, double>> corners, std::string_view colour) {
  out_ += fmt::format("<polygon fill=\"{}\" points=\"", colour);
  for (const auto& [at_x, at_y] : corners) {
    out_ += fmt::format("{:.1f},{:.1f} ", at_x, at_y);
  }
  out_ += "\"/>\n";
}

void Timeline::row(std::string_view name, std::span<const Bar> bars, double y) {
  text(left - 10, y + row_height - 8, "end", name);
  for (const Bar& bar : bars) {
    const double wide = std::max(0.4, x(bar.end) - x(bar.begin));
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"/>\n",
        x(bar.begin), y, wide, row_height - 3, bar.colour);
    if (wide > 7.0 * static_cast<double>(bar.label.size())) {
      text(x(bar.begin) + wide / 2, y + row_height - 8, "middle", bar.label);
    }
  }
}

void Timeline::legend(
    std::span<const std::pair<std::string_view, std::string_view>> colours_and_names, double y) {
  double at = left;
  for (const auto& [colour, name] : colours_and_names) {
    out_ +=
        fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                    at, y - 10, colour);
    text(at + 18, y, "start", name);
    at += 40 + 7 * static_cast<double>(name.size());
  }
}

std::string Timeline::svg(double height) const {
  return fmt::format(
             "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
             "font-family=\"sans-serif\" font-size=\"12\">\n"
             "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
             left + width + 24, height) +
         out_ + "</svg>\n";
}

}  // namespace tessera::app
