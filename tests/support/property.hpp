// Properties of random inputs, by rapidcheck: docs/testing-support.md.
#pragma once
#include <rapidcheck.h>

#include <string>
#include <utility>

namespace tessera::testing {

/// What property() calls.
void check_property(const std::string& description, int inputs,
                    const rc::detail::Property& property);

/// Calls `holds` so many times with random arguments, or lets it draw from generators (`*gen`). It
/// fails by an exception (check() of errors.hpp, any Error) or by RC_ASSERT: not by Catch's
/// assertions, as what it fails for is made smaller and tried again. The smallest input that fails
/// is shown. The inputs are the same in every run; RC_PARAMS chooses others.
template <class F>
void property(const std::string& description, int inputs, F&& holds) {
  check_property(description, inputs, rc::detail::toProperty(std::forward<F>(holds)));
}

}  // namespace tessera::testing
