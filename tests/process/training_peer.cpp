// One rank of what training_python.py does with PyTorch's Python, by the worker runtime:
// `training_peer compare FILE` writes what it computes, a line `name value...` each;
// `training_peer resume DIR` ends with 1 and a line that starts with "wrong:" if a resumed training
// is not that of one that was not.

#include <cstdint>
#include <exception>
#include <fstream>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::Autocast;
using ddprun::DistributedDataParallel;
using ddprun::ProcessGroup;
using ddprun::Result;
using ddprun::Worker;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::wrong;
using torch::nn::Dropout;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;

/// Everything that is compared, by name.
std::map<std::string, torch::Tensor> record;

void note(const std::string& name, const torch::Tensor& tensor) {
    record[name] = tensor.detach().to(torch::kFloat64).flatten().clone();
}

void note(const std::string& name, double value) {
    note(name, torch::scalar_tensor(value, torch::kFloat64));
}

void note_all(const std::string& name, const torch::nn::Module& network) {
    for (const auto& parameter : network.named_parameters()) {
        note(name + "." + parameter.key(), parameter.value());
        note(name + "." + parameter.key() + ".grad", parameter.value().grad());
    }
}

/// The same weights as Python's, without a generator.
template <typename Network>
Network with_weights(Network network, torch::ScalarType dtype) {
    const torch::NoGradGuard no_grad;
    network->to(dtype);
    double start = 1;
    for (torch::Tensor& parameter : network->parameters()) {
        const auto count = static_cast<double>(parameter.numel());
        parameter.copy_(torch::arange(start, start + count, torch::kFloat64)
                            .sin()
                            .mul(0.5)
                            .reshape(parameter.sizes()));
        start += count;
    }
    return network;
}

Sequential make_network(torch::ScalarType dtype) {
    return with_weights(Sequential(Linear(6, 8), Tanh(), Linear(8, 5), Tanh(), Linear(5, 3)),
                        dtype);
}

/// This rank's four samples of a step.
torch::Tensor inputs_of(const Worker& worker, int step, torch::ScalarType dtype) {
    const double start = 24.0 * (step * worker.world_size() + worker.rank());
    return torch::arange(start, start + 24, torch::kFloat64).cos().reshape({4, 6}).to(dtype);
}

torch::Tensor loss_of(const torch::Tensor& outputs) {
    return outputs.to(torch::promoteTypes(outputs.scalar_type(), torch::kFloat32)).pow(2).mean();
}

std::string name_of(torch::ScalarType dtype) {
    return dtype == torch::kFloat64 ? "f64" : "f32";
}

/// Weights and biases in groups of their own.
template <typename Options>
std::vector<torch::optim::OptimizerParamGroup> groups_of(const torch::nn::Module& network,
                                                         Options weights, Options biases) {
    std::vector<torch::Tensor> matrices;
    std::vector<torch::Tensor> vectors;
    for (const torch::Tensor& parameter : network.parameters()) {
        (parameter.dim() == 2 ? matrices : vectors).push_back(parameter);
    }
    std::vector<torch::optim::OptimizerParamGroup> groups;
    groups.emplace_back(matrices, std::make_unique<Options>(weights));
    groups.emplace_back(vectors, std::make_unique<Options>(biases));
    return groups;
}

std::unique_ptr<torch::optim::Optimizer> make_optimizer(const std::string& kind,
                                                        const torch::nn::Module& network) {
    using torch::optim::AdamWOptions;
    using torch::optim::SGDOptions;
    if (kind.starts_with("adamw")) {
        auto options = AdamWOptions(0.02).weight_decay(0.05).amsgrad(kind == "adamw-amsgrad");
        auto biases = AdamWOptions(options).lr(0.03).betas({0.8, 0.99});
        return std::make_unique<ddprun::FusedAdamW>(groups_of(network, options, biases), options);
    }
    auto options = SGDOptions(0.2).weight_decay(0.01);
    if (kind != "sgd") {
        options.momentum(0.9).nesterov(kind == "sgd-nesterov");
    }
    auto biases = SGDOptions(options).lr(0.1);
    return std::make_unique<ddprun::FusedSGD>(groups_of(network, options, biases), options);
}

