# Generates the header tessera/build_identity.h: version and fingerprint of all interfaces of libtessera. It is
# regenerated at build time when an interface changes. Call this when all modules are known.
function(tessera_write_build_identity)
  get_property(modules GLOBAL PROPERTY TESSERA_MODULES)
  get_property(files GLOBAL PROPERTY TESSERA_HEADERS)
  foreach(module IN LISTS modules)
    get_target_property(interfaces tessera CXX_MODULE_SET_modules_${module})
    list(APPEND files ${interfaces})
  endforeach()
  set(names ${files})
  list(TRANSFORM names REPLACE "^${PROJECT_SOURCE_DIR}/" "")
  list(JOIN names "\n" names)
  set(list ${PROJECT_BINARY_DIR}/generated/interfaces.txt)
  file(CONFIGURE OUTPUT ${list} CONTENT "${names}\n" @ONLY)
  set(header ${PROJECT_BINARY_DIR}/generated/tessera/build_identity.h)
  set(script ${PROJECT_SOURCE_DIR}/cmake/write_build_identity.cmake)
  # The .checked file is the output and the header a by-product, so an unchanged header causes no rebuild.
  add_custom_command(OUTPUT ${header}.checked BYPRODUCTS ${header}
    COMMAND ${CMAKE_COMMAND} -D OUTPUT=${header} -D VERSION=${PROJECT_VERSION} -D LIST=${list}
            -D ROOT=${PROJECT_SOURCE_DIR} -P ${script}
    COMMAND ${CMAKE_COMMAND} -E touch ${header}.checked
    DEPENDS ${files} ${list} ${script}
    COMMENT "Fingerprint of the interfaces" VERBATIM)
  add_custom_target(tessera_build_identity DEPENDS ${header}.checked)
  add_dependencies(tessera tessera_build_identity)
  add_dependencies(tessera-stamp tessera_build_identity)
endfunction()
