# Debian's file of the same purpose wants its shared library; here are only headers, and
# base/fmt_compiled_in.cpp is the library.
find_path(fmt_INCLUDE fmt/core.h REQUIRED)
file(STRINGS "${fmt_INCLUDE}/fmt/core.h" fmt_VERSION REGEX "#define FMT_VERSION")
string(REGEX REPLACE "[^0-9]*([0-9]+)([0-9][0-9])([0-9][0-9])$" "\\1.\\2.\\3"
       fmt_VERSION "${fmt_VERSION}")
add_library(fmt::fmt INTERFACE IMPORTED)
target_include_directories(fmt::fmt INTERFACE "${fmt_INCLUDE}")
add_library(fmt::fmt-header-only INTERFACE IMPORTED)
target_link_libraries(fmt::fmt-header-only INTERFACE fmt::fmt)
target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY)
set(fmt_FOUND TRUE)
