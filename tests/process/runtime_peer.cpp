// One rank of the worker runtime's tests: `runtime_peer SCENARIO [arguments]`. Says what it sees,
// one line each; exits 1 with a line that starts with "wrong:" when something is not as it must be.

#include <malloc.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::DistributedDataParallel;
using ddprun::ProcessGroup;
using ddprun::Result;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::hang;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::status_bytes;
using ddprun::test::wrong;
using torch::nn::Linear;
using torch::nn::Sequential;

/// A small network whose weights depend on `seed`.
Sequential make_network(std::uint64_t seed) {
    torch::manual_seed(seed);
    Sequential network(Linear(6, 8), torch::nn::Tanh(), Linear(8, 5), torch::nn::Tanh(),
                       Linear(5, 3));
    network->to(torch::kFloat64);
    return network;
}

/// The samples of one step of the whole world: the same everywhere.
torch::Tensor inputs_of(int step, int world_size, int per_rank) {
    torch::manual_seed(static_cast<std::uint64_t>(1000 + step));
    return torch::randn({std::int64_t{world_size} * per_rank, 6}, torch::kFloat64);
}

torch::Tensor share_of(const torch::Tensor& inputs, int rank, int world_size) {
    return inputs.chunk(world_size)[static_cast<std::size_t>(rank)];
}

torch::Tensor loss_of(const torch::Tensor& outputs) {
    return outputs.pow(2).mean();
}

int collectives(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const int world = worker.world_size();
    torch::Tensor sum = torch::full({3}, worker.rank() + 1, torch::kInt64);
    must(group.all_reduce(sum));
    require(sum[0].item<int>() == world * (world + 1) / 2, "the sum");
    torch::Tensor max = torch::full({1}, worker.rank(), torch::kFloat64);
    must(group.all_reduce(max, ddprun::Reduction::Max));
    require(max.item<int>() == world - 1, "the maximum");
    torch::Tensor given = torch::full({2}, worker.rank(), torch::kInt32);
    must(group.broadcast(given, world - 1));
    require(given[1].item<int>() == world - 1, "what was broadcast");
    const torch::Tensor all = must(group.all_gather(torch::full({2}, worker.rank())));
    require(all.sizes() == torch::IntArrayRef({world, 2}), "the shape of what was gathered");
    for (int rank = 0; rank < world; ++rank) {
        require(all[rank][1].item<int>() == rank, "what was gathered");
    }
    must(group.barrier());
    say("ready");
    // The test examines our sockets meanwhile.
    (void)std::getchar();
    return worker.finish();
}

/// The program's own mistakes are no peer's death, and the group goes on.
int own_mistakes(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    torch::Tensor tensor = torch::ones({2});
    const Result<void> refused = group.broadcast(tensor, 99);
    require(!refused, "a broadcast from rank 99 was taken");
    say("refused: " + refused.error().what);
    must(group.barrier());
    const Result<torch::Tensor> judged =
        ddprun::evaluate(group, 10, 4, [](const torch::Tensor& /*indices*/) -> torch::Tensor {
            throw std::runtime_error("no label for sample 3");
        });
    require(!judged, "a judge's exception is lost");
    say("judged: " + judged.error().what);
    torch::Tensor sum = torch::ones({1});
    must(group.all_reduce(sum));
    require(sum.item<int>() == worker.world_size(), "the sum afterwards");
    say("goes on");
    return worker.finish();
}

/// joins_in_vain alone|address|part: rank 1 does not come, or there is no such address here.
int joins_in_vain(Worker& worker, const Arguments& arguments) {
    const std::string& how = arguments.at(0);
    ddprun::worker::WorkerEnvironment place = worker.environment();
    ddprun::ProcessGroupOptions options;
    options.join_timeout = std::chrono::seconds(2);
    if (how == "alone" && worker.rank() == 1) {
        return 0;
    }
    if (how == "address") {
        place.local_address = "192.0.2.1";
    }
    if (how != "part") {
        const Result<ProcessGroup> group =
            ProcessGroup::join(place, ddprun::Backend::Gloo, options);
        require(!group, "a group was joined");
        say("error: " + group.error().what);
        return 0;
    }
    // By another group, so that both ranks come to the short one at the same time.
    must(must(worker.process_group()).barrier());
    place.generation = ddprun::Generation(place.generation.value() + 1);
    ProcessGroup group = must(ProcessGroup::join(place, ddprun::Backend::Gloo, options));
    if (worker.rank() == 1) {
        // Asks for the part as rank 0 does, and does not come.
        must(group.all_gather(torch::ones({2}, torch::kInt64)));
        require(!group.barrier(), "the group goes on");
        return worker.finish();
    }
    const Result<std::optional<ProcessGroup>> part = group.subgroup({0, 1});
    require(!part, "a part was joined");
    say("error: " + part.error().what);
    return worker.finish();
}

