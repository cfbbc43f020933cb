#include "trace/draw.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>

namespace tessera::app {
namespace {

constexpr double left = 96;
constexpr double width = 1160;  // of the time axis, in pixels
constexpr double row_height = 22;
constexpr double rank_height = 3 * row_height + 18;
constexpr double top = 52;

constexpr std::string_view forward_colour = "#c9d7ea";
constexpr std::string_view backward_colour = "#e6d3b8";
constexpr std::string_view operator_colour = "#4a78b5";
constexpr std::string_view wait_colour = "#d0342c";
constexpr std::string_view gather_colour = "#3f9c5a";
constexpr std::string_view reduce_colour = "#e08a1e";
constexpr std::string_view other_colour = "#8a63b0";

/// "model.layers.3.mlp.up_proj" -> "layers.3": what is gathered together is usually no smaller.
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

std::string escaped(std::string_view text) {
  std::string all;
  for (const char c : text) {
    all += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return all;
}

struct Bar {
  double begin = 0;
  double end = 0;
  std::string_view colour = {};
  std::string label = {};
};

/// A bar at the end of a row, or a longer last one where nothing would be seen between.
void add(std::vector<Bar>& row, const Bar& bar, double shortest_gap) {
  if (!row.empty() && row.back().colour == bar.colour && row.back().label == bar.label &&
      bar.begin - row.back().end < shortest_gap) {
    row.back().end = std::max(row.back().end, bar.end);
  } else {
    row.push_back(bar);
  }
}

class Picture {
 public:
  explicit Picture(const TraceData& trace) : trace_(trace) {
    begin_ = std::numeric_limits<double>::infinity();
    for (const auto& slices : trace.ranks) {
      for (const FileSlice& slice : slices) {
        begin_ = std::min(begin_, slice.begin);
        end_ = std::max(end_, slice.end);
      }
    }
    if (!(end_ > begin_)) {
      begin_ = 0;
      end_ = 1;
    }
  }

  std::string svg() {
    const double height = top + rank_height * static_cast<double>(trace_.ranks.size()) + 34;
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{:.0f}\" height=\"{:.0f}\" "
        "font-family=\"sans-serif\" font-size=\"12\">\n"
        "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n",
        left + width + 24, height);
    text(12, 20, "start",
         trace_.first_step == trace_.last_step
             ? fmt::format("Step {} on {}", trace_.first_step, trace_.mesh)
             : fmt::format("Steps {} to {} on {}", trace_.first_step, trace_.last_step,
                           trace_.mesh));
    axis(height - 34);
    for (std::size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
      draw_rank(rank, top + rank_height * static_cast<double>(rank));
    }
    legend(height - 14);
    return out_ + "</svg>\n";
  }

 private:
  double x(double time) const { return left + (time - begin_) / (end_ - begin_) * width; }
  double pixel() const { return (end_ - begin_) / width; }

  void text(double at_x, double at_y, std::string_view anchor, std::string_view what) {
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{:.1f}\" text-anchor=\"{}\">{}</text>\n", at_x,
                        at_y, anchor, escaped(what));
  }

  /// Lines at round numbers of milliseconds.
  void axis(double bottom) {
    const double wanted = (end_ - begin_) / 8000;  // of milliseconds between two lines
    const double power = std::pow(10, std::floor(std::log10(wanted)));
    const double step = wanted / power < 2   ? 2 * power
                        : wanted / power < 5 ? 5 * power
                                             : 10 * power;
    for (double at = 0; at * 1000 <= end_ - begin_; at += step) {
      const double place = x(begin_ + at * 1000);
      out_ += fmt::format(
          "<line x1=\"{0:.1f}\" y1=\"{1:.1f}\" x2=\"{0:.1f}\" y2=\"{2:.1f}\" "
          "stroke=\"#dddddd\"/>\n",
          place, top - 6, bottom);
      text(place, top - 12, "middle", fmt::format("{:g} ms", at));
    }
  }

  void draw_row(const std::vector<Bar>& row, double y) {
    for (const Bar& bar : row) {
      const double wide = std::max(0.4, x(bar.end) - x(bar.begin));
      out_ += fmt::format(
          "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.0f}\" fill=\"{}\"/>\n",
          x(bar.begin), y, wide, row_height - 3, bar.colour);
      if (wide > 7.0 * static_cast<double>(bar.label.size())) {
        text(x(bar.begin) + wide / 2, y + row_height - 8, "middle", bar.label);
      }
    }
  }

  void draw_rank(std::size_t rank, double y) {
    std::vector<Bar> modules;
    std::vector<Bar> thread;
    double covered = begin_;
    for (const FileSlice& slice : trace_.ranks[rank]) {
      const bool waits = slice.category == "wait";
      const bool computes = slice.category == "operator" || slice.category == "local operator";
      if (!waits && (!computes || slice.begin < covered)) {
        continue;  // a scope, or within an operator that is drawn
      }
      add(thread, {slice.begin, slice.end, waits ? wait_colour : operator_colour}, pixel());
      add(modules,
          {slice.begin, slice.end, slice.backward ? backward_colour : forward_colour,
           unit_of(slice.module)},
          std::numeric_limits<double>::infinity());
      covered = computes ? slice.end : covered;
    }
    std::vector<Bar> streams;
    for (const FileSlice& slice : trace_.streamed[rank]) {
      const bool gathers = slice.name.find("gather") != std::string::npos;
      const bool reduces = slice.name.find("reduce") != std::string::npos;
      add(streams,
          {slice.begin, slice.end,
           gathers   ? gather_colour
           : reduces ? reduce_colour
                     : other_colour},
          0);
    }
    text(left - 10, y + row_height - 8, "end", fmt::format("rank {}", rank));
    draw_row(modules, y);
    text(left - 10, y + 2 * row_height - 8, "end", "thread");
    draw_row(thread, y + row_height);
    if (!streams.empty()) {
      text(left - 10, y + 3 * row_height - 8, "end", "collectives");
      draw_row(streams, y + 2 * row_height);
    }
  }

  void legend(double y) {
    double at = left;
    for (const auto& [colour, name] : {std::pair{forward_colour, "forward of a module"},
                                       {backward_colour, "its backward"},
                                       {operator_colour, "operators"},
                                       {wait_colour, "waits"},
                                       {gather_colour, "gather"},
                                       {reduce_colour, "reduction"},
                                       {other_colour, "other collectives"}}) {
      out_ +=
          fmt::format("<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"12\" height=\"12\" fill=\"{}\"/>\n",
                      at, y - 10, colour);
      text(at + 18, y, "start", name);
      at += 40 + 7 * static_cast<double>(std::string_view(name).size());
    }
  }

  const TraceData& trace_;
  double begin_ = 0;
  double end_ = 0;
  std::string out_;
};

}  // namespace

std::string draw_trace(const TraceData& trace) { return Picture(trace).svg(); }

}  // namespace tessera::app
