// One rank of the tests of sharded optimizers: `zero_peer SCENARIO [arguments]`.

#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <typeinfo>
#include <utility>
#include <vector>

#include <c10/util/Type.h>
#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/nn/without_repeats.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::DistributedDataParallel;
using ddprun::ProcessGroup;
using ddprun::ShardedOptimizer;
using ddprun::ShardedOptimizerOptions;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::say;
using torch::Tensor;
using torch::optim::Optimizer;
using torch::optim::OptimizerParamGroup;

/// Layers of odd sizes, one that may be without a gradient, and one weight under two names.
struct Network : torch::nn::Module {
    explicit Network(torch::ScalarType type, bool uses_all = false) : uses_all_(uses_all) {
        torch::manual_seed(7);
        images = register_module("images",
                                 torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 5, 3).padding(1)));
        first = register_module("first", torch::nn::Linear(5 * 4 * 4, 13));
        second = register_module("second", torch::nn::Linear(13, 13));
        last = register_module("last", torch::nn::Linear(13, 3));
        unused = register_module("unused", torch::nn::Linear(3, 7));
        tied = register_parameter("tied", second->weight);
        to(type);
    }
    Tensor forward(const Tensor& input) {
        Tensor hidden = torch::tanh(first(torch::tanh(images(input)).flatten(1)));
        hidden = torch::tanh(second(hidden)) + torch::nn::functional::linear(hidden, tied);
        return uses_all_ ? unused(last(hidden)) : last(hidden);
    }
    bool uses_all_;
    torch::nn::Conv2d images{nullptr};
    torch::nn::Linear first{nullptr}, second{nullptr}, last{nullptr}, unused{nullptr};
    Tensor tied;
};

/// Says why `act` throws.
void refused(const std::function<void()>& act) {
    try {
        act();
    } catch (const std::exception& failure) {
        say("refused: " + ddprun::worker::first_line(failure));
        return;
    }
    ddprun::test::wrong("a mistake is taken");
}

/// The weights, with a learning rate of their own, and the rest.
template <typename Options>
std::vector<OptimizerParamGroup> groups_of(const Network& network, const Options& options) {
    std::vector<Tensor> weights;
    std::vector<Tensor> rest;
    for (const auto& parameter : network.named_parameters()) {
        if (parameter.key() != "tied") {
            (parameter.value().dim() > 1 ? weights : rest).push_back(parameter.value());
        }
    }
    Options of_weights(options);
    of_weights.lr(options.lr() * 3);
    std::vector<OptimizerParamGroup> groups;
    groups.emplace_back(std::move(weights), std::make_unique<Options>(of_weights));
    groups.emplace_back(std::move(rest));
    return groups;
}

template <typename State>
std::int64_t elements_in(const State& state) {
    std::int64_t count = 0;
    if constexpr (requires { state.exp_avg_sq(); }) {
        count = state.exp_avg_sq().numel();
    } else if constexpr (requires { state.square_avg(); }) {
        count = state.square_avg().numel();
    } else if constexpr (requires { state.sum(); }) {
        count = state.sum().numel();
    } else {
        count = state.momentum_buffer().numel();
    }
    return count;
}

/// Two networks that are trained alike, one with `Kind` and one with a sharded one.
template <typename Kind, typename Options>
class Pair {
public:
    Pair(ProcessGroup& group, const Options& options, torch::ScalarType type,
         std::size_t bucket_bytes)
        : group_(group),
          type_(type),
          whole(std::make_shared<Network>(type)),
          sharded(std::make_shared<Network>(type)),
          whole_model_(whole, group, with_unused()),
          sharded_model_(sharded, group, with_unused()),
          whole_scaler_(group),
          sharded_scaler_(group),
          whole_optimizer(groups_of(*whole, options), options),
          sharded_optimizer(*sharded, group, groups_of(*sharded, options), options,
                            {.bucket_bytes = bucket_bytes}) {}

