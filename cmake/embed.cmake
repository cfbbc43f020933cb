# cmake -D OUTPUT=FILE -D NAMES=a;b -D FILES=/x/a;/x/b -P embed.cmake
# Writes texts as elements of an array in C++: {"a", R"TESSERA(...)TESSERA"},
set(all "")
foreach(name file IN ZIP_LISTS NAMES FILES)
  file(READ ${file} text)
  string(APPEND all "{\"${name}\", R\"TESSERA(${text})TESSERA\"},\n")
endforeach()
file(WRITE ${OUTPUT} "${all}")
