// One rank of `scripts/bench.sh checkpoint`: `checkpoint_rank MEBIBYTES FOLDER`. Reads commands,
// one line each, carries a command out once all ranks have read it, and answers with its Times and
// the CPU seconds of this process. Exits at the end of its input.

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "base/os/unique_fd.hpp"
#include "tests/support/rank.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::checked;
using ddprun::Checkpoints;
using ddprun::ProcessGroup;
using ddprun::TrainingState;
using ddprun::UniqueFd;
using ddprun::Worker;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kWidth = 2048;
constexpr std::int64_t kLayerBytes = 2 * 4 * kWidth * kWidth;  // parameters and momentum
constexpr std::int64_t kMatrix = 512;
constexpr std::size_t kDirectBytes = 16 << 20;  // of one write past the page cache

double seconds_since(Clock::time_point begin) {
    return std::chrono::duration<double>(Clock::now() - begin).count();
}

/// The CPU time of this process so far, all threads.
double cpu_seconds() {
    rusage use{};
    (void)::getrusage(RUSAGE_SELF, &use);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(use.ru_utime) + seconds(use.ru_stime);
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

double compute(int multiplications) {
    static const torch::Tensor matrix = torch::rand({kMatrix, kMatrix});
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < multiplications; ++i) {
        (void)torch::matmul(matrix, matrix);
    }
    return seconds_since(begin);
}

Times save(Checkpoints& checkpoints, Training& training) {
    const Clock::time_point begin = Clock::now();
    checked(checkpoints.save(++training.step, training.state));
    const double durable = seconds_since(begin);
    return {.stall = durable, .durable = durable};
}

/// Saves beside the training, which computes and then wants to step.
Times save_beside(Checkpoints& checkpoints, Training& training, int multiplications) {
    const Clock::time_point begin = Clock::now();
    checked(checkpoints.save_async(++training.step, training.state));
    Times times{.stall = seconds_since(begin)};
    times.work = compute(multiplications);
    const Clock::time_point ready = Clock::now();
    checkpoints.before_step();
    times.stall += seconds_since(ready);
    checked(checkpoints.wait());
    times.durable = seconds_since(begin);
    return times;
}

Times resume(Checkpoints& checkpoints, Training& training) {
    const torch::Tensor first = training.network->parameters().front().detach();
    first.zero_();
    const Clock::time_point begin = Clock::now();
    const bool is_resumed = checked(checkpoints.resume(training.state)) == training.step;
    const Times times{.stall = seconds_since(begin)};
    if (!is_resumed || first.count_nonzero().item<std::int64_t>() == 0) {
        throw std::runtime_error("what was saved does not come back");
    }
    return times;
}

int serve(Worker& worker, std::int64_t bytes, const std::string& folder) {
    ProcessGroup group = checked(worker.process_group());
    Training training(bytes);
    const Pages pages(static_cast<std::size_t>(bytes / worker.world_size()));
    // Nothing is removed in the time that is measured, as with PyTorch's.
    Checkpoints checkpoints(folder, worker, group, {.keep = 1000, .prepares_save_async = true});
    (void)checked(checkpoints.resume(training.state));
    Checkpoints removing(folder + "-removing", worker, group, {.keep = 1});
    const std::string scratch = folder + ".direct-" + std::to_string(worker.rank());
    const std::map<std::string, std::function<Times(int)>> commands = {
        {"memcpy", [&](int) { return pages.copy(training); }},
        {"direct", [&](int) { return pages.write(scratch); }},
        {"compute", [](int count) { return Times{.work = compute(count)}; }},
        {"save", [&](int) { return save(checkpoints, training); }},
        {"save_removing", [&](int) { return save(removing, training); }},
        {"beside", [&](int count) { return save_beside(checkpoints, training, count); }},
        {"resume", [&](int) { return resume(checkpoints, training); }},
    };
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command;
        int count = 0;
        words >> command >> count;
        checked(group.barrier());
        const double cpu = cpu_seconds();
        const Times times = commands.at(command)(count);
        ddprun::test::say(fmt::format("{} {} {} {}", times.stall, times.durable, times.work,
                                      cpu_seconds() - cpu));
    }
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    return ddprun::run(argc, argv, [&](Worker& worker) {
        if (argc != 3) {
            throw std::runtime_error("usage: checkpoint_rank MEBIBYTES FOLDER");
        }
        return serve(worker, std::stoll(argv[1]) << 20, argv[2]);
    });
}
