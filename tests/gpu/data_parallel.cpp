// LibTorch's torch::nn::parallel::data_parallel on two GPUs of one process, beside the same network
// on one of them: `data_parallel THREADS`. A finding that is wrong is a line, and exit code 1.

#include <array>
#include <cstdint>
#include <exception>
#include <optional>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/nn/parallel/data_parallel.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"

namespace {

using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::wrong;
using torch::Device;
using torch::Tensor;
using torch::nn::BatchNorm1d;
using torch::nn::Linear;
using torch::nn::Sequential;

const std::array<Device, 2> kGpus{Device(torch::kCUDA, 0), Device(torch::kCUDA, 1)};

Sequential make_network(bool has_norm) {
    torch::manual_seed(7);
    Sequential network(Linear(16, 32));
    if (has_norm) {
        network->push_back(BatchNorm1d(32));
    }
    network->push_back(torch::nn::Tanh());
    network->push_back(Linear(32, 4));
    network->to(kGpus[0], torch::kFloat64);
    return network;
}

Tensor make_batch(std::int64_t rows, int number) {
    const Tensor numbers = torch::arange(rows * 16, torch::kFloat64).reshape({rows, 16});
    return torch::sin(numbers + 100 * number).to(kGpus[0]);
}

Tensor forward_on_both(const Sequential& network, const Tensor& batch,
                       std::optional<Device> output_device = std::nullopt) {
    return torch::nn::parallel::data_parallel(
        network, batch, std::vector<Device>(kGpus.begin(), kGpus.end()), output_device);
}

void require_close(const Tensor& found, const Tensor& wanted, const std::string& what) {
    require(torch::allclose(found.to(torch::kCPU), wanted.to(torch::kCPU), 1e-12, 1e-12),
            what + " is not that of one GPU");
}

/// Output and gradients. One row is for one GPU alone, and seven are shared out unevenly.
void compare_a_pass(std::int64_t rows, std::optional<Device> output_device) {
    Sequential alone = make_network(/*has_norm=*/false);
    const Sequential shared = make_network(/*has_norm=*/false);
    const Tensor alone_batch = make_batch(rows, 0).requires_grad_();
    const Tensor shared_batch = make_batch(rows, 0).requires_grad_();
    const Tensor wanted = alone->forward(alone_batch);
    const Tensor found = forward_on_both(shared, shared_batch, output_device);
    require(found.device() == output_device.value_or(kGpus[0]), "the output's device");
    wanted.square().sum().backward();
    found.square().sum().backward();
    const std::string what = fmt::format(" of {} rows", rows);
    require_close(found, wanted, "the output" + what);
    require_close(shared_batch.grad(), alone_batch.grad(), "the input's gradient" + what);
    for (const auto& parameter : alone->named_parameters()) {
        const Tensor& gradient = shared->named_parameters()[parameter.key()].grad();
        require(gradient.device() == kGpus[0], "a gradient's device");
        require_close(gradient, parameter.value().grad(), parameter.key() + "'s gradient" + what);
    }
}

void compare_a_training() {
    Sequential alone = make_network(/*has_norm=*/false);
    const Sequential shared = make_network(/*has_norm=*/false);
    const auto options = torch::optim::SGDOptions(0.1).momentum(0.9);
    torch::optim::SGD alone_optimizer(alone->parameters(), options);
    torch::optim::SGD shared_optimizer(shared->parameters(), options);
    for (int step = 0; step < 20; ++step) {
        alone_optimizer.zero_grad();
        alone->forward(make_batch(8, step)).square().mean().backward();
        alone_optimizer.step();
        shared_optimizer.zero_grad();
        forward_on_both(shared, make_batch(8, step)).square().mean().backward();
        shared_optimizer.step();
    }
    for (const auto& parameter : alone->named_parameters()) {
        require_close(shared->named_parameters()[parameter.key()], parameter.value(),
                      parameter.key() + " after a training");
    }
}

/// LibTorch clones the network for the first GPU too, so that a pass writes the clones' statistics.
/// Python's DataParallel keeps those of the first GPU.
void find_lost_statistics() {
    const Sequential network = make_network(/*has_norm=*/true);
    (void)forward_on_both(network, make_batch(8, 0));
    const bool are_lost = network->named_buffers()["1.running_mean"].eq(0).all().item<bool>();
    say(fmt::format("running statistics are {}", are_lost ? "lost" : "kept"));
}

}  // namespace

int main(int argc, char** argv) {
    try {
        require(argc == 2, "usage: data_parallel THREADS");
        torch::set_num_threads(std::stoi(argv[1]));
        for (const std::int64_t rows : {8, 7, 2, 1}) {
            compare_a_pass(rows, std::nullopt);
        }
        compare_a_pass(8, kGpus[1]);
        compare_a_training();
        find_lost_statistics();
        return 0;
    } catch (const std::exception& failure) {
        wrong(failure.what());
    }
}
