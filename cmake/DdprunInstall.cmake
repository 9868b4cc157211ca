# What cmake --install brings: the component `programs`, and `worker_runtime`, which a training
# program in C++ finds with find_package(ddprun).
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# Else the libraries need fmt's shared one.
if(DDPRUN_WITH_PROGRAMS AND NOT TARGET ddprun_fmt)
    message(STATUS "ddprun: cmake --install brings the programs, not the worker runtime: that is "
                   "in the release preset, and in what is built with -DDDPRUN_WITH_PROGRAMS=OFF")
    return()
endif()
set(DDPRUN_INSTALLS_RUNTIME ON)

set(DDPRUN_PACKAGE_FOLDER "${CMAKE_INSTALL_LIBDIR}/cmake/ddprun")
set(base_libraries base base_os contract worker_env checkpoint memory)
if(TARGET ddprun_fmt)
    list(APPEND base_libraries fmt)
endif()
# ddprun_install_libraries(<export> <name>...): as ddprun::<name>, in the file <export>.cmake.
function(ddprun_install_libraries export)
    foreach(name IN LISTS ARGN)
        set_target_properties(ddprun_${name} PROPERTIES EXPORT_NAME ${name})
        target_include_directories(ddprun_${name} INTERFACE
            "$<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}/ddprun>")
        install(TARGETS ddprun_${name} EXPORT ${export}
                ARCHIVE DESTINATION "${CMAKE_INSTALL_LIBDIR}" COMPONENT worker_runtime)
    endforeach()
    install(EXPORT ${export} NAMESPACE ddprun:: DESTINATION "${DDPRUN_PACKAGE_FOLDER}"
            COMPONENT worker_runtime)
endfunction()
ddprun_install_libraries(ddprunTargets ${base_libraries})
if(DDPRUN_HAS_LIBTORCH)
    ddprun_install_libraries(ddprunTorchTargets scalars worker_runtime)
endif()

# What worker.hpp includes, and what may be used on its own; nothing of a third party but LibTorch.
set(headers
    base/error.hpp base/instant.hpp base/os/unique_fd.hpp base/result.hpp base/tagged.hpp
    worker_runtime/checkpoint/checkpoint_folder.hpp worker_runtime/checkpoint/layout.hpp
    worker_runtime/checkpoint/loaded_checkpoint.hpp worker_runtime/checkpoint/manifest.hpp
    worker_runtime/checkpoint/publishing.hpp worker_runtime/checkpoint/save_numbers.hpp
    worker_runtime/checkpoint/tensor_view.hpp
    worker_runtime/contract/exit_codes.hpp worker_runtime/contract/store_address.hpp
    worker_runtime/contract/worker_environment.hpp worker_runtime/contract/worker_page.hpp
    worker_runtime/env/environment.hpp worker_runtime/env/page.hpp)
if(DDPRUN_HAS_LIBTORCH)
    file(STRINGS "${PROJECT_SOURCE_DIR}/worker_runtime/worker.hpp" includes REGEX "^#include \"")
    list(TRANSFORM includes REPLACE "^#include \"([^\"]+)\".*" "\\1")
    list(APPEND headers worker_runtime/worker.hpp ${includes})
    list(APPEND headers
        base/runtime_limits.hpp worker_runtime/comm/background_saves.hpp
        worker_runtime/comm/pending.hpp worker_runtime/comm/stop_ballot.hpp
        worker_runtime/comm/tensors_under_way.hpp
        worker_runtime/nn/output_tensors.hpp worker_runtime/nn/without_repeats.hpp
        worker_runtime/parallel/ddp/gradient_reducer.hpp
        worker_runtime/parallel/zero/sharded_gradients.hpp
        worker_runtime/state/state_tensors.hpp worker_runtime/state/stored_state.hpp)
    include(DdprunMovedHeaders)
    install(DIRECTORY "${DDPRUN_MOVED_HEADERS}/worker_runtime"
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/ddprun" COMPONENT worker_runtime)
endif()
foreach(header IN LISTS headers)
    cmake_path(GET header PARENT_PATH folder)
    install(FILES "${PROJECT_SOURCE_DIR}/${header}"
            DESTINATION "${CMAKE_INSTALL_INCLUDEDIR}/ddprun/${folder}" COMPONENT worker_runtime)
endforeach()

configure_package_config_file(
    "${PROJECT_SOURCE_DIR}/cmake/ddprunConfig.cmake.in"
    "${PROJECT_BINARY_DIR}/cmake/ddprunConfig.cmake"
    INSTALL_DESTINATION "${DDPRUN_PACKAGE_FOLDER}" NO_SET_AND_CHECK_MACRO
    NO_CHECK_REQUIRED_COMPONENTS_MACRO)
write_basic_package_version_file("${PROJECT_BINARY_DIR}/cmake/ddprunConfigVersion.cmake"
                                 COMPATIBILITY SameMinorVersion)
install(FILES "${PROJECT_BINARY_DIR}/cmake/ddprunConfig.cmake"
              "${PROJECT_BINARY_DIR}/cmake/ddprunConfigVersion.cmake"
              "${PROJECT_SOURCE_DIR}/cmake/DdprunLibTorch.cmake"
        DESTINATION "${DDPRUN_PACKAGE_FOLDER}" COMPONENT worker_runtime)
install(FILES "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}"
        COMPONENT worker_runtime)
