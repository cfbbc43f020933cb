// Catch2 2 (Debian 12) and 3 (Ubuntu 24.04, backports) from one source.
#pragma once
#if __has_include(<catch2/catch_all.hpp>)
#include <catch2/catch_all.hpp>
using Catch::Approx;  // NOLINT(misc-unused-using-decls)
#else
#include <catch2/catch.hpp>
#endif
