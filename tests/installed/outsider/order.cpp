// order FOLDER: a style of this project beside a shipped one. In the wrong order the plan names
// both entries; in the right one the style's hook sees the input before it is converted.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

import tessera;

using namespace tessera;

namespace {

std::string attempt(const std::string& folder, bool watch_first) {
  const DeviceMesh mesh = DeviceMesh::make({"tensor"}, {1});
  plugin::Host host({.paths = {folder}, .environment = false, .standard_places = false});
  parallel::StyleEntry watch{"Watch", "tensor", {"up"}, R"~({"expected": "Shard(0)"})~", "a:1"};
  parallel::StyleEntry split{"ColwiseParallel", "tensor", {"up"}, "{}", "a:2"};
  const std::vector<parallel::StyleEntry> entries =
      watch_first ? std::vector{watch, split} : std::vector{split, watch};
  nn::Linear up(3, 4, false, 1);
  up.set_names("up");
  try {
    parallel::ParallelPlan plan(up, mesh, entries, host);
    plan.materialize();
    up(distribute(full({2, 3}, 1), Layout::make(mesh, {Shard(0)})));
  } catch (const Error& error) {
    return error.what();
  }
  return "accepted";
}

}  // namespace

int main(int, char** argv) {
  const std::string wrong = attempt(argv[1], true);
  const std::string right = attempt(argv[1], false);
  std::printf("%s\n%s\n", wrong.c_str(), right.c_str());
  return wrong == "a:1: Watch: must come after ColwiseParallel (a:2), which converts values of "
                  "module 'up'; swap the two entries" &&
                 right == "accepted"
             ? 0
             : 1;
}
