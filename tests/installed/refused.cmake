# What the installed package says to a build that cannot work. PACKAGE: its folder. GENERATOR, CMAKE: the generator and the
# version of CMake that the build would have.
set(CMAKE_GENERATOR ${GENERATOR})
set(CMAKE_VERSION ${CMAKE})
include(${PACKAGE}/TesseraConfig.cmake)
message(FATAL_ERROR "the package was found")
