// One rank of the worker runtime's engines for `scripts/bench.sh sharded`:
// `sharded_rank ENGINE MEBIBYTES STEPS`, where ENGINE is ddp, zero1 or zero2. sharded_peer.py
// trains the same network in the same way. Prints the loss of each step, samples a second, and the
// growth of the memory.

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::test::status_bytes;

constexpr std::int64_t kWidth = 1024;
constexpr std::int64_t kBatch = 32;
constexpr std::int64_t kStepsBefore = 5;  // in which memory and caches fill

torch::nn::Sequential layers(std::int64_t mebibytes) {
    torch::manual_seed(1);
    torch::nn::Sequential network;
    for (std::int64_t i = 0; i < mebibytes * (1 << 20) / (4 * kWidth * kWidth); ++i) {
        network->push_back(torch::nn::Linear(kWidth, kWidth));
        network->push_back(torch::nn::Tanh());
    }
    return network;
}

double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

std::unique_ptr<torch::optim::Optimizer> optimizer_of(const std::string& engine,
                                                      const torch::nn::Module& network,
                                                      const ddprun::ProcessGroup& group) {
    using Sharded = ddprun::ShardedOptimizer<ddprun::FusedAdamW>;
    const torch::optim::AdamWOptions options(1e-4);
    if (engine == "ddp") {
        return std::make_unique<ddprun::FusedAdamW>(network.parameters(), options);
    }
    if (engine == "zero1" || engine == "zero2") {
        return std::make_unique<Sharded>(
            network, group, options,
            ddprun::ShardedOptimizerOptions{.shards_gradients = engine == "zero2",
                                            .overlaps_gather = true});
    }
    throw std::runtime_error("no engine " + engine);
}

int train(ddprun::Worker& worker, const std::string& engine, std::int64_t mebibytes,
          std::int64_t steps) {
    ddprun::ProcessGroup group = checked(worker.process_group());
    std::ofstream("/proc/self/clear_refs") << 5;  // the peak begins here
    const std::int64_t before = status_bytes("VmRSS");
    torch::nn::Sequential network = layers(mebibytes);
    std::function<torch::Tensor(const torch::Tensor&)> forward;
    if (engine == "zero2") {
        forward = [&](const torch::Tensor& inputs) { return network->forward(inputs); };
    } else {
        const auto model =
            std::make_shared<ddprun::DistributedDataParallel<torch::nn::SequentialImpl>>(network,
                                                                                         group);
        forward = [model](const torch::Tensor& inputs) { return model->forward(inputs); };
    }
    const std::unique_ptr<torch::optim::Optimizer> optimizer =
        optimizer_of(engine, *network, group);
    std::chrono::steady_clock::time_point begin;
    for (std::int64_t step = 0; step < kStepsBefore + steps; ++step) {
        if (step == kStepsBefore) {
            checked(group.barrier());
            begin = std::chrono::steady_clock::now();
        }
        torch::manual_seed(static_cast<std::uint64_t>(1000 * step + worker.rank()));
        const torch::Tensor inputs = torch::randn({kBatch, kWidth});
        optimizer->zero_grad();
        const torch::Tensor loss = (forward(inputs) - inputs).pow(2).mean();
        loss.backward();
        optimizer->step();
        fmt::print("loss {:.17g}\n", loss.item<double>());
    }
    checked(group.barrier());
    fmt::print("rate {}\n",
               static_cast<double>(kBatch * steps * worker.world_size()) / seconds_since(begin));
    fmt::print("memory {}\n", static_cast<double>(status_bytes("VmHWM") - before) / (1 << 20));
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    torch::set_num_threads(1);
    return ddprun::run(argc, argv, [&](ddprun::Worker& worker) {
        if (argc != 4) {
            throw std::runtime_error("usage: sharded_rank ddp|zero1|zero2 MEBIBYTES STEPS");
        }
        return train(worker, argv[1], std::atoll(argv[2]), std::atoll(argv[3]));
    });
}
