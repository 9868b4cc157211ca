// Trains a small convolutional network on handwritten digits, on all workers of a job. The parts
// that make it survive: Checkpoints, stop_requested() after each step, and run() around it all.

#include <chrono>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include <fmt/format.h>
#include <torch/torch.h>

#include "examples/train_digits/arguments.hpp"
#include "examples/train_digits/digits.hpp"
#include "examples/train_digits/network.hpp"
#include "worker_runtime/worker.hpp"

namespace digits {

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
}

/// One line on stdout, at once.
void say(const std::string& line) {
    fmt::print("{}\n", line);
    (void)std::fflush(stdout);
}

/// The training as one rank sees it.
class Training {
public:
    Training(const Arguments& arguments, ddprun::Worker& worker, const Digits& digits)
        : arguments_(arguments),
          worker_(worker),
          group_(checked(worker.process_group())),
          digits_(digits),
          network_(make_network(group_.device())),
          optimizer_(network_->parameters(), torch::optim::AdamOptions(arguments.lr)),
          model_(network_, group_),
          sampler_(digits.train.size(), worker.rank(), worker.world_size(),
                   {.seed = arguments.seed}),
          state_(network_.ptr(), optimizer_),
          checkpoints_(arguments.checkpoint_dir, worker, group_) {
        state_.add("sampler", sampler_);
        state_.add("epochs_done", epochs_done_);
        state_.add("step", step_);
        state_.add_sum("epoch_loss", epoch_loss_);
    }

    /// Main's exit code.
    int run() {
        if (const auto resumed_from = checked(checkpoints_.resume(state_))) {
            tell(fmt::format("resumed from step {} ({} of {} epochs done)", *resumed_from,
                             epochs_done_, arguments_.epochs));
        }
        if (epochs_done_ < arguments_.epochs) {
            tell(fmt::format("training on {} worker{}, {} images, epochs {} to {}",
                             worker_.world_size(), worker_.world_size() == 1 ? "" : "s",
                             digits_.train.size(), epochs_done_ + 1, arguments_.epochs));
        }
        while (epochs_done_ < arguments_.epochs) {
            if (!train_epoch()) {
                tell("asked to leave: saving");
                return worker_.leave(checkpoints_.save(step_, state_));
            }
            end_epoch();
        }
        tell(fmt::format("finished {} epochs: accuracy {:.2f}%", arguments_.epochs,
                         100 * test_accuracy()));
        tell(fmt::format("parameters {:016x}", parameter_hash(*network_)));
        return worker_.finish();
    }

private:
    void tell(const std::string& line) const {
        if (worker_.rank() == 0) {
            say(line);
        }
    }

    /// False when all ranks have agreed to leave.
    bool train_epoch() {
        epoch_started_ = Clock::now();
        images_seen_ = 0;
        network_->train();
        while (const std::optional<torch::Tensor> batch =
                   sampler_.next_batch(arguments_.batch_size)) {
            train_step(*batch);
            if (worker_.stop_requested()) {
                return false;
            }
        }
        return true;
    }

    void train_step(const torch::Tensor& batch) {
        const torch::Tensor images = digits_.train.images.index_select(0, batch);
        const torch::Tensor labels = digits_.train.labels.index_select(0, batch);
        optimizer_.zero_grad();
        const torch::Tensor loss = torch::nn::functional::cross_entropy(
            model_.forward(images.to(group_.device())), labels.to(group_.device()));
        loss.backward();
        optimizer_.step();
        const double mean = loss.item<double>();
        epoch_loss_[0] += mean * static_cast<double>(batch.size(0));
        epoch_loss_[1] += static_cast<double>(batch.size(0));
        images_seen_ += batch.size(0) * worker_.world_size();
        ++step_;
        worker_.progress(step_);
        if (!has_stepped_) {
            has_stepped_ = true;
            tell(fmt::format("first step: loss {:.4f}", mean));
        }
    }

    /// Tests, starts the next epoch, saves, reports.
    void end_epoch() {
        torch::Tensor loss = epoch_loss_.clone();
        checked(group_.all_reduce(loss));
        const double rate = static_cast<double>(images_seen_) / seconds_since(epoch_started_);
        const double accuracy = test_accuracy();
        worker_.scalar("accuracy", accuracy, step_);
        wait_out_epoch();
        ++epochs_done_;
        sampler_.set_epoch(sampler_.epoch() + 1);
        epoch_loss_.zero_();
        // Training goes on without it: the disk may have room again after the next epoch.
        const ddprun::Result<void> saved = checkpoints_.save_async(step_, state_);
        if (!saved) {
            fmt::print(stderr, "train_digits: epoch {} is not saved: {}\n", epochs_done_,
                       saved.error().what);
        }
        const double left =
            static_cast<double>(arguments_.epochs - epochs_done_) * seconds_since(epoch_started_);
        tell(fmt::format(
            "epoch {}/{}: loss {:.4f}, accuracy {:.2f}%, {:.0f} images/s, {:.0f} s left",
            epochs_done_, arguments_.epochs, loss[0].item<double>() / loss[1].item<double>(),
            100 * accuracy, rate, left));
    }

    double test_accuracy() {
        network_->eval();
        const ImageSet& test = digits_.test;
        const auto is_right = [&](const torch::Tensor& indices) {
            const torch::Tensor images = test.images.index_select(0, indices);
            const torch::Tensor guesses =
                network_->forward(images.to(group_.device())).argmax(1).to(torch::kCPU);
            return guesses.eq(test.labels.index_select(0, indices)).unsqueeze(1);
        };
        const torch::Tensor right =
            checked(ddprun::evaluate(group_, test.size(), kTestBatch, is_right));
        return right[0].item<double>() / static_cast<double>(test.size());
    }

    void wait_out_epoch() const {
        const double rest = arguments_.min_epoch_seconds - seconds_since(epoch_started_);
        if (rest > 0) {
            // Only for those who watch: nothing waits for this.
            std::this_thread::sleep_for(std::chrono::duration<double>(rest));  // tidy: allow sleep
        }
    }

    static constexpr std::int64_t kTestBatch = 256;

    const Arguments& arguments_;
    ddprun::Worker& worker_;
    ddprun::ProcessGroup group_;
    const Digits& digits_;
    torch::nn::Sequential network_;
    torch::optim::Adam optimizer_;
    ddprun::DistributedDataParallel<torch::nn::SequentialImpl> model_;
    ddprun::DistributedSampler sampler_;
    std::int64_t epochs_done_ = 0;
    std::int64_t step_ = 0;
    torch::Tensor epoch_loss_ = torch::zeros({2}, torch::kFloat64);  ///< sum and count, this rank's
    ddprun::TrainingState state_;
    ddprun::Checkpoints checkpoints_;

    bool has_stepped_ = false;
    std::int64_t images_seen_ = 0;  ///< by all ranks, in this epoch, by this process
    Clock::time_point epoch_started_;
};

}  // namespace

}  // namespace digits

int main(int argc, char** argv) {
    const digits::Parsed parsed = digits::parse_arguments(argc, argv);
    if (parsed.exit_code) {
        return *parsed.exit_code;
    }
    return ddprun::run(argc, argv, [&parsed](ddprun::Worker& worker) {
        torch::set_num_threads(1);  // the network is too small for more
        if (torch::cuda::is_available()) {
            ddprun::deterministic(parsed.arguments.seed);
        } else {
            torch::manual_seed(parsed.arguments.seed);  // its kernels for CPUs are
        }
        const digits::Digits digits = checked(digits::read_digits(parsed.arguments.data));
        return digits::Training(parsed.arguments, worker, digits).run();
    });
}
