#include <cstdio>

#include <torch/nn/modules/linear.h>
#include <torch/optim/sgd.h>

#include "worker_runtime/worker.hpp"

int main(int argc, char** argv) {
    return ddprun::run(argc, argv, [](ddprun::Worker& worker) {
        auto group = checked(worker.process_group());
        torch::nn::Linear network(2, 1);
        torch::optim::SGD optimizer(network->parameters(), 0.1);
        ddprun::DistributedDataParallel model(network, group);
        model.forward(torch::ones({4, 2})).sum().backward();
        optimizer.step();
        worker.progress(1);
        std::printf("rank %d of %d has trained\n", worker.rank(), worker.world_size());
        return worker.finish();
    });
}
