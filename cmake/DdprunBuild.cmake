# How everything in ddprun is compiled, and the two functions that declare its parts.

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${CMAKE_BINARY_DIR}/bin")
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

# A project that adds this one wants what its training links, and has none of what programs need.
option(DDPRUN_WITH_PROGRAMS "Build ddprun and its programs; without them the worker runtime alone"
       ${PROJECT_IS_TOP_LEVEL})
option(DDPRUN_WITH_TESTS "Build the tests" ${DDPRUN_WITH_PROGRAMS})
option(DDPRUN_WERROR "Warnings are errors" OFF)
set(DDPRUN_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize= takes them; empty for none")
set(DDPRUN_WITH_TORCH AUTO CACHE STRING "Parts and tests that need LibTorch: AUTO, ON or OFF")
option(DDPRUN_WITH_GPU_TESTS "Build the runtime's tests on GPUs, also without the programs" OFF)
set(DDPRUN_WITH_CUDA AUTO CACHE STRING "Parts that need CUDA: AUTO, ON or OFF")
set_property(CACHE DDPRUN_WITH_TORCH PROPERTY STRINGS AUTO ON OFF)
set_property(CACHE DDPRUN_WITH_CUDA PROPERTY STRINGS AUTO ON OFF)

find_program(DDPRUN_CCACHE ccache)
if(DDPRUN_CCACHE)
    # Paths relative to the tree, so that what one checkout has compiled serves another.
    set(CMAKE_CXX_COMPILER_LAUNCHER "${CMAKE_COMMAND}" -E env
        "CCACHE_BASEDIR=${PROJECT_SOURCE_DIR}" CCACHE_NOHASHDIR=1 "${DDPRUN_CCACHE}")
endif()

set(DDPRUN_HEADERS "" CACHE PATH
    "All header-only libraries in one folder (scripts/pack_headers.sh), in place of the system's")
if(DDPRUN_HEADERS)
    include(DdprunPackedHeaders)
else()
    find_package(fmt REQUIRED)
    find_package(nlohmann_json 3.11 REQUIRED)
    find_path(DDPRUN_XXHASH_INCLUDE xxhash.h REQUIRED)
    if(DDPRUN_WITH_GPU_TESTS)
        find_package(CLI11 2.1 REQUIRED)
    endif()
endif()
if(DDPRUN_WITH_PROGRAMS)
    include(DdprunProgramLibraries)
endif()
include(DdprunOptionalParts)

add_library(ddprun_warnings INTERFACE)
target_compile_options(ddprun_warnings INTERFACE
    -Wall -Wextra -Wshadow -Wconversion -Wnon-virtual-dtor -Wold-style-cast -Wcast-qual -Wundef
    -Wno-missing-field-initializers  # designated initialisers leave the rest at its defaults
    # Optimising, g++ 12 takes members of variants built in expressions for uninitialised.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<CONFIG:Release>>:-Wno-maybe-uninitialized>
    # It takes a source file that is compiled with others for a header.
    $<$<AND:$<CXX_COMPILER_ID:GNU>,$<BOOL:${CMAKE_UNITY_BUILD}>>:-Wno-subobject-linkage>
    $<$<BOOL:${DDPRUN_WERROR}>:-Werror>)

# No path of this machine in a program, and the same program from every checkout.
add_compile_options("-fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=")

# Hardening that costs nothing measurable; sanitizers and -O0 do not go with fortification.
add_library(ddprun_hardening INTERFACE)
target_compile_options(ddprun_hardening INTERFACE -fstack-protector-strong)
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|AMD64")
    target_compile_options(ddprun_hardening INTERFACE -fcf-protection)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
    target_compile_options(ddprun_hardening INTERFACE -mbranch-protection=standard)
endif()
if(NOT DDPRUN_SANITIZE)
    target_compile_definitions(ddprun_hardening INTERFACE
        $<$<CONFIG:Release>:_FORTIFY_SOURCE=2>)
endif()
target_link_options(ddprun_hardening INTERFACE -Wl,-z,relro,-z,now)

if(DDPRUN_SANITIZE)
    add_compile_options(-fsanitize=${DDPRUN_SANITIZE} -fno-omit-frame-pointer
                        -fno-sanitize-recover=all)
    add_link_options(-fsanitize=${DDPRUN_SANITIZE})
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # With sanitizers it takes empty optionals for uninitialised, too. The dev build looks.
        target_compile_options(ddprun_warnings INTERFACE -Wno-maybe-uninitialized)
    endif()
    if(DDPRUN_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # These two take a fifth of the time of compiling. A null pointer faults without them, and
        # clang's build for fuzzing has both.
        add_compile_options(-fno-sanitize=null,alignment)
    endif()
    if(DDPRUN_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
        # The thread sanitizer knows no stand-alone fences; Asio can do without.
        add_compile_options(-Wno-tsan)
        add_compile_definitions(BOOST_ASIO_DISABLE_FENCED_BLOCK)
    endif()
endif()
if(CMAKE_BUILD_TYPE STREQUAL "Release")
    # Functions that nobody calls are left out. Link-time optimisation gained nothing more: the same
    # size, 3 % more instructions until the workers run, and half of the time of a build.
    add_compile_options(-ffunction-sections -fdata-sections)
    add_link_options(-Wl,--gc-sections)
    # Addresses to be relocated as bitmaps take 20 KB in place of 540, which every start reads.
    # Programs linked so need glibc 2.36, as those that are built against it do anyway.
    include(CheckCXXSourceCompiles)
    set(CMAKE_REQUIRED_LINK_OPTIONS "-Wl,-z,pack-relative-relocs,--fatal-warnings")
    check_cxx_source_compiles("
        #include <features.h>
        #if !__GLIBC_PREREQ(2, 36)
        #error its dynamic linker does not know them
        #endif
        int main() {}" DDPRUN_HAS_PACKED_RELOCATIONS)
    unset(CMAKE_REQUIRED_LINK_OPTIONS)
    if(DDPRUN_HAS_PACKED_RELOCATIONS)
        add_link_options(-Wl,-z,pack-relative-relocs)
    endif()
endif()

# Nobody runs programs that are instrumented for fuzzing: there the fuzz targets are built, and what
# they link.
set(DDPRUN_OUTSIDE_ALL "")
if(DDPRUN_SANITIZE MATCHES "fuzzer")
    set(DDPRUN_OUTSIDE_ALL EXCLUDE_FROM_ALL)
endif()

# ddprun_library(<name> SOURCES <file>... [LINKS <target>...]): the static library of one folder.
# Others use it as ddprun::<name>. LINKS are its layer neighbours and third parties, all public; an
# installed library needs no third party but LibTorch.
function(ddprun_library name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "" "" "SOURCES;LINKS")
    if(arg_SOURCES)
        add_library(ddprun_${name} STATIC ${DDPRUN_OUTSIDE_ALL} ${arg_SOURCES})
        target_include_directories(ddprun_${name} PUBLIC "$<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}>")
        # For projects that embed this one.
        target_compile_features(ddprun_${name} PUBLIC cxx_std_20)
        set(links "")
        foreach(link IN LISTS arg_LINKS)
            if(link MATCHES "^ddprun::" OR link STREQUAL "ddprun_fmt")
                list(APPEND links ${link})
            elseif(link STREQUAL "ddprun_libtorch")
                # Installed, it is sought where it is used (cmake/ddprunConfig.cmake.in).
                list(APPEND links "$<BUILD_INTERFACE:${link}>"
                                  "$<INSTALL_INTERFACE:ddprun::libtorch>")
            else()
                list(APPEND links "$<BUILD_INTERFACE:${link}>")
            endif()
        endforeach()
        target_link_libraries(ddprun_${name} PUBLIC ${links}
                              PRIVATE "$<BUILD_INTERFACE:ddprun_warnings>"
                                      "$<BUILD_INTERFACE:ddprun_hardening>")
    else()
        add_library(ddprun_${name} INTERFACE)
        target_include_directories(ddprun_${name} INTERFACE "${PROJECT_SOURCE_DIR}")
        target_link_libraries(ddprun_${name} INTERFACE ${arg_LINKS})
    endif()
    add_library(ddprun::${name} ALIAS ddprun_${name})
endfunction()

# ddprun_program(<name> SOURCES <file>... LINKS <target>... [NO_INSTALL] [WITH_LIBTORCH])
function(ddprun_program name)
    cmake_parse_arguments(PARSE_ARGV 1 arg "NO_INSTALL;WITH_LIBTORCH" "" "SOURCES;LINKS")
    add_executable(${name} ${DDPRUN_OUTSIDE_ALL} ${arg_SOURCES})
    target_include_directories(${name} PRIVATE "${PROJECT_SOURCE_DIR}")
    target_link_libraries(${name} PRIVATE ${arg_LINKS} ddprun_warnings ddprun_hardening)
    target_link_options(${name} PRIVATE -pie)
    if(NOT arg_WITH_LIBTORCH AND CMAKE_BUILD_TYPE STREQUAL "Release")
        # A released program carries its C++ library with it. What links LibTorch must not: two
        # copies of it in one process do not catch each other's exceptions.
        target_link_options(${name} PRIVATE -static-libstdc++ -static-libgcc)
    endif()
    if(NOT arg_NO_INSTALL)
        install(TARGETS ${name} RUNTIME COMPONENT programs)
    endif()
endfunction()
