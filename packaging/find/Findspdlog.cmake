# As Findfmt.cmake: headers only.
find_path(spdlog_INCLUDE spdlog/spdlog.h REQUIRED)
add_library(spdlog::spdlog INTERFACE IMPORTED)
target_include_directories(spdlog::spdlog INTERFACE "${spdlog_INCLUDE}")
target_compile_definitions(spdlog::spdlog INTERFACE SPDLOG_FMT_EXTERNAL)
target_link_libraries(spdlog::spdlog INTERFACE fmt::fmt)
set(spdlog_FOUND TRUE)
