module;
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.device;
import tessera.tensor;
import tessera.program;
import tessera.app.base;
import :draw_program;

namespace tessera::app {
namespace {

constexpr double top = 36;
constexpr double memory_height = 160;
constexpr std::string_view other_phase = "#d9d9d9";
constexpr std::string_view axis_colour = "#888888";

/// By MemoryCategory.
constexpr std::array<std::string_view, memory_category_count> category_colours = {
    "#4a78b5", "#e08a1e", "#7fb0d9", "#8fc98f", "#8a63b0", "#a07050", "#c98fb8", "#b8b8b8"};

using Column = std::pair<double, graph::CategoryBytes>;  // from a position on

/// Whether it computes or moves values; views and memory take no room in the picture.
bool takes_room(const Instruction& i) { return i.op != nullptr && i.op->view == nullptr; }

/// Where each instruction begins on the axis, and where the last one ends.
ByPlace<double> positions_of(const Program& program) {
  ByPlace<double> positions(1, 0);
  for (const Instruction* const i : graph::places_of(program)) {
    positions.add(positions[positions.last()] + (takes_room(*i) ? 1 : 0));
  }
  return positions;
}

std::string_view colour_of_phase(Phase phase) {
  return phase == Phase::forward    ? colour::forward
         : phase == Phase::backward ? colour::backward
                                    : other_phase;
}

/// "model.layers.3.mlp.up_proj" -> "mlp".
std::string part_of_unit(const std::string& module) {
  const std::string unit = unit_of(module);
  const std::size_t begin = module.find(unit) + unit.size() + 1;
  return begin >= module.size() ? "" : module.substr(begin, module.find('.', begin) - begin);
}

class Picture {
 public:
  explicit Picture(const Program& program)
      : program_(program),
        known_(program),
        statistics_(graph::statistics_of(program)),
        positions_(positions_of(program)),
        out_(0, std::max(1.0, end())) {}

  std::string svg() {
    out_.text(12, 20, "start",
              fmt::format("Step of rank {}: {} instructions, {}, {} at the peak of memory",
                          program_.rank, statistics_.live.size(), format_flops(statistics_.flops),
                          in_words(statistics_.peak)));
    double y = draw_modules(top);
    y = draw_collectives(y) + 24;
    draw_memory(y);
    y += memory_height + 30;
    draw_legends(y);
    return out_.svg(y + 32);
  }

 private:
  static std::string in_words(std::int64_t bytes) {
    return format_bytes(static_cast<std::uint64_t>(bytes));
  }

  /// Draws what computes, by modules: calls that are issued early for other modules are in the rows
  /// below.
  double draw_modules(double y) {
    std::vector<Bar> phases;
    std::vector<Bar> units;
    std::vector<Bar> parts;
    const double any = std::numeric_limits<double>::infinity();
    each([&](const Instruction& i, PlaceIndex place) {
      if (!takes_room(i) || i.op->communicates != Communicates::none) {
        return;
      }
      const ProgramScope& scope = program_.scopes[i.scope];
      const double begin = positions_[place];
      const double end = positions_[place + 1];
      const std::string_view colour = colour_of_phase(scope.phase);
      add_bar(phases, {begin, end, colour, std::string(name_of(scope.phase))}, any);
      add_bar(units, {begin, end, colour, unit_of(scope.module)}, any);
      add_bar(parts, {begin, end, colour, part_of_unit(scope.module)}, any);
    });
    for (const auto& [name, bars] :
         {std::pair{"phase", &phases}, {"module", &units}, {"", &parts}}) {
      out_.row(name, *bars, y);
      y += Timeline::row_height;
    }
    return y + 8;
  }

  void each(const std::function<void(const Instruction&, PlaceIndex)>& body) const {
    PlaceIndex place(0);
    for (const Instruction* const i : graph::places_of(program_)) {
      body(*i, place);
      ++place;
    }
  }