void optimizers(const Worker& worker, const ProcessGroup& group) {
    for (const torch::ScalarType dtype : {torch::kFloat64, torch::kFloat32}) {
        for (const char* kind : {"adamw", "adamw-amsgrad", "sgd", "sgd-momentum", "sgd-nesterov"}) {
            const std::string name = fmt::format("optimizer.{}.{}", kind, name_of(dtype));
            Sequential network = make_network(dtype);
            DistributedDataParallel model(network, group);
            const auto optimizer = make_optimizer(kind, *network);
            ddprun::LearningRateSchedule schedule(
                *optimizer,
                ddprun::WarmupCosine{.warmup_steps = 3, .total_steps = 10, .start_factor = 0.1});
            for (int step = 0; step < 12; ++step) {
                optimizer->zero_grad();
                const torch::Tensor loss = loss_of(model.forward(inputs_of(worker, step, dtype)));
                loss.backward();
                optimizer->step();
                note(fmt::format("{}.loss.{}", name, step), loss);
                for (std::size_t i = 0; i < 2; ++i) {
                    note(fmt::format("{}.lr.{}.{}", name, i, step),
                         optimizer->param_groups()[i].options().get_lr());
                }
                schedule.step();
            }
            note_all(name, *network);
        }
    }
}

void schedules() {
    const ddprun::WarmupCosine factor{
        .warmup_steps = 4, .total_steps = 20, .start_factor = 0.25, .end_factor = 0.05};
    for (int step = 0; step <= 20; ++step) {
        note(fmt::format("schedule.{}", step), 0.3 * factor(step));
    }
    ddprun::FusedSGD resumed({torch::ones({1}).requires_grad_()}, torch::optim::SGDOptions(0.3));
    ddprun::LearningRateSchedule schedule(resumed, factor);
    resumed.param_groups()[0].options().set_lr(0.3 * factor(7));
    try {
        schedule.step();
        wrong("a schedule began anew with the rates of a resume");
    } catch (const c10::Error& failure) {
        require(std::string(failure.what()).find("call add_to() before") != std::string::npos,
                failure.what());
    }
}

void autocast(const Worker& worker, const ProcessGroup& group) {
    for (const torch::ScalarType low : {torch::kBFloat16, torch::kFloat16}) {
        const std::string name = fmt::format("autocast.{}", c10::toString(low));
        Sequential network = make_network(torch::kFloat32);
        DistributedDataParallel model(network, group);
        const torch::Tensor inputs = inputs_of(worker, 0, torch::kFloat32);
        torch::Tensor loss;
        {
            const Autocast half(torch::kCPU, {.dtype = low});
            const torch::Tensor outputs = model.forward(inputs);
            require(outputs.scalar_type() == low, name + ": what comes out is not " + name);
            {
                const Autocast full(torch::kCPU, {.enabled = false});
                const torch::Tensor inner = network->forward(inputs);
                require(inner.scalar_type() == torch::kFloat32, name + ": disabled is enabled");
                note(name + ".inner", inner);
            }
            require(network->forward(inputs).scalar_type() == low, name + ": it is not restored");
            note(name + ".outputs", outputs);
            loss = loss_of(outputs);
        }
        require(network->forward(inputs).scalar_type() == torch::kFloat32, name + ": it goes on");
        loss.backward();
        note_all(name, *network);
    }
    try {
        const Autocast none(torch::kCPU, {.dtype = torch::kInt64});
        wrong("autocast to int64 was taken");
    } catch (const c10::Error& failure) {
        require(
            std::string(failure.what()).find("it must be BFloat16 or Half") != std::string::npos,
            failure.what());
    }
    // A parameter is cast once in a region, and anew in the next one: it has changed since.
    const torch::Tensor weight = torch::ones({1, 1}).requires_grad_();
    const auto product = [&weight] { return torch::mm(torch::ones({1, 1}), weight).item<float>(); };
    const auto change = [&weight] {
        const torch::NoGradGuard no_grad;
        weight.mul_(2);
    };
    {
        const Autocast outer(torch::kCPU);
        require(product() == 1, "the product");
        change();
        const Autocast inner(torch::kCPU);
        require(product() == 1, "the cast is not kept to the end of the outermost region");
    }
    const Autocast next(torch::kCPU);
    require(product() == 2, "the cast outlives the outermost region");
    change();
    const Autocast plain(torch::kCPU, {.cache = false});
    require(product() == 4, "the cast is kept although it was not to be");
    change();
    const Autocast nested(torch::kCPU);
    require(product() == 8, "a guard that says nothing of the cache turns it on");
}

