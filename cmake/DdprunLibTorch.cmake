# Where LibTorch is, for the build of the worker runtime and, installed beside ddprunConfig.cmake,
# for those who use it. PyTorch's own package file (TorchConfig.cmake) is of no use here: with a
# wheel for CUDA it stops the configuring of a machine that has the driver, but not every library of
# the CUDA Toolkit.

# The version that the headers in `folder` say, or nothing.
function(ddprun_libtorch_version folder result)
    set(version "")
    foreach(header torch/headeronly/version.h torch/csrc/api/include/torch/version.h)
        if(version STREQUAL "" AND EXISTS "${folder}/include/${header}")
            file(STRINGS "${folder}/include/${header}" lines
                 REGEX "#define TORCH_VERSION_(MAJOR|MINOR|PATCH) ")
            string(REGEX REPLACE "[^0-9;]+" "" numbers "${lines}")
            list(JOIN numbers "." version)
        endif()
    endforeach()
    set(${result} "${version}" PARENT_SCOPE)
endfunction()

# ddprun_find_libtorch([PYTHON <program>]): the first of
#   a target torch that the project has already,
#   a LibTorch or a share/cmake of one in CMAKE_PREFIX_PATH (CMake's, the environment's), Torch_DIR,
#   the torch of PYTHON, or of python3.
# Sets DDPRUN_LIBTORCH_FOLDER and DDPRUN_LIBTORCH_VERSION in the caller; both are empty where there
# is none.
function(ddprun_find_libtorch)
    cmake_parse_arguments(PARSE_ARGV 0 arg "" "PYTHON" "")
    set(candidates "")
    if(TARGET torch)
        get_target_property(includes torch INTERFACE_INCLUDE_DIRECTORIES)
        foreach(include IN LISTS includes)
            cmake_path(GET include PARENT_PATH folder)
            list(APPEND candidates "${folder}")
        endforeach()
    endif()
    cmake_path(CONVERT "$ENV{CMAKE_PREFIX_PATH}" TO_CMAKE_PATH_LIST from_environment)
    foreach(prefix IN LISTS CMAKE_PREFIX_PATH from_environment)
        # As it is, or what torch.utils.cmake_prefix_path says.
        list(APPEND candidates "${prefix}" "${prefix}/../..")
    endforeach()
    foreach(folder IN LISTS Torch_ROOT Torch_DIR)
        list(APPEND candidates "${folder}" "${folder}/../../..")
    endforeach()
    set(found "")
    foreach(folder IN LISTS candidates)
        cmake_path(NORMAL_PATH folder)
        ddprun_libtorch_version("${folder}" version)
        if(found STREQUAL "" AND version)
            set(found "${folder}")
        endif()
    endforeach()
    if(found STREQUAL "")
        find_program(python3 NAMES python3 NO_CACHE)
        foreach(python IN LISTS arg_PYTHON Python3_EXECUTABLE Python_EXECUTABLE python3)
            if(found STREQUAL "" AND python)
                execute_process(
                    COMMAND "${python}" -c
                            "import importlib.util as u; print(u.find_spec('torch').origin)"
                    OUTPUT_VARIABLE origin OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET
                    RESULT_VARIABLE failed)
                if(NOT failed)
                    cmake_path(GET origin PARENT_PATH found)
                endif()
            endif()
        endforeach()
    endif()
    set(version "")
    if(found)
        cmake_path(NORMAL_PATH found)
        string(REGEX REPLACE "/$" "" found "${found}")
        ddprun_libtorch_version("${found}" version)
    endif()
    set(DDPRUN_LIBTORCH_FOLDER "${found}" PARENT_SCOPE)
    set(DDPRUN_LIBTORCH_VERSION "${version}" PARENT_SCOPE)
endfunction()

# ddprun_use_libtorch(<target> <folder>): gives an interface library the headers and libraries of
# the LibTorch in `folder`.
function(ddprun_use_libtorch target folder)
    target_include_directories(${target} SYSTEM INTERFACE
        "${folder}/include" "${folder}/include/torch/csrc/api/include")
    target_link_libraries(${target} INTERFACE
        "${folder}/lib/libtorch_cpu.so" "${folder}/lib/libc10.so")
    # What it was compiled with, where its headers depend on it. They bring an own fmt.
    target_compile_definitions(${target} INTERFACE
        USE_DISTRIBUTED USE_RPC USE_TENSORPIPE FMT_HEADER_ONLY)
endfunction()

# ddprun_use_libtorch_cuda(<target> <folder>): and what it has for GPUs.
function(ddprun_use_libtorch_cuda target folder)
    # It registers its kernels when it is loaded: it must be, although little refers to it. What it
    # needs of cuDNN and others is found then.
    target_link_options(${target} INTERFACE -Wl,--unresolved-symbols=ignore-in-shared-libs)
    target_link_libraries(${target} INTERFACE
        -Wl,--no-as-needed "${folder}/lib/libtorch_cuda.so" "${folder}/lib/libc10_cuda.so"
        -Wl,--as-needed)
endfunction()
