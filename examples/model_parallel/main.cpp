// Model parallelism within a process: a network in two halves on two GPUs of one worker. The
// activations are copied from the first to the second in forward(), and autograd copies the
// gradients back. With more workers than one each has two GPUs, and DistributedDataParallel
// averages the gradients of both.

#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>

#include <CLI/CLI.hpp>
#include <fmt/format.h>
#include <torch/torch.h>

#include "examples/train_digits/digits.hpp"
#include "examples/train_digits/network.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::checked;
using torch::nn::Conv2d;
using torch::nn::Conv2dOptions;
using torch::nn::Linear;
using torch::nn::ReLU;
using torch::nn::Sequential;

constexpr std::uint64_t kSeed = 1;
constexpr std::int64_t kBatchSize = 32;
constexpr int kGpusPerWorker = 2;

/// Each half on a device of its own.
struct NetworkImpl : torch::nn::Module {
    NetworkImpl(torch::Device first_device, torch::Device second_device)
        : at_first(first_device),
          at_second(second_device),
          first(register_module("first",
                                Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(),
                                           Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(),
                                           torch::nn::MaxPool2d(2)))),
          second(register_module("second",
                                 Sequential(torch::nn::Flatten(), Linear(32 * 4 * 4, 64), ReLU(),
                                            torch::nn::Dropout(0.25), Linear(64, 10)))) {
        first->to(at_first);
        second->to(at_second);
    }

    torch::Tensor forward(const torch::Tensor& images) {
        const torch::Tensor activations = first->forward(images.to(at_first));
        return second->forward(activations.to(at_second));
    }

    torch::Device at_first;
    torch::Device at_second;
    Sequential first;
    Sequential second;
};
TORCH_MODULE(Network);

struct Arguments {
    int epochs = 5;
    bool is_on_one_device = false;
    std::string checkpoint_dir = "checkpoints";
    std::string data = TRAIN_DIGITS_DATA;
};

class Training {
public:
    Training(const Arguments& arguments, ddprun::Worker& worker, ddprun::ProcessGroup group,
             const digits::Digits& digits)
        : arguments_(arguments),
          worker_(worker),
          group_(std::move(group)),
          digits_(digits),
          network_(group_.devices().front(),
                   arguments.is_on_one_device ? group_.devices().front() : group_.devices().back()),
          optimizer_(network_->parameters(), torch::optim::AdamWOptions(2e-3)),
          model_(network_, group_),
          sampler_(digits.train.size(), worker.rank(), worker.world_size(), {.seed = kSeed}),
          state_(network_.ptr(), optimizer_),
          checkpoints_(arguments.checkpoint_dir, worker, group_) {
        state_.add("sampler", sampler_);
        state_.add("epochs_done", epochs_done_);
        state_.add("step", step_);
    }

    int run() {
        tell(fmt::format("first half on {}, second half on {}", network_->at_first.str(),
                         network_->at_second.str()));
        if (const auto resumed = checked(checkpoints_.resume(state_))) {
            tell(fmt::format("resumed from step {}", *resumed));
        }
        while (epochs_done_ < arguments_.epochs) {
            double loss = 0;
            while (const std::optional<torch::Tensor> batch = sampler_.next_batch(kBatchSize)) {
                loss = train_step(*batch);
                worker_.progress(++step_);
                if (worker_.stop_requested()) {
                    return worker_.leave(checkpoints_.save(step_, state_));
                }
            }
            ++epochs_done_;
            sampler_.set_epoch(sampler_.epoch() + 1);
            checked(checkpoints_.save_async(step_, state_));
            tell(fmt::format("epoch {}/{}: loss {:.6f}", epochs_done_, arguments_.epochs, loss));
        }
        checked(checkpoints_.wait());
        tell(fmt::format("accuracy {:.2f}%", 100 * test_accuracy()));
        tell(fmt::format("parameters {:016x}", digits::parameter_hash(*network_)));
        return worker_.finish();
    }

private:
    void tell(const std::string& line) const {
        if (worker_.rank() == 0) {
            fmt::print("{}\n", line);
            (void)std::fflush(stdout);
        }
    }

    double train_step(const torch::Tensor& batch) {
        const torch::Tensor images = digits_.train.images.index_select(0, batch);
        const torch::Tensor labels = digits_.train.labels.index_select(0, batch);
        optimizer_.zero_grad();
        // The loss is where the second half is, and so are the labels.
        const torch::Tensor loss = torch::nn::functional::cross_entropy(
            model_.forward(images), labels.to(network_->at_second));
        loss.backward();
        optimizer_.step();
        return loss.item<double>();
    }

    double test_accuracy() {
        const torch::NoGradGuard no_grad;
        network_->eval();
        const torch::Tensor guesses =
            network_->forward(digits_.test.images).argmax(1).to(torch::kCPU);
        return guesses.eq(digits_.test.labels).to(torch::kFloat64).mean().item<double>();
    }

    const Arguments& arguments_;
    ddprun::Worker& worker_;
    ddprun::ProcessGroup group_;
    const digits::Digits& digits_;
    Network network_;
    ddprun::FusedAdamW optimizer_;  ///< one kernel for the parameters of each device
    ddprun::DistributedDataParallel<NetworkImpl> model_;
    ddprun::DistributedSampler sampler_;
    std::int64_t epochs_done_ = 0;
    std::int64_t step_ = 0;
    ddprun::TrainingState state_;
    ddprun::Checkpoints checkpoints_;
};

int train(const Arguments& arguments, ddprun::Worker& worker) {
    ddprun::deterministic(kSeed);
    torch::set_num_threads(1);  // the network is too small for more
    const digits::Digits digits = checked(digits::read_digits(arguments.data));
    // On a machine with one GPU, as on one without, the CPU is both devices.
    const auto backend = torch::cuda::device_count() < kGpusPerWorker ? ddprun::Backend::Gloo
                                                                      : ddprun::Backend::Auto;
    return Training(arguments, worker,
                    checked(worker.process_group(backend, {.gpus_per_rank = kGpusPerWorker})),
                    digits)
        .run();
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments;
    CLI::App app(
        "Trains a digit classifier whose two halves are on two GPUs of each worker: "
        "ddprun --nproc-per-node 1 model_parallel. Without two GPUs both halves are on the CPU.");
    app.option_defaults()->always_capture_default();
    app.add_option("--epochs", arguments.epochs, "train until this many are done")
        ->check(CLI::Range(1, 1'000'000));
    app.add_flag("--one-device", arguments.is_on_one_device,
                 "both halves on the worker's first device: the same losses and parameters");
    app.add_option("--checkpoint-dir", arguments.checkpoint_dir,
                   "where checkpoints are written and looked for");
    app.add_option("--data", arguments.data, "the images: lines of 64 pixels from 0 to 16, label");
    try {
        app.parse(argc, argv);
    } catch (const CLI::ParseError& error) {
        return app.exit(error) == 0 ? 0 : 2;
    }
    return ddprun::run(argc, argv,
                       [&](ddprun::Worker& worker) { return train(arguments, worker); });
}