/// In step 5 the last rank alone sees an inf; Python's ranks all do.
void scaler(const Worker& worker, const ProcessGroup& group) {
    Sequential network = make_network(torch::kFloat32);
    DistributedDataParallel model(network, group);
    ddprun::FusedSGD optimizer(network->parameters(), torch::optim::SGDOptions(0.2).momentum(0.9));
    ddprun::GradientScaler scaler(
        group, {.initial_scale = 0x1p20, .growth_factor = 4, .growth_interval = 3});
    for (int step = 0; step < 16; ++step) {
        const std::string name = fmt::format("scaler.{}", step);
        optimizer.zero_grad();
        torch::Tensor loss;
        {
            const Autocast half(torch::kCPU, {.dtype = torch::kFloat16});
            loss = loss_of(model.forward(inputs_of(worker, step, torch::kFloat32)));
        }
        scaler.scale(loss).backward();
        if (step == 5 && worker.rank() == worker.world_size() - 1) {
            network->parameters()[2].mutable_grad()[0][0] = std::numeric_limits<float>::infinity();
        }
        must(scaler.unscale(optimizer));
        require(!scaler.unscale(optimizer), "the gradients were unscaled twice");
        note(name + ".norm", network->parameters()[0].grad().norm());
        note(name + ".stepped", must(scaler.step(optimizer)) ? 1 : 0);
        require(!scaler.step(optimizer), "two steps of one iteration");
        must(scaler.update());
        note(name + ".scale", scaler.current_scale());
        note(name + ".parameters", torch::nn::utils::parameters_to_vector(network->parameters()));
    }
    require(!scaler.update(), "an update without a step");
    const auto off = std::make_unique<ddprun::GradientScaler>(
        group, ddprun::GradientScalerOptions{.enabled = false});
    require(off->scale(torch::ones({})).item<float>() == 1, "scaled although it is off");
    require(must(off->step(optimizer)), "no step although it is off");
    must(off->update());
}

/// One weight under two names, as embeddings and the last layer often have it.
struct Tied : torch::nn::Module {
    Tied() {
        first = register_module("first", Linear(6, 6));
        torch::nn::init::constant_(first->bias, 0.1);
        const torch::NoGradGuard no_grad;
        first->weight.copy_(torch::arange(36).view({6, 6}).cos());
        last = register_parameter("last", first->weight);
    }
    torch::Tensor forward(const torch::Tensor& input) {
        return torch::matmul(torch::tanh(first->forward(input)), last);
    }
    Linear first{nullptr};
    torch::Tensor last;
};

/// The weight after two steps; told to the optimizer under each of its names, or under one.
template <typename Optimizer, typename Options>
torch::Tensor tied_weight(ProcessGroup group, const Options& options, bool is_twice) {
    Tied network;
    std::vector<torch::Tensor> parameters;
    for (const auto& parameter : network.named_parameters()) {
        if (is_twice || parameter.key() != "last") {
            parameters.push_back(parameter.value());
        }
    }
    require(parameters.size() == (is_twice ? 3U : 2U), "the names of a tied weight");
    Optimizer optimizer(parameters, options);
    ddprun::GradientScaler scaler(group, {.initial_scale = 1024});
    for (int step = 0; step < 2; ++step) {
        optimizer.zero_grad();
        scaler.scale(network.forward(torch::ones({2, 6})).square().sum()).backward();
        must(scaler.unscale(optimizer));
        must(ddprun::clip_grad_norm(group, parameters, 0.5));
        must(scaler.step(optimizer));
        must(scaler.update());
    }
    return network.last.detach().clone();
}

void tied(const ProcessGroup& group) {
    using ddprun::FusedAdamW;
    using ddprun::FusedSGD;
    const torch::optim::SGDOptions momentum = torch::optim::SGDOptions(0.1).momentum(0.9);
    require(
        torch::equal(tied_weight<FusedSGD>(group, momentum, true),
                     tied_weight<FusedSGD>(group, momentum, false)),
        "a weight with two names is stepped twice by FusedSGD, or its gradient is scaled twice");
    const torch::optim::AdamWOptions adam(0.1);
    require(torch::equal(tied_weight<FusedAdamW>(group, adam, true),
                         tied_weight<FusedAdamW>(group, adam, false)),
            "a weight with two names is stepped twice by FusedAdamW");
}

