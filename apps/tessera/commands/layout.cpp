module;
#include <fmt/format.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <string>
#include <string_view>
#include <utility>
#include <vector>
module tessera.app.commands;

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.app.base;

// `tessera layout`: which rank holds which part of a tensor, and what it takes to change that.
namespace tessera::app {
namespace {

/// More would be unreadable, and are no use to look at.
constexpr int most_ranks = 1024;

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  for (;;) {
    const auto end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) {
      return parts;
    }
    text.remove_prefix(end + 1);
  }
}

std::int64_t number(std::string_view text, std::string_view option, std::string_view example) {
  std::int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc{} || end != text.data() + text.size() || value < 0) {
    fail_input({.thing = "layout",
                .wrong = fmt::format("{} has '{}'", option, text),
                .expected = fmt::format("a number, as in {}", example)});
  }
  return value;
}

/// "8x6" or "8,6".
Dims parse_extents(std::string_view text, std::string_view option) {
  const auto parts = split(text, text.find('x') != std::string_view::npos ? 'x' : ',');
  if (parts.size() > static_cast<std::size_t>(max_dims)) {
    fail_input({.thing = "layout",
                .wrong = fmt::format("{} {} has {} sizes", option, text, parts.size()),
                .expected = fmt::format("at most {}", max_dims)});
  }
  Dims extents;
  for (const std::string_view part : parts) {
    extents.push_back(number(part, option, "8x6"));
  }
  checked_product(extents, "layout");
  return extents;
}

/// "shard=2,tensor=2", or sizes alone: "2x2" has the axes a and b.
DeviceMesh parse_mesh(std::string_view text) {
  std::vector<std::string> names;
  Dims shape;
  if (text.find('=') == std::string_view::npos) {
    shape = parse_extents(text, "--mesh");
    for (int axis = 0; axis < shape.size(); ++axis) {
      names.emplace_back(1, static_cast<char>('a' + axis));
    }
  } else {
    for (const std::string_view part : split(text, ',')) {
      const auto equals = part.find('=');
      if (equals == std::string_view::npos || names.size() == static_cast<std::size_t>(max_dims)) {
        fail_input(
            {.thing = "layout",
             .wrong = fmt::format("--mesh {} cannot be read", text),
             .expected = fmt::format("up to {} axes, as in 2x2 or shard=2,tensor=2", max_dims)});
      }
      names.emplace_back(part.substr(0, equals));
      shape.push_back(number(part.substr(equals + 1), "--mesh", "shard=2,tensor=2"));
    }
  }
  DeviceMesh mesh = DeviceMesh::make(std::move(names), shape);
  if (mesh.size() > most_ranks) {
    fail_input({.thing = "layout",
                .wrong = fmt::format("{} has {} ranks", to_string(mesh), mesh.size()),
                .expected = fmt::format("at most {}", most_ranks)});
  }
  return mesh;
}

Layout parse_layout(const DeviceMesh& mesh, std::string_view text, const Dims& shape) {
  std::vector<Placement> placements = parse_placements(text);
  for (Placement& placement : placements) {
    placement = resolved(placement, shape.size());
  }
  Layout layout = Layout::make(mesh, placements);
  check_layout_fits(layout, shape.size(), "layout");
  return layout;
}

}  // namespace

int run_layout(const LayoutArguments& arguments) {
  const DeviceMesh mesh = parse_mesh(arguments.mesh);
  const Dims shape = parse_extents(arguments.shape, "--shape");
  const Layout layout = parse_layout(mesh, arguments.placements, shape);
  std::string text = draw_text(layout, shape);
  if (!arguments.to.empty()) {
    const Layout to = parse_layout(mesh, arguments.to, shape);
    text += "\n" + draw_text(to, shape) + "\n" +
            explain(layout, to, shape, static_cast<std::size_t>(arguments.element_size));
  }
  if (!arguments.svg.empty()) {
    write_output("layout", arguments.svg, draw_svg(layout, shape));
  }
  std::fwrite(text.data(), 1, text.size(), stdout);
  return 0;
}

}  // namespace tessera::app
