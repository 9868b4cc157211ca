#include "tests/gpu/walk.hpp"

#include <ATen/detail/CUDAHooksInterface.h>
#include <poll.h>

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

#include "tests/support/rank.hpp"

namespace ddprun::test {

namespace {

using torch::Device;
using torch::Tensor;
using torch::nn::Dropout;
using torch::nn::Linear;
using torch::nn::Sequential;
using torch::nn::Tanh;
using torch::optim::AdamWOptions;
using torch::optim::SGDOptions;
using Tensors = std::vector<Tensor>;

constexpr std::int64_t kMany = 5000;
constexpr int kWorld = 2;

/// A process that uses a GPU takes some 500 MiB of it, also if it does so by mistake.
void require_no_other_gpu(const Device& device, const std::string& where) {
    for (int other = 0; device.is_cuda() && other < torch::cuda::device_count(); ++other) {
        const auto index = static_cast<c10::DeviceIndex>(other);
        require(index == device.index() || !at::detail::getCUDAHooks().hasPrimaryContext(index),
                fmt::format("{}: a rank with {} uses GPU {}, too", where, device.str(), other));
    }
}

/// 0, 1, 2, … and so much more on each rank.
Tensor numbers(const ProcessGroup& group, const Device& device,
               const std::vector<std::int64_t>& shape) {
    const std::int64_t count =
        std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
    return (torch::arange(count, torch::kFloat64).reshape(shape) + 1000 * group.rank()).to(device);
}

/// Each input that is transposed is sent as a copy, of which the caller does not know.
Tensors collectives(ProcessGroup& group, const Device& device) {
    const Device& on = device;
    Tensors results;
    for (const Reduction reduction :
         {Reduction::Sum, Reduction::Mean, Reduction::Min, Reduction::Max, Reduction::Product}) {
        Tensor all = numbers(group, on, {kMany});
        must(group.all_reduce(all, reduction));
        Tensor one = numbers(group, on, {kMany});
        must(group.reduce(one, 1, reduction));
        results.insert(
            results.end(),
            {all, group.rank() == 1 ? one : all,
             must(group.reduce_scatter(numbers(group, on, {kMany, kWorld}).t(), reduction))});
    }
    Tensor given = numbers(group, on, {kMany});
    must(group.broadcast(given, 1));
    Tensor scattered = torch::empty({kMany}, given.options());
    must(group.scatter(scattered, numbers(group, on, {kMany, kWorld}).t(), 1));
    const Tensor gathered = must(group.gather(numbers(group, on, {kMany, 3}).t(), 1));
    const std::vector<std::int64_t> sends =
        group.rank() == 0 ? std::vector<std::int64_t>{1, 2} : std::vector<std::int64_t>{3, 0};
    const std::vector<std::int64_t> receives =
        group.rank() == 0 ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{2, 0};
    results.insert(
        results.end(),
        {given, scattered, group.rank() == 1 ? gathered : given,
         must(group.all_gather(numbers(group, on, {kMany, 3}).t())),
         must(group.all_to_all(numbers(group, on, {kMany, kWorld}).t())),
         must(group.all_to_all(numbers(group, on, {kMany, 3}).t().narrow(0, 0, sends[0] + sends[1]),
                               sends, receives))});
    must(group.barrier());
    return results;
}

/// Each rank sends and receives, as often as tensors of the caller come and go.
Tensors transfers(ProcessGroup& group, const Device& device) {
    Tensors results;
    const int other = 1 - group.rank();
    for (int round = 0; round < 3; ++round) {
        Tensor received = torch::empty({3, kMany}, torch::dtype(torch::kFloat64).device(device));
        for (const int sender : {0, 1}) {
            if (sender == group.rank()) {
                must(group.send(numbers(group, device, {kMany, 3}).t() + round, other));
            } else {
                must(group.recv(received, other));
            }
        }
        results.push_back(received);
    }
    return results;
}

/// Several collectives and batches are pending at once, and are waited for from the last to the
/// first. In a batch both ranks send 64 MiB at once.
Tensors pending(ProcessGroup& group, const Device& device) {
    constexpr std::int64_t kLarge = std::int64_t{64} << 17;  // numbers of 8 bytes
    const int other = 1 - group.rank();
    Tensors results;
    std::vector<Pending<void>> begun;
    for (int round = 0; round < 3; ++round) {
        const Tensor sum = numbers(group, device, {kMany});
        begun.push_back(group.all_reduce_async(sum, Reduction::Mean));
        const Tensor gathered = torch::zeros({kWorld * kMany}, sum.options());
        begun.push_back(group.all_gather_into_async(gathered, numbers(group, device, {kMany})));
        const Tensor own = torch::zeros({kMany}, sum.options());
        begun.push_back(group.reduce_scatter_into_async(
            own, numbers(group, device, {kWorld, kMany}), Reduction::Mean));
        const Tensor received = torch::zeros({kLarge}, sum.options());
        const Tensor small = torch::zeros({kMany}, sum.options());
        begun.push_back(P2PBatch(group)
                            .send(torch::full({kLarge}, round + group.rank(), sum.options()), other)
                            .recv(received, other)
                            .send(numbers(group, device, {kMany}), other)
                            .recv(small, other)
                            .begin());
        results.insert(results.end(), {sum, gathered, own, small, received.slice(0, 0, 1),
                                       received.slice(0, kLarge - 1, kLarge)});
    }
    for (auto last = begun.rbegin(); last != begun.rend(); ++last) {
        must(last->wait());
    }
    return results;
}

/// Several tensors in one operation.
Tensors coalesced(ProcessGroup& group, const Device& device) {
    const Tensors sums = {numbers(group, device, {kMany}), numbers(group, device, {3})};
    Pending<void> reduced = group.all_reduce_coalesced_async(sums, Reduction::Mean);
    const auto options = torch::dtype(torch::kFloat64).device(device);
    const Tensors gathered = {torch::zeros({kWorld * kMany}, options),
                              torch::zeros({kWorld * 3}, options)};
    Pending<void> all = group.all_gather_into_coalesced_async(
        gathered, {numbers(group, device, {kMany}), numbers(group, device, {3})});
    const Tensors own = {torch::zeros({kMany}, options), torch::zeros({3}, options)};
    must(group.reduce_scatter_into_coalesced(
        own, {numbers(group, device, {kWorld, kMany}), numbers(group, device, {kWorld, 3})},
        Reduction::Mean));
    must(all.wait());
    must(reduced.wait());
    return {sums[0], sums[1], gathered[0], gathered[1], own[0], own[1]};
}

Sequential make_network(const Device& device) {
    torch::manual_seed(7);
    Sequential network(Linear(6, 8), torch::nn::BatchNorm1d(8), Tanh(), Linear(8, 8), Tanh(),
                       Linear(8, 3));
    network->to(device, torch::kFloat64);
    return network;
}

Tensor batch_of(const ProcessGroup& group, const Device& device, int number) {
    return torch::sin(numbers(group, device, {4, 6}) + 100 * number);
}

Tensors subgroups(ProcessGroup& group, const Device& device) {
    std::optional<ProcessGroup> both = must(group.subgroup({0, 1}));
    const std::optional<ProcessGroup> first = must(group.subgroup({0}));
    const std::optional<ProcessGroup> last = must(group.subgroup({1}));
    require(first.has_value() != last.has_value(), "sub-groups of one rank");
    const auto name_of = [&](const ProcessGroup& of) {
        return of.c10d()->getBackend(device.type())->getGroupUid();
    };
    require(name_of(*both).starts_with(name_of(group) + "/"), "the name of a sub-group's engine");
    Tensor sum = numbers(group, device, {kMany});
    must(both->all_reduce(sum));
    must(both->finish());
    const Sequential network = make_network(device);
    DistributedDataParallel model(network, first ? *first : *last);
    model.forward(batch_of(group, device, 0)).square().sum().backward();
    return {sum, network->parameters()[0].grad()};
}

/// Rank 1 does a step more than rank 0, and each step adds up two passes.
Tensors reducer(ProcessGroup& group, const Device& device) {
    Tensors results;
    for (const bool finds_unused : {false, true}) {
        const Sequential network = make_network(device);
        DistributedDataParallel model(network, group,
                                      {.bucket_bytes = 512,
                                       .first_bucket_bytes = 256,
                                       .find_unused_parameters = finds_unused});
        FusedSGD optimizer(network->parameters(), SGDOptions(0.1).momentum(0.9));
        const auto pass = [&](int number) {
            model.forward(batch_of(group, device, number)).square().mean().backward();
        };
        model.join([&] {
            for (int step = 0; step < 3 + group.rank(); ++step) {
                optimizer.zero_grad();
                {
                    const auto alone = model.no_sync();
                    pass(step);
                }
                pass(10 + step);
                optimizer.step();
            }
        });
        const Tensors parameters = network->parameters();
        results.insert(results.end(), parameters.begin(), parameters.end());
        results.push_back(network->named_buffers()["1.running_mean"]);
    }
    return results;
}

/// ZeRO-1, with a gather behind step(), and ZeRO-2. Rank 0's parameters are given to all.
Tensors sharded(ProcessGroup& group, const Device& device) {
    Tensors results;
    for (const bool shards_gradients : {false, true}) {
        Sequential network = make_network(device);
        if (group.rank() == 1) {
            const torch::NoGradGuard no_grad;
            network->parameters()[0].zero_();
        }
        std::optional<DistributedDataParallel<torch::nn::SequentialImpl>> model;
        if (!shards_gradients) {
            model.emplace(network, group);
        }
        ShardedOptimizer<FusedAdamW> optimizer(
            *network, group, AdamWOptions(0.1),
            {.bucket_bytes = 512, .shards_gradients = shards_gradients, .overlaps_gather = true});
        for (int step = 0; step < 3; ++step) {
            optimizer.zero_grad();
            const Tensor input = batch_of(group, device, step);
            (model ? model->forward(input) : network->forward(input)).square().mean().backward();
            if (shards_gradients) {
                results.push_back(must(clip_grad_norm(group, optimizer.shards(), 0.01)));
            } else {
                results.push_back(must(clip_grad_norm(network->parameters(), 0.01)));
            }
            optimizer.step();
        }
        for (const Tensor& parameter : network->parameters()) {
            results.push_back(parameter.clone());
        }
    }
    return results;
}

/// Gradients that a half holds exactly.
Tensors compression(ProcessGroup& group, const Device& device) {
    Tensors results;
    for (const auto kind : {GradientCompression::Float16, GradientCompression::BFloat16}) {
        Linear network(kMany, 3);
        network->to(device);
        DistributedDataParallel model(network, group, {.compression = kind});
        const Tensor input =
            torch::full({2, kMany}, 1.0F + static_cast<float>(group.rank()), torch::device(device));
        model.forward(input).sum().backward();
        results.push_back(network->weight.grad());
    }
    return results;
}

Tensors synced_norm(ProcessGroup& group, const Device& device) {
    torch::manual_seed(7);
    const auto norm = torch::nn::BatchNorm1dOptions(8).momentum(std::nullopt);
    Sequential plain(Linear(6, 8), torch::nn::BatchNorm1d(norm), Linear(8, 3));
    plain->to(device, torch::kFloat64);
    Sequential network = convert_sync_batch_norm(plain, group);
    Tensors results;
    for (int step = 0; step < 2; ++step) {
        const Tensor input = batch_of(group, device, step).requires_grad_();
        const Tensor output = network->forward(input);
        output.square().sum().backward();
        results.insert(results.end(), {output, input.grad(), network->parameters()[0].grad(),
                                       network->named_buffers()["1.running_var"].clone()});
    }
    return results;
}

/// In step 1 rank 1 alone has an infinite gradient.
Tensors optimizers(ProcessGroup& group, const Device& device) {
    Tensors results;
    for (const bool is_adam : {true, false}) {
        const Tensor weight = torch::ones({kMany}, torch::device(device)).requires_grad_();
        std::unique_ptr<torch::optim::Optimizer> optimizer;
        if (is_adam) {
            optimizer =
                std::make_unique<FusedAdamW>(Tensors{weight}, AdamWOptions(0.1).amsgrad(true));
        } else {
            optimizer = std::make_unique<FusedSGD>(Tensors{weight}, SGDOptions(0.1).momentum(0.9));
        }
        GradientScaler scaler(group, {.initial_scale = 64, .growth_interval = 2});
        for (int step = 0; step < 5; ++step) {
            optimizer->zero_grad();
            const Tensor input = numbers(group, device, {kMany}).to(torch::kFloat32) / 1000;
            scaler.scale((weight * input).sum()).backward();
            if (step == 1 && group.rank() == 1) {
                weight.mutable_grad()[7] = std::numeric_limits<float>::infinity();
            }
            must(scaler.unscale(*optimizer));
            results.push_back(must(clip_grad_norm(
                group, {weight}, 0.5, step == 2 ? std::numeric_limits<double>::infinity() : 2)));
            results.push_back(weight.grad().clone());
            require(must(scaler.step(*optimizer)) == (step != 1),
                    "a step with an infinite gradient");
            must(scaler.update());
            results.push_back(torch::scalar_tensor(scaler.current_scale()));
        }
        results.push_back(weight);
    }
    return results;
}

Tensors evaluation(ProcessGroup& group, const Device& device) {
    return {must(evaluate(group, 1001, 16, [&device](const Tensor& indices) {
        const Tensor values = indices.to(device, torch::kFloat64);
        return torch::stack({values, values.square()}, 1);
    }))};
}

/// The results on the device itself are those without a checkpoint; what is told is that the CPU's
/// are, too.
Tensors recomputation(ProcessGroup& group, const Device& device) {
    for (const bool is_half : {false, true}) {
        torch::manual_seed(7);
        Sequential network(Linear(6, 32), Dropout(0.5), Linear(32, 6));
        network->to(device);
        const auto train = [&](bool is_checkpointed) {
            torch::manual_seed(8);
            network->zero_grad();
            const Tensor input = batch_of(group, device, 0).to(torch::kFloat32).requires_grad_();
            Tensor output;
            {
                const Autocast half(device.type(), {.dtype = torch::kBFloat16, .enabled = is_half});
                output = is_checkpointed ? checkpoint_activations(network, input)
                                         : network->forward(input);
            }
            Tensors results{output, torch::rand({4}, device)};
            output.to(torch::kFloat32).square().sum().backward();
            results.insert(results.end(), {torch::rand({4}, device), input.grad().clone()});
            for (const Tensor& parameter : network->parameters()) {
                results.push_back(parameter.grad().clone());
            }
            return results;
        };
        const Tensors plain = train(false);
        const Tensors again = train(true);
        for (std::size_t i = 0; i < plain.size(); ++i) {
            require(plain[i].equal(again[i]),
                    fmt::format("tensor {} of a checkpointed segment on {}", i, device.str()));
        }
    }
    return {};
}

Tensors on_cpu(const Tensors& tensors) {
    Tensors copies;
    for (const Tensor& tensor : tensors) {
        copies.push_back(tensor.detach().to(torch::kCPU, torch::kFloat64));
    }
    return copies;
}

void require_close(const std::string& what, const Tensors& found, const Tensors& wanted) {
    require(found.size() == wanted.size(), what + ": the number of results");
    for (std::size_t i = 0; i < found.size(); ++i) {
        require(torch::allclose(found[i], wanted[i], 1e-5, 1e-8, /*equal_nan=*/true),
                fmt::format("{}: result {} is {}, not {}", what, i,
                            c10::str(found[i].flatten().slice(0, 0, 4)),
                            c10::str(wanted[i].flatten().slice(0, 0, 4))));
    }
}

/// All that a checkpoint holds of a GPU. Its steps are the same on all ranks.
struct Trained {
    Trained(const ProcessGroup& group, double value)
        : network(make_network(group.device())),
          optimizer(network->parameters(), AdamWOptions(0.1)),
          state(network.ptr(), optimizer),
          extra(torch::full({kMany}, value, torch::device(group.device()))),
          sum(torch::full({kMany}, value, torch::device(group.device()))) {
        state.add("extra", extra);
        state.add_sum("sum", sum);
    }