/// Another thread reports steps before, while and after the group is joined.
int progress_beside(Worker& worker, const Arguments& /*arguments*/) {
    std::atomic<std::int64_t> told = 0;
    std::atomic<bool> is_over = false;
    std::thread teller([&] {
        while (!is_over) {
            worker.progress(told + 1);
            ++told;
        }
    });
    const auto tell_more = [&told](std::int64_t than) {
        while (told <= than) {
            std::this_thread::yield();
        }
    };
    tell_more(0);
    ProcessGroup group = must(worker.process_group());
    must(group.barrier());
    tell_more(told);
    is_over = true;
    teller.join();
    return worker.finish();
}

int until_a_peer_dies(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    say("joined");
    for (;;) {
        torch::Tensor tensor = torch::ones({1 << 16});
        const Result<void> done = group.all_reduce(tensor);
        if (!done) {
            say("error: " + done.error().what);
            const Result<void> later = group.barrier();
            require(!later && later.error().what == done.error().what, "a later call's error");
            hang();  // others must learn of it although this process lives on
        }
    }
}

/// Every rank starts with other weights, and all must be rank 0's in the end.
int data_parallel(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const int world = worker.world_size();
    const bool accumulates = arguments.at(0) == "accumulate";
    ddprun::DistributedDataParallelOptions options;
    options.bucket_bytes = 200;  // several buckets
    options.first_bucket_bytes = 100;

    Sequential network = make_network(static_cast<std::uint64_t>(worker.rank()));
    DistributedDataParallel model(network, group, options);
    Sequential alone = make_network(0);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    torch::optim::SGD optimizer_alone(alone->parameters(), torch::optim::SGDOptions(0.5));
    for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        optimizer_alone.zero_grad();
        if (accumulates) {
            const auto guard = model.no_sync();
            const torch::Tensor first = inputs_of(100 + step, world, 4);
            loss_of(model.forward(share_of(first, worker.rank(), world))).backward();
            loss_of(alone->forward(first)).backward();
        }
        const torch::Tensor inputs = inputs_of(step, world, 4);
        loss_of(model.forward(share_of(inputs, worker.rank(), world))).backward();
        loss_of(alone->forward(inputs)).backward();
        optimizer.step();
        optimizer_alone.step();
    }
    for (std::size_t i = 0; i < network->parameters().size(); ++i) {
        require(torch::allclose(network->parameters()[i], alone->parameters()[i], 1e-12, 1e-14),
                fmt::format("parameter {} is not that of one process with the whole batch", i));
        const torch::Tensor all = must(group.all_gather(network->parameters()[i].detach()));
        require(torch::equal(all[0], all[world - 1]), "the ranks' parameters are not the same");
    }
    say("equal");
    return worker.finish();
}

int batch_norm(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    torch::manual_seed(static_cast<std::uint64_t>(worker.rank()));
    Sequential network(Linear(6, 4), torch::nn::BatchNorm1d(4));
    DistributedDataParallel model(network, group);
    for (int step = 0; step < 3; ++step) {
        loss_of(model.forward(torch::randn({8, 6}))).backward();
    }
    {
        // Gives everyone rank 0's buffers before it computes.
        network->train();
        (void)model.forward(torch::ones({8, 6}));
    }
    const torch::Tensor count = must(group.all_gather(network->buffers()[2]));
    require(torch::equal(count[0], count[worker.world_size() - 1]), "batches counted");
    say("equal");
    return worker.finish();
}

int until_a_peer_dies_in_training(Worker& worker, const Arguments& /*arguments*/) {
    const ProcessGroup group = must(worker.process_group());
    const int world = worker.world_size();
    Sequential network = make_network(0);
    DistributedDataParallel model(network, group);
    say("joined");
    try {
        for (int step = 0;; ++step) {
            network->zero_grad();
            const torch::Tensor inputs = inputs_of(step, world, 64);
            loss_of(model.forward(share_of(inputs, worker.rank(), world))).backward();
        }
    } catch (const std::exception& failure) {
        say(fmt::format("error: {}", failure.what()));
        hang();
    }
}

