// Model parallelism: a network that is cut in two, one half on each of two workers. Activations go
// forward by the group's send and recv, gradients come back the same way. Alone, a process holds
// both halves: the parameters in the end are the same.

#include <array>
#include <cstdint>
#include <cstdio>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
constexpr double kLearningRate = 0.1;

/// Both halves.
struct NetworkImpl : torch::nn::Module {
    NetworkImpl()
        : first(register_module("first",
                                Sequential(Conv2d(Conv2dOptions(1, 16, 3).padding(1)), ReLU(),
                                           Conv2d(Conv2dOptions(16, 32, 3).padding(1)), ReLU(),
                                           torch::nn::MaxPool2d(2)))),
          second(register_module("second", Sequential(torch::nn::Flatten(), Linear(32 * 4 * 4, 64),
                                                      ReLU(), Linear(64, 10)))) {}
    Sequential first;
    Sequential second;
};
TORCH_MODULE(Network);

/// Into so many parts each batch is cut: the second half computes on one while the first half is at
/// the next.
constexpr std::int64_t kParts = 4;

/// The shape of the activations that go from the first half to the second, for one image.
constexpr std::array<std::int64_t, 3> kActivations = {32, 4, 4};

struct Arguments {
    int epochs = 5;
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
          optimizer_(network_->parameters(), torch::optim::SGDOptions(kLearningRate)),
          // Both workers see the same batches: it shares out among one.
          sampler_(digits.train.size(), 0, 1, {.seed = kSeed}),
          state_(network_.ptr(), optimizer_),
          checkpoints_(arguments.checkpoint_dir, worker, group_) {
        state_.add("sampler", sampler_);
        state_.add("epochs_done", epochs_done_);
        state_.add("step", step_);
    }

    int run() {
        if (const auto resumed = checked(checkpoints_.resume(state_))) {
            tell(fmt::format("resumed from step {}", *resumed));
        }
        while (epochs_done_ < arguments_.epochs) {
            double loss = 0;
            while (const std::optional<torch::Tensor> batch = sampler_.next_batch(kBatchSize)) {
                loss = train_step(*batch);
                worker_.progress(++step_);
                if (worker_.stop_requested()) {
                    return worker_.leave(save());
                }
            }
            ++epochs_done_;
            sampler_.set_epoch(sampler_.epoch() + 1);
            checked(save());
            tell(fmt::format("epoch {}/{}: loss {:.4f}", epochs_done_, arguments_.epochs, loss));
        }
        bring_halves_together();
        const torch::NoGradGuard no_grad;
        const torch::Tensor guesses =
            network_->second->forward(network_->first->forward(digits_.test.images)).argmax(1);
        const torch::Tensor is_right = guesses.eq(digits_.test.labels).to(torch::kFloat64);
        tell(fmt::format("accuracy {:.2f}%", 100 * is_right.mean().item<double>()));
        tell(fmt::format("parameters {:016x}", digits::parameter_hash(*network_)));
        return worker_.finish();
    }

private:
    [[nodiscard]] int last() const { return worker_.world_size() - 1; }
    [[nodiscard]] bool has_first() const { return worker_.rank() == 0; }
    [[nodiscard]] bool has_second() const { return worker_.rank() == last(); }

    void tell(const std::string& line) const {
        if (has_second()) {
            fmt::print("{}\n", line);
            (void)std::fflush(stdout);
        }
    }

    /// The loss, where the second half is.
    double train_step(const torch::Tensor& batch) {
        optimizer_.zero_grad();
        const auto images = digits_.train.images.index_select(0, batch).chunk(kParts);
        const auto labels = digits_.train.labels.index_select(0, batch).chunk(kParts);
        std::vector<torch::Tensor> activations;
        double loss = 0;
        for (std::size_t part = 0; part < images.size(); ++part) {
            activations.push_back(forward_first(images[part]));
            if (has_second()) {
                const double share =
                    static_cast<double>(labels[part].size(0)) / static_cast<double>(batch.size(0));
                const torch::Tensor part_loss =
                    share * torch::nn::functional::cross_entropy(
                                network_->second->forward(activations.back()), labels[part]);
                part_loss.backward();
                loss += part_loss.item<double>();
            }
        }
        if (last() > 0) {
            for (const torch::Tensor& activation : activations) {
                backward_first(activation);
            }
        }
        optimizer_.step();
        return loss;
    }

    /// The first half's answer, here or from the worker that has it.
    torch::Tensor forward_first(const torch::Tensor& images) {
        if (!has_first()) {
            const auto [channels, height, width] = kActivations;
            torch::Tensor received = torch::empty({images.size(0), channels, height, width});
            checked(group_.recv(received, 0));
            return received.requires_grad_();
        }
        torch::Tensor activations = network_->first->forward(images);
        if (!has_second()) {
            checked(group_.send(activations.detach(), last()));
        }
        return activations;
    }

    /// The gradient goes back, and on through the first half.
    void backward_first(const torch::Tensor& activation) {
        if (has_second()) {
            checked(group_.send(activation.grad(), 0));
            return;
        }
        torch::Tensor gradient = torch::empty_like(activation);
        checked(group_.recv(gradient, last()));
        activation.backward(gradient);
    }

    /// Gives both workers both halves as they are now, for a checkpoint or a test. An optimizer
    /// that remembers something would have its tensors given the same way.
    void bring_halves_together() {
        for (const auto& [half, owner] :
             {std::pair(network_->first, 0), std::pair(network_->second, last())}) {
            for (const torch::Tensor& parameter : half->parameters()) {
                torch::Tensor values = parameter.detach();
                checked(group_.broadcast(values, owner));
            }
        }
    }

    ddprun::Result<void> save() {
        bring_halves_together();
        return checkpoints_.save(step_, state_);
    }

    const Arguments& arguments_;
    ddprun::Worker& worker_;
    ddprun::ProcessGroup group_;
    const digits::Digits& digits_;
    Network network_;
    ddprun::FusedSGD optimizer_;  ///< passes over the half that has no gradients here
    ddprun::DistributedSampler sampler_;
    std::int64_t epochs_done_ = 0;
    std::int64_t step_ = 0;
    ddprun::TrainingState state_;
    ddprun::Checkpoints checkpoints_;
};

int train(const Arguments& arguments, ddprun::Worker& worker) {
    if (worker.world_size() > 2) {
        fmt::print(stderr, "two_halves: {} workers; it is for two, or one alone\n",
                   worker.world_size());
        return 2;
    }
    ddprun::deterministic(kSeed);
    torch::set_num_threads(1);  // the network is too small for more
    const digits::Digits digits = checked(digits::read_digits(arguments.data));
    return Training(arguments, worker, checked(worker.process_group(ddprun::Backend::Gloo)), digits)
        .run();
}

}  // namespace

int main(int argc, char** argv) {
    Arguments arguments;
    CLI::App app(
        "Trains a digit classifier whose two halves are on two workers: "
        "ddprun --nproc-per-node 2 two_halves. Alone, both halves are here.");
    app.option_defaults()->always_capture_default();
    app.add_option("--epochs", arguments.epochs, "train until this many are done")
        ->check(CLI::Range(1, 1'000'000));
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
