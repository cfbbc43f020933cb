# Adds this folder to the project that includes it (CMAKE_PROJECT_<NAME>_INCLUDE).
find_package(Tessera REQUIRED)
add_subdirectory(${CMAKE_CURRENT_LIST_DIR} outsider)
add_subdirectory(${EXAMPLES} examples)
add_subdirectory(${OPTIMIZER} Lion)
add_subdirectory(${MODEL} Chain)
add_subdirectory(${DEVICE} Toy)
add_subdirectory(${OPERATOR} Cap)
add_subdirectory(${PASS} Trim)
