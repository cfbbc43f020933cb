// Texts of meshes, layouts, schedules and captured programs, which are also written: what is read
// is written and read again.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "target.hpp"

import tessera.base;
import tessera.mesh;
import tessera.placement;
import tessera.pipeline;
import tessera.tensor;
import tessera.ops;
import tessera.program;

using namespace tessera;

namespace {

/// "mesh(a=2, b=2)", a line end, "[Shard(0), Replicate]", a line end, "[Partial(sum), Shard(1)]".
const fuzz::Target layouts{
    "layouts", [](std::string_view input) {
      const std::size_t first = input.find('\n');
      const std::size_t second =
          input.find('\n', first == std::string_view::npos ? first : first + 1);
      const DeviceMesh mesh = DeviceMesh::parse(input.substr(0, first));
      fuzz::expect(to_string(DeviceMesh::parse(to_string(mesh))) == to_string(mesh),
                   "mesh: its text is of another one");
      if (first == std::string_view::npos || mesh.size() > 64) {
        return;
      }
      const Layout from = Layout::parse(
          mesh,
          input.substr(first + 1, second == std::string_view::npos ? second : second - first - 1));
      fuzz::expect(to_string(Layout::parse(mesh, to_string(from))) == to_string(from),
                   "layout: its text is of another one");
      if (second == std::string_view::npos) {
        return;
      }
      const Layout to = Layout::parse(mesh, input.substr(second + 1));
      const Dims shape{6, 5};
      check_layout_fits(from, shape.size(), "layout");
      check_layout_fits(to, shape.size(), "layout");
      static_cast<void>(draw_text(from, shape));
      static_cast<void>(explain(from, to, shape, 4));
    }};

const fuzz::Target schedules{
    "schedules", [](std::string_view input) {
      const pipeline::Schedule schedule = pipeline::parse_schedule(input, "schedule");
      pipeline::check(schedule, "schedule");
      const std::string text = to_text(schedule);
      fuzz::expect(to_text(pipeline::parse_schedule(text, "again")) == text,
                   "schedule: its text is of another one");
      static_cast<void>(pipeline::most_kept(schedule));
    }};

/// What commands do with a captured program before it is executed.
void read_program(std::string_view input) {
  const Program program = Program::parse(input);
  const std::string text = program.to_text();
  fuzz::expect(Program::parse(text).to_text() == text, "program: its text is of another one");
  const auto is_sound = [&] {
    try {
      graph::verify(program);
      static_cast<void>(graph::statistics_of(program));
      static_cast<void>(graph::communication_of(program));
      return true;
    } catch (const Error&) {
      return false;  // of any kind: these also check what passes have made
    }
  };
  static_cast<void>(is_sound());
}
const fuzz::Target graph_text{"graph_text",
                              read_program,
                              {"tests/program/golden/columns-and-rows-2.txt",
                               "tests/program/golden/data-parallel-fully_shard-2.txt"}};

}  // namespace