    void step(double value) {
        optimizer.zero_grad();
        const Tensor batch =
            torch::arange(24, torch::dtype(torch::kFloat64).device(extra.device()));
        network->forward((value * batch).sin().view({4, 6})).square().sum().backward();
        optimizer.step();
    }

    Sequential network;
    FusedAdamW optimizer;
    TrainingState state;
    Tensor extra;
    Tensor sum;
};

/// `saves_beside`: the copies are made while the next step is computed.
void resume(const Worker& worker, ProcessGroup& group, const std::string& folder,
            bool saves_beside) {
    const Device device = group.device();
    Checkpoints checkpoints(folder, worker, group);
    Trained first(group, 3);
    first.step(1);
    torch::manual_seed(static_cast<std::uint64_t>(50 + worker.rank()));
    (void)torch::rand({3}, device);
    must(saves_beside ? checkpoints.save_async(1, first.state) : checkpoints.save(1, first.state));
    require(first.sum.eq(3).all().item<bool>(), "a rank's own part of a sum that is saved");
    const auto go_on = [&](Trained& trained) {
        Tensors results{torch::rand({8}, device), torch::rand({8}), trained.extra};
        checkpoints.before_step();
        trained.step(2);  // with the optimizer's moments
        for (const Tensor& parameter : trained.network->parameters()) {
            results.push_back(parameter);
        }
        return on_cpu(results);
    };
    const Tensors wanted = go_on(first);
    must(checkpoints.wait());
    Trained second(group, 4);
    second.step(3);
    require(must(checkpoints.resume(second.state)) == 1, "the step of a checkpoint");
    require_close("a resumed training", go_on(second), wanted);
    require(second.sum.eq(worker.rank() == 0 ? 6 : 0).all().item<bool>(),
            "a sum over the ranks in a checkpoint");
}

/// For data loaders: the squares of a sample's number.
struct Squares {
    using BatchType = Tensor;
    static Tensor get_batch(const std::vector<std::size_t>& indices) {
        const std::vector<std::int64_t> all(indices.begin(), indices.end());
        return torch::tensor(all).square().unsqueeze(1).repeat({1, kMany});
    }
};

struct Call {
    const char* name;
    std::function<void(ProcessGroup&, Tensor&)> begin;  ///< the tensor is [world, kMany]
};

const std::array<Call, 12> kCalls{{
    {"all_reduce", [](ProcessGroup& group, Tensor& t) { must(group.all_reduce(t)); }},
    {"reduce", [](ProcessGroup& group, Tensor& t) { must(group.reduce(t)); }},
    {"broadcast", [](ProcessGroup& group, Tensor& t) { must(group.broadcast(t)); }},
    {"all_gather", [](ProcessGroup& group, Tensor& t) { must(group.all_gather(t)); }},
    {"gather", [](ProcessGroup& group, Tensor& t) { must(group.gather(t)); }},
    {"scatter",
     [](ProcessGroup& group, Tensor& t) {
         Tensor part = t[0].clone();
         must(group.scatter(part, t));
     }},
    {"reduce_scatter", [](ProcessGroup& group, Tensor& t) { must(group.reduce_scatter(t)); }},
    {"all_to_all", [](ProcessGroup& group, Tensor& t) { must(group.all_to_all(t)); }},
    {"send", [](ProcessGroup& group, Tensor& t) { must(group.send(t, 0)); }},
    {"recv", [](ProcessGroup& group, Tensor& t) { must(group.recv(t, 0)); }},
    {"allreduce_coalesced",
     [](ProcessGroup& group, Tensor& t) {
         Tensors tensors{t};
         must(group.collective("allreduce_coalesced",
                               [&] { return group.c10d()->allreduce_coalesced(tensors); }));
     }},
    // The last: the caller waits for it.
    {"barrier", [](ProcessGroup& group, Tensor& /*t*/) { (void)group.barrier(); }},
}};

}  // namespace

void load_batches(const Worker& worker) {
    const bool has_gpu = torch::cuda::is_available();
    const Device device =
        has_gpu ? Device(torch::kCUDA,
                         static_cast<c10::DeviceIndex>(worker.rank() % torch::cuda::device_count()))
                : Device(torch::kCPU);
    DistributedSampler sampler(100, worker.rank(), worker.world_size());
    DistributedSampler sampler_of_wanted = sampler;
    DataLoader loader(Squares{}, sampler, {.batch_size = 4, .workers = 2, .device = device});
    DataLoader wanted(Squares{}, sampler_of_wanted, {.batch_size = 4});
    std::optional<Tensor> batch = loader.next();
    require_no_other_gpu(device, "data loading");
    Tensors copied;
    for (; batch; batch = loader.next()) {
        require(batch->is_pinned() == has_gpu, "whether a batch is in pinned memory");
        copied.push_back(batch->to(device, /*non_blocking=*/true));
    }
    for (const Tensor& there : copied) {
        require(there.to(torch::kCPU).equal(*wanted.next()), "a batch that was copied");
    }
    require(!wanted.next(), "the number of batches");
}

void walk(const Worker& worker, ProcessGroup& group, const std::string& folder) {
    using Part = Tensors (*)(ProcessGroup&, const Device&);
    const std::map<std::string, Part> parts = {
        {"coalesced", coalesced},   {"collectives", collectives},     {"compression", compression},
        {"evaluation", evaluation}, {"optimizers", optimizers},       {"sharded", sharded},
        {"pending", pending},       {"recomputation", recomputation}, {"reducer", reducer},
        {"subgroups", subgroups},   {"synced_norm", synced_norm},     {"transfers", transfers}};
    const Device device = group.device();
    require(torch::empty({1}, device.type()).device() == device, "the current device");
    for (const auto& [name, part] : parts) {
        const Tensors wanted = on_cpu(part(group, torch::kCPU));
        require_close(name, on_cpu(part(group, device)), wanted);
        if (device.is_cuda()) {
            const auto* const streams = c10::impl::getDeviceGuardImpl(device.type());
            const c10::StreamGuard side(streams->getStreamFromGlobalPool(device));
            require_close(name + " from a side stream", on_cpu(part(group, device)), wanted);
        }
        say(name);
    }
    resume(worker, group, folder, /*saves_beside=*/false);
    resume(worker, group, folder + "/beside", /*saves_beside=*/true);
    // A thread begins with GPU 0 as its current device.
    std::thread([&group] { must(group.barrier()); }).join();
    require_no_other_gpu(device, "all of the walk");
}

namespace {

void clip(ProcessGroup& group) {
    const Tensor weight = torch::ones({kMany}, torch::device(group.device()));
    weight.mutable_grad() = torch::ones_like(weight);
    // The greatest is taken: the fake GPU's next operator would wait for the sum, too.
    const Result<Tensor> norm =
        clip_grad_norm(group, {weight}, 1e-3, std::numeric_limits<double>::infinity());
    require(weight.grad().eq(1).all().item<bool>(), "gradients are scaled by a norm that is none");
    (void)checked(norm);
}

void scale(ProcessGroup& group) {
    const Tensor weight = torch::ones({kMany}, torch::device(group.device())).requires_grad_();
    FusedSGD optimizer({weight}, SGDOptions(1));
    GradientScaler scaler(group);
    scaler.scale(weight.sum()).backward();
    const Result<bool> stepped = scaler.step(optimizer);
    require(weight.eq(1).all().item<bool>(), "a step that the ranks have not agreed on");
    (void)checked(stepped);
}

void normalise(ProcessGroup& group) {
    SyncBatchNorm norm(torch::nn::BatchNormOptions(6), group);
    norm->to(group.device(), torch::kFloat64);
    (void)norm->forward(batch_of(group, group.device(), 0));
}

void judge(ProcessGroup& group) {
    (void)checked(evaluate(group, 10, 5, [&](const Tensor& indices) {
        return indices.to(group.device(), torch::kFloat64).unsqueeze(1);
    }));
}

void build(ProcessGroup& group) {
    Sequential network = make_network(group.device());
    const DistributedDataParallel model(network, group);
}

/// Rank 1 has no memory for the result.
void gather_much(ProcessGroup& group) {
    const Tensor part = torch::zeros({8 << 20}, torch::device(group.device()));
    const Tensor all = checked(group.all_gather(part));
    (void)all[0][0].item<float>();
    checked(group.check("reading what was gathered"));
}

}  // namespace

void lose_in(const std::string& what, const Worker& worker, ProcessGroup& group) {
    const std::map<std::string, void (*)(ProcessGroup&)> calls = {
        {"build", build}, {"clip", clip},   {"gather_much", gather_much},
        {"judge", judge}, {"scale", scale}, {"normalise", normalise}};
    const std::optional<ProcessGroup> ended = must(group.subgroup({0, 1}));
    must(std::optional(ended)->finish());  // nothing is to abort it once more
    say("begins");
    if (worker.rank() == 0 && what != "gather_much") {
        hang();
    }
    try {
        calls.at(what)(group);
        wrong(what + ": nothing was lost");
    } catch (const std::exception& failure) {
        const std::string text = failure.what();
        say("lost: " + text.substr(0, text.find('\n')));
    }
    require_no_other_gpu(group.device(), "the end of a group");
}

void break_in(const std::string& what, ProcessGroup& group) {
    const Tensor weight = torch::ones({kMany}, torch::device(group.device())).requires_grad_();
    FusedSGD optimizer({weight}, SGDOptions(1));
    GradientScaler scaler(group);
    scaler.scale(weight.sum()).backward();
    std::optional<Error> failure;
    if (what == "clip") {
        // The greatest is taken: nothing computes between the collective and the read.
        const Result<Tensor> norm =
            clip_grad_norm(group, {weight}, 1, std::numeric_limits<double>::infinity());
        failure = norm ? std::nullopt : std::optional(norm.error());
    } else {
        const Result<bool> stepped = scaler.step(optimizer);
        failure = stepped ? std::nullopt : std::optional(stepped.error());
    }
    require(failure.has_value(), what + ": nothing has failed");
    say(fmt::format("{}: {}", failure->code == ErrorCode::System ? "own failure" : "peer lost",
                    failure->what));
    while (std::getchar() != EOF) {}
}

void save_sum(const Worker& worker, ProcessGroup& group, const std::string& folder) {
    Trained trained(group, 3);
    const auto say_collected = [] {
        say("collected");
        return TrainingState::Snapshot();
    };
    trained.state.add("last", say_collected, [](const TrainingState::Snapshot& /*stored*/) {});
    const Result<void> saved = Checkpoints(folder, worker, group).save(1, trained.state);
    say(saved ? "saved" : "lost: " + saved.error().what);
    hang();
}

void wait_in_all(ProcessGroup& group) {
    std::vector<ProcessGroup> parts;
    for (std::size_t i = 0; i < kCalls.size(); ++i) {
        parts.push_back(*must(group.subgroup({0, 1})));
    }
    if (group.rank() == 0) {
        hang();
    }
    // First: a computation on the GPU once an operation has begun waits for that operation.
    Tensors tensors;
    for (std::size_t i = 0; i < kCalls.size(); ++i) {
        tensors.push_back(torch::ones({kWorld, kMany}, torch::device(group.device())));
    }
    for (std::size_t i = 0; i < kCalls.size(); ++i) {
        kCalls[i].begin(parts[i], tensors[i]);
    }
    for (std::size_t i = 0; i < kCalls.size(); ++i) {
        Result<void> whole = parts[i].check("waiting");
        for (; whole; whole = parts[i].check("waiting")) {
            (void)poll(nullptr, 0, 10);
        }
        say(fmt::format("{}: {}", kCalls[i].name, whole.error().what));
    }
    must(group.check("the group of the sub-groups"));
    require_no_other_gpu(group.device(), "late operations");
}

void lose_in_part(const std::string& who, ProcessGroup& group) {
    std::optional<ProcessGroup> part = must(group.subgroup({0, 2}));
    const auto sum_over = [&](ProcessGroup& ranks) {
        Tensor sum = torch::ones({kMany}, torch::device(group.device()));
        checked(ranks.all_reduce(sum));
        (void)sum[0].item<float>();
        checked(ranks.check("reading the sum"));
        return sum.eq(ranks.world_size()).all().item<bool>();
    };
    say("begins");
    if (part && (group.rank() == 0 || who == "all")) {
        try {
            (void)sum_over(*part);
            wrong("the sub-group has lost no rank");
        } catch (const std::exception& failure) {
            say(std::string("part: ") + failure.what());
        }
        require(part->check("again").error().code == ErrorCode::ConnectionLost,
                "the kind of a sub-group's failure");
    }
    (void)std::getchar();
    try {
        require(sum_over(group), "the sum over all ranks");
        say("whole: a sum");
    } catch (const std::exception& failure) {
        say(std::string("whole: ") + failure.what());
    }
    require_no_other_gpu(group.device(), "a lost sub-group");
}

}  // namespace ddprun::test
