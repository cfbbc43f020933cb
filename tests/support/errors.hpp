// The texts of errors. Include it after `import tessera.base;`.
#pragma once
#include <string>
#include <string_view>

namespace tessera::testing {

/// The text of the Error that `action` throws; "no error" when it throws none. Others pass.
template <class F>
std::string error_of(F&& action) {
  try {
    action();
  } catch (const tessera::Error& error) {
    return error.what();
  }
  return "no error";
}

/// Fails the rank, and with it the test: Catch's assertions are not for several threads.
inline void expect(bool condition, const std::string& what) {
  if (!condition) {
    tessera::fail("expectation failed: " + what);
  }
}

inline bool contains(std::string_view text, std::string_view part) {
  return text.find(part) != std::string_view::npos;
}

}  // namespace tessera::testing
