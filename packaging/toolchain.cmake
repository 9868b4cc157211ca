# The compiler of released programs: clang with a C++ library of its own, against the GNU C library
# of 2018 (2.28: RHEL 8, Debian 10, Ubuntu 20.04). scripts/package.sh has laid it out, with all
# headers and libraries, in the folder that DDPRUN_PACKAGE_FOLDER names.
set(DDPRUN_PACKAGE_FOLDER "$ENV{DDPRUN_PACKAGE_FOLDER}")
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR "$ENV{DDPRUN_PACKAGE_PROCESSOR}")
set(CMAKE_LIBRARY_ARCHITECTURE "${CMAKE_SYSTEM_PROCESSOR}-linux-gnu")
set(CMAKE_CXX_COMPILER "${DDPRUN_PACKAGE_FOLDER}/compiler/clang++")
set(CMAKE_AR "${DDPRUN_PACKAGE_FOLDER}/compiler/ar" CACHE FILEPATH "")
set(CMAKE_RANLIB "${DDPRUN_PACKAGE_FOLDER}/compiler/ranlib" CACHE FILEPATH "")

# Stripped: symbols are two thirds of a program.
set(CMAKE_EXE_LINKER_FLAGS_INIT -s)
set(CMAKE_MODULE_LINKER_FLAGS_INIT -s)

# Headers and libraries come from there and nowhere else.
set(CMAKE_FIND_ROOT_PATH "${DDPRUN_PACKAGE_FOLDER}/root")
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
list(APPEND CMAKE_MODULE_PATH "${CMAKE_CURRENT_LIST_DIR}/find")
