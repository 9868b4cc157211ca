// A training that saves after each step into the memory of its nodes, and never to the disk.
//
//     kept_training DIR STEPS DISK_EVERY [FIFO]
//
// Before each step rank 0 waits for a byte in FIFO. With KEPT_SHARDED=1 in the environment the
// ranks share out the optimizer's state. Each rank says "rank R of N is PID". Rank 0 says "begins"
// or "resumed S", then of each step "trained S", "asked S" once save_async() has returned and "kept
// S" once the save has ended, or "missed S". The same number of ranks ends with the same
// "parameters".

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <string_view>

#include <fmt/format.h>
#include <torch/torch.h>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

void say(const std::string& line) {
    fmt::print("{}\n", line);
    (void)std::fflush(stdout);
}

/// The leave to train a step; each byte is one.
class Leave {
public:
    /// Without a path there is always leave.
    explicit Leave(const std::string& path)
        : fd_(path.empty() ? -1 : ::open(path.c_str(), O_RDWR | O_CLOEXEC)) {}

    void await() const {
        char byte = 0;
        if (fd_.is_open() && ::read(fd_.get(), &byte, 1) != 1) {
            throw std::runtime_error("the FIFO cannot be read");
        }
    }

private:
    ddprun::UniqueFd fd_;
};

std::size_t hash_of(const torch::nn::Module& network) {
    std::string bytes;
    for (const torch::Tensor& each : network.parameters()) {
        const torch::Tensor parameter = each.clone();  // an operator waits for a gather
        bytes.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
    }
    return std::hash<std::string_view>()(bytes);
}

int train(ddprun::Worker& worker, const std::string& dir, std::int64_t steps,
          std::int64_t disk_every, const std::string& fifo) {
    const Leave leave(worker.rank() == 0 ? fifo : std::string());
    auto group = checked(worker.process_group());
    torch::manual_seed(11 + worker.rank());
    // 8 MiB and their momentum: large enough for all ranks to write a share.
    Sequential network(Linear(1024, 1024), BatchNorm1d(1024), Linear(1024, 1024));
    ddprun::DistributedDataParallel model(network, group);
    const auto options_of_sgd = torch::optim::SGDOptions(0.01).momentum(0.9);
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    if (std::getenv("KEPT_SHARDED") != nullptr) {
        optimizer = std::make_unique<ddprun::ShardedOptimizer<torch::optim::SGD>>(
            *network, group, options_of_sgd,
            ddprun::ShardedOptimizerOptions{.overlaps_gather = true});
    } else {
        optimizer = std::make_unique<torch::optim::SGD>(network->parameters(), options_of_sgd);
    }
    std::int64_t step = 0;
    ddprun::TrainingState state(network.ptr(), *optimizer);
    state.add("step", step);
    ddprun::CheckpointsOptions options;
    options.disk_every = disk_every;
    ddprun::Checkpoints checkpoints(dir, worker, group, options);
    say(fmt::format("rank {} of {} is {}", worker.rank(), worker.world_size(), ::getpid()));
    const auto from = checked(checkpoints.resume(state));
    const auto say_first = [&](const std::string& line) {
        if (worker.rank() == 0) {
            say(line);
        }
    };
    say_first(from ? fmt::format("resumed {}", *from) : std::string("begins"));
    while (step < steps) {
        leave.await();
        optimizer->zero_grad();
        model.forward(torch::randn({4, 1024})).pow(2).mean().backward();
        optimizer->step();
        worker.progress(++step);
        say_first(fmt::format("trained {}", step));
        checked(checkpoints.save_async(step, state));
        say_first(fmt::format("asked {}", step));
        const ddprun::Result<void> kept = checkpoints.wait();
        say_first(kept ? fmt::format("kept {}", step)
                       : fmt::format("missed {}: {}", step, kept.error().what));
    }
    say_first(fmt::format("parameters {:016x}", hash_of(*network)));
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4 || argc > 5) {
        fmt::print(stderr, "usage: kept_training DIR STEPS DISK_EVERY [FIFO]\n");
        return 2;
    }
    return ddprun::run(argc, argv, [&](ddprun::Worker& worker) {
        return train(worker, argv[1], std::stoll(argv[2]), std::stoll(argv[3]),
                     argc == 5 ? argv[4] : "");
    });
}
