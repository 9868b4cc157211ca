# What the programs link. The worker runtime needs none of it.
find_package(Threads REQUIRED)
find_package(Boost 1.81 REQUIRED)
# Released programs carry OpenSSL: of the instructions until ddprun has a plan, the dynamic linker
# took half, for 4,400 names of the shared libraries. -DOPENSSL_USE_STATIC_LIBS=OFF uses them.
if(NOT DEFINED OPENSSL_USE_STATIC_LIBS AND CMAKE_BUILD_TYPE STREQUAL "Release")
    set(OPENSSL_USE_STATIC_LIBS ON)
    find_package(OpenSSL 3.0 QUIET)
    set(OPENSSL_USE_STATIC_LIBS ${OPENSSL_FOUND})
endif()
find_package(OpenSSL 3.0 REQUIRED)
find_package(spdlog REQUIRED)
find_package(CLI11 2.1 REQUIRED)
find_package(SQLite3 3.40 REQUIRED)
find_library(DDPRUN_XXHASH xxhash REQUIRED)
# Not by its own package: that asks for curl and civetweb, which only its servers need.
find_library(DDPRUN_PROMETHEUS prometheus-cpp-core)
if(DDPRUN_PROMETHEUS)
    set(DDPRUN_HAS_PROMETHEUS ON)
else()
    set(DDPRUN_HAS_PROMETHEUS OFF)
    message(STATUS "ddprun: WITHOUT prometheus-cpp (Debian: prometheus-cpp-dev): the rendezvous's "
                   "/metrics and its tests are LEFT OUT")
endif()

# Asio and Process are used header-only. All files get the definitions, whatever they link: with
# others Asio's functions have other return types, and the linker takes either.
add_compile_definitions(BOOST_ASIO_NO_DEPRECATED BOOST_PROCESS_V2_HEADER_ONLY
                        BOOST_ASIO_DISABLE_VISIBILITY)
add_library(ddprun_asio INTERFACE)
target_link_libraries(ddprun_asio INTERFACE Boost::headers Threads::Threads)
