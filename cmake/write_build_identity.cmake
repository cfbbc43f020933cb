# cmake -D OUTPUT=FILE -D VERSION=x.y.z -D LIST=FILE -D ROOT=FOLDER -P write_build_identity.cmake
# Writes the version and the fingerprint of all interfaces to a header, and changes the header only when they change. The
# fingerprint is a hash of the files named in LIST, by their paths from ROOT and what they mean to the compiler: comments
# and white space are left out. A line with a quote before its // stays as it is, comment included.
file(STRINGS ${LIST} files)
list(SORT files)
set(all "")
foreach(file IN LISTS files)
  file(READ ${ROOT}/${file} text)
  set(text "\n${text}")
  string(REGEX REPLACE "\n([^\"\n/]*(/[^\"\n/*][^\"\n/]*)*)//[^\n]*" "\n\\1" text "${text}")
  string(REGEX REPLACE "[ \t\r\n]+" " " text "${text}")
  string(SHA256 digest "${text}")
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
