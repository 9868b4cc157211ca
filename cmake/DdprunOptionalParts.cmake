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
    if(NOT DDPRUN_HAS_TORCH AND DDPRUN_WITH_TORCH STREQUAL "ON")
        message(FATAL_ERROR "DDPRUN_WITH_TORCH=ON, but no Python with torch was found: "
                            "run scripts/setup.sh, or configure with -DDDPRUN_WITH_TORCH=AUTO")
    endif()
endif()
if(DDPRUN_HAS_TORCH)
    message(STATUS "ddprun: torch ${DDPRUN_TORCH_VERSION} found: tests with real PyTorch are on")
else()
    message(STATUS "ddprun: WITHOUT torch: tests that run PyTorch scripts are LEFT OUT")
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
    message(STATUS "ddprun: CUDA Toolkit ${CUDAToolkit_VERSION} found (no part uses it yet)")
else()
    message(STATUS "ddprun: WITHOUT CUDA: no part needs it yet, nothing is left out")
endif()
