# cmake -D OUTPUT=FILE -D VERSION=x.y.z -D LIST=FILE -D ROOT=FOLDER -P write_build_identity.cmake
# Writes the version and the fingerprint of all interfaces (the files named in LIST, by their paths
# from ROOT and their contents) to a header, and changes the header only when they change.
file(STRINGS ${LIST} files)
list(SORT files)
set(all "")
foreach(file IN LISTS files)
  file(SHA256 ${ROOT}/${file} digest)
  string(APPEND all "${file} ${digest}\n")
endforeach()
string(SHA256 fingerprint "${all}")
set(content "// Generated: the identity of this Tessera. The fingerprint covers every interface of libtessera.
#pragma once
#define TESSERA_VERSION \"${VERSION}\"
#define TESSERA_INTERFACE_FINGERPRINT \"${fingerprint}\"
")
set(old "")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT old STREQUAL content)
  file(WRITE ${OUTPUT} "${content}")
endif()
