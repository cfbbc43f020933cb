// Catch2 2 (Debian 12) and 3 (Debian 13, Ubuntu 24.04, backports) from one source: tests use only
// names of Catch2 that are here or in both versions; ./dev lint refuses others.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
#include <string>
using Catch::Approx;  // NOLINT(misc-unused-using-decls)
namespace Catch {
inline Matchers::StringContainsMatcher Contains(const std::string& part) {
  return Matchers::ContainsSubstring(part);
}
using Matchers::EndsWith;    // NOLINT(misc-unused-using-decls)
using Matchers::Equals;      // NOLINT(misc-unused-using-decls)
using Matchers::Message;     // NOLINT(misc-unused-using-decls)
using Matchers::StartsWith;  // NOLINT(misc-unused-using-decls)
}  // namespace Catch
#else
#include <catch2/catch.hpp>
#endif
