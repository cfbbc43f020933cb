# tessera_add_plugin(NAME SOURCES file... KIND kind... [PROVIDES [kind:]name...] [VERSION x.y.z]
#                    [DESCRIPTION text] [LIBRARIES library...] [TEXTS header...])
# A shared library that Tessera loads at run time: NAME.so. Its sources import Tessera's modules, and one
# of them defines
#     void register_plugin(tessera::plugin::Registrar& registrar);
# KIND      the kind of what it provides; with several, PROVIDES names the kind of each
# PROVIDES  the names that register_plugin adds, of the first kind when none is given (default: NAME)
# TEXTS     headers that the sources include as text, too: #include "softcap.hpp.txt" is a string literal of softcap.hpp
# The library is written to TESSERA_PLUGIN_OUTPUT_DIRECTORY, or to the current binary folder.
function(tessera_add_plugin name)
  cmake_parse_arguments(PARSE_ARGV 1 ARG "" "VERSION;DESCRIPTION" "SOURCES;KIND;PROVIDES;LIBRARIES;TEXTS")
  if(ARG_UNPARSED_ARGUMENTS)
    message(FATAL_ERROR "tessera_add_plugin(${name}): unknown arguments: ${ARG_UNPARSED_ARGUMENTS}")
  endif()
  if(NOT ARG_SOURCES OR NOT ARG_KIND)
    message(FATAL_ERROR "tessera_add_plugin(${name}): SOURCES or KIND is missing; give at least one source and one kind")
  endif()
  if(NOT ARG_VERSION)
    set(ARG_VERSION 0.1.0)
  endif()
  if(NOT ARG_PROVIDES)
    set(ARG_PROVIDES ${name})
  endif()
  list(GET ARG_KIND 0 first_kind)
  list(TRANSFORM ARG_PROVIDES PREPEND "${first_kind}:" REGEX "^[^:]+$")
  foreach(offer IN LISTS ARG_PROVIDES)
    string(REGEX REPLACE ":.*" "" kind ${offer})
    if(NOT kind IN_LIST ARG_KIND)
      message(FATAL_ERROR "tessera_add_plugin(${name}): PROVIDES ${offer}, but KIND is ${ARG_KIND}; name the kind there too")
    endif()
  endforeach()
  list(JOIN ARG_PROVIDES " " provides)
  string(REGEX REPLACE "([\\\"])" "\\\\\\1" description "${ARG_DESCRIPTION}")

  set(gate ${CMAKE_CURRENT_BINARY_DIR}/${name}_gate.cpp)
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/plugin_gate.cpp.in ${gate} @ONLY)
  if(NOT TARGET Boost::headers)
    find_package(Boost REQUIRED CONFIG)
  endif()

  add_library(${name} MODULE ${ARG_SOURCES} ${gate})
  target_link_libraries(${name} PRIVATE Tessera::tessera Boost::headers ${ARG_LIBRARIES})
  foreach(header IN LISTS ARG_TEXTS)
    get_filename_component(file ${header} ABSOLUTE)
    file(READ "${file}" text)
    set(literal "R\"TESSERA(${text})TESSERA\"\n")
    set(written ${CMAKE_CURRENT_BINARY_DIR}/${name}_texts/${header}.txt)
    set(before "")
    if(EXISTS ${written})
      file(READ ${written} before)
    endif()
    if(NOT before STREQUAL literal)
      file(WRITE ${written} "${literal}")
    endif()
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${file})
    target_include_directories(${name} PRIVATE ${CMAKE_CURRENT_BINARY_DIR}/${name}_texts)
  endforeach()
  # Calls between the plugin's own functions must not reach a function of the same name in another library.
  target_link_options(${name} PRIVATE -Wl,-Bsymbolic-functions)
  set_target_properties(${name} PROPERTIES
    PREFIX "" SUFFIX ".so"
    CXX_STANDARD 20 CXX_STANDARD_REQUIRED ON CXX_EXTENSIONS OFF CXX_SCAN_FOR_MODULES ON
    # The host has libtessera loaded; an installer that edits the file would invalidate its stamp.
    BUILD_WITH_INSTALL_RPATH ON INSTALL_RPATH "" INSTALL_RPATH_USE_LINK_PATH OFF)
  if(TESSERA_PLUGIN_OUTPUT_DIRECTORY)
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${TESSERA_PLUGIN_OUTPUT_DIRECTORY})
  else()
    set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  endif()
  add_custom_command(TARGET ${name} POST_BUILD COMMAND Tessera::stamp $<TARGET_FILE:${name}> VERBATIM)
  set_property(GLOBAL APPEND PROPERTY TESSERA_PLUGINS ${name})
endfunction()
