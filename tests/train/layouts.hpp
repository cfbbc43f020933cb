// The layouts that the tests of training run in, and comparisons of trainings. Include it after
// `import tessera`.
#pragma once
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "folder.hpp"

namespace train_test {

using tessera::testing::Folder;

struct Layouts {
  std::string name;
  std::vector<std::string> axes;
  std::vector<std::int64_t> shape;
  std::vector<tessera::parallel::StyleEntry> styles;
};

/// Of a Net: "one rank", "fully sharded", "replicated" and "hybrid". All ranks have equally many of
/// eight rows.
std::vector<Layouts> layouts();
/// One of these by its name.
Layouts layout_named(const std::string& name);

/// A step that is executed so, without other changes.
inline tessera::CompileOptions compiled_with(const tessera::graph::ExecutionOptions& execution) {
  return {.changes = {}, .execution = execution};
}

/// Runs `f` on every rank of the layout.
void on_layout(const Layouts& layout, const std::function<void(const tessera::DeviceMesh&)>& f);

/// Throws where this rank's parts of anything that the next step depends on differ in a bit.
void same_state(tessera::Training& a, tessera::Training& b, const std::string& when);

}  // namespace train_test
