#include "errors.hpp"

import tessera.base;

namespace tessera::testing {
namespace {

std::string error_of_kind(const std::function<void()>& action, ErrorKind kind) {
  try {
    action();
  } catch (const Error& error) {
    if (error.kind() != kind) {
      throw;
    }
    return error.what();
  }
  return "";
}

}  // namespace

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "no error";
}

std::string input_error(const std::function<void()>& action) {
  return error_of_kind(action, ErrorKind::input);
}

std::string run_error(const std::function<void()>& action) {
  return error_of_kind(action, ErrorKind::run);
}

void check(bool holds, std::string_view what) {
  if (!holds) {
    fail("does not hold: " + std::string(what));
  }
}

}  // namespace tessera::testing
