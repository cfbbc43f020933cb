module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>
#include <limits>
#include <string_view>
#include <utility>
module tessera.app.trace;

import tessera.app.base;

namespace tessera::app {
namespace {

constexpr double rank_height = 3 * Timeline::row_height + 18;
constexpr double top = 52;

constexpr std::string_view operator_colour = "#4a78b5";
constexpr std::string_view wait_colour = "#d0342c";

/// Begin and end over all ranks; some time where there is none.
std::pair<double, double> extent_of(const TraceData& trace) {
  double begin = std::numeric_limits<double>::infinity();
  double end = 0;
  for (const auto& slices : trace.ranks) {
    for (const FileSlice& slice : slices) {
      begin = std::min(begin, slice.begin);
      end = std::max(end, slice.end);
    }
  }
  return end > begin ? std::pair{begin, end} : std::pair{0.0, 1.0};
}

class Picture {
 public:
  explicit Picture(const TraceData& trace)
      : trace_(trace), begin_(extent_of(trace).first), end_(extent_of(trace).second) {}

  std::string svg() {
    const double height = top + rank_height * static_cast<double>(trace_.ranks.size()) + 34;
    out_.text(12, 20, "start",
              trace_.first_step == trace_.last_step
                  ? fmt::format("Step {} on {}", trace_.first_step, trace_.mesh)
                  : fmt::format("Steps {} to {} on {}", trace_.first_step, trace_.last_step,
                                trace_.mesh));
    axis(height - 34);
    for (std::size_t rank = 0; rank < trace_.ranks.size(); ++rank) {
      draw_rank(rank, top + rank_height * static_cast<double>(rank));
    }
    constexpr std::array<std::pair<std::string_view, std::string_view>, 7> legend = {
        {{colour::forward, "forward of a module"},
         {colour::backward, "its backward"},
         {operator_colour, "operators"},
         {wait_colour, "waits"},
         {colour::gather, "gather"},
         {colour::reduction, "reduction"},
         {colour::other_collective, "other collectives"}}};
    out_.legend(legend, height - 14);
    return out_.svg(height);
  }

 private:
  /// Lines at round numbers of milliseconds.
  void axis(double bottom) {
    const double wanted = (end_ - begin_) / 8000;  // of milliseconds between two lines
    const double power = std::pow(10, std::floor(std::log10(wanted)));
    const double step = wanted / power < 2   ? 2 * power
                        : wanted / power < 5 ? 5 * power
                                             : 10 * power;
    for (double at = 0; at * 1000 <= end_ - begin_; at += step) {
      const double place = out_.x(begin_ + at * 1000);
      out_.line(place, top - 6, place, bottom, "#dddddd");
      out_.text(place, top - 12, "middle", fmt::format("{:g} ms", at));
    }
  }

  void draw_rank(std::size_t rank, double y) {
    std::vector<Bar> modules;
    std::vector<Bar> thread;
    double covered = begin_;
    for (const FileSlice& slice : trace_.ranks[rank]) {
      const bool waits = slice.waits();
      const bool computes = slice.category == "operator" || slice.category == "local operator";
      if (!waits && (!computes || slice.begin < covered)) {
        continue;  // a scope, or within an operator that is drawn
      }
      add_bar(thread, {slice.begin, slice.end, waits ? wait_colour : operator_colour},
              out_.pixel());
      add_bar(modules,
              {slice.begin, slice.end, slice.backward ? colour::backward : colour::forward,
               unit_of(slice.module)},
              std::numeric_limits<double>::infinity());
      covered = computes ? slice.end : covered;
    }
    std::vector<Bar> streams;
    for (const FileSlice& slice : trace_.streamed[rank]) {
      add_bar(streams, {slice.begin, slice.end, colour_of_collective(slice.name)}, 0);
    }
    out_.row(fmt::format("rank {}", rank), modules, y);
    out_.row("thread", thread, y + Timeline::row_height);
    if (!streams.empty()) {
      out_.row("collectives", streams, y + 2 * Timeline::row_height);
    }
  }

  const TraceData& trace_;
  double begin_;
  double end_;
  Timeline out_ = Timeline(begin_, end_);
};

}  // namespace

std::string draw_trace(const TraceData& trace) { return Picture(trace).svg(); }

}  // namespace tessera::app