/// Says how often it was computed.
struct CountingImpl : torch::nn::Module {
    CountingImpl()
        : inner(register_module(
              "inner", Sequential(Linear(8, 8), Tanh(), Dropout(0.4), Linear(8, 5), Tanh()))) {}
    torch::Tensor forward(const torch::Tensor& input) {
        ++count;
        return inner->forward(input);
    }
    Sequential inner;
    int count = 0;
};
TORCH_MODULE(Counting);

/// Its first part's input takes no gradient, its second has dropout; one more comes after it.
struct CheckpointedImpl : torch::nn::Module {
    CheckpointedImpl()
        : first(register_module("first", Sequential(Linear(6, 8), Tanh(), Dropout(0.2)))),
          middle(register_module("middle", Counting())),
          last(register_module("last", Sequential(Dropout(0.3), Linear(5, 3)))) {}
    torch::Tensor forward(const torch::Tensor& input) {
        const torch::Tensor hidden = ddprun::checkpoint_activations(first, input);
        return last->forward(ddprun::checkpoint_activations(middle, hidden));
    }
    Sequential first;
    Counting middle;
    Sequential last;
};
TORCH_MODULE(Checkpointed);

void recomputation(const Worker& worker, const ProcessGroup& group) {
    const auto run = [&](const std::string& name, torch::ScalarType dtype, bool is_low) {
        Checkpointed network = with_weights(Checkpointed(), dtype);
        DistributedDataParallel model(network, group);
        int hooks = 0;
        network->middle->parameters()[0].register_hook([&hooks](const torch::Tensor&) { ++hooks; });
        torch::manual_seed(static_cast<std::uint64_t>(100 + worker.rank()));
        for (int step = 0; step < 2; ++step) {
            network->zero_grad();
            torch::Tensor loss;
            {
                const Autocast low(torch::kCPU, {.enabled = is_low});
                loss = loss_of(model.forward(inputs_of(worker, step, dtype)));
            }
            note(fmt::format("{}.loss.{}", name, step), loss);
            loss.backward();
            note_all(fmt::format("{}.{}", name, step), *network);
        }
        note(name + ".random", torch::rand({3}, torch::kFloat64));
        require(network->middle->count == 4, "a segment was not computed twice a step");
        require(hooks == 2, fmt::format("a hook ran {} times in 2 steps", hooks));
        network->eval();
        const torch::NoGradGuard no_grad;
        (void)network->forward(inputs_of(worker, 0, dtype));
        require(network->middle->count == 5, "computed more than once without gradients");
    };
    run("recompute.f64", torch::kFloat64, false);
    run("recompute.f32", torch::kFloat32, false);
    run("recompute.low", torch::kFloat32, true);

    // A segment of several tensors, one of which is not used further.
    const torch::Tensor left = torch::full({2}, 3.0).requires_grad_();
    const torch::Tensor right = torch::full({2}, 5.0);
    const torch::Tensor factor = torch::full({2}, 7.0).requires_grad_();
    const std::vector<torch::Tensor> both = ddprun::checkpoint_activations(
        [&factor](const std::vector<torch::Tensor>& in) {
            return std::vector<torch::Tensor>{in[0] * in[1] * factor, in[0].exp()};
        },
        {left, right}, {factor}, {.keep_random_state = false});
    both[0].sum().backward();
    require(left.grad()[1].item<float>() == 35, "the gradient of an input");
    require(factor.grad()[0].item<float>() == 15, "the gradient of a parameter");
    require(!right.grad().defined(), "a gradient that nobody asked for");
}

void determinism() {
    ddprun::deterministic(7);
    note("deterministic.random", torch::rand({3}, torch::kFloat64));
    const at::Context& context = at::globalContext();
    require(context.deterministicAlgorithms() && context.deterministicCuDNN() &&
                !context.benchmarkCuDNN() && !context.deterministicAlgorithmsWarnOnly(),
            "a switch is not set");
    const auto put = [] {
        torch::Tensor tensor = torch::zeros({3});
        (void)tensor.put_(torch::zeros({1}, torch::kInt64), torch::ones({1}));
    };
    try {
        put();
        wrong("what has no deterministic form was computed");
    } catch (const c10::Error& failure) {
        require(std::string(failure.what()).find("does not have a deterministic implementation") !=
                    std::string::npos,
                failure.what());
    }
    ddprun::deterministic(7, {.warn_only = true});
    put();
}

