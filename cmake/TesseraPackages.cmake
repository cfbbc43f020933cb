# Packages of what TesseraInstall.cmake installs: `cpack -G DEB` makes tessera, libtessera-dev and one package for each
# component plugin-*, `cpack -G TGZ` one archive of everything. ./dev package calls it.
set(TESSERA_PACKAGE_CONTACT "Tessera developers <developers@tessera.invalid>" CACHE STRING
  "Who the packages say maintains them")
set(TESSERA_PACKAGE_REVISION "1" CACHE STRING "The revision of the packages, after the version")

# What is packaged is built before; tests need not be.
set(CMAKE_SKIP_INSTALL_ALL_DEPENDENCY ON)
set(CPACK_PACKAGE_NAME tessera)
set(CPACK_PACKAGE_VERSION ${PROJECT_VERSION})
set(CPACK_PACKAGE_CONTACT "${TESSERA_PACKAGE_CONTACT}")
set(CPACK_PACKAGE_DIRECTORY ${PROJECT_BINARY_DIR}/packages)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "distributed training of large models")
set(CPACK_COMPONENTS_ALL development ${tessera_components})
# The library and the program only: plugins are stamped as they are linked.
set(CPACK_STRIP_FILES ON)

# Of the archive, one folder with everything.
set(CPACK_ARCHIVE_COMPONENT_INSTALL OFF)

set(CPACK_DEB_COMPONENT_INSTALL ON)
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_RELEASE ${TESSERA_PACKAGE_REVISION})
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS_PRIVATE_DIRS ${CMAKE_LIBRARY_OUTPUT_DIRECTORY})
# Plugins and interfaces are those of exactly one library.
set(tessera_same "tessera (= ${PROJECT_VERSION}-${TESSERA_PACKAGE_REVISION})")

# package COMPONENT NAME SECTION DESCRIPTION...: the texts of a package, and the files that Debian wants of each.
function(tessera_package component name)
  string(TOUPPER ${component} upper)
  list(JOIN ARGN "\n" text)
  set(CPACK_DEBIAN_${upper}_PACKAGE_NAME ${name} PARENT_SCOPE)
  set(CPACK_DEBIAN_${upper}_DESCRIPTION "${text}" PARENT_SCOPE)
  set(folder ${PROJECT_BINARY_DIR}/generated/packages/${name})
  string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC)
  file(WRITE ${folder}/changelog.Debian "tessera (${PROJECT_VERSION}-${TESSERA_PACKAGE_REVISION}) unstable; urgency=medium\n
  * See /usr/share/doc/tessera/changelog.gz.\n
 -- ${TESSERA_PACKAGE_CONTACT}  ${date}\n")
  configure_file(${CMAKE_CURRENT_FUNCTION_LIST_DIR}/package_copyright.in ${folder}/copyright @ONLY)
  install(FILES ${folder}/copyright DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/${name} COMPONENT ${component})
  tessera_compressed(${folder}/changelog.Debian ${CMAKE_INSTALL_DATADIR}/doc/${name} ${component})
  if(NOT component STREQUAL development)
    file(WRITE ${folder}/${name} "# A plugin's stamp covers its file as it was linked.\n"
      "${name}: unstripped-binary-or-object *usr/lib/tessera/plugins/*\n")
    install(FILES ${folder}/${name} DESTINATION ${CMAKE_INSTALL_DATADIR}/lintian/overrides COMPONENT ${component})
  endif()
endfunction()

tessera_package(program tessera
  "Tessera trains and fine-tunes large models whose tensors are distributed over"
  "a mesh of devices. This package has the program, its library, the parallel"
  "styles as plugins, and example configs.")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_SUGGESTS "libtessera-dev, clang-19 | clang, gnuplot-nox, perl-doc")
set(tessera_control ${PROJECT_BINARY_DIR}/generated/packages/control)
file(WRITE ${tessera_control}/triggers "activate-noawait ldconfig\n")
set(CPACK_DEBIAN_PROGRAM_PACKAGE_CONTROL_EXTRA ${tessera_control}/triggers)
configure_file(${PROJECT_SOURCE_DIR}/CHANGELOG.md ${tessera_control}/changelog COPYONLY)
tessera_compressed(${tessera_control}/changelog ${CMAKE_INSTALL_DATADIR}/doc/tessera program)

tessera_package(development libtessera-dev
  "The interfaces of Tessera's C++20 modules and its CMake package: for programs"
  "that train models of their own, and for plugins.")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_SECTION libdevel)
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_DEPENDS "${tessera_same}, clang-19, clang-tools-19, lld-19, libboost-dev")
set(CPACK_DEBIAN_DEVELOPMENT_PACKAGE_RECOMMENDS "cmake (>= 3.28), ninja-build")

if(plugin-mpi IN_LIST tessera_components)
  tessera_package(plugin-mpi tessera-plugin-mpi
    "The plugin of Tessera that sends between machines by MPI, and starts under"
    "mpirun and srun.")
  set(CPACK_DEBIAN_PLUGIN-MPI_PACKAGE_DEPENDS "${tessera_same}")
endif()
if(plugin-ucx IN_LIST tessera_components)
  tessera_package(plugin-ucx tessera-plugin-ucx
    "The plugin of Tessera that sends between machines by UCX: RDMA, TCP and"
    "shared memory.")
  set(CPACK_DEBIAN_PLUGIN-UCX_PACKAGE_DEPENDS "${tessera_same}")
endif()
if(plugin-prometheus IN_LIST tessera_components)
  tessera_package(plugin-prometheus tessera-plugin-prometheus
    "The plugin of Tessera with which Prometheus reads the numbers of a run.")
  set(CPACK_DEBIAN_PLUGIN-PROMETHEUS_PACKAGE_DEPENDS "${tessera_same}")
endif()
if(plugin-http-sinks IN_LIST tessera_components)
  tessera_package(plugin-http-sinks tessera-plugin-http-sinks
    "The plugin of Tessera that tells MLflow and OpenTelemetry what a run does.")
  set(CPACK_DEBIAN_PLUGIN-HTTP-SINKS_PACKAGE_DEPENDS "${tessera_same}")
endif()
if(plugin-web-stores IN_LIST tessera_components)
  tessera_package(plugin-web-stores tessera-plugin-web-stores
    "The plugin of Tessera that reads files by HTTPS and from the Hugging Face hub.")
  set(CPACK_DEBIAN_PLUGIN-WEB-STORES_PACKAGE_DEPENDS "${tessera_same}")
endif()
if(plugin-s3 IN_LIST tessera_components)
  tessera_package(plugin-s3 tessera-plugin-s3
    "The plugin of Tessera that reads and writes buckets of S3.")
  set(CPACK_DEBIAN_PLUGIN-S3_PACKAGE_DEPENDS "${tessera_same}")
endif()
if(plugin-cuda IN_LIST tessera_components)
  tessera_package(plugin-cuda tessera-plugin-cuda
    "The plugins of Tessera for GPUs of NVIDIA and for NCCL. NVIDIA's driver and"
    "libraries are opened when they are used, and are no dependencies.")
  set(CPACK_DEBIAN_PLUGIN-CUDA_PACKAGE_DEPENDS "${tessera_same}")
endif()

include(CPack)