/// Many small parameters that cost next to nothing: the test measures the bookkeeping.
struct ManyParameters : torch::nn::Module {
    ManyParameters() {
        for (int i = 0; i < 64; ++i) {
            weights.push_back(register_parameter(fmt::format("weight_{}", i), torch::ones({2})));
        }
    }
    torch::Tensor forward(const torch::Tensor& input) { return torch::cat(weights).sum() * input; }
    std::vector<torch::Tensor> weights;
};

std::size_t heap_bytes() {
    const struct mallinfo2 heap = mallinfo2();
    return heap.uordblks + heap.hblkhd;
}

/// long_training STEPS
int long_training(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    const auto network = std::make_shared<ManyParameters>();
    DistributedDataParallel model(network, group);
    const torch::Tensor input = torch::ones({});
    const auto train = [&](int steps) {
        for (int i = 0; i < steps; ++i) {
            network->zero_grad();
            model.forward(input).backward();
        }
    };
    train(100);  // until caches are warm
    const std::size_t before = heap_bytes();
    for (int tenth = 1; tenth <= 10; ++tenth) {
        train(std::stoi(arguments.at(0)) / 10);
        say(fmt::format("{} tenths", tenth));
    }
    const std::size_t after = heap_bytes();
    const std::size_t grown = after > before ? after - before : 0;
    require(grown < std::size_t{1} << 20, fmt::format("the heap grew by {} bytes", grown));
    say("steady");
    return worker.finish();
}

int other_shapes(Worker& worker, const Arguments& /*arguments*/) {
    const ProcessGroup group = must(worker.process_group());
    Sequential network(Linear(6, worker.rank() == 0 ? 4 : 5));
    try {
        const DistributedDataParallel model(network, group);
        wrong("a network of another shape was taken");
    } catch (const std::exception& failure) {
        say(fmt::format("refused: {}", std::string(failure.what()).substr(0, 200)));
    }
    return 0;
}

int until_asked(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    for (std::int64_t step = 1;; ++step) {
        torch::Tensor tensor = torch::ones({16});
        must(group.all_reduce(tensor));
        worker.progress(step);
        if (step == 5) {
            say("trains");
        }
        if (worker.stop_requested()) {
            require(worker.stop_requested(), "the answer stays");
            const torch::Tensor steps =
                must(group.all_gather(torch::full({1}, step, torch::kInt64)));
            require(steps.min().item<std::int64_t>() == steps.max().item<std::int64_t>(),
                    "the ranks left at different steps");
            say(fmt::format("left together, deadline {}", worker.stop_deadline().has_value()));
            return worker.leave({});
        }
    }
}

/// The same in a data-parallel training: the question travels with the gradients.
int until_asked_in_training(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const int world = worker.world_size();
    Sequential network = make_network(0);
    DistributedDataParallel model(network, group);
    const auto collectives_so_far = [&group] {
        return group.c10d()->getBackend(torch::kCPU)->getSequenceNumberForGroup();
    };
    for (std::int64_t step = 1;; ++step) {
        const std::uint64_t before = collectives_so_far();
        network->zero_grad();
        const torch::Tensor inputs = inputs_of(static_cast<int>(step), world, 4);
        loss_of(model.forward(share_of(inputs, worker.rank(), world))).backward();
        worker.progress(step);
        const bool is_asked = worker.stop_requested();
        require(collectives_so_far() == before + 1, "a collective only for the question");
        if (step == 5) {
            say("trains");
        }
        if (is_asked) {
            const torch::Tensor steps =
                must(group.all_gather(torch::full({1}, step, torch::kInt64)));
            require(steps.min().item<std::int64_t>() == steps.max().item<std::int64_t>(),
                    "the ranks left at different steps");
            say(fmt::format("left together, deadline {}", worker.stop_deadline().has_value()));
            return worker.leave({});
        }
    }
}

/// accumulates DIR group|part: four passes make a step, of a network that the group has in common
/// or a sub-group; asked to leave before the first.
int accumulates(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const bool is_by_part = arguments.at(1) == "part";
    const int world = worker.world_size();
    Sequential network = make_network(0);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    DistributedDataParallel model(network, is_by_part ? *must(group.subgroup({0, 1})) : group);
    ddprun::TrainingState state(network.ptr(), optimizer);
    ddprun::Checkpoints checkpoints(arguments.at(0), worker, group);
    for (int pass = 1;; ++pass) {
        const auto add_up = [&] {
            loss_of(model.forward(share_of(inputs_of(pass, world, 4), worker.rank(), world)))
                .backward();
        };
        if (pass % 4 == 0) {
            add_up();
            optimizer.step();
            optimizer.zero_grad();
        } else {
            const auto guard = model.no_sync();
            add_up();
            const Result<void> saved = checkpoints.save(1, state);
            require(!saved, "saved without the gradients");
            say("not saved: " + saved.error().what);
        }
        if (worker.stop_requested()) {
            say(fmt::format("asked after pass {}", pass));
            return worker.leave(checkpoints.save(2, state));
        }
    }
}

