// Two networks trained against each other, each with its optimizer, from a loader that is ahead.
//
//     gan train DIR KILLS SEED    the first KILLS generations die, at places that SEED decides
//     gan weights DIR             the generator alone, of the newest checkpoint

#include <signal.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include <fmt/format.h>
#include <torch/torch.h>

#include "base/rng.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using torch::nn::Linear;
using torch::nn::Sequential;

constexpr std::int64_t kSamples = 192;
constexpr std::int64_t kEpochs = 3;
constexpr std::int64_t kNoise = 4;
constexpr std::int64_t kSaveEvery = 4;

void say(const std::string& line) {
    fmt::print("{}\n", line);
    (void)std::fflush(stdout);
}

/// Points on a circle, with their numbers as targets.
struct Circle : torch::data::datasets::BatchDataset<Circle, torch::data::Example<>> {
    torch::data::Example<> get_batch(c10::ArrayRef<std::size_t> indices) override {
        torch::Tensor numbers =
            torch::empty({static_cast<std::int64_t>(indices.size())}, torch::kInt64);
        for (std::size_t i = 0; i < indices.size(); ++i) {
            numbers[static_cast<std::int64_t>(i)] = static_cast<std::int64_t>(indices[i]);
        }
        const torch::Tensor angles = numbers * (6.28318 / kSamples);
        return {torch::stack({angles.cos(), angles.sin()}, 1).to(torch::kFloat32), numbers};
    }
    [[nodiscard]] std::optional<std::size_t> size() const override { return kSamples; }
};

Sequential make_generator() {
    return Sequential(Linear(kNoise, 16), torch::nn::ReLU(), Linear(16, 2));
}

std::size_t hash_of(const torch::nn::Module& network) {
    std::string bytes;
    for (const torch::Tensor& parameter : network.parameters()) {
        bytes.append(static_cast<const char*>(parameter.const_data_ptr()), parameter.nbytes());
    }
    return std::hash<std::string>()(bytes);
}

enum class Place { InStep, BetweenNetworks, InSave };

/// The place at which this process dies if it is the generation's victim.
class Death {
public:
    Death(const ddprun::Worker& worker, std::uint64_t kills, std::uint64_t seed) {
        ddprun::Rng rng(seed + worker.generation());
        const auto victim =
            static_cast<int>(rng.below(static_cast<std::uint64_t>(worker.world_size())));
        steps_left_ = static_cast<std::int64_t>(rng.below(7));
        place_ = std::array{Place::InStep, Place::BetweenNetworks, Place::InSave}.at(rng.below(3));
        is_due_ = worker.generation() <= kills && worker.rank() == victim;
    }

    void count_step() { --steps_left_; }
    void come(Place place) const {
        if (is_due_ && place == place_ && steps_left_ < 0) {
            (void)raise(SIGKILL);
        }
    }

private:
    bool is_due_ = false;
    Place place_ = Place::InStep;
    std::int64_t steps_left_ = 0;  ///< of this process
};

/// The training as one rank sees it.
class Gan {
public:
    Gan(ddprun::Worker& worker, const std::string& dir, const Death& death)
        : worker_(worker),
          group_(checked(worker.process_group())),
          sampler_(kSamples, worker.rank(), worker.world_size(), {.seed = 5}),
          loader_(Circle(), sampler_, {.batch_size = 8, .workers = 2, .prefetch = 2}),
          checkpoints_(dir, worker, group_),
          death_(death) {
        state_.add_model("generator", generator_.ptr());
        state_.add_model("judge", judge_.ptr());
        state_.add_optimizer("generator_optimizer", generator_optimizer_);
        state_.add_optimizer("judge_optimizer", judge_optimizer_);
        state_.add("sampler", sampler_);
        state_.add("step", step_);
        state_.add_sum("seen", seen_);
        state_.add(
            "schedule",
            [this] {
                death_.come(Place::InSave);
                return ddprun::TrainingState::Snapshot{{{"rates", rates_}}, {{"kind", "halving"}}};
            },
            [this](const ddprun::TrainingState::Snapshot& stored) {
                if (stored.values.at("kind") != "halving") {
                    throw std::runtime_error("another schedule");
                }
                rates_ = stored.tensors.at("rates");
            });
    }