int compare(Worker& worker, const std::string& path) {
    const ProcessGroup group = must(worker.process_group());
    optimizers(worker, group);
    schedules();
    autocast(worker, group);
    scaler(worker, group);
    tied(group);
    recomputation(worker, group);
    determinism();
    std::ofstream file(path);
    for (const auto& [name, tensor] : record) {
        file << name;
        for (std::int64_t i = 0; i < tensor.numel(); ++i) {
            file << fmt::format(" {:.17g}", tensor[i].item<double>());
        }
        file << '\n';
    }
    require(static_cast<bool>(file.flush()), path + " cannot be written");
    return worker.finish();
}

/// All parts that have something to save, with gradients that overflow now and then.
struct Training {
    Training(const Worker& its_worker, const ProcessGroup& group)
        : worker(its_worker),
          network(with_weights(Checkpointed(), torch::kFloat32)),
          model(network, group),
          optimizer(make_optimizer("adamw-amsgrad", *network)),
          schedule(*optimizer, ddprun::WarmupCosine{.warmup_steps = 3, .total_steps = 12}),
          scaler(group, {.initial_scale = 0x1p20, .growth_factor = 4, .growth_interval = 3}),
          state(network.ptr(), *optimizer) {
        schedule.add_to(state, "schedule");
        scaler.add_to(state, "scaler");
        state.add("step", step);
    }

    void train(int end) {
        for (; step < end; ++step) {
            optimizer->zero_grad();
            torch::Tensor loss;
            {
                const Autocast half(torch::kCPU, {.dtype = torch::kFloat16});
                loss = loss_of(
                    model.forward(inputs_of(worker, static_cast<int>(step), torch::kFloat32)));
            }
            scaler.scale(loss).backward();
            skipped += must(scaler.step(*optimizer)) ? 0 : 1;
            must(scaler.update());
            schedule.step();
        }
    }

    torch::Tensor values() {
        torch::Tensor all = torch::nn::utils::parameters_to_vector(network->parameters());
        return torch::cat(
            {all.detach().to(torch::kFloat64), torch::rand({2}, torch::kFloat64),
             torch::tensor({scaler.current_scale(), optimizer->param_groups()[1].options().get_lr(),
                            static_cast<double>(schedule.position())},
                           torch::kFloat64)});
    }

    const Worker& worker;
    Checkpointed network;
    DistributedDataParallel<CheckpointedImpl> model;
    std::unique_ptr<torch::optim::Optimizer> optimizer;
    ddprun::LearningRateSchedule schedule;
    ddprun::GradientScaler scaler;
    ddprun::TrainingState state;
    std::int64_t step = 0;
    int skipped = 0;
};

int resume(Worker& worker, const std::string& folder) {
    const ProcessGroup group = must(worker.process_group());
    torch::manual_seed(static_cast<std::uint64_t>(worker.rank()));
    ddprun::Checkpoints checkpoints(folder, worker, group);
    Training first(worker, group);
    first.train(5);
    must(checkpoints.save(5, first.state));
    first.train(12);
    require(first.skipped > 1 && first.skipped < 10,
            fmt::format("{} steps were skipped", first.skipped));
    const torch::Tensor undisturbed = first.values();

    Training second(worker, group);
    require(must(checkpoints.resume(second.state)).has_value(), "nothing to resume");
    require(second.schedule.position() == 5, "the schedule's position");
    const double resumed_rate = second.optimizer->param_groups()[1].options().get_lr();
    try {
        const ddprun::LearningRateSchedule late(*second.optimizer,
                                                [](std::int64_t) { return 0.1; });
        wrong("a schedule took rates that another one has set for its own");
    } catch (const std::exception& failure) {
        require(
            std::string(failure.what()).find("before Checkpoints::resume()") != std::string::npos,
            failure.what());
    }
    require(second.optimizer->param_groups()[1].options().get_lr() == resumed_rate,
            "a refused schedule has set a rate");
    second.train(12);
    require(torch::equal(second.values(), undisturbed), "the resumed training differs");
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    torch::set_num_threads(1);
    try {
        if (argc != 3) {
            wrong("usage: training_peer compare FILE | resume DIR");
        }
        Worker worker = must(Worker::from_environment());
        return argv[1] == std::string("compare") ? compare(worker, argv[2])
                                                 : resume(worker, argv[2]);
    } catch (const std::exception& failure) {
        wrong(failure.what());
    }
}