/// The parts of a training of the checkpoint scenarios.
struct Trained {
    explicit Trained(const Worker& worker, std::int64_t hidden = 8)
        : network(Linear(6, hidden), torch::nn::BatchNorm1d(hidden), torch::nn::Dropout(0.3),
                  Linear(hidden, 3)),
          optimizer(network->parameters(), torch::optim::AdamWOptions(0.01).amsgrad(true)),
          sampler(100, worker.rank(), worker.world_size(), {.seed = 3}),
          state(network.ptr(), optimizer) {
        state.add("sampler", sampler);
        state.add("steps", steps);
        state.add("temperature", temperature);
        state.add("table", table);
        state.add_sum("total", total);
    }

    /// So many steps; dropout draws from the random state, which must go on too.
    void train(DistributedDataParallel<torch::nn::SequentialImpl>& model, int count) {
        for (int i = 0; i < count; ++i) {
            std::optional<torch::Tensor> batch = sampler.next_batch(5);
            if (!batch) {
                sampler.set_epoch(sampler.epoch() + 1);
                batch = sampler.next_batch(5);
            }
            const torch::Tensor inputs = batch->to(torch::kFloat32).unsqueeze(1).expand({-1, 6});
            optimizer.zero_grad();
            loss_of(model.forward(inputs / 100)).backward();
            optimizer.step();
            total += batch->sum();
            temperature *= 0.9;
            ++steps;
        }
        optimizer.param_groups()[0].options().set_lr(0.01 * temperature);
    }

    torch::Tensor all_values() {
        std::vector<torch::Tensor> all;
        for (const torch::Tensor& parameter : network->parameters()) {
            all.push_back(parameter.detach().flatten().to(torch::kFloat64));
        }
        for (const torch::Tensor& buffer : network->buffers()) {
            all.push_back(buffer.flatten().to(torch::kFloat64));
        }
        all.push_back(torch::rand({4}, torch::kFloat64));  // the random state
        all.push_back(torch::full({1}, temperature, torch::kFloat64));
        all.push_back(
            torch::full({1}, optimizer.param_groups()[0].options().get_lr(), torch::kFloat64));
        return torch::cat(all);
    }

    Sequential network;
    torch::optim::AdamW optimizer;
    ddprun::DistributedSampler sampler;
    std::int64_t steps = 0;
    double temperature = 1;
    torch::Tensor table = torch::arange(4);
    torch::Tensor total = torch::zeros({1}, torch::kInt64);
    ddprun::TrainingState state;
};

/// checkpoint DIR SAVE_AT END: trains to END steps from the newest checkpoint, saves at SAVE_AT.
int checkpoint(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    torch::manual_seed(static_cast<std::uint64_t>(7 + worker.rank()));
    Trained trained(worker);
    DistributedDataParallel model(trained.network, group);
    ddprun::Checkpoints checkpoints(arguments.at(0), worker, group);
    const int save_at = std::stoi(arguments.at(1));
    const int end = std::stoi(arguments.at(2));
    const Result<std::optional<std::int64_t>> resumed = checkpoints.resume(trained.state);
    if (!resumed) {
        say("refused: " + resumed.error().what);
        return 4;
    }
    say(*resumed ? fmt::format("resumed {}", **resumed) : "fresh");
    if (trained.steps < save_at) {
        trained.train(model, save_at - static_cast<int>(trained.steps));
        const Result<void> saved = checkpoints.save(trained.steps, trained.state);
        say(saved ? "saved" : "not saved: " + saved.error().what);
    }
    trained.train(model, end - static_cast<int>(trained.steps));
    const torch::Tensor values = trained.all_values();
    torch::Tensor total = trained.total.clone();
    must(group.all_reduce(total));
    say(fmt::format("values {:016x} of {}, total {}",
                    std::hash<std::string>()(std::string(
                        static_cast<const char*>(values.const_data_ptr()), values.nbytes())),
                    worker.rank(), total.item<std::int64_t>()));
    return worker.finish();
}