    /// The parameters of both are the same after each step.
    void train(int first, int last) {
        for (int step = first; step < last; ++step) {
            torch::manual_seed(100 * step + group_.rank());
            const Tensor inputs = torch::randn({4, 3, 4, 4}, torch::kFloat64).to(type_);
            train(whole_model_, whole_optimizer, whole_scaler_, inputs, step);
            train(sharded_model_, sharded_optimizer, sharded_scaler_, inputs, step);
            check(fmt::format("after step {}", step));
        }
    }

    void check(const std::string& when) {
        const auto seen = sharded->named_parameters();
        for (const auto& parameter : whole->named_parameters()) {
            require(torch::equal(seen[parameter.key()], parameter.value()),
                    fmt::format("{} in {}: {} differs {}", c10::demangle(typeid(Kind).name()),
                                c10::toString(type_), parameter.key(), when));
        }
    }

private:
    static ddprun::DistributedDataParallelOptions with_unused() {
        ddprun::DistributedDataParallelOptions options;
        options.find_unused_parameters = true;
        return options;
    }

    static void train(DistributedDataParallel<Network>& model, Optimizer& optimizer,
                      ddprun::GradientScaler& scaler, const Tensor& inputs, int step) {
        optimizer.zero_grad(step % 2 == 0);
        scaler.scale(model.forward(inputs).pow(2).mean()).backward();
        must(scaler.unscale(optimizer));
        for (OptimizerParamGroup& one : optimizer.param_groups()) {
            one.options().set_lr(one.options().get_lr() * 0.9);
        }
        (void)torch::nn::utils::clip_grad_norm_(optimizer.param_groups()[0].params(), 0.7);
        require(must(scaler.step(optimizer)), "a step was left out");
        must(scaler.update());
    }

    ProcessGroup group_;
    torch::ScalarType type_;

public:
    std::shared_ptr<Network> whole;
    std::shared_ptr<Network> sharded;

private:
    DistributedDataParallel<Network> whole_model_;
    DistributedDataParallel<Network> sharded_model_;
    ddprun::GradientScaler whole_scaler_;
    ddprun::GradientScaler sharded_scaler_;

public:
    Kind whole_optimizer;
    ShardedOptimizer<Kind> sharded_optimizer;
};

/// Trains with `Kind` and with a sharded one.
template <typename Kind, typename State, typename Options>
void check_kind(ProcessGroup& group, const std::string& kind, const Options& options,
                torch::ScalarType type, std::size_t bucket_bytes) {
    Pair<Kind, Options> pair(group, options, type, bucket_bytes);
    pair.train(0, 5);
    require(pair.sharded->unused->weight.grad().defined() ==
                pair.whole->unused->weight.grad().defined(),
            "the gradient of an unused parameter");
    std::int64_t mine = 0;
    std::int64_t all = 0;
    for (const auto& [key, state] : pair.sharded_optimizer.local().state()) {
        mine += elements_in(static_cast<const State&>(*state));
    }
    for (const auto& [key, state] : pair.whole_optimizer.state()) {
        all += elements_in(static_cast<const State&>(*state));
    }
    Tensor sum = torch::tensor({mine}, torch::kInt64);
    must(group.all_reduce(sum));
    require(sum.item<std::int64_t>() == all, fmt::format("{}: states of {} elements, not of {}",
                                                         kind, sum.item<std::int64_t>(), all));
    require(group.world_size() == 1 || mine < all, kind + ": a rank has the whole state");
}

int equal(Worker& worker, const Arguments& /*arguments*/) {
    using namespace torch::optim;
    ProcessGroup group = must(worker.process_group());
    for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32}) {
        for (const std::size_t bucket_bytes : {std::size_t{1} << 20, std::size_t{1000}}) {
            const auto check = [&]<typename Kind, typename State>(const std::string& kind,
                                                                  const auto& options) {
                check_kind<Kind, State>(group, kind, options, type, bucket_bytes);
            };
            check.operator()<Adam, AdamParamState>("Adam", AdamOptions(0.01).amsgrad(true));
            check.operator()<AdamW, AdamWParamState>("AdamW", AdamWOptions(0.01));
            check.operator()<ddprun::FusedAdamW, AdamWParamState>("FusedAdamW", AdamWOptions(0.01));
            check.operator()<SGD, SGDParamState>("SGD", SGDOptions(0.1).momentum(0.9));
            check.operator()<ddprun::FusedSGD, SGDParamState>("FusedSGD",
                                                              SGDOptions(0.1).momentum(0.9));
            check.operator()<RMSprop, RMSpropParamState>("RMSprop", RMSpropOptions(0.01));
            check.operator()<Adagrad, AdagradParamState>("Adagrad", AdagradOptions(0.01));
        }
    }
    say("equal");
    return worker.finish();
}

