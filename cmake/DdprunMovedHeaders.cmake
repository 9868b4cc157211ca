# The public headers of the worker runtime were in worker_runtime/torch/. Each has a header there
# that includes it, for programs that name the old path. They are made in DDPRUN_MOVED_HEADERS:
# nothing of this repository finds them.
set(DDPRUN_MOVED_HEADERS "${PROJECT_BINARY_DIR}/moved_headers" CACHE INTERNAL "")
# ddprun_forward_header(<old path> <new path>), both from the root of the repository.
function(ddprun_forward_header old new)
    file(CONFIGURE OUTPUT "${DDPRUN_MOVED_HEADERS}/${old}" @ONLY
         CONTENT "#pragma once\n\n#include \"${new}\"  // IWYU pragma: export\n")
endfunction()
foreach(header IN ITEMS
        comm/process_group.hpp comm/stop_ballot.hpp data/data_loader.hpp
        data/distributed_sampler.hpp data/evaluation.hpp job/deterministic.hpp job/run.hpp
        job/spawn.hpp job/worker.hpp nn/activation_checkpoint.hpp nn/autocast.hpp
        nn/output_tensors.hpp nn/sync_batch_norm.hpp optim/clip_grad_norm.hpp
        optim/fused_optimizers.hpp optim/gradient_scaler.hpp optim/learning_rate.hpp
        parallel/ddp/distributed_data_parallel.hpp parallel/ddp/gradient_reducer.hpp
        state/checkpoints.hpp state/training_state.hpp)
    cmake_path(GET header FILENAME name)
    ddprun_forward_header("worker_runtime/torch/${name}" "worker_runtime/${header}")
endforeach()
ddprun_forward_header(worker_runtime/torch/limits.hpp base/runtime_limits.hpp)