/// misfit DIR: a network of another shape than that of `checkpoint`.
int misfit(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    Trained trained(worker, 9);
    const torch::Tensor before = trained.network->parameters()[0].detach().clone();
    ddprun::Checkpoints checkpoints(arguments.at(0), worker, group);
    const Result<std::optional<std::int64_t>> resumed = checkpoints.resume(trained.state);
    require(!resumed, "a checkpoint of another network was taken");
    require(torch::equal(before, trained.network->parameters()[0]), "the network was changed");
    say("refused: " + resumed.error().what);
    return worker.finish();
}

/// misfit_on_one DIR: rank 1 alone has another network.
int misfit_on_one(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    Trained trained(worker, worker.rank() == 1 ? 9 : 8);
    const torch::Tensor before = trained.network->parameters()[0].detach().clone();
    ddprun::Checkpoints checkpoints(arguments.at(0), worker, group);
    const Result<std::optional<std::int64_t>> resumed = checkpoints.resume(trained.state);
    require(!resumed, "a checkpoint of another network was taken");
    require(torch::equal(before, trained.network->parameters()[0]), "the network was changed");
    require(trained.steps == 0, "the steps were changed");
    say("refused: " + resumed.error().what);
    return worker.finish();
}

/// Rank 0 alone has the values: they may differ among ranks.
int take_state(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const Trained trained(worker);
    const ddprun::worker::CollectedState state = must(trained.state.collect(group));
    require(state.models.contains("model.0.weight"), "the network is missing");
    require(state.models_prefix == "model.", "the network's prefix is " + state.models_prefix);
    require(state.rows.contains("random.cpu"), "the random state is missing");
    require(state.others.contains("optimizer.lr.0"), "the optimizer is missing");
    require(state.values.contains("sampler") == (worker.rank() == 0), "the sampler");
    say("taken");
    return worker.finish();
}

/// resume_memory DIR: a resume holds the checkpoint once beside what it puts it into.
int resume_memory(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    Sequential network(Linear(torch::nn::LinearOptions(3072, 4096).bias(false)));
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    ddprun::TrainingState state(network.ptr(), optimizer);
    ddprun::Checkpoints checkpoints(arguments.at(0), worker, group);
    must(checkpoints.save(1, state));
    const auto bytes = static_cast<std::int64_t>(network->parameters()[0].nbytes());
    std::ofstream("/proc/self/clear_refs") << "5";  // the peak starts again from here
    const std::int64_t before = status_bytes("VmRSS");
    require(must(checkpoints.resume(state)).has_value(), "nothing to resume");
    const std::int64_t grown = status_bytes("VmHWM") - before;
    require(grown < bytes + bytes / 2,
            fmt::format("for {} bytes of state the resume took {}", bytes, grown));
    say("once");
    return worker.finish();
}

/// dtypes DIR: every type that a checkpoint can hold comes back with the same bytes.
int dtypes(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    Sequential network = make_network(0);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    std::map<std::string, torch::Tensor> tensors;
    for (const torch::ScalarType type :
         {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
          torch::kInt32, torch::kInt16, torch::kInt8, torch::kUInt8, torch::kBool, torch::kUInt16,
          torch::kUInt32, torch::kUInt64, torch::kComplexFloat, at::kFloat8_e4m3fn,
          at::kFloat8_e5m2, at::kFloat8_e4m3fnuz, at::kFloat8_e5m2fnuz}) {
        tensors[c10::toString(type)] = torch::arange(3).to(type);
    }
    ddprun::TrainingState state(network.ptr(), optimizer);
    std::map<std::string, torch::Tensor> before;
    for (auto& [name, tensor] : tensors) {
        state.add(name, tensor);
        before[name] = tensor.view(torch::kUInt8).clone();
    }
    ddprun::Checkpoints checkpoints(arguments.at(0), worker, group);
    must(checkpoints.save(1, state));
    for (auto& [name, tensor] : tensors) {
        tensor.view(torch::kUInt8).zero_();
    }
    require(must(checkpoints.resume(state)).has_value(), "nothing to resume");
    for (auto& [name, tensor] : tensors) {
        require(torch::equal(tensor.view(torch::kUInt8), before[name]), name + " has changed");
        say(name);
    }
    return worker.finish();
}