    int run() {
        ddprun::DistributedDataParallel generator(generator_, group_);
        ddprun::DistributedDataParallel judge(judge_, group_);
        if (const auto resumed_from = checked(checkpoints_.resume(state_))) {
            tell(fmt::format("resumed from step {}", *resumed_from));
        }
        while (sampler_.epoch() < kEpochs) {
            while (const std::optional<torch::data::Example<>> batch = loader_.next()) {
                train_step(generator, judge, *batch);
                if (step_ % kSaveEvery == 0) {
                    checked(checkpoints_.save(step_, state_));
                }
            }
            sampler_.set_epoch(sampler_.epoch() + 1);
            rates_ = rates_ / 2;
        }
        checked(checkpoints_.save(step_, state_));
        torch::Tensor seen = seen_.clone();
        checked(group_.all_reduce(seen));
        tell(fmt::format("each sample {} to {} times", seen.min().item<std::int64_t>(),
                         seen.max().item<std::int64_t>()));
        tell(fmt::format("generator {:016x}", hash_of(*generator_)));
        tell(fmt::format("judge {:016x}", hash_of(*judge_)));
        return worker_.finish();
    }

private:
    using Parallel = ddprun::DistributedDataParallel<torch::nn::SequentialImpl>;

    void tell(const std::string& line) const {
        if (worker_.rank() == 0) {
            say(line);
        }
    }

    void train_step(Parallel& generator, Parallel& judge, const torch::data::Example<>& batch) {
        death_.count_step();
        death_.come(Place::InStep);
        judge_optimizer_.param_groups()[0].options().set_lr(rates_[0].item<double>());
        const torch::Tensor noise = torch::randn({batch.data.size(0), kNoise});
        const torch::Tensor fakes = generator_->forward(noise).detach();
        judge_optimizer_.zero_grad();
        const torch::Tensor verdicts = judge.forward(torch::cat({batch.data, fakes}));
        const torch::Tensor truth =
            torch::cat({torch::ones({batch.data.size(0), 1}), torch::zeros({fakes.size(0), 1})});
        torch::binary_cross_entropy_with_logits(verdicts, truth).backward();
        judge_optimizer_.step();
        death_.come(Place::BetweenNetworks);

        for (torch::Tensor& parameter : judge_->parameters()) {
            parameter.set_requires_grad(false);
        }
        generator_optimizer_.zero_grad();
        const torch::Tensor judged = judge_->forward(generator.forward(noise));
        torch::binary_cross_entropy_with_logits(judged, torch::ones_like(judged)).backward();
        generator_optimizer_.step();
        for (torch::Tensor& parameter : judge_->parameters()) {
            parameter.set_requires_grad(true);
        }
        seen_.index_add_(0, batch.target, torch::ones_like(batch.target));
        worker_.progress(++step_, batch.data.size(0));
        worker_.scalar("rate", rates_[0].item<double>(), step_);
    }

    ddprun::Worker& worker_;
    ddprun::ProcessGroup group_;
    Sequential generator_ = make_generator();
    Sequential judge_ = Sequential(Linear(2, 16), torch::nn::ReLU(), Linear(16, 1));
    torch::optim::Adam generator_optimizer_{generator_->parameters(), 0.01};
    torch::optim::SGD judge_optimizer_{judge_->parameters(),
                                       torch::optim::SGDOptions(0.05).momentum(0.9)};
    torch::Tensor rates_ = torch::full({1}, 0.05, torch::kFloat64);
    torch::Tensor seen_ = torch::zeros({kSamples}, torch::kInt64);
    std::int64_t step_ = 0;
    ddprun::DistributedSampler sampler_;
    ddprun::DataLoader<Circle> loader_;
    ddprun::TrainingState state_;
    ddprun::Checkpoints checkpoints_;
    Death death_;
};

int load_weights(ddprun::Worker& worker, const std::string& dir) {
    const Sequential generator = make_generator();
    ddprun::TrainingState state;
    state.add_model("generator", generator.ptr());
    ddprun::Checkpoints checkpoints(dir, worker, checked(worker.process_group()));
    const std::int64_t step = checked(checkpoints.load_weights(state));
    say(fmt::format("generator {:016x} of step {}", hash_of(*generator), step));
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    return ddprun::run(argc, argv, [argv](ddprun::Worker& worker) {
        torch::set_num_threads(1);
        torch::manual_seed(static_cast<std::uint64_t>(worker.rank()));
        const std::string what = argv[1];
        if (what == "weights") {
            return load_weights(worker, argv[2]);
        }
        const Death death(worker, std::stoull(argv[3]), std::stoull(argv[4]));
        return Gan(worker, argv[2], death).run();
    });
}
