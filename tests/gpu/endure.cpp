// One rank of a training in which ranks die: `endure FOLDER STEPS TIMEOUT`. It resumes from
// FOLDER's newest checkpoint, and trains until STEPS steps are done. TIMEOUT, in milliseconds, is
// the group's. A step has a copy, a collective, a backward pass with the reducer, and a checkpoint:
// each is a place. With ENDURE_DEATH="PLACE STEP MICROSECONDS" the rank kills itself so long after
// it came to that place of the STEP-th step that it does itself; `init` and `resume` are of step 0.
//
// Says one line for each step that it has done, with the hash of all parameters, and with each
// place, how many microseconds it took, and how many operations of the fake NCCL this process had
// begun before and after it. When a rank is
// lost it says where it learnt of it and what its parameters are, and exits 4. A result that is not
// what it must be, although check() has found nothing, is a line that starts with "wrong:", and
// exit 1.

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <optional>
#include <sstream>
#include <string>
#include <string_view>
#include <thread>
#include <utility>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/checkpoint/hashing.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::checked;
using ddprun::ProcessGroup;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::require;
using ddprun::test::say;
using torch::nn::Linear;
using Clock = std::chrono::steady_clock;

constexpr std::int64_t kInputs = 64;
constexpr std::int64_t kBatch = 256;
constexpr int kLostExit = 4;

struct Death {
    std::string place;
    std::int64_t step = 0;  ///< of those that this process does, from 1
    std::chrono::microseconds after{};
};

std::optional<Death> read_death() {
    const char* const text = std::getenv("ENDURE_DEATH");
    if (text == nullptr) {
        return std::nullopt;
    }
    Death death;
    std::int64_t microseconds = 0;
    std::istringstream(text) >> death.place >> death.step >> microseconds;
    death.after = std::chrono::microseconds(microseconds);
    return death;
}

[[noreturn]] void die() {
    say(fmt::format("dies at {}", Clock::now().time_since_epoch().count()));
    (void)kill(getpid(), SIGKILL);
    ddprun::test::hang();
}

/// How many operations of NCCL this process has begun; 0 if NCCL is not the fake one.
long operations_begun() {
    using Count = long (*)();
    static const auto count = reinterpret_cast<Count>(dlsym(RTLD_DEFAULT, "ncclFakeGpuOperations"));
    return count == nullptr ? 0 : count();
}

/// The place that the rank has reached. If the rank is to kill itself at a place, another thread
/// does so there, whatever this one does then.
class Places {
public:
    explicit Places(std::optional<Death> death) : death_(std::move(death)) {}

    void enter(std::string_view place, std::int64_t step) {
        leave();
        place_ = place;
        if (death_ && death_->place == place && death_->step == step) {
            std::thread([after = death_->after] {
                std::this_thread::sleep_for(after);  // tidy: allow sleep
                die();
            }).detach();
        }
    }

    void leave() {
        const Clock::time_point now = Clock::now();
        if (!place_.empty()) {
            took_ += fmt::format(
                " {} {} {} {}", place_,
                std::chrono::duration_cast<std::chrono::microseconds>(now - entered_).count(),
                begun_, operations_begun());
        }
        place_.clear();
        entered_ = now;
        begun_ = operations_begun();
    }

    [[nodiscard]] const std::string& place() const { return place_; }

    /// "PLACE MICROSECONDS BEGUN BEGUN …" of all places since the last call.
    std::string take_times() { return std::exchange(took_, ""); }

private:
    std::optional<Death> death_;
    std::string place_;
    std::string took_;
    Clock::time_point entered_ = Clock::now();
    long begun_ = 0;
};

torch::nn::Sequential make_network(const torch::Device& device) {
    torch::manual_seed(7);
    torch::nn::Sequential network(Linear(kInputs, 256), torch::nn::Tanh(), Linear(256, 256),
                                  torch::nn::Tanh(), Linear(256, 4));
    network->to(device);
    return network;
}

std::string hash_of(const torch::nn::Module& network) {
    ddprun::worker::Xxh3Hasher hasher;
    for (const torch::Tensor& parameter : network.parameters()) {
        const torch::Tensor plain = parameter.detach().to(torch::kCPU).contiguous();
        hasher.add({static_cast<const std::byte*>(plain.const_data_ptr()), plain.nbytes()});
    }
    return hasher.hex();
}