/// One name for two things ends the program before anything is lost.
int one_name_twice(Worker& worker, const Arguments& /*arguments*/) {
    Trained trained(worker);
    torch::Tensor sum = torch::zeros({1});
    trained.state.add_sum("table", sum);
    wrong("the name was taken twice");
}

/// Every sample counts once, whatever is padded, and a judge may use collectives.
int evaluation(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    for (const std::int64_t size : {1, 3, 10, 97}) {
        for (const std::int64_t batch_size : {1, 4, 64}) {
            const torch::Tensor sums =
                must(ddprun::evaluate(group, size, batch_size, [&](const torch::Tensor& indices) {
                    torch::Tensor count = torch::full({1}, indices.size(0), torch::kInt64);
                    must(group.all_reduce(count));
                    require(count.item<std::int64_t>() == indices.size(0) * worker.world_size(),
                            "the ranks' batches are not equally long");
                    return torch::stack({torch::ones_like(indices), indices * indices}, 1);
                }));
            require(sums[0].item<std::int64_t>() == size, "how many samples counted");
            require(sums[1].item<std::int64_t>() == (size - 1) * size * (2 * size - 1) / 6,
                    "the sum over all samples");
        }
    }
    say("equal");
    return worker.finish();
}

/// fails HOW: rank 1 fails while the others wait for it.
int fails(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    must(group.barrier());
    if (worker.rank() == 1 && arguments.at(0) == "program") {
        throw std::runtime_error("the loss is nan at step 12");
    }
    if (worker.rank() == 1 && arguments.at(0) == "libtorch") {
        (void)torch::matmul(torch::ones({2, 3}), torch::ones({2, 3}));
    }
    if (worker.rank() == 1 && arguments.at(0) == "result") {
        torch::Tensor tensor = torch::ones({2});
        checked(group.broadcast(tensor, 99));
    }
    if (worker.rank() == 1 && arguments.at(0) == "no exception") {
        throw 7;
    }
    checked(group.barrier());
    wrong("nobody has failed");
}

/// Argument: what GPU this rank says it has. Its group is over Gloo.
int gpus(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const Result<bool> is_shared = ddprun::worker::agree_on_gpus(
        group, {.host = fmt::format("host-{}", worker.rank()), .uuids = {arguments.at(0)}},
        arguments.size() > 1);
    if (!is_shared) {
        say("refused: " + is_shared.error().what);
        require(!group.barrier(), "the group goes on");
        return 3;
    }
    say(*is_shared ? "shared" : "own");
    return worker.finish();
}

int place(Worker& worker, const Arguments& /*arguments*/) {
    say(fmt::format("rank {} of {}, local {} of {}, generation {}, restarts {}, because {}",
                    worker.rank(), worker.world_size(), worker.local_rank(),
                    worker.local_world_size(), worker.generation(), worker.restart_count(),
                    worker.start_reason()));
    ddprun::ProcessGroupOptions options;
    options.timeout = std::chrono::minutes(7);
    const ProcessGroup group = must(worker.process_group(ddprun::Backend::Auto, options));
    require(group.c10d()->getGroupName() == fmt::format("ddprun/{}", worker.generation()),
            "the group's name is " + group.c10d()->getGroupName());
    require(group.c10d()->getStore()->getTimeout() == options.timeout,
            "what waits for the store after the join does not wait by the collectives' time-out");
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(Worker&, const Arguments&)>> scenarios = {
        {"accumulates", accumulates},
        {"batch_norm", batch_norm},
        {"checkpoint", checkpoint},
        {"collectives", collectives},
        {"data_parallel", data_parallel},
        {"dtypes", dtypes},
        {"evaluation", evaluation},
        {"fails", fails},
        {"gpus", gpus},
        {"joins_in_vain", joins_in_vain},
        {"long_training", long_training},
        {"misfit", misfit},
        {"misfit_on_one", misfit_on_one},
        {"one_name_twice", one_name_twice},
        {"other_shapes", other_shapes},
        {"own_mistakes", own_mistakes},
        {"place", place},
        {"progress_beside", progress_beside},
        {"resume_memory", resume_memory},
        {"take_state", take_state},
        {"until_a_peer_dies", until_a_peer_dies},
        {"until_a_peer_dies_in_training", until_a_peer_dies_in_training},
        {"until_asked", until_asked},
        {"until_asked_in_training", until_asked_in_training},
    };
    torch::set_num_threads(1);
    return ddprun::run(argc, argv, [&](Worker& worker) {
        return scenarios.at(argv[1])(worker, Arguments(argv + 2, argv + argc));
    });
}