/// ZeRO-2 beside DistributedDataParallel: bit for bit on 1 and 2 ranks, where a mean has one order;
/// else, and when passes add up or gradients are clipped, to 1e-12.
void check_sharded_gradients(ProcessGroup& group, torch::ScalarType type, std::size_t bucket_bytes,
                             bool adds_up, bool clips) {
    const bool is_exact = group.world_size() <= 2 && !adds_up && !clips;
    const torch::optim::AdamWOptions options(0.01);
    const auto whole = std::make_shared<Network>(type, /*uses_all=*/true);
    const auto sharded = std::make_shared<Network>(type, /*uses_all=*/true);
    if (group.rank() > 0) {
        const torch::NoGradGuard no_grad;
        sharded->last->bias.fill_(group.rank());  // rank 0's are given to all
    }
    DistributedDataParallel model(whole, group);
    ddprun::FusedAdamW whole_optimizer(groups_of(*whole, options), options);
    ShardedOptimizer<ddprun::FusedAdamW> sharded_optimizer(
        *sharded, group, groups_of(*sharded, options), options,
        {.bucket_bytes = bucket_bytes, .shards_gradients = true});
    for (int step = 0; step < 5; ++step) {
        whole_optimizer.zero_grad();
        for (int pass = 0; pass < (adds_up ? 3 : 1); ++pass) {
            torch::manual_seed(100 * step + 10 * pass + group.rank());
            const Tensor inputs = torch::randn({4, 3, 4, 4}, torch::kFloat64).to(type);
            model.forward(inputs).pow(2).mean().backward();
            sharded->forward(inputs).pow(2).mean().backward();
        }
        for (const Tensor& parameter : sharded->parameters()) {
            require(!parameter.grad().defined(), "a parameter has a gradient of its own");
        }
        if (clips) {
            const double norm_type = step % 2 == 0 ? 2 : std::numeric_limits<double>::infinity();
            (void)must(ddprun::clip_grad_norm(whole->parameters(), 0.01, norm_type));
            (void)must(ddprun::clip_grad_norm(group, sharded_optimizer.shards(), 0.01, norm_type));
        }
        whole_optimizer.step();
        sharded_optimizer.step();
        const auto seen = sharded->named_parameters();
        for (const auto& parameter : whole->named_parameters()) {
            const Tensor& other = seen[parameter.key()];
            require(is_exact ? torch::equal(other, parameter.value())
                             : torch::allclose(other, parameter.value(), 1e-12, 1e-12),
                    fmt::format("{} differs after step {}, {} in {}", parameter.key(), step,
                                adds_up ? "three passes"
                                : clips ? "clipped"
                                        : "one pass",
                                c10::toString(type)));
        }
    }
}

int sharded_gradients(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    for (const std::size_t bucket_bytes : {std::size_t{1} << 20, std::size_t{1000}}) {
        if (group.world_size() <= 2) {
            check_sharded_gradients(group, torch::kFloat32, bucket_bytes, false, false);
        }
        check_sharded_gradients(group, torch::kFloat64, bucket_bytes, false, false);
        check_sharded_gradients(group, torch::kFloat64, bucket_bytes, true, false);
        check_sharded_gradients(group, torch::kFloat64, bucket_bytes, false, true);
    }
    // A parameter without a gradient, and one that is averaged twice.
    const torch::optim::SGDOptions options(0.1);
    refused([&] {
        Network network(torch::kFloat32);
        ShardedOptimizer<torch::optim::SGD> optimizer(network, group, options,
                                                      {.shards_gradients = true});
        network.forward(torch::ones({1, 3, 4, 4})).sum().backward();
        optimizer.step();
    });
    refused([&] {
        const auto network = std::make_shared<Network>(torch::kFloat32);
        DistributedDataParallel model(network, group);
        ShardedOptimizer<torch::optim::SGD> optimizer(*network, group, options,
                                                      {.shards_gradients = true});
    });
    say("equal");
    return worker.finish();
}

