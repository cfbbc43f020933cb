module tessera.graph:checks;

import tessera.base;
import tessera.record;
import :analysis;
import :pass;
import :values;

namespace tessera::graph {

/// Verifies a program, and returns what is known of it then. Errors: see verify.
std::unique_ptr<Analysis> verified(const Program& program);
/// Errors: see verify_same. The values share their ValueNames.
void compare(const Program& before, const Values& left, const Program& after, const Values& right);

/// As run_passes, of names that were checked.
std::vector<PassReport> run_checked(Program& program, std::span<const std::string> names,
                                    const std::string& dump);

}  // namespace tessera::graph
