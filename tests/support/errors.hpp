// The texts of errors. The header has no type of a module: include it before the imports.
#pragma once
#include <functional>
#include <string>
#include <string_view>

#include "texts.hpp"

namespace tessera::testing {

/// The text of the Error that `action` throws; "no error" when it throws none. Other exceptions
/// pass.
std::string error_of(const std::function<void()>& action);
/// The text of the Error of one kind; "" when it throws none. Errors of other kinds pass.
std::string input_error(const std::function<void()>& action);
std::string run_error(const std::function<void()>& action);

/// Fails the rank, and with it the test: Catch's assertions are not for several threads.
void check(bool holds, std::string_view what);

}  // namespace tessera::testing
