// Tests that a machine may not be able to run: ctest shows them as skipped, not as passed.
#pragma once
#include <string>

namespace tessera::testing {

/// The running test cannot do its work here, for this reason: the program ends with exit code 77 if
/// nothing failed. Such a test case is hidden ("[.root]") and has an entry of its own in ctest, by
/// tessera_skippable_test(); return after the call.
void skip(const std::string& reason);

/// Has a test been skipped?
bool skipped();

}  // namespace tessera::testing
