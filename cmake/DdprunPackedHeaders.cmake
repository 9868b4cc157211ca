# For a machine that has a compiler, CUDA and LibTorch, and no package of anything else: the worker
# runtime with what scripts/pack_headers.sh has put into DDPRUN_HEADERS.

foreach(header fmt/format.h nlohmann/json.hpp xxhash.h gloo/algorithm.h CLI/CLI.hpp
        protozero/pbf_builder.hpp boost/crc.hpp)
    if(NOT EXISTS "${DDPRUN_HEADERS}/${header}")
        message(FATAL_ERROR "DDPRUN_HEADERS=${DDPRUN_HEADERS} has no ${header}: make that folder "
                            "with scripts/pack_headers.sh")
    endif()
endforeach()
if(DDPRUN_WITH_PROGRAMS)
    message(FATAL_ERROR "DDPRUN_HEADERS is for the worker runtime alone: the programs need "
                        "libraries; configure with -DDDPRUN_WITH_PROGRAMS=OFF, or without "
                        "DDPRUN_HEADERS")
endif()
# Behind all others, as the system's are: LibTorch brings an own fmt.
add_compile_options("SHELL:-idirafter \"${DDPRUN_HEADERS}\"")
foreach(name fmt::fmt fmt::fmt-header-only nlohmann_json::nlohmann_json CLI11::CLI11)
    add_library(${name} INTERFACE IMPORTED GLOBAL)
endforeach()
target_compile_definitions(fmt::fmt-header-only INTERFACE FMT_HEADER_ONLY)
set(DDPRUN_XXHASH_INCLUDE "${DDPRUN_HEADERS}")
set(DDPRUN_GLOO_INCLUDE "${DDPRUN_HEADERS}")
set(DDPRUN_PROTOZERO_INCLUDE "${DDPRUN_HEADERS}")
set(DDPRUN_BOOST_INCLUDE "${DDPRUN_HEADERS}")
