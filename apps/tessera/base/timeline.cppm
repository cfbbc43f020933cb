export module tessera.app.base:timeline;

import :standard;

// Rows of bars over one axis, as an SVG picture.

export namespace tessera::app {

/// Shared parts of pictures, so that one can be read beside another.
namespace colour {
constexpr std::string_view forward = "#c9d7ea";
constexpr std::string_view backward = "#e6d3b8";
constexpr std::string_view gather = "#3f9c5a";
constexpr std::string_view reduction = "#e08a1e";
constexpr std::string_view other_collective = "#8a63b0";
}  // namespace colour

/// Colour of a collective, from its name.
std::string_view colour_of_collective(std::string_view name);

/// "model.layers.3.mlp.up_proj" -> "layers.3": what is gathered together is usually no smaller.
std::string unit_of(const std::string& module);

/// A part of the axis, in its unit.
struct Bar {
  double begin = 0;
  double end = 0;
  std::string_view colour = {};
  std::string label = {};
};

/// Adds a bar to the end of a row, or extends the last one if it is of the same kind and the gap
/// between them is shorter than `shortest_gap`.
void add_bar(std::vector<Bar>& row, const Bar& bar, double shortest_gap);

/// The picture. Positions are pixels, from the top left.
class Timeline {
 public:
  static constexpr double left = 96;     // of the axis
  static constexpr double width = 1160;  // of the axis
  static constexpr double row_height = 22;

  /// The axis goes from `begin` to `end`, which is greater.
  Timeline(double begin, double end) : begin_(begin), end_(end) {}

  double x(double at) const { return left + (at - begin_) / (end_ - begin_) * width; }
  /// Time that a pixel's width stands for.
  double pixel() const { return (end_ - begin_) / width; }

  /// `anchor`: "start", "middle" or "end".
  void text(double at_x, double at_y, std::string_view anchor, std::string_view what);
  void line(double x1, double y1, double x2, double y2, std::string_view colour);
  /// An area whose corners are the points.
  void area(std::span<const std::pair<double, double>> corners, std::string_view colour);
  /// A row of bars with its name at the left. Labels that do not fit are left out.
  void row(std::string_view name, std::span<const Bar> bars, double y);
  void legend(std::span<const std::pair<std::string_view, std::string_view>> colours_and_names,
              double y);
  /// The whole file.
  std::string svg(double height) const;

 private:
  double begin_;
  double end_;
  std::string out_ = {};
};

}  // namespace tessera::app
