#pragma once

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

#include <torch/torch.h>

#include "base/os/unique_fd.hpp"
#include "worker_runtime/worker.hpp"

/// The training of `scripts/bench.sh checkpoint`, and the floors beside its saves.
namespace ddprun::test {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 2048;
constexpr std::int64_t kLayerBytes = 2 * 4 * kWidth * kWidth;  // parameters and momentum
constexpr std::size_t kDirectBytes = 16 << 20;                 // of one write past the page cache

inline double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

struct Times {
    double stall = 0;    ///< the training stands still
    double durable = 0;  ///< from the call until the disk has everything
    double work = 0;     ///< the training's computation meanwhile
};

/// Linear layers and SGD with momentum; tests/bench/checkpoint_peer.py has the same.
struct Training {
    explicit Training(std::int64_t bytes)
        : network(layers(bytes / kLayerBytes)),
          optimizer(network->parameters(), torch::optim::SGDOptions(1e-6).momentum(0.9)),
          state(network.ptr(), optimizer) {
        state.add("step", step);
        network->forward(torch::rand({1, kWidth})).sum().backward();
        optimizer.step();
        optimizer.zero_grad();
    }

    static torch::nn::Sequential layers(std::int64_t count) {
        torch::manual_seed(1);
        torch::nn::Sequential network;
        for (std::int64_t i = 0; i < count; ++i) {
            network->push_back(
                torch::nn::Linear(torch::nn::LinearOptions(kWidth, kWidth).bias(false)));
        }
        return network;
    }

    torch::nn::Sequential network;
    torch::optim::SGD optimizer;
    std::int64_t step = 0;
    TrainingState state;
};

/// Memory that has all its pages, as large as the rank's share of a checkpoint.
class Pages {
public:
    explicit Pages(std::size_t size)
        : size_(size),
          pages_(::mmap(nullptr, size, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0)) {
        if (pages_ == MAP_FAILED) {
            throw std::runtime_error("no memory for the floors");
        }
    }
    ~Pages() { (void)::munmap(pages_, size_); }
    Pages(const Pages&) = delete;
    Pages& operator=(const Pages&) = delete;

    /// The floor of a save beside the training.
    Times copy(const Training& training) const {
        const Clock::time_point begin = Clock::now();
        std::size_t at = 0;
        for (const torch::Tensor& parameter : training.network->parameters()) {
            const auto& own = static_cast<const torch::optim::SGDParamState&>(
                *training.optimizer.state().at(parameter.unsafeGetTensorImpl()));
            for (const torch::Tensor& tensor : {parameter, own.momentum_buffer()}) {
                const std::size_t bytes = std::min(tensor.nbytes(), size_ - at);
                std::memcpy(static_cast<std::byte*>(pages_) + at, tensor.const_data_ptr(), bytes);
                at += bytes;
            }
        }
        return {.stall = seconds_since(begin)};
    }

    /// The floor of what is on the disk.
    [[nodiscard]] Times write(const std::string& path) const {
        const Clock::time_point begin = Clock::now();
        UniqueFd fd(
            ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_DIRECT | O_CLOEXEC, 0666));
        for (std::size_t at = 0; at < size_;) {
            const ssize_t written = ::write(fd.get(), static_cast<const std::byte*>(pages_) + at,
                                            std::min(kDirectBytes, size_ - at));
            if (written <= 0) {
                throw std::runtime_error(path + " cannot be written past the page cache");
            }
            at += static_cast<std::size_t>(written);
        }
        if (::fsync(fd.get()) != 0) {
            throw std::runtime_error(path + " cannot be synced");
        }
        const double durable = seconds_since(begin);
        (void)::unlink(path.c_str());
        return {.stall = durable, .durable = durable};
    }

private:
    std::size_t size_;
    void* pages_;
};

}  // namespace ddprun::test