ddprun::ProcessGroupOptions with_timeout(const std::string& milliseconds) {
    ddprun::ProcessGroupOptions options;
    options.timeout = std::chrono::milliseconds(std::stoi(milliseconds));
    options.join_timeout = std::chrono::seconds(10);
    return options;
}

class Training {
public:
    Training(Worker& worker, const Arguments& arguments, Places& places)
        : worker_(worker),
          places_(places),
          steps_(std::stoll(arguments.at(1))),
          group_(join(arguments.at(2))),
          network_(make_network(group_.device())),
          model_(network_, group_, {.bucket_bytes = 1 << 16, .first_bucket_bytes = 1 << 14}),
          optimizer_(network_->parameters(), torch::optim::AdamOptions(1e-3)),
          state_(network_.ptr(), optimizer_),
          checkpoints_(arguments.at(0), worker, group_) {}

    void run() {
        places_.enter("resume", 0);
        step_ = checked(checkpoints_.resume(state_)).value_or(0);
        places_.leave();
        tell_parameters("resumed");
        for (std::int64_t own = 1; step_ < steps_; ++own) {
            do_step(own);
            tell_parameters("step");
        }
        places_.enter("finish", 0);
        (void)worker_.finish();
    }

    /// The parameters after a step, or before one that was not to be.
    void tell_parameters(std::string_view why) {
        say(fmt::format("{} {} {}{}", why, step_, hash_of(*network_), places_.take_times()));
    }

private:
    ProcessGroup join(const std::string& timeout) {
        places_.enter("init", 0);
        return checked(worker_.process_group(ddprun::Backend::Auto, with_timeout(timeout)));
    }

    void do_step(std::int64_t own) {
        places_.enter("copy", own);
        const torch::Tensor inputs = copy_to_device();
        places_.enter("collective", own);
        add_up_ranks();
        places_.enter("reducer", own);
        optimizer_.zero_grad();
        model_.forward(inputs).pow(2).mean().backward();
        await_device();
        checked(group_.check("the gradients"));
        optimizer_.step();
        ++step_;
        places_.enter("save", own);
        checked(checkpoints_.save(step_, state_));
        places_.leave();
    }

    torch::Tensor copy_to_device() {
        torch::manual_seed(1000 * step_ + worker_.rank());
        torch::Tensor inputs = torch::randn({kBatch, kInputs});
        if (group_.device().is_cuda()) {
            inputs = inputs.pin_memory();
        }
        torch::Tensor there = inputs.to(group_.device(), /*non_blocking=*/true);
        require(there.to(torch::kCPU).equal(inputs), "a batch that was copied there and back");
        return there;
    }

    void add_up_ranks() {
        torch::Tensor sum = torch::full({1 << 16}, worker_.rank() + step_,
                                        torch::dtype(torch::kInt64).device(group_.device()));
        checked(group_.all_reduce(sum));
        const torch::Tensor read = sum.to(torch::kCPU);
        checked(group_.check("the sum"));
        std::int64_t expected = 0;
        for (int rank = 0; rank < worker_.world_size(); ++rank) {
            expected += rank + step_;
        }
        require(read.eq(expected).all().item<bool>(),
                "a sum over the ranks that check() has let by");
    }

    void await_device() const {
        if (group_.device().is_cuda()) {
            torch::cuda::synchronize(group_.device().index());
        }
    }

    Worker& worker_;
    Places& places_;
    std::int64_t steps_;
    std::int64_t step_ = 0;
    ProcessGroup group_;
    torch::nn::Sequential network_;
    ddprun::DistributedDataParallel<torch::nn::SequentialImpl> model_;
    torch::optim::Adam optimizer_;
    ddprun::TrainingState state_;
    ddprun::Checkpoints checkpoints_;
};

void tell_loss(const Places& places, const std::exception& failure) {
    const std::string what = failure.what();
    say(fmt::format("lost in {} at {}: {}", places.place(), Clock::now().time_since_epoch().count(),
                    what.substr(0, what.find('\n'))));
}

}  // namespace

int main(int argc, char** argv) {
    torch::set_num_threads(1);
    const Arguments arguments(argv + 1, argv + argc);
    Places places(read_death());
    Worker worker = ddprun::test::must(Worker::from_environment());
    std::optional<Training> training;
    try {
        training.emplace(worker, arguments, places);
        training->run();
        return 0;
    } catch (const std::exception& failure) {
        tell_loss(places, failure);
    }
    if (training) {
        training->tell_parameters("holds");
    }
    return kLostExit;
}
