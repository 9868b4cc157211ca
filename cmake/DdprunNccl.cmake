# CUDA's and NCCL's headers, for process groups on GPUs.

# Included by LibTorch's headers. Of a toolkit those of CCCL lie a folder deeper.
set(DDPRUN_CUDA_HEADERS nccl.h cuda_runtime_api.h crt/host_defines.h nv/target
    cublas_v2.h cublasLt.h cusparse.h cusolverDn.h)

# ddprun_find_cuda_headers(<result> <missing> <first>...): the include folders that hold
# DDPRUN_CUDA_HEADERS, and the headers that none holds. The folders <first> come before the CUDA
# Toolkit's and the system's: structures of NCCL's are handed to LibTorch by value, so that its own
# NCCL's header is the right one, whatever else is installed.
function(ddprun_find_cuda_headers result missing)
    set(folders "")
    set(not_found "")
    foreach(header IN LISTS DDPRUN_CUDA_HEADERS)
        find_path(folder "${header}" PATHS ${ARGN} NO_DEFAULT_PATH NO_CACHE)
        if(NOT folder)
            find_path(folder "${header}" HINTS ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES cccl
                      NO_CACHE)
        endif()
        if(folder)
            list(APPEND folders "${folder}")
        else()
            list(APPEND not_found "${header}")
        endif()
        unset(folder)
    endforeach()
    list(REMOVE_DUPLICATES folders)
    set(${result} "${folders}" PARENT_SCOPE)
    set(${missing} "${not_found}" PARENT_SCOPE)
endfunction()

# NCCL needs a LibTorch that was built with CUDA, and headers: of NVIDIA's wheels beside torch, or
# of the system. Nothing is linked but LibTorch.
set(DDPRUN_HAS_NCCL OFF)
set(DDPRUN_COMPILES_NCCL OFF)
if(NOT DDPRUN_HAS_LIBTORCH OR DDPRUN_WITH_CUDA STREQUAL "OFF")
    return()
endif()
file(GLOB nvidia_includes "${DDPRUN_LIBTORCH_FOLDER}/../nvidia/*/include")
ddprun_find_cuda_headers(nccl_includes missing_headers ${nvidia_includes})
if(NOT EXISTS "${DDPRUN_LIBTORCH_FOLDER}/lib/libtorch_cuda.so")
    list(APPEND missing_headers "a LibTorch built with CUDA")
endif()
if(NOT missing_headers)
    set(DDPRUN_HAS_NCCL ON)
    target_include_directories(ddprun_libtorch SYSTEM INTERFACE ${nccl_includes})
    ddprun_use_libtorch_cuda(ddprun_libtorch "${DDPRUN_LIBTORCH_FOLDER}")
    message(STATUS "ddprun: NCCL found: process groups on GPUs are on (${nccl_includes})")
    return()
endif()
list(JOIN missing_headers ", " missing_headers)
message(STATUS "ddprun: WITHOUT NCCL (not found: ${missing_headers}): process groups on GPUs are "
               "LEFT OUT")
# Then it is compiled all the same, so that it still does where there is a GPU.
file(GLOB nvidia_includes "${DDPRUN_COMPILE_ONLY}/nvidia/*/include")
if(nvidia_includes)
    set(DDPRUN_COMPILES_NCCL ON)
    ddprun_find_cuda_headers(DDPRUN_COMPILE_ONLY_INCLUDES missing_headers ${nvidia_includes})
    message(STATUS "ddprun: what needs NCCL is compiled, and linked nowhere")
else()
    message(STATUS "ddprun: WITHOUT CUDA's and NCCL's headers (scripts/setup.sh --cuda-headers): "
                   "what needs them is NOT EVEN COMPILED")
endif()