using AdamWPair = Pair<ddprun::FusedAdamW, torch::optim::AdamWOptions>;

/// The state of both; `is_swapped`: each has the other's names.
void add_to(ddprun::TrainingState& state, AdamWPair& pair, bool is_swapped) {
    Optimizer* first = &pair.whole_optimizer;
    Optimizer* second = &pair.sharded_optimizer;
    if (is_swapped) {
        std::swap(first, second);
    }
    state.add_model("first", is_swapped ? pair.sharded : pair.whole);
    state.add_model("second", is_swapped ? pair.whole : pair.sharded);
    state.add_optimizer("of_first", *first);
    state.add_optimizer("of_second", *second);
}

/// save DIR, resume DIR, swap DIR: a checkpoint of a pair, after 3 steps, gives each optimizer its
/// state in a world of any size, as does one in which the two have changed places.
int across_worlds(Worker& worker, const std::string& what, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32}) {
        AdamWPair pair(group, torch::optim::AdamWOptions(0.01), type, 1000);
        ddprun::TrainingState state;
        add_to(state, pair, what == "swap");
        ddprun::Checkpoints checkpoints(fmt::format("{}/{}", arguments.at(0), c10::toString(type)),
                                        worker, group);
        if (what == "save") {
            pair.train(0, 3);
            must(checkpoints.save(3, state));
        } else {
            require(must(checkpoints.resume(state)) == 3, "another step");
            pair.check("after the resume");
        }
        pair.train(3, 6);
    }
    say("equal");
    return worker.finish();
}

/// train ENGINE DIR: 20 steps with zero1 or zero2, and a save beside each.
int train(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const bool shards_gradients = arguments.at(0) == "zero2";
    const auto network = std::make_shared<Network>(torch::kFloat32, /*uses_all=*/true);
    std::optional<DistributedDataParallel<Network>> model;
    if (!shards_gradients) {
        model.emplace(network, group);
    }
    const torch::optim::AdamWOptions options(0.01);
    ShardedOptimizer<ddprun::FusedAdamW> optimizer(
        *network, group, groups_of(*network, options), options,
        {.bucket_bytes = 1000, .shards_gradients = shards_gradients, .overlaps_gather = true});
    ddprun::TrainingState state(network, optimizer);
    ddprun::Checkpoints checkpoints(arguments.at(1), worker, group);
    const std::optional<std::int64_t> resumed = must(checkpoints.resume(state));
    if (resumed) {
        say(fmt::format("resumed {}", *resumed));
    }
    for (int step = static_cast<int>(resumed.value_or(0)); step < 20; ++step) {
        torch::manual_seed(100 * step + group.rank());
        const Tensor inputs = torch::randn({4, 3, 4, 4});
        optimizer.zero_grad();
        (model ? model->forward(inputs) : network->forward(inputs)).pow(2).mean().backward();
        optimizer.step();
        must(checkpoints.save_async(step + 1, state));
        say(fmt::format("step {}", step));
    }
    must(checkpoints.wait());
    std::vector<Tensor> parameters;
    for (const Tensor& parameter : network->parameters()) {
        parameters.push_back(parameter.flatten());
    }
    say(fmt::format(
        "parameters {}",
        torch::hash_tensor(torch::cat(parameters)).view(torch::kInt64).item<std::int64_t>()));
    return worker.finish();
}

