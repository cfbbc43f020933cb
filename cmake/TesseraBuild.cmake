# One compile profile for the whole repository, and the functions with which each folder declares its targets.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_CXX_SCAN_FOR_MODULES ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/bin)
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/lib)
set(CMAKE_LINK_DEPENDS_NO_SHARED ON) # a body of the library that changes links no plugin and no program again
include(GNUInstallDirs)
set(CMAKE_INSTALL_RPATH "$ORIGIN/../${CMAKE_INSTALL_LIBDIR}") # an installed program finds libtessera wherever the prefix is

set(TESSERA_SANITIZE "" CACHE STRING "Sanitizers for every target: address,undefined or thread")
add_compile_options(-fno-semantic-interposition)
if(TESSERA_SANITIZE)
  add_compile_options(-fsanitize=${TESSERA_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all -Wno-pass-failed)
  add_link_options(-fsanitize=${TESSERA_SANITIZE})
endif()
option(TESSERA_QUICK "Build in the shortest time, for development: only kernels are optimised (docs/testing.md)" OFF)
if(TESSERA_SANITIZE OR TESSERA_QUICK)
  # The kernels for this machine only (modules/ops/shared/kernels/simd.hpp): with sanitizers, all of them would take the compiler
  # minutes a source.
  add_compile_options(-march=native -Wno-invalid-feature-combination -DTESSERA_NATIVE_KERNELS)
endif()
if(TESSERA_QUICK)
  add_compile_definitions(FMT_CONSTEVAL=) # formats are checked when they are used; every other build checks them before
endif()
option(TESSERA_FUZZ "Count for libFuzzer which code an input reaches (docs/testing.md)" OFF)
if(TESSERA_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()
add_link_options(-fuse-ld=lld)

# The library does the numerical work. The programs only call it, and consist of parsers, tables and assertions:
# -O1 halves the compiler's work on them.
set(TESSERA_PROGRAM_OPTIONS $<$<CONFIG:Release>:-O1>)
# Reading headers is the larger part of the compiler's work. What many sources include is compiled once for each set of
# options; every source still includes what it uses.
set(TESSERA_PRECOMPILED <algorithm> <array> <atomic> <chrono> <cmath> <cstdint> <cstring> <deque> <filesystem> <fstream> <functional>
  <limits> <map> <memory> <mutex> <numeric> <optional> <set> <span> <sstream> <string> <string_view> <thread> <unordered_map>
  <utility> <variant> <vector> <nlohmann/json.hpp>)
set(TESSERA_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Werror)

# tessera_module(NAME INTERFACE a.cppm... [INTERNAL b.cppm...] SOURCES a.cpp... [KERNELS kernels/a.cpp...]
#                [TARGET target] IMPORTS module...)
# One folder under modules/ = one named module tessera.NAME, a part of the library libtessera; or, of the folders under apps/, of
# the target.
# INTERNAL: partitions that only its own sources import (no export); neither installed nor in the fingerprint.
# KERNELS: plain sources without imports (pointers and extents), which are not scanned for any. Their headers are included by the path from the
# module's folder.
# IMPORTS: the modules that it may import; cmake/check_sources.pl checks this.
function(tessera_module name)
  cmake_parse_arguments(ARG "" "TARGET" "INTERFACE;INTERNAL;SOURCES;KERNELS;IMPORTS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tessera_module(${name}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_TARGET)
    set(ARG_TARGET tessera)
    set_property(GLOBAL APPEND PROPERTY TESSERA_MODULES ${name}) # installed, and in the fingerprint
  endif()
  string(REPLACE "." "_" set ${name}) # of files
  list(TRANSFORM ARG_INTERFACE PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_INTERNAL PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_SOURCES PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  list(TRANSFORM ARG_KERNELS PREPEND ${CMAKE_CURRENT_SOURCE_DIR}/)
  target_sources(${ARG_TARGET}
    PUBLIC FILE_SET modules_${set} TYPE CXX_MODULES BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_INTERFACE}
    PRIVATE ${ARG_SOURCES} ${ARG_KERNELS})
  if(ARG_INTERNAL)
    target_sources(${ARG_TARGET}
      PRIVATE FILE_SET internal_${set} TYPE CXX_MODULES BASE_DIRS ${PROJECT_SOURCE_DIR} FILES ${ARG_INTERNAL})
  endif()
  # An interface includes nothing but its module's own headers.
  set_source_files_properties(${ARG_INTERFACE} ${ARG_INTERNAL} TARGET_DIRECTORY ${ARG_TARGET}
    PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  if(ARG_KERNELS)
    set_source_files_properties(${ARG_KERNELS} TARGET_DIRECTORY ${ARG_TARGET} PROPERTIES CXX_SCAN_FOR_MODULES OFF)
    set_source_files_properties(${ARG_INTERNAL} ${ARG_SOURCES} ${ARG_KERNELS} TARGET_DIRECTORY ${ARG_TARGET}
      PROPERTIES INCLUDE_DIRECTORIES ${CMAKE_CURRENT_SOURCE_DIR})
    if(TESSERA_SANITIZE) # not the check of every pointer's addition, which takes the compiler as long
      set_source_files_properties(${ARG_KERNELS} TARGET_DIRECTORY ${ARG_TARGET}
        PROPERTIES COMPILE_OPTIONS -fno-sanitize=pointer-overflow)
    endif()
    if(TESSERA_QUICK) # the precompiled headers have other options
      set_source_files_properties(${ARG_KERNELS} TARGET_DIRECTORY ${ARG_TARGET}
        PROPERTIES COMPILE_OPTIONS "-O2;-Wno-pass-failed" SKIP_PRECOMPILE_HEADERS ON)
    endif()
    if(TESSERA_FUZZ) # kernels read nothing from outside; the precompiled headers have other options
      set_source_files_properties(${ARG_KERNELS} TARGET_DIRECTORY ${ARG_TARGET}
        PROPERTIES COMPILE_OPTIONS "-fno-sanitize=all;-O0" SKIP_PRECOMPILE_HEADERS ON)
    endif()
  endif()
endfunction()

# tessera_own_headers(SOURCE... FOLDER folder): these sources of the library, and no others, find headers in the folder.
function(tessera_own_headers)
  cmake_parse_arguments(ARG "" "FOLDER" "" ${ARGN})
  foreach(source IN LISTS ARG_UNPARSED_ARGUMENTS)
    cmake_path(ABSOLUTE_PATH source NORMALIZE)
    set_property(SOURCE ${source} TARGET_DIRECTORY tessera APPEND PROPERTY INCLUDE_DIRECTORIES ${ARG_FOLDER})
  endforeach()
endfunction()

# tessera_skippable_test(TEST): the cases with the tag [.root] of a test's program, which need what a machine may not
# give, as an entry of their own: skipped where the program says so (tests/support/skip.hpp).
function(tessera_skippable_test name)
  add_test(NAME ${name}_as_root COMMAND test_${name} "[root]")
  set_tests_properties(${name}_as_root PROPERTIES TIMEOUT 300 SKIP_RETURN_CODE 77)
endfunction()

# tessera_test(NAME SOURCES a.cpp... [LIBRARIES lib...] [LABELS label...] [TIMEOUT seconds] [COST seconds])
# A Catch2 program and one ctest entry. Those with the highest cost, in seconds of a processor, are started first, so
# that no long one is alone at the end. Its main function is in tests/support/main.cpp.
function(tessera_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;COST" "SOURCES;LIBRARIES;LABELS" ${ARGN})
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tessera_test(${name}): unknown arguments ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 300)
  endif()
  add_executable(test_${name} ${ARG_SOURCES})
  target_link_libraries(test_${name} PRIVATE tessera_test_support tessera_test_main ${ARG_LIBRARIES})
  target_compile_options(test_${name} PRIVATE ${TESSERA_WARNINGS} ${TESSERA_PROGRAM_OPTIONS})
  target_precompile_headers(test_${name} REUSE_FROM tessera_test_main)
  add_test(NAME ${name} COMMAND test_${name})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${ARG_TIMEOUT} LABELS "${ARG_LABELS}")
  if(ARG_COST)
    set_tests_properties(${name} PROPERTIES COST ${ARG_COST})
  endif()
endfunction()

# tessera_verified_test(TEST [QUICK] COMMAND command...): the entry TEST once more, with each replayed step taken as it is
# written too and compared bit by bit (TESSERA_GRAPH_VERIFY=1). It has the label `verified`, and `long` unless it is QUICK.
# Cases that count calls or memory have the tag [unverified]; the command leaves them out. Call it after TEST's properties.
function(tessera_verified_test name)
  cmake_parse_arguments(ARG "QUICK" "" "COMMAND" ${ARGN})
  add_test(NAME ${name}_verified COMMAND ${ARG_COMMAND})
  foreach(property ENVIRONMENT LABELS TIMEOUT RESOURCE_LOCK SKIP_RETURN_CODE COST)
    get_property(${property} TEST ${name} PROPERTY ${property})
    set_property(TEST ${name}_verified PROPERTY ${property} ${${property}})
  endforeach()
  math(EXPR limit "${TIMEOUT} * 3")
  set_tests_properties(${name}_verified PROPERTIES TIMEOUT ${limit})
  set_property(TEST ${name}_verified APPEND PROPERTY ENVIRONMENT TESSERA_GRAPH_VERIFY=1)
  set_property(TEST ${name}_verified APPEND PROPERTY LABELS verified)
  if(NOT ARG_QUICK)
    set_property(TEST ${name}_verified APPEND PROPERTY LABELS long)
  endif()
endfunction()

# Multiplies the time limits of all tests of a folder and the folders in it. A sanitizer makes everything several times
# slower. Call it after the last test.
function(tessera_multiply_timeouts folder factor)
  get_property(tests DIRECTORY ${folder} PROPERTY TESTS)
  foreach(test IN LISTS tests)
    get_property(limit TEST ${test} DIRECTORY ${folder} PROPERTY TIMEOUT)
    if(limit)
      math(EXPR limit "${limit} * ${factor}")
      set_property(TEST ${test} DIRECTORY ${folder} PROPERTY TIMEOUT ${limit})
    endif()
  endforeach()
  get_property(within DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(one IN LISTS within)
    tessera_multiply_timeouts(${one} ${factor})
  endforeach()
endfunction()
