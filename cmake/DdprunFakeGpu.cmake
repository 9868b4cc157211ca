# A LibTorch for CUDA whose vendor libraries are the fakes of tests/fake_gpu. LibTorch finds them by
# its own path, $ORIGIN/../../nvidia/cu13/lib: so the build has a tree of links to LibTorch, and
# builds the fakes into that tree. What scripts/setup.sh has unpacked stays as it is.

if(NOT EXISTS "${DDPRUN_FAKE_GPU}/torch/lib/libtorch_cuda.so")
    message(FATAL_ERROR "DDPRUN_FAKE_GPU=${DDPRUN_FAKE_GPU} has no LibTorch for CUDA: "
                        "run scripts/setup.sh --fake-gpu")
endif()
set(DDPRUN_FAKE_GPU_TREE "${PROJECT_BINARY_DIR}/libtorch")
set(DDPRUN_FAKE_GPU_LIBRARIES "${DDPRUN_FAKE_GPU_TREE}/nvidia/cu13/lib")
file(MAKE_DIRECTORY "${DDPRUN_FAKE_GPU_TREE}/torch/lib" "${DDPRUN_FAKE_GPU_LIBRARIES}"
                    "${DDPRUN_FAKE_GPU_TREE}/nvidia/nccl"
                    "${DDPRUN_FAKE_GPU_TREE}/nvidia/declared_only")
file(GLOB libraries "${DDPRUN_FAKE_GPU}/torch/lib/*.so*")
foreach(library IN LISTS libraries)
    cmake_path(GET library FILENAME name)
    file(CREATE_LINK "${library}" "${DDPRUN_FAKE_GPU_TREE}/torch/lib/${name}" SYMBOLIC)
endforeach()
# PyTorch's Python looks from the path that it is imported by.
file(GLOB members RELATIVE "${DDPRUN_FAKE_GPU}"
     "${DDPRUN_FAKE_GPU}/torch/*" "${DDPRUN_FAKE_GPU}/torchgen" "${DDPRUN_FAKE_GPU}/functorch"
     "${DDPRUN_FAKE_GPU}/torch-*.dist-info")
list(REMOVE_ITEM members torch/lib)
foreach(member IN LISTS members)
    file(CREATE_LINK "${DDPRUN_FAKE_GPU}/${member}" "${DDPRUN_FAKE_GPU_TREE}/${member}" SYMBOLIC)
endforeach()
foreach(folder nvidia/cu13 nvidia/nccl)
    file(CREATE_LINK "${DDPRUN_FAKE_GPU}/${folder}/include"
         "${DDPRUN_FAKE_GPU_TREE}/${folder}/include" SYMBOLIC)
endforeach()
# Only types of cuBLAS and others are used.
file(CREATE_LINK "${PROJECT_SOURCE_DIR}/cmake/declared_only"
     "${DDPRUN_FAKE_GPU_TREE}/nvidia/declared_only/include" SYMBOLIC)
list(PREPEND CMAKE_PREFIX_PATH "${DDPRUN_FAKE_GPU_TREE}/torch")
