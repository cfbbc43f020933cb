module tessera.graph:checks;

import tessera.base;
import tessera.record;
import :analysis;
import :values;

namespace tessera::graph {

/// Verifies a program, and returns what is known of it then. Errors: see verify.
std::unique_ptr<Analysis> verified(const Program& program);
/// Errors: see verify_same. The values share their ValueNames.
void compare(const Program& before, const Values& left, const Program& after, const Values& right);

}  // namespace tessera::graph
