// Catch2 2 (Debian 12) and 3 (Ubuntu 24.04, backports) from one source.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#include <string>
using Catch::Approx;  // NOLINT(misc-unused-using-decls)
namespace Catch {
inline Matchers::StringContainsMatcher Contains(const std::string& part) {
  return Matchers::ContainsSubstring(part);
}
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif
