# Installs the library with the sources of its interfaces (a consumer cannot use the built interfaces), the
# headers that plugins need, the shipped plugins, the program, its configs, the stamping tool, and the package for
# find_package(Tessera). Include it when modules, plugins and the program are known.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

set(tessera_package ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
get_property(tessera_modules GLOBAL PROPERTY TESSERA_MODULES)
set(tessera_file_sets "")
foreach(module IN LISTS tessera_modules)
  list(APPEND tessera_file_sets FILE_SET modules_${module} DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera)
endforeach()

# Consumers compile the interfaces without libtessera's own options and libraries: the interfaces need neither
# warnings as errors nor fmt. CMake would export all of them for that compilation.
foreach(property COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_LIBRARIES)
  get_target_property(items tessera ${property})
  list(TRANSFORM items REPLACE "^([^$:].*)$" "$<BUILD_LOCAL_INTERFACE:\\1>")
  set_property(TARGET tessera PROPERTY ${property} "${items}")
endforeach()

set_target_properties(tessera_program PROPERTIES EXPORT_NAME program)
install(TARGETS tessera tessera-stamp tessera_program EXPORT TesseraTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR}
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR}
  ${tessera_file_sets})
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${tessera_package}
  CXX_MODULES_DIRECTORY modules)

get_property(tessera_headers GLOBAL PROPERTY TESSERA_HEADERS)
install(FILES ${tessera_headers} ${PROJECT_BINARY_DIR}/generated/tessera/build_identity.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera)

get_property(tessera_plugins GLOBAL PROPERTY TESSERA_PLUGINS)
foreach(plugin IN LISTS tessera_plugins)
  # A plain copy: editing a plugin after the link invalidates its stamp.
  install(PROGRAMS $<TARGET_FILE:${plugin}> DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera/plugins)
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TesseraConfig.cmake INSTALL_DESTINATION ${tessera_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfig.cmake ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TesseraPlugin.cmake ${CMAKE_CURRENT_LIST_DIR}/TesseraConsumers.cmake
  ${CMAKE_CURRENT_LIST_DIR}/plugin_gate.cpp.in
  DESTINATION ${tessera_package})
