# What is built only where LibTorch or CUDA is found. What is left out is said aloud.

# PyTorch's wheel in the project's .venv (scripts/setup.sh), or in the Python of the environment.
set(DDPRUN_HAS_TORCH OFF)
set(DDPRUN_TORCH_PYTHON "")
if(NOT DDPRUN_WITH_TORCH STREQUAL "OFF")
    find_program(DDPRUN_PYTHON NAMES python3
                 HINTS "${PROJECT_SOURCE_DIR}/.venv/bin" NO_CACHE)
    if(DDPRUN_PYTHON)
        execute_process(
            COMMAND "${DDPRUN_PYTHON}" -c
                    "import importlib.metadata as m; print(m.version('torch').split('+')[0])"
            OUTPUT_VARIABLE DDPRUN_TORCH_VERSION OUTPUT_STRIP_TRAILING_WHITESPACE
            ERROR_QUIET RESULT_VARIABLE DDPRUN_TORCH_RESULT)
        if(DDPRUN_TORCH_RESULT EQUAL 0)
            set(DDPRUN_HAS_TORCH ON)
            set(DDPRUN_TORCH_PYTHON "${DDPRUN_PYTHON}")
        endif()
    endif()
endif()
if(DDPRUN_HAS_TORCH)
    message(STATUS "ddprun: torch ${DDPRUN_TORCH_VERSION} found: tests with real PyTorch are on")
else()
    message(STATUS "ddprun: WITHOUT torch: tests that run PyTorch scripts are LEFT OUT")
endif()

# The worker runtime links a LibTorch, as ddprun_libtorch.
set(DDPRUN_FAKE_GPU "" CACHE PATH
    "A LibTorch for CUDA that runs on the fake GPU of tests/fake_gpu (scripts/setup.sh --fake-gpu)")
if(DDPRUN_FAKE_GPU)
    include(DdprunFakeGpu)
endif()
include(DdprunLibTorch)
set(DDPRUN_HAS_LIBTORCH OFF)
if(NOT DDPRUN_WITH_TORCH STREQUAL "OFF")
    ddprun_find_libtorch(PYTHON "${DDPRUN_TORCH_PYTHON}")
    # c10d's header of its Gloo process group includes Gloo headers that LibTorch lacks: Debian's
    # libgloo-dev has them. Only types are used, the code is LibTorch's.
    if(NOT DDPRUN_HEADERS)
        find_path(DDPRUN_GLOO_INCLUDE gloo/algorithm.h)
    endif()
    if(NOT DDPRUN_GLOO_INCLUDE)
        message(STATUS "ddprun: no gloo/algorithm.h (Debian: libgloo-dev)")
    elseif(EXISTS "${DDPRUN_LIBTORCH_FOLDER}/lib/libtorch_cpu.so" AND DDPRUN_LIBTORCH_VERSION)
        set(DDPRUN_HAS_LIBTORCH ON)
        add_library(ddprun_libtorch INTERFACE)
        ddprun_use_libtorch(ddprun_libtorch "${DDPRUN_LIBTORCH_FOLDER}")
        message(STATUS "ddprun: LibTorch ${DDPRUN_LIBTORCH_VERSION}: ${DDPRUN_LIBTORCH_FOLDER}")
    endif()
    if(NOT DDPRUN_HAS_LIBTORCH AND DDPRUN_WITH_TORCH STREQUAL "ON")
        message(FATAL_ERROR "DDPRUN_WITH_TORCH=ON, but LibTorch or Gloo's headers were not found: "
                            "run scripts/setup.sh, name a LibTorch in CMAKE_PREFIX_PATH, or "
                            "configure with -DDDPRUN_WITH_TORCH=AUTO")
    endif()
endif()
if(NOT DDPRUN_HAS_LIBTORCH)
    message(STATUS "ddprun: WITHOUT LibTorch: the worker runtime for C++, the examples in C++ "
                   "that train and their tests are LEFT OUT")
endif()

set(DDPRUN_HAS_CUDA OFF)
if(NOT DDPRUN_WITH_CUDA STREQUAL "OFF")
    find_package(CUDAToolkit QUIET)
    if(CUDAToolkit_FOUND)
        set(DDPRUN_HAS_CUDA ON)
    elseif(DDPRUN_WITH_CUDA STREQUAL "ON")
        message(FATAL_ERROR "DDPRUN_WITH_CUDA=ON, but no CUDA Toolkit was found: install it, "
                            "or configure with -DDDPRUN_WITH_CUDA=AUTO")
    endif()
endif()
if(DDPRUN_HAS_CUDA)
    message(STATUS "ddprun: CUDA Toolkit ${CUDAToolkit_VERSION} found")
else()
    message(STATUS "ddprun: WITHOUT CUDA")
endif()

# Headers that are compiled against and never linked with (scripts/setup.sh --cuda-headers).
set(DDPRUN_COMPILE_ONLY "${PROJECT_SOURCE_DIR}/.venv/compile-only" CACHE PATH
    "Headers of CUDA and NCCL, and of other LibTorches, that are compiled against only")
include(DdprunNccl)
