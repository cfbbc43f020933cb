# Installs the library with the sources of its interfaces (a consumer cannot use the built interfaces), the
# headers that plugins need, the shipped plugins, the program, its configs, the stamping tool, and the package for
# find_package(Tessera). Include it when modules, plugins and the program are known.
# Components, of which TesseraPackages.cmake makes packages: program (with the library and the plugins), development,
# and one for each plugin with the property TESSERA_COMPONENT: it needs libraries that not everybody has.
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# tessera_compressed(FILE FOLDER COMPONENT): installs a file as gzip packs it, without a name and a time.
function(tessera_compressed file folder component)
  get_filename_component(name ${file} NAME)
  set(packed ${PROJECT_BINARY_DIR}/generated/packed/${component})
  file(MAKE_DIRECTORY ${packed})
  install(CODE "execute_process(COMMAND gzip -9nc \"${file}\" OUTPUT_FILE \"${packed}/${name}.gz\"
    COMMAND_ERROR_IS_FATAL ANY)" COMPONENT ${component})
  install(FILES ${packed}/${name}.gz DESTINATION ${folder} COMPONENT ${component})
endfunction()

set(tessera_package ${CMAKE_INSTALL_LIBDIR}/cmake/Tessera)
get_property(tessera_modules GLOBAL PROPERTY TESSERA_MODULES)
set(tessera_file_sets "")
foreach(module IN LISTS tessera_modules)
  list(APPEND tessera_file_sets FILE_SET modules_${module} DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera
    COMPONENT development)
endforeach()

# Consumers compile the interfaces without libtessera's own options and libraries: the interfaces need neither
# warnings as errors nor fmt. CMake would export all of them for that compilation.
foreach(property COMPILE_OPTIONS INCLUDE_DIRECTORIES LINK_LIBRARIES)
  get_target_property(items tessera ${property})
  list(TRANSFORM items REPLACE "^([^$:].*)$" "$<BUILD_LOCAL_INTERFACE:\\1>")
  set_property(TARGET tessera PROPERTY ${property} "${items}")
endforeach()

set_target_properties(tessera_program PROPERTIES EXPORT_NAME program)
set_target_properties(tessera_tools_program PROPERTIES EXPORT_NAME tools)
install(TARGETS tessera tessera_program tessera_tools_program EXPORT TesseraTargets
  LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR} COMPONENT program NAMELINK_COMPONENT development
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT program
  ${tessera_file_sets})
install(TARGETS tessera-stamp EXPORT TesseraTargets
  RUNTIME DESTINATION ${CMAKE_INSTALL_BINDIR} COMPONENT development)
install(EXPORT TesseraTargets NAMESPACE Tessera:: DESTINATION ${tessera_package}
  CXX_MODULES_DIRECTORY modules COMPONENT development)

get_property(tessera_headers GLOBAL PROPERTY TESSERA_HEADERS)
install(FILES ${tessera_headers} ${PROJECT_BINARY_DIR}/generated/tessera/build_identity.h
  DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/tessera COMPONENT development)

get_property(tessera_plugins GLOBAL PROPERTY TESSERA_PLUGINS)
foreach(plugin IN LISTS tessera_plugins)
  get_target_property(local ${plugin} TESSERA_LOCAL)
  if(local)
    continue() # it needs libraries in a folder of this user
  endif()
  # A plain copy: editing a plugin after the link invalidates its stamp.
  get_target_property(component ${plugin} TESSERA_COMPONENT)
  if(NOT component)
    set(component program)
  endif()
  list(APPEND tessera_components ${component})
  install(PROGRAMS $<TARGET_FILE:${plugin}> DESTINATION ${CMAKE_INSTALL_LIBDIR}/tessera/plugins COMPONENT ${component})
endforeach()

install(DIRECTORY ${PROJECT_SOURCE_DIR}/configs DESTINATION ${CMAKE_INSTALL_DATADIR}/tessera COMPONENT program
  FILES_MATCHING PATTERN "*.toml")

# What the program says of itself: its manual page, and completions for shells.
set(tessera_texts ${PROJECT_BINARY_DIR}/generated/texts)
foreach(text "manual tessera.1" "completion bash tessera" "completion zsh _tessera" "completion fish tessera.fish")
  string(REPLACE " " ";" text "${text}")
  list(POP_BACK text file)
  install(CODE "execute_process(COMMAND \"$<TARGET_FILE:tessera_program>\" ${text}
    OUTPUT_FILE \"${tessera_texts}/${file}\" COMMAND_ERROR_IS_FATAL ANY)" COMPONENT program)
endforeach()
file(MAKE_DIRECTORY ${tessera_texts})
tessera_compressed(${tessera_texts}/tessera.1 ${CMAKE_INSTALL_MANDIR}/man1 program)
install(FILES ${tessera_texts}/tessera DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions COMPONENT program)
install(FILES ${tessera_texts}/_tessera DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/vendor-completions COMPONENT program)
install(FILES ${tessera_texts}/tessera.fish DESTINATION ${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d
  COMPONENT program)

configure_package_config_file(${CMAKE_CURRENT_LIST_DIR}/TesseraConfig.cmake.in
  ${PROJECT_BINARY_DIR}/TesseraConfig.cmake INSTALL_DESTINATION ${tessera_package})
write_basic_package_version_file(${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/TesseraConfig.cmake ${PROJECT_BINARY_DIR}/TesseraConfigVersion.cmake
  ${CMAKE_CURRENT_LIST_DIR}/TesseraPlugin.cmake ${CMAKE_CURRENT_LIST_DIR}/TesseraConsumers.cmake
  ${CMAKE_CURRENT_LIST_DIR}/plugin_gate.cpp.in
  DESTINATION ${tessera_package} COMPONENT development)
# The build folder is such a package too, without an install: cmake -D Tessera_DIR=build/release.
export(EXPORT TesseraTargets NAMESPACE Tessera:: FILE ${PROJECT_BINARY_DIR}/TesseraTargets.cmake
  CXX_MODULES_DIRECTORY package_modules)
set(folders "")
foreach(header IN LISTS tessera_headers)
  cmake_path(ABSOLUTE_PATH header BASE_DIRECTORY ${PROJECT_SOURCE_DIR} NORMALIZE)
  cmake_path(GET header PARENT_PATH folder)
  cmake_path(GET folder PARENT_PATH folder) # headers are included as <tessera/...>
  list(APPEND folders "${folder}")
endforeach()
list(REMOVE_DUPLICATES folders)
file(WRITE ${PROJECT_BINARY_DIR}/TesseraHeaders.cmake
  "set_property(TARGET Tessera::tessera APPEND PROPERTY INTERFACE_INCLUDE_DIRECTORIES \"${folders}\")\n"
  "set_property(TARGET Tessera::tessera APPEND PROPERTY IMPORTED_CXX_MODULES_INCLUDE_DIRECTORIES \"${folders}\")\n")
foreach(file TesseraPlugin.cmake TesseraConsumers.cmake plugin_gate.cpp.in)
  configure_file(${CMAKE_CURRENT_LIST_DIR}/${file} ${PROJECT_BINARY_DIR}/${file} COPYONLY)
endforeach()
list(REMOVE_DUPLICATES tessera_components)
include(TesseraPackages)
