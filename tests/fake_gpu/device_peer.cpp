// A program of the tests of the fake GPU, without a process group: `device_peer SCENARIO`. The
// program prints each event on a line of its own. When a check fails, it prints a line that begins
// with "wrong:" and exits 1.

#include <ATen/autocast_mode.h>
#include <ATen/cuda/CUDAGeneratorImpl.h>
#include <ATen/cuda/Sleep.h>

#include <cmath>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <string>

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"

namespace {

using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::wrong;

constexpr std::int64_t kMany = 100'000;

void require_equal(const at::Tensor& one, const at::Tensor& other, const std::string& what) {
    require(at::equal(one.cpu(), other.cpu()), what);
}

/// The operators of a small training, mixed precision and some that return or resize other tensors.
void operators() {
    const at::Tensor numbers = at::arange(12, at::kFloat).view({3, 4});
    const at::Tensor on_gpu = numbers.cuda();
    require_equal(on_gpu.t().contiguous(), numbers.t(), "a transposed copy");
    require_equal(on_gpu.to(at::kHalf), numbers.to(at::kHalf), "a conversion");
    require_equal(on_gpu.mm(on_gpu.t()), numbers.mm(numbers.t()), "a product of matrices");
    require_equal(at::cat({on_gpu, on_gpu}), at::cat({numbers, numbers}), "cat()");
    const at::Tensor picked = at::tensor({2, 0});
    require_equal(on_gpu.index({picked.cuda()}), numbers.index({picked}), "index()");
    at::Tensor out = at::empty({0}, at::kCUDA);
    at::add_out(out, on_gpu, on_gpu);
    require_equal(out, numbers + numbers, "a result that was resized");
    std::vector<at::Tensor> list{on_gpu.clone(), on_gpu.clone()};
    at::_foreach_mul_(list, 2.0);
    require_equal(list[1], numbers * 2, "_foreach_mul_()");
    require(on_gpu.select(0, 1)[2].item<float>() == 6, "a view");
    require_equal(on_gpu.to("cuda:1"), numbers, "a copy to another GPU");
    say("right");
}

torch::nn::Sequential make_network() {
    using namespace torch::nn;  // NOLINT: a list of layers
    torch::manual_seed(1);
    return Sequential(Conv2d(Conv2dOptions(1, 4, 3).padding(1)), BatchNorm2d(4), ReLU(),
                      MaxPool2d(2), Flatten(), Linear(64, 10));
}

/// A training gives the same bits as on CPUs: the CPU's kernels run.
void training() {
    const auto train = [](at::Device device) {
        torch::nn::Sequential network = make_network();
        network->to(device);
        torch::optim::Adam optimizer(network->parameters(), torch::optim::AdamOptions(1e-2));
        float loss = 0;
        for (int step = 0; step < 10; ++step) {
            torch::manual_seed(static_cast<std::uint64_t>(step));
            const at::Tensor images = at::randn({8, 1, 8, 8}).to(device);
            const at::Tensor labels = at::randint(10, {8}).to(device);
            optimizer.zero_grad();
            const at::Tensor result =
                torch::nn::functional::cross_entropy(network->forward(images), labels);
            result.backward();
            optimizer.step();
            loss = result.item<float>();
        }
        return loss;
    };
    const float on_cpu = train(at::kCPU);
    const float on_gpu = train(at::kCUDA);
    require(on_cpu == on_gpu, fmt::format("a loss of {} and of {}", on_cpu, on_gpu));
    at::autocast::set_autocast_enabled(at::kCUDA, true);
    torch::nn::Linear layer(16, 4);
    layer->to(at::kCUDA);
    require(layer(at::randn({8, 16}).cuda()).scalar_type() == at::kHalf, "autocast");
    say("right");
}

/// CUDA's generator has a state of its own, which a checkpoint holds.
void random_numbers() {
    at::Generator generator = at::cuda::detail::getDefaultCUDAGenerator();
    const at::Tensor ones = at::ones({1000}, at::kCUDA);
    torch::manual_seed(1);
    const at::Tensor state = generator.get_state();
    const at::Tensor on_cpu = at::randn({4});
    const at::Tensor first = at::dropout(ones, 0.5, true);
    const at::Tensor second = at::dropout(ones, 0.5, true);
    require(!at::equal(first, second), "the generator does not go on");
    {
        const std::lock_guard lock(generator.mutex());
        generator.set_state(state);
    }
    require_equal(at::dropout(ones, 0.5, true), first, "numbers after the state is set");
    torch::manual_seed(1);
    (void)at::dropout(ones, 0.5, true);
    require_equal(at::randn({4}), on_cpu, "CUDA's numbers change those of the CPU");
    say("right");
}

bool is_poisoned(const at::Tensor& tensor) {
    return tensor.cpu().isnan().all().item<bool>();
}

/// A tensor that a side stream still reads is given back. With record_stream() its memory stays.
void freed_memory() {
    require(is_poisoned(at::empty({kMany}, at::kCUDA)), "fresh memory is not poisoned");
    const c10::cuda::CUDAStream side = c10::cuda::getStreamFromPool();
    for (const bool is_recorded : {true, false}) {
        const at::Tensor copied = at::zeros({kMany}).pin_memory();
        at::Tensor source = at::ones({kMany}).cuda();
        torch::cuda::synchronize();
        if (is_recorded) {
            source.record_stream(side);
        }
        const at::Tensor slow = at::ones({kMany}).pin_memory();
        at::Tensor target = at::empty({kMany}, at::kCUDA);
        torch::cuda::synchronize();
        {
            // Each task takes a while: the last of them reads after the memory was given back.
            const c10::cuda::CUDAStreamGuard guard(side);
            target.copy_(slow, /*non_blocking=*/true);
            target.copy_(slow, /*non_blocking=*/true);
            copied.copy_(source, /*non_blocking=*/true);
        }
        source = at::Tensor();
        side.synchronize();
        require(is_poisoned(copied) != is_recorded,
                is_recorded ? "memory that is recorded is poisoned" : "freed memory is not");
    }
    say("right");
}

/// An asynchronous error stays, and every later call has it.
void broken() {
    try {
        for (int i = 0; i < 100; ++i) {
            (void)at::ones({4}).cuda().sum().item<float>();
        }
        wrong("the GPU is not broken");
    } catch (const std::exception& failure) {
        const std::string text = failure.what();
        require(text.find("illegal memory access") != std::string::npos, text);
    }
    try {
        (void)at::ones({4}).cuda();
        wrong("the GPU is whole again");
    } catch (const std::exception& failure) {
        say("broken");
    }
}

/// A copy goes from one GPU to the other, and an operator takes tensors of one alone.
void two_gpus() {
    const at::Tensor first = at::ones({4}, at::Device(at::kCUDA, 0));
    const at::Tensor second = first.to(at::Device(at::kCUDA, 1)).add(1);
    require_equal(second.to(first.device()), first + 1, "a tensor that was copied");
    try {
        (void)first.add(second);
        wrong("tensors of two GPUs are added up");
    } catch (const c10::Error& failure) {
        say(failure.msg().substr(0, failure.msg().find('!')));
    }
}

void out_of_memory() {
    try {
        (void)at::empty({std::int64_t{1} << 30}, at::TensorOptions(at::kCUDA).dtype(at::kByte));
        wrong("there is too much memory");
    } catch (const c10::OutOfMemoryError& failure) {
        say(failure.msg().substr(0, failure.msg().find('.')));
    }
    say(fmt::format("then {}", at::ones({4}, at::kCUDA).sum().item<float>()));
}

/// An operator that only CUDA has a kernel for ends the process.
void no_operator() {
    (void)at::empty({1}, at::kCUDA);  // the first use of a GPU brings the operators
    (void)at::_cudnn_init_dropout_state(0.5, true, 1, at::kCUDA);
}

void no_kernel() {
    at::cuda::sleep(1);  // tidy: allow sleep
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<void()>> scenarios = {
        {"broken", broken},
        {"freed_memory", freed_memory},
        {"no_kernel", no_kernel},
        {"no_operator", no_operator},
        {"operators", operators},
        {"out_of_memory", out_of_memory},
        {"random_numbers", random_numbers},
        {"training", training},
        {"two_gpus", two_gpus}};
    torch::set_num_threads(1);
    try {
        require(argc == 2, "usage: device_peer SCENARIO");
        scenarios.at(argv[1])();
        return 0;
    } catch (const std::exception& failure) {
        wrong(failure.what());
    }
}