/// Rank 0's step() returns before the others begin theirs, and its next operator waits for them.
int overlap(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    Network whole(torch::kFloat64);
    Network sharded(torch::kFloat64);
    const torch::optim::SGDOptions options(0.1);
    torch::optim::SGD whole_optimizer(ddprun::without_repeats(whole.parameters()), options);
    ShardedOptimizer<torch::optim::SGD> optimizer(sharded, group, options,
                                                  {.bucket_bytes = 1000, .overlaps_gather = true});
    Tensor word = torch::zeros({1});
    for (int step = 0; step < 10; ++step) {
        torch::manual_seed(step);  // the same on all ranks
        const Tensor inputs = torch::randn({4, 3, 4, 4}, torch::kFloat64);
        for (Network* const network : {&whole, &sharded}) {
            network->zero_grad();
            network->forward(inputs).pow(2).mean().backward();
        }
        whole_optimizer.step();
        const Tensor expected = whole.forward(inputs);
        if (group.rank() == 0) {
            optimizer.step();
            for (int other = 1; other < group.world_size(); ++other) {
                must(group.send(word, other));
            }
        } else {
            must(group.recv(word, 0));
            // Rank 0 reads meanwhile, unless it waits.
            for (int i = 0; i < 100; ++i) {
                (void)torch::randn({200, 200}).matmul(torch::randn({200, 200}));
            }
            optimizer.step();
        }
        // A list of tensors, a parameter itself, a view of one.
        const Tensor read = step % 3 == 0   ? torch::cat({sharded.last->bias, sharded.first->bias})
                            : step % 3 == 1 ? sharded.forward(inputs)
                                            : sharded.first->weight.t().clone();
        const Tensor right = step % 3 == 0   ? torch::cat({whole.last->bias, whole.first->bias})
                             : step % 3 == 1 ? expected
                                             : whole.first->weight.t().clone();
        require(torch::equal(read, right), fmt::format("old parameters after step {}", step));
    }
    say("equal");
    return worker.finish();
}

/// Parameters that cannot be sharded are refused when it is built, on all ranks.
int refuse(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const torch::optim::SGDOptions options(0.1);
    const auto tell = [&](const torch::nn::Module& network, const std::vector<Tensor>& parameters) {
        refused([&] {
            ShardedOptimizer<torch::optim::SGD> optimizer(
                network, group, {OptimizerParamGroup(parameters)}, options);
        });
    };
    Network network(torch::kFloat32);
    network.images->weight.set_data(
        network.images->weight.detach().contiguous(torch::MemoryFormat::ChannelsLast));
    tell(network, {torch::zeros({5})});
    tell(network, {network.tied, network.second->weight});
    tell(network, {});
    tell(network, {network.images->weight});
    network.first->weight.set_data(torch::zeros({13, 1}).expand({13, 80}));
    tell(network, {network.first->weight});
    // A mistake of one rank, and parameters that differ.
    tell(network,
         worker.rank() == 1 ? std::vector{torch::zeros({5})} : std::vector{network.last->weight});
    tell(network, {worker.rank() == 1 ? network.last->weight : network.last->bias});
    ShardedOptimizer<torch::optim::SGD> optimizer(network, group, {{network.last->parameters()}},
                                                  options);
    optimizer.add_param_group({{network.unused->weight}});
    refused([&] { optimizer.step(); });
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    std::map<std::string, std::function<int(Worker&, const Arguments&)>> scenarios = {
        {"equal", equal},
        {"overlap", overlap},
        {"refuse", refuse},
        {"sharded_gradients", sharded_gradients},
        {"train", train}};
    for (const std::string what : {"save", "resume", "swap"}) {
        scenarios.emplace(what, [what](Worker& worker, const Arguments& arguments) {
            return across_worlds(worker, what, arguments);
        });
    }
    require(argc > 1 && scenarios.contains(argv[1]), "usage: zero_peer SCENARIO …");
    torch::set_num_threads(1);
    return ddprun::run(argc, argv, [&](Worker& worker) {
        return scenarios.at(argv[1])(worker, Arguments(argv + 2, argv + argc));
    });
}