  /// Each from its issue to its wait, in the first row that is free.
  double draw_collectives(double y) {
    std::vector<std::vector<Bar>> rows(1);
    each([&](const Instruction& i, PlaceIndex place) {
      if (!graph::is_collective(i)) {
        return;
      }
      const PlaceIndex wait = known_.partner(place);
      const Bar bar = {positions_[place], positions_[(wait.exists() ? wait : place) + 1],
                       colour_of_collective(i.op->name), i.op->name};
      const auto free = std::ranges::find_if(
          rows, [&](const auto& row) { return row.empty() || row.back().end <= bar.begin; });
      (free == rows.end() ? rows.emplace_back() : *free).push_back(bar);
    });
    for (const std::vector<Bar>& row : rows) {
      out_.row(&row == &rows.front() ? "collectives" : "", row, y);
      y += Timeline::row_height;
    }
    return y;
  }

  /// Memory that is needed at each position; where several instructions share a pixel, at the one
  /// that needs most.
  std::vector<Column> columns() const {
    std::vector<Column> columns;
    for (const PlaceIndex place : statistics_.live.keys()) {
      const graph::CategoryBytes& now = statistics_.live[place];
      if (columns.empty() || positions_[place] >= columns.back().first + out_.pixel()) {
        columns.emplace_back(positions_[place], now);
      } else if (graph::total_of(now) > graph::total_of(columns.back().second)) {
        columns.back().second = now;
      }
    }
    const auto equal = [](const Column& a, const Column& b) { return a.second == b.second; };
    columns.erase(std::ranges::unique(columns, equal).begin(), columns.end());
    return columns;
  }

  /// Areas by category, one upon the other.
  void draw_memory(double y) {
    const double bottom = y + memory_height;
    const double peak = std::max<double>(1, static_cast<double>(statistics_.peak));
    const auto height = [&](std::int64_t bytes) {
      return bottom - static_cast<double>(bytes) / peak * memory_height;
    };
    const std::vector<Column> all = columns();
    std::vector<std::int64_t> below(all.size(), 0);
    for (std::size_t category = 0; category < memory_category_count; ++category) {
      std::vector<std::int64_t> above = below;
      for (std::size_t at = 0; at < all.size(); ++at) {
        above[at] += all[at].second[category];
      }
      if (above != below) {
        std::vector<std::pair<double, double>> corners;
        const auto walk = [&](const std::vector<std::int64_t>& edge) {
          for (std::size_t at = 0; at < all.size(); ++at) {
            corners.emplace_back(out_.x(all[at].first), height(edge[at]));
            corners.emplace_back(out_.x(end_of(all, at)), height(edge[at]));
          }
        };
        walk(above);
        const std::size_t half = corners.size();
        walk(below);
        std::reverse(corners.begin() + static_cast<std::ptrdiff_t>(half), corners.end());
        out_.area(corners, category_colours[category]);
      }
      below = above;
    }
    out_.text(Timeline::left - 10, y + 10, "end", in_words(statistics_.peak));
    out_.text(Timeline::left - 10, bottom, "end", "memory");
    const double at = out_.x(positions_[statistics_.peak_at]);
    out_.line(at, y - 4, at, bottom, axis_colour);
    const bool at_right = at > Timeline::left + Timeline::width / 2;
    out_.text(at, y - 8, at_right ? "end" : "start",
              fmt::format("peak at instruction {}", statistics_.peak_at.number + 1));
  }

  double end() const { return positions_[positions_.last()]; }
  double end_of(const std::vector<Column>& all, std::size_t at) const {
    return at + 1 < all.size() ? all[at + 1].first : end();
  }

  void draw_legends(double y) {
    std::vector<std::pair<std::string_view, std::string_view>> names = {
        {colour::forward, "forward"},     {colour::backward, "backward"},
        {other_phase, "other phases"},    {colour::gather, "gather"},
        {colour::reduction, "reduction"}, {colour::other_collective, "other collectives"}};
    out_.legend(names, y);
    names.clear();
    for (std::size_t category = 0; category < memory_category_count; ++category) {
      const bool used = std::ranges::any_of(statistics_.live,
                                            [&](const auto& now) { return now[category] != 0; });
      if (used) {
        names.emplace_back(category_colours[category],
                           name_of(static_cast<MemoryCategory>(category)));
      }
    }
    out_.legend(names, y + 20);
  }

  const Program& program_;
  graph::Analysis known_;
  graph::ProgramStatistics statistics_;
  ByPlace<double> positions_;
  Timeline out_;
};

}  // namespace

std::string draw_program(const Program& program) { return Picture(program).svg(); }

}  // namespace tessera::app
