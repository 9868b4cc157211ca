// One rank of the tests of collectives and of what is beside Python's DistributedDataParallel:
// `ddp_peer SCENARIO [arguments]`. Exits 1 with a line that starts with "wrong:" when something is
// not as it must be.

#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdio>
#include <deque>
#include <exception>
#include <filesystem>
#include <fstream>
#include <functional>
#include <future>
#include <iterator>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

#include "base/os/unique_fd.hpp"
#include "tests/support/rank.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/comm/late_ranks.hpp"
#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/comm/work_deadlines.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::ProcessGroup;
using ddprun::Reduction;
using ddprun::Result;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::hang;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::wrong;
using torch::Tensor;

Result<void> fate_of(const Result<Tensor>& result) {
    return result ? Result<void>() : Result<void>(result.error());
}

/// The part that rank `rank` has for rank `other`: no two are alike.
Tensor part_of(int rank, int other, torch::ScalarType type) {
    return torch::arange(6).reshape({2, 3}).add(10 * rank + other).to(type);
}

Tensor parts_of(int rank, int world, torch::ScalarType type) {
    std::vector<Tensor> parts;
    for (int other = 0; other < world; ++other) {
        parts.push_back(part_of(rank, other, type));
    }
    return torch::stack(parts);
}

/// For each collective what one process computes from all ranks' tensors.
void check_collectives(ProcessGroup& group, torch::ScalarType type) {
    const int world = group.world_size();
    const int rank = group.rank();
    const int root = world - 1;
    std::vector<Tensor> all;
    std::vector<Tensor> to_me;
    for (int other = 0; other < world; ++other) {
        all.push_back(part_of(other, other, type));
        to_me.push_back(part_of(other, rank, type));
    }
    const Tensor own = part_of(rank, rank, type);
    const auto is = [&](const Tensor& seen, const Tensor& expected, const std::string& what) {
        require(torch::equal(seen, expected),
                fmt::format("{} of {} on rank {}", what, c10::toString(type), rank));
    };
    Tensor sum = own.clone();
    must(group.reduce(sum, root));
    if (rank == root) {
        is(sum, torch::stack(all).sum(0).to(type), "reduce");
    }
    const Tensor gathered = must(group.gather(own, root));
    require(gathered.defined() == (rank == root), "gather gave a tensor to the wrong ranks");
    if (rank == root) {
        is(gathered, torch::stack(all), "gather");
    }
    is(must(group.all_gather(own)), torch::stack(all), "all_gather");
    Tensor part = torch::empty_like(own);
    must(group.scatter(part, rank == root ? parts_of(root, world, type) : Tensor(), root));
    is(part, part_of(root, rank, type), "scatter");
    is(must(group.reduce_scatter(parts_of(rank, world, type))), torch::stack(to_me).sum(0).to(type),
       "reduce_scatter");
    is(must(group.all_to_all(parts_of(rank, world, type))), torch::stack(to_me), "all_to_all");
    // Rank r sends other + 1 rows that say r to each.
    std::vector<std::int64_t> sends;
    std::vector<std::int64_t> receives;
    std::vector<Tensor> rows;
    for (int other = 0; other < world; ++other) {
        sends.push_back(other + 1);
        receives.push_back(rank + 1);
        rows.push_back(torch::full({rank + 1, 2}, other).to(type));
    }
    const Tensor sent = torch::full({world * (world + 1) / 2, 2}, rank).to(type);
    is(must(group.all_to_all(sent, sends, receives)), torch::cat(rows), "all_to_all by rows");
    Tensor product = own.clone();
    must(group.all_reduce(product, Reduction::Product));
    is(product, torch::stack(all).prod(0).to(type), "product");
    if (rank > 0) {
        must(group.send(own, 0, rank));
    } else {
        for (int other = world - 1; other > 0; --other) {  // by tag, not by arrival
            Tensor received = torch::empty_like(own);
            must(group.recv(received, other, other));
            is(received, part_of(other, other, type), "send and recv");
        }
    }
}

int collectives(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const int world = worker.world_size();
    for (const torch::ScalarType type :
         {torch::kFloat64, torch::kFloat32, torch::kFloat16, torch::kBFloat16, torch::kInt64,
          torch::kInt32, torch::kInt8, torch::kUInt8}) {
        check_collectives(group, type);
    }
    Tensor mean = torch::full({2}, worker.rank(), torch::kFloat32);
    must(group.all_reduce(mean, Reduction::Mean));
    require(mean[1].item<double>() == (world - 1) / 2.0, "the mean");
    const Tensor means = must(group.reduce_scatter(
        torch::full({world, 1}, worker.rank(), torch::kFloat64), Reduction::Mean));
    require(means.item<double>() == (world - 1) / 2.0, "the scattered mean");

    // Mistakes are told, and leave the group as it is.
    const auto refused = [&](const Result<void>& result, const std::string& words) {
        require(!result && result.error().what.find(words) != std::string::npos,
                "not refused as it should be: " + (result ? words : result.error().what));
    };
    Tensor count = torch::ones({1}, torch::kInt64);
    refused(group.all_reduce(count, Reduction::Mean), "mean of integers");
    refused(fate_of(group.all_to_all(torch::ones({world + 1, 2}))), "rows to send");
    refused(fate_of(group.reduce_scatter(torch::ones({world + 1}))), "one row for each of");
    refused(group.send(count, worker.rank()), "not another rank");
    refused(group.recv(count, world), "not another rank");
    refused(fate_of(group.gather(count, world)), "root");
    must(group.barrier());
    say("right");
    return worker.finish();
}

/// Threads of this process that a write to a closed connection would end it on.
int threads_open_to_sigpipe() {
    int count = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
        std::ifstream status(thread.path() / "status");
        for (std::string line; std::getline(status, line);) {
            if (line.starts_with("SigBlk:")) {
                const auto blocked = std::stoull(line.substr(line.find('\t') + 1), nullptr, 16);
                count += (blocked >> (SIGPIPE - 1) & 1U) == 0 ? 1 : 0;
            }
        }
    }
    return count;
}

/// Sums over the even and the odd ranks, over a part of a part, and over all in between.
int subgroups(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const int rank = worker.rank();
    const int world = worker.world_size();
    const auto sum_over = [&](ProcessGroup& part) {
        Tensor sum = torch::full({1}, rank, torch::kInt64);
        must(part.all_reduce(sum));
        return sum.item<int>();
    };
    std::vector<int> even;
    std::vector<int> odd;
    for (int other = world - 1; other >= 0; --other) {  // numbered in ascending order all the same
        (other % 2 == 0 ? even : odd).push_back(other);
    }
    std::optional<ProcessGroup> evens = must(group.subgroup(even));
    std::optional<ProcessGroup> odds = must(group.subgroup(odd));
    require(evens.has_value() == (rank % 2 == 0) && odds.has_value() == (rank % 2 == 1),
            "who is in which sub-group");
    ProcessGroup& mine = evens ? *evens : *odds;
    require(mine.rank() == rank / 2, "the number in the sub-group");
    for (int i = 0; i < 3; ++i) {
        int expected = 0;
        for (const int other : evens ? even : odd) {
            expected += other;
        }
        require(sum_over(mine) == expected, "the sum over a sub-group");
        require(sum_over(group) == world * (world - 1) / 2, "the sum over all");
    }
    const c10::intrusive_ptr<c10d::Backend> gloo = group.c10d()->getBackend(torch::kCPU);
    const int open_before = threads_open_to_sigpipe();
    const c10::intrusive_ptr<c10d::Backend> split =
        gloo->split(c10::make_intrusive<c10d::PrefixStore>("split", group.c10d()->getStore()),
                    {0, 1}, gloo->getBackendOptions());
    require((split != nullptr) == (rank < 2), "who is in what c10d has split off");
    if (split) {
        std::vector<Tensor> sums{torch::full({1}, rank + 1, torch::kInt64)};
        split->allreduce(sums)->wait();
        require(sums.front().item<int>() == 3, "the sum over what c10d has split off");
        require(threads_open_to_sigpipe() == open_before, "a thread of Gloo has SIGPIPE");
    }
    std::optional<ProcessGroup> alone = must(mine.subgroup({0}));
    require(alone.has_value() == (rank < 2), "who is in the part of a part");
    if (alone) {
        require(sum_over(*alone) == rank, "the sum over one");
        must(alone->finish());
    }
    // A sub-group for which the ranks give different lists is refused on all, and no rank waits.
    const auto differing = group.subgroup({rank == 0 ? 0 : 1});
    require(!differing, "different lists were taken");
    say("differing: " + differing.error().what);
    const auto impossible = group.subgroup({0, 0});
    require(!impossible, "a rank was taken twice");
    say("twice: " + impossible.error().what);
    must(group.barrier());
    const int code = worker.finish();
    require(!mine.barrier(), "a sub-group goes on after its group's finish()");
    say("right");
    return code;
}

/// until_a_peer_dies OPERATION: others must learn of it although this process lives on.
int until_a_peer_dies(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const int rank = worker.rank();
    const int world = worker.world_size();
    std::optional<ProcessGroup> first_two = must(group.subgroup({0, 1}));
    const Tensor parts = torch::ones({world, 1 << 12});
    const std::map<std::string, std::function<Result<void>()>> operations = {
        {"gather", [&] { return fate_of(group.gather(parts)); }},
        {"reduce_scatter", [&] { return fate_of(group.reduce_scatter(parts)); }},
        {"all_to_all", [&] { return fate_of(group.all_to_all(parts)); }},
        {"scatter",
         [&] {
             Tensor part = torch::empty({1 << 12});
             return group.scatter(part, parts);
         }},
        {"send",  // around a ring
         [&]() -> Result<void> {
             Tensor token = torch::ones({1 << 12});
             const int next = (rank + 1) % world;
             const int before = (rank + world - 1) % world;
             if (rank == 0) {
                 const Result<void> sent = group.send(token, next);
                 return sent ? group.recv(token, before) : sent;
             }
             const Result<void> received = group.recv(token, before);
             return received ? group.send(token, next) : received;
         }},
        // The last rank is no part of it; it hangs until it is killed.
        {"subgroup",
         [&] {
             if (!first_two) {
                 hang();
             }
             Tensor tensor = torch::ones({1 << 12});
             return first_two->all_reduce(tensor);
         }},
    };
    say("joined");
    for (;;) {
        const Result<void> done = operations.at(arguments.at(0))();
        if (!done) {
            say("error: " + done.error().what);
            hang();
        }
    }
}

/// Waits below the runtime, in a write to a rank that has stopped reading.
int written_to_a_stopped_peer(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    if (worker.rank() == 1) {
        say("stops");
        (void)raise(SIGSTOP);
        hang();
    }
    std::vector<Tensor> tensors{torch::ones({1 << 24})};
    say("writes");
    try {
        if (arguments.at(0) == "broadcast") {
            group.c10d()->broadcast(tensors)->wait();
            group.c10d()->barrier()->wait();
        } else {
            group.c10d()->send(tensors, 1, 0)->wait();
            group.c10d()->barrier()->wait();
        }
    } catch (const std::exception& failure) {
        say(fmt::format("error: {}", failure.what()));
        hang();
    }
    wrong("nobody has noticed");
}

// ddp_python.py does the following in the same way. Numbers are sines, which both have alike.

Tensor numbers(torch::IntArrayRef shape, double start, torch::ScalarType type) {
    const std::int64_t count = c10::multiply_integers(shape);
    return torch::arange(count, torch::kFloat64)
        .mul(0.7)
        .add(start)
        .sin()
        .mul(0.5)
        .reshape(shape)
        .to(type);
}

void set_numbers(torch::nn::Module& network, torch::ScalarType type) {
    const torch::NoGradGuard no_grad;
    network.to(type);
    double start = 1;
    for (Tensor& parameter : network.parameters()) {
        parameter.copy_(numbers(parameter.sizes(), start, type));
        start += 1;
    }
}

torch::nn::Sequential make_network(torch::ScalarType type) {
    torch::nn::Sequential network(torch::nn::Linear(6, 8), torch::nn::Tanh(),
                                  torch::nn::Linear(8, 3));
    set_numbers(*network, type);
    return network;
}

Tensor inputs_of(int step, int rank, torch::ScalarType type) {
    return numbers({4, 6}, 100 + 10 * step + rank, type);
}

Tensor loss_of(const Tensor& outputs) {
    return outputs.pow(2).mean();
}

/// Beside Python's: what both write, as float64.
class Written {
public:
    Written(const std::string& folder, const std::string& name, torch::ScalarType type, int rank)
        : file_(fmt::format("{}/{}.{}.{}", folder, name,
                            type == torch::kFloat64 ? "float64" : "float32", rank),
                std::ios::binary) {}
    void add(const Tensor& tensor) {
        const Tensor all = tensor.detach().to(torch::kFloat64).flatten().contiguous();
        file_.write(static_cast<const char*>(all.const_data_ptr()),
                    static_cast<std::streamsize>(all.nbytes()));
    }
    /// Gradients, where there are any (else one number that says so), and parameters.
    void add(const torch::nn::Module& network) {
        for (const Tensor& parameter : network.parameters()) {
            add(parameter.grad().defined() ? parameter.grad() : torch::full({1}, -77));
            add(parameter);
        }
    }

private:
    std::ofstream file_;
};

void accumulate(ProcessGroup& group, torch::ScalarType type, Written& out) {
    auto network = make_network(type);
    ddprun::DistributedDataParallel model(network, group);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5).momentum(0.9));
    for (int step = 0; step < 4; ++step) {
        optimizer.zero_grad();
        {
            const auto guard = model.no_sync();
            for (int micro = 0; micro < 2; ++micro) {
                loss_of(model.forward(inputs_of(step + 20 * micro + 20, group.rank(), type)))
                    .backward();
            }
        }
        loss_of(model.forward(inputs_of(step, group.rank(), type))).backward();
        optimizer.step();
    }
    out.add(*network);
}

/// Two branches, of which a pass takes one, or none.
struct Branches : torch::nn::Module {
    explicit Branches(torch::ScalarType type) {
        trunk = register_module("trunk", torch::nn::Linear(6, 4));
        left = register_module("left", torch::nn::Linear(4, 4));
        right = register_module("right", torch::nn::Linear(4, 4));
        never = register_module("never", torch::nn::Linear(4, 4));
        set_numbers(*this, type);
    }
    Tensor forward(const Tensor& input, int branch) {
        const Tensor hidden = torch::tanh(trunk(input));
        return branch == 0 ? left(hidden) : branch == 1 ? right(hidden) : hidden;
    }
    torch::nn::Linear trunk{nullptr}, left{nullptr}, right{nullptr}, never{nullptr};
};

void unused(ProcessGroup& group, torch::ScalarType type, Written& out) {
    const auto network = std::make_shared<Branches>(type);
    ddprun::DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    ddprun::DistributedDataParallel model(network, group, options);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    for (int step = 0; step < 6; ++step) {
        optimizer.zero_grad();
        // The ranks take different branches, the same one, or rank 1 none.
        const int branch = step % 3 == 0   ? group.rank() % 2
                           : step % 3 == 1 ? 0
                                           : (group.rank() == 1 ? 2 : 1);
        loss_of(model.forward(inputs_of(step, group.rank(), type), branch)).backward();
        optimizer.step();
    }
    out.add(*network);
}

/// Rank r has 2 + 2 r batches; buffers are given, too.
void uneven(ProcessGroup& group, torch::ScalarType type, bool by_initial, Written& out) {
    torch::nn::Sequential network(torch::nn::Linear(6, 4), torch::nn::BatchNorm1d(4),
                                  torch::nn::Linear(4, 3));
    set_numbers(*network, type);
    ddprun::DistributedDataParallel model(network, group);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1));
    model.join(
        [&] {
            for (int step = 0; step < 2 + 2 * group.rank(); ++step) {
                optimizer.zero_grad();
                loss_of(model.forward(inputs_of(step, group.rank(), type))).backward();
                optimizer.step();
            }
        },
        {.divide_by_initial_world_size = by_initial});
    for (const Tensor& parameter : network->parameters()) {
        out.add(parameter);
    }
    for (const Tensor& buffer : network->buffers()) {
        out.add(buffer);
    }
}

void compress(ProcessGroup& group, torch::ScalarType type, ddprun::GradientCompression how,
              Written& out) {
    auto network = make_network(type);
    ddprun::DistributedDataParallelOptions options;
    options.compression = how;
    ddprun::DistributedDataParallel model(network, group, options);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        loss_of(model.forward(inputs_of(step, group.rank(), type))).backward();
        optimizer.step();
    }
    out.add(*network);
}

/// Each rank has parameters of its own; one process has them all.
void clip(ProcessGroup& group, torch::ScalarType type, double norm_type, Written& out) {
    std::vector<Tensor> parameters;
    for (int i = 0; i < 2; ++i) {
        parameters.push_back(torch::zeros({5}, type));
        parameters.back().mutable_grad() = numbers({5}, 10 * group.rank() + i, type);
    }
    parameters.push_back(torch::zeros({5}, type));  // without a gradient
    out.add(must(ddprun::clip_grad_norm(group, parameters, 0.5, norm_type)));
    out.add(parameters[0].grad());
    out.add(parameters[1].grad());
    // One rank that has all.
    std::vector<Tensor> everything;
    for (int i = 0; i < 2 * group.world_size(); ++i) {
        everything.push_back(torch::zeros({5}, type));
        everything.back().mutable_grad() = numbers({5}, 10 * (i / 2) + i % 2, type);
    }
    out.add(must(ddprun::clip_grad_norm(everything, 0.5, norm_type)));
    out.add(everything.back().grad());
}

/// Rank r has 5 + 3 r samples of a batch that one process has as a whole; the last rank of three
/// or more has none.
void sync_batch_norm(ProcessGroup& group, torch::ScalarType type, Written& out) {
    const int world = group.world_size();
    std::int64_t before = 0;
    std::int64_t all = 0;
    std::int64_t own = 0;
    for (int rank = 0; rank < world; ++rank) {
        const int count = rank == 2 ? 0 : 5 + 3 * rank;
        before += rank < group.rank() ? count : 0;
        own = rank == group.rank() ? count : own;
        all += count;
    }
    // A first norm that sees the inputs, for their gradients; images; no momentum; no weights.
    torch::nn::Sequential plain(
        torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(3).momentum(0.3)),
        torch::nn::Conv2d(torch::nn::Conv2dOptions(3, 4, 2)),
        torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(4).momentum(std::nullopt)),
        torch::nn::Tanh(), torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 2, 1)),
        torch::nn::BatchNorm2d(torch::nn::BatchNormOptions(2).affine(false)));
    set_numbers(*plain, type);
    torch::nn::Sequential network = ddprun::convert_sync_batch_norm(plain, group);
    require(network->parameters()[0].is_same(plain->parameters()[0]), "a parameter was copied");
    ddprun::DistributedDataParallelOptions options;
    options.broadcast_buffers = false;
    ddprun::DistributedDataParallel model(network, group, options);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.001));
    for (int step = 0; step < 3; ++step) {
        optimizer.zero_grad();
        Tensor whole = numbers({all, 3, 4, 4}, 50 + step, type).add(1).requires_grad_();
        const Tensor outputs = model.forward(whole.narrow(0, before, own));
        const Tensor weights =
            (numbers(outputs.sizes(), 0, type) + 0.1 * static_cast<double>(before)) * 0.3;
        // DistributedDataParallel divides by the world's size.
        (outputs * weights)
            .pow(2)
            .sum()
            .mul(static_cast<double>(world) / static_cast<double>(18 * all))
            .backward();
        optimizer.step();
        Tensor of_inputs = whole.grad() / world;
        must(group.all_reduce(of_inputs));
        out.add(of_inputs);
        out.add(*network);
    }
    for (const Tensor& buffer : plain->buffers()) {
        out.add(buffer);
    }
    network->eval();
    out.add(network->forward(numbers({3, 3, 4, 4}, 9, type)));
}

/// beside_python FOLDER
int beside_python(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    for (const torch::ScalarType type : {torch::kFloat64, torch::kFloat32}) {
        const auto written = [&](const std::string& name, const auto& scenario) {
            Written out(arguments.at(0), name, type, worker.rank());
            scenario(out);
        };
        using ddprun::GradientCompression;
        written("accumulate", [&](Written& out) { accumulate(group, type, out); });
        written("unused", [&](Written& out) { unused(group, type, out); });
        written("join", [&](Written& out) { uneven(group, type, true, out); });
        written("join_by_active", [&](Written& out) { uneven(group, type, false, out); });
        written("clip", [&](Written& out) { clip(group, type, 2, out); });
        written("clip_max", [&](Written& out) {
            clip(group, type, std::numeric_limits<double>::infinity(), out);
        });
        written("float16",
                [&](Written& out) { compress(group, type, GradientCompression::Float16, out); });
        written("bfloat16",
                [&](Written& out) { compress(group, type, GradientCompression::BFloat16, out); });
        written("sync_batch_norm", [&](Written& out) { sync_batch_norm(group, type, out); });
    }
    say("written");
    return worker.finish();
}

/// A batch normalisation where it cannot be replaced; ranks that run out early.
int told(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    struct Block : torch::nn::Module {
        Block() { register_module("norm", torch::nn::BatchNorm1d(4)); }
        Tensor forward(const Tensor& input) { return input; }
    };
    torch::nn::Sequential network(torch::nn::Linear(6, 4), Block());
    try {
        (void)ddprun::convert_sync_batch_norm(network, group);
        wrong("a hidden batch normalisation was left as it is");
    } catch (const std::exception& failure) {
        say(fmt::format("not converted: {}", failure.what()));
    }
    ddprun::DistributedDataParallel model(make_network(torch::kFloat64), group);
    int passes = 0;
    try {
        model.join(
            [&] {
                for (; passes < 2 + worker.rank(); ++passes) {
                    loss_of(model.forward(inputs_of(0, 0, torch::kFloat64))).backward();
                }
            },
            {.throw_on_early_termination = true});
        wrong("a rank ran out of inputs and nobody was told");
    } catch (const std::exception& failure) {
        require(passes == 2, fmt::format("told after {} passes", passes));
        say(fmt::format("early: {}", failure.what()));
    }
    must(group.barrier());
    return worker.finish();
}

/// An engine that ends nothing by itself: as one for GPUs whose peer is gone. After abort() it says
/// that all is done.
class StuckEngine final : public c10d::Backend {
public:
    /// `is_asynchronous`: its work is done as soon as it is begun, as far as it says, and read()
    /// waits for the numbers, as the copy from a GPU does.
    StuckEngine(int rank, int size, bool is_asynchronous)
        : Backend(rank, size), is_asynchronous_(is_asynchronous) {}

    const std::string getBackendName() const override { return "stuck"; }

    c10::intrusive_ptr<c10d::Work> allreduce(std::vector<Tensor>& tensors,
                                             const c10d::AllreduceOptions& /*options*/) override {
        return begin(tensors);
    }
    c10::intrusive_ptr<c10d::Work> allreduce_coalesced(
        std::vector<Tensor>& tensors, const c10d::AllreduceCoalescedOptions& /*options*/) override {
        return begin(tensors);
    }

    void abort() override {
        const std::lock_guard lock(mutex_);
        is_aborted_ = true;
        for (const auto& [future, tensors] : begun_) {
            future->markCompleted(c10::IValue(tensors));
        }
        begun_.clear();
        changed_.notify_all();
    }

    void read() {
        std::unique_lock lock(mutex_);
        changed_.wait(lock, [this] { return is_aborted_; });
    }

private:
    using Future = c10::ivalue::Future;

    class StuckWork final : public c10d::Work {
    public:
        explicit StuckWork(c10::intrusive_ptr<Future> future) : future_(std::move(future)) {}
        bool wait(std::chrono::milliseconds /*timeout*/) override {
            future_->waitAndThrow();
            return true;
        }
        c10::intrusive_ptr<Future> getFuture() override { return future_; }

    private:
        c10::intrusive_ptr<Future> future_;
    };

    c10::intrusive_ptr<c10d::Work> begin(const std::vector<Tensor>& tensors) {
        const auto future =
            c10::make_intrusive<Future>(c10::ListType::create(c10::TensorType::get()));
        const std::lock_guard lock(mutex_);
        if (is_asynchronous_ || is_aborted_) {
            future->markCompleted(c10::IValue(tensors));
        } else {
            begun_.emplace_back(future, tensors);
        }
        return c10::make_intrusive<StuckWork>(future);
    }

    const bool is_asynchronous_;
    std::mutex mutex_;
    std::condition_variable changed_;
    bool is_aborted_ = false;
    std::vector<std::pair<c10::intrusive_ptr<Future>, std::vector<Tensor>>> begun_;
};

/// stuck_engine wait|future|training|read DIR: until a peer's death is known, nothing ends; then
/// nothing is used that the engine says to be done.
int stuck_engine(Worker& worker, const Arguments& arguments) {
    const std::string& how = arguments.at(0);
    ProcessGroup group = must(worker.process_group());
    auto network = make_network(torch::kFloat64);
    ddprun::DistributedDataParallel model(network, group);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.5));
    ddprun::TrainingState state(network.ptr(), optimizer);
    ddprun::Checkpoints checkpoints(arguments.at(1), worker, group);
    const auto engine =
        c10::make_intrusive<StuckEngine>(worker.rank(), worker.world_size(), how == "read");
    ddprun::worker::use_engine(*group.c10d(), *group.loss(), torch::kCPU,
                               c10d::ProcessGroup::BackendType::CUSTOM,
                               how == "future" ? ddprun::worker::make_guarded(engine, group.loss())
                                               : c10::intrusive_ptr<c10d::Backend>(engine));
    const auto train = [&] {
        loss_of(model.forward(inputs_of(0, worker.rank(), torch::kFloat64))).backward();
    };
    const auto fails = [](const std::function<void()>& action, const std::string& what) {
        try {
            action();
        } catch (const std::exception& failure) {
            say(fmt::format("error: {}", failure.what()));
            return;
        }
        wrong(what);
    };
    Tensor sum = torch::ones({2});
    if (how == "read") {
        must(group.all_reduce(sum));
        train();
        worker.progress(5);
    }
    say("waits");
    if (worker.rank() == 1) {
        hang();
    }
    if (how == "wait") {
        fails([&] { checked(group.all_reduce(sum)); }, "a result was used");
    } else if (how == "future") {
        std::vector<Tensor> tensors{sum};
        const auto work = group.c10d()->allreduce(tensors);
        fails([&] { work->getFuture()->waitAndThrow(); }, "a future's value was used");
    } else if (how == "training") {
        fails(train, "gradients were used");
    } else {
        engine->read();
        worker.progress(6, 0, 1e9);
        worker.scalar("loss", 1e9, 6);
        require(!checkpoints.save(6, state), "the state was saved");
        require(!group.check("read"), "the sum was taken for right");
        fails(train, "the training has gone on");
    }
    hang();
}

/// Connections of this process to itself.
class Loopback {
public:
    Loopback() : listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
        address_.sin_family = AF_INET;
        address_.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t size = sizeof(address_);
        require(::bind(listener_.get(), generic(), size) == 0 &&
                    ::listen(listener_.get(), SOMAXCONN) == 0 &&
                    ::getsockname(listener_.get(), generic(), &size) == 0,
                "no listener");
    }
    std::pair<ddprun::UniqueFd, ddprun::UniqueFd> connect() {
        ddprun::UniqueFd one(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        const linger none{.l_onoff = 1, .l_linger = 0};  // no port is left waiting
        require(::connect(one.get(), generic(), sizeof(address_)) == 0 &&
                    ::setsockopt(one.get(), SOL_SOCKET, SO_LINGER, &none, sizeof(none)) == 0,
                "no connection");
        return {std::move(one),
                ddprun::UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC))};
    }

private:
    sockaddr* generic() { return reinterpret_cast<sockaddr*>(&address_); }

    ddprun::UniqueFd listener_;
    sockaddr_in address_{};
};

/// One weight under two names, as embeddings and the last layer often have it.
struct Tied : torch::nn::Module {
    Tied() {
        first = register_module("first", torch::nn::Linear(6, 6));
        other = register_module("other", torch::nn::Linear(6, 6));
        set_numbers(*this, torch::kFloat64);
        last = register_parameter("last", first->weight);
    }
    Tensor forward(const Tensor& input, bool uses_tied) {
        const Tensor hidden = torch::tanh(other->forward(input));
        return uses_tied ? torch::matmul(first->forward(hidden), last) : hidden;
    }
    torch::nn::Linear first{nullptr}, other{nullptr};
    Tensor last;
};

/// The gradients of a network with a tied weight are the mean of the ranks' own, also after a pass
/// that did without that weight.
int tied(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const auto network = std::make_shared<Tied>();
    const auto alone = std::make_shared<Tied>();
    require(network->named_parameters().size() == 5, "the weight has one name");
    ddprun::DistributedDataParallelOptions options;
    options.find_unused_parameters = true;
    ddprun::DistributedDataParallel model(network, group, options);
    for (const bool uses_tied : {false, true, false, true}) {
        const Tensor inputs = inputs_of(0, worker.rank(), torch::kFloat64);
        loss_of(model.forward(inputs, uses_tied)).backward();
        loss_of(alone->forward(inputs, uses_tied)).backward();
    }
    Tensor mean = alone->last.grad().clone();
    must(group.all_reduce(mean, Reduction::Mean));
    require(torch::allclose(network->last.grad(), mean, 1e-12, 1e-14), "the mean of a tied weight");
    say("right");
    return worker.finish();
}

/// Gradients lie in their bucket, however they are cleared between the passes, and have the values
/// of gradients that do not.
int in_buckets(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    auto network = make_network(torch::kFloat64);
    auto alone = make_network(torch::kFloat64);
    ddprun::DistributedDataParallel model(network, group);
    torch::optim::SGD optimizer(network->parameters(), torch::optim::SGDOptions(0.1));
    const void* bucket = nullptr;
    const std::vector<std::function<void()>> clearings = {
        [&] { optimizer.zero_grad(); },
        [&] { optimizer.zero_grad(/*set_to_none=*/false); },
        [&] { network->zero_grad(); },
        [&] { network->zero_grad(/*set_to_none=*/false); },
    };
    for (std::size_t step = 0; step <= clearings.size(); ++step) {
        const Tensor inputs = inputs_of(static_cast<int>(step), worker.rank(), torch::kFloat64);
        const auto pass = [&] {
            loss_of(model.forward(inputs)).backward();
            loss_of(alone->forward(inputs)).backward();
        };
        {
            const auto guard = model.no_sync();
            pass();
        }
        pass();
        for (std::size_t i = 0; i < network->parameters().size(); ++i) {
            const Tensor& gradient = network->parameters()[i].grad();
            const void* storage = gradient.storage().data();
            bucket = bucket == nullptr ? storage : bucket;
            require(storage == bucket, fmt::format("gradient {} of step {} is a copy", i, step));
            Tensor mean = alone->parameters()[i].grad().clone();
            must(group.all_reduce(mean, Reduction::Mean));
            require(torch::allclose(gradient, mean, 1e-12, 1e-14),
                    fmt::format("gradient {} of step {}", i, step));
        }
        alone->zero_grad();
        if (step < clearings.size()) {
            clearings[step]();
        }
    }
    say("right");
    return worker.finish();
}

/// How many connections to other ranks are watched while others come and go.
int other_sockets(Worker& worker, const Arguments& /*arguments*/) {
    Loopback loopback;
    std::atomic<bool> has_joined = false;
    std::deque<std::pair<ddprun::UniqueFd, ddprun::UniqueFd>> sockets;
    std::thread others([&] {
        while (!has_joined || sockets.empty()) {
            sockets.push_back(loopback.connect());
            if (sockets.size() > 50) {
                sockets.pop_front();
            }
        }
    });
    ProcessGroup group = must(worker.process_group());
    has_joined = true;
    others.join();
    require(group.watched_connections() == static_cast<std::size_t>(worker.world_size() - 1),
            fmt::format("{} connections are watched", group.watched_connections()));
    const std::optional<ProcessGroup> part = must(group.subgroup({0, 1}));
    const std::size_t of_part = part ? part->watched_connections() : 1;
    require(of_part == 1, fmt::format("{} connections of the part are watched", of_part));
    sockets.clear();
    must(group.barrier());
    say("right");
    return worker.finish();
}

std::size_t open_files() {
    const std::filesystem::directory_iterator files("/proc/self/fd");
    return static_cast<std::size_t>(std::distance(begin(files), end(files)));
}

void set_limit_of_files(rlim_t soft, rlim_t hard) {
    const rlimit limit{.rlim_cur = soft, .rlim_max = hard};
    require(::setrlimit(RLIMIT_NOFILE, &limit) == 0, "the limit of open files cannot be set");
}

using Files = std::vector<ddprun::UniqueFd>;

Files open_all_that_can_be() {
    Files files;
    do {
        files.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
    } while (files.back().is_open());
    return files;
}

using Connections = std::vector<std::pair<ddprun::UniqueFd, ddprun::UniqueFd>>;

/// As if they were to rank 1.
ddprun::worker::GroupConnections group_of(const Connections& connections) {
    const auto own_end = [](const ddprun::UniqueFd& fd) {
        sockaddr_storage address{};
        socklen_t size = sizeof(address);
        require(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0,
                "a socket without an address");
        return ddprun::worker::address_text(address).value();
    };
    ddprun::worker::GroupConnections group;
    for (const auto& [ours, theirs] : connections) {
        group.emplace(std::pair(own_end(ours), own_end(theirs)), 1);
    }
    return group;
}

/// A watch of more connections than the limit of open files has room for.
int few_files(Worker& /*worker*/, const Arguments& /*arguments*/) {
    constexpr std::size_t kConnections = 40;
    Loopback loopback;
    Connections connections(kConnections);
    const auto connect = [&] {
        for (auto& connection : connections) {
            connection = loopback.connect();
        }
        return group_of(connections);
    };
    ddprun::worker::RuntimeLimits limits;
    limits.loss_grace = ddprun::Milliseconds(1);
    limits.descriptors_left = 100;
    rlimit before{};
    require(::getrlimit(RLIMIT_NOFILE, &before) == 0, "no limit of open files");
    const auto can_open = [](std::size_t count) {
        Files more;
        while (more.size() < count) {
            more.emplace_back(::open("/dev/null", O_RDONLY | O_CLOEXEC));
            require(more.back().is_open(),
                    fmt::format("only {} more files can be opened", more.size() - 1));
        }
    };
    for (const bool has_some : {true, false}) {
        const ddprun::worker::GroupConnections group = connect();
        set_limit_of_files(open_files() + 10, before.rlim_max);
        const Files rest = has_some ? Files() : open_all_that_can_be();
        const auto loss = std::make_shared<ddprun::worker::Loss>();
        const ddprun::worker::PeerWatch watch(group, loss, limits);
        require(watch.watched() == kConnections,
                fmt::format("{} connections are watched", watch.watched()));
        can_open(limits.descriptors_left);
        std::promise<void> lost;
        const ddprun::worker::Loss::Guard guard(*loss, [&lost] { lost.set_value(); });
        connections.back().second.reset();
        lost.get_future().wait();
    }
    // The hard limit has room for some: half of it is the program's.
    const ddprun::worker::GroupConnections group = connect();
    const auto loss = std::make_shared<ddprun::worker::Loss>();
    {
        const std::size_t all = open_files() + 24;
        set_limit_of_files(all, all);
        const ddprun::worker::PeerWatch watch(group, loss, limits);
        require(watch.watched() >= 8 && watch.watched() <= 12,
                fmt::format("{} connections are watched", watch.watched()));
        can_open(8);
    }
    const Files rest = open_all_that_can_be();
    const ddprun::worker::PeerWatch watch(group, loss, limits);
    require(watch.watched() == 0, fmt::format("{} connections are watched", watch.watched()));
    say("right");
    return 0;
}

/// An engine whose abort ends when it is let go.
class SlowEngine final : public c10d::Backend {
public:
    SlowEngine() : Backend(0, 1) {}
    const std::string getBackendName() const override { return "slow"; }
    void abort() override {
        begun.set_value();
        let_go.get_future().wait();
        for (int i = 0; i < 10'000; ++i) {
            std::this_thread::yield();
        }
        is_aborted = true;
    }

    std::promise<void> begun;
    std::promise<void> let_go;
    std::atomic<bool> is_aborted = false;
};

/// A loss that two threads find at once, and one that a thread finds again while it reports it.
int lost_twice(Worker& /*worker*/, const Arguments& /*arguments*/) {
    using ddprun::worker::Loss;
    ddprun::worker::RuntimeLimits limits;
    limits.abort_wait = std::chrono::hours(1);  // a busy machine takes seconds for the yields
    const auto loss = std::make_shared<Loss>(limits);
    const auto future = c10::make_intrusive<Loss::Future>(c10::NoneType::get());
    bool is_told = false;
    loss->unless_lost(future)->addCallback([&](Loss::Future& /*done*/) {
        loss->lose("found again");
        is_told = true;
    });
    const auto engine = c10::make_intrusive<SlowEngine>();
    loss->abort_when_lost(engine);
    std::thread first([&] {
        loss->lose("a rank is lost");
        require(engine->is_aborted, "the first has not waited for the engine");
    });
    engine->begun.get_future().wait();
    engine->let_go.set_value();
    loss->lose("found as well");
    require(engine->is_aborted, "the second has not waited for the engine");
    first.join();
    require(is_told, "who waits was not told");
    loss->lose("known for long");
    say("right");
    return 0;
}

/// An engine whose abort hangs keeps no thread for ever: not one that finds the loss, first or
/// later, not one that adds an engine then, and not one that ends a watch that has found the loss.
int hanging_abort(Worker& /*worker*/, const Arguments& /*arguments*/) {
    using ddprun::worker::Loss;
    ddprun::worker::RuntimeLimits limits;
    limits.abort_wait = ddprun::Milliseconds(1);
    limits.loss_grace = ddprun::Milliseconds(1);
    const auto found = std::make_shared<Loss>(limits);
    const std::vector<c10::intrusive_ptr<SlowEngine>> engines = {c10::make_intrusive<SlowEngine>(),
                                                                 c10::make_intrusive<SlowEngine>(),
                                                                 c10::make_intrusive<SlowEngine>()};
    found->abort_when_lost(engines[0]);
    found->lose("a rank is lost");
    found->lose("found as well");
    found->abort_when_lost(engines[1]);

    Loopback loopback;
    Connections connections;
    connections.push_back(loopback.connect());
    const auto watched = std::make_shared<Loss>();
    watched->abort_when_lost(engines[2]);
    {
        const ddprun::worker::PeerWatch watch(group_of(connections), watched, limits);
        connections.back().second.reset();
        engines[2]->begun.get_future().wait();
    }
    for (const auto& engine : engines) {
        require(!engine->is_aborted, "the abort has ended");
        engine->let_go.set_value();
    }
    while (!engines[0]->is_aborted || !engines[1]->is_aborted || !engines[2]->is_aborted) {
        std::this_thread::yield();
    }
    say("right");
    return 0;
}

/// An operation that is done when the test says so.
class HeldWork final : public c10d::Work {
public:
    bool isCompleted() override { return is_done; }
    std::atomic<bool> is_done = false;
};

/// An operation that is not done at its time-out is told, the first one and once; what is done
/// before is not, and neither is anything once the deadlines end.
int late_work(Worker& /*worker*/, const Arguments& /*arguments*/) {
    using ddprun::worker::WorkDeadlines;
    std::vector<c10::intrusive_ptr<HeldWork>> works;
    for (int i = 0; i < 4; ++i) {
        works.push_back(c10::make_intrusive<HeldWork>());
    }
    works[0]->is_done = true;
    std::atomic<int> told = 0;
    std::promise<c10d::Work*> late;
    {
        WorkDeadlines deadlines(std::chrono::milliseconds(1), [&](const auto& operation) {
            ++told;
            late.set_value(operation.work.get());
        });
        for (int i = 0; i < 3; ++i) {
            deadlines.watch({.work = works[static_cast<std::size_t>(i)]});
        }
        require(late.get_future().get() == works[1].get(), "another operation is late");
        deadlines.watch({.work = works[3]});
    }
    require(told == 1, "late operations were told more than once");
    {
        WorkDeadlines deadlines(std::chrono::hours(1), [&](const auto& /*operation*/) { ++told; });
        deadlines.watch({.work = works[3]});
        require(works[3].use_count() == 2, "the operation is not watched");
        works[3]->is_done = true;
        deadlines.watch({.work = works[2]});
        require(works[3].use_count() == 1, "an operation that is done is held");
    }
    require(told == 1, "an operation was told before its time-out");
    say("right");
    return 0;
}

/// Three ranks wait for a collective; one of them reports nothing, until all do.
int late_ranks(Worker& /*worker*/, const Arguments& /*arguments*/) {
    using ddprun::worker::name_late_ranks;
    const auto store = c10::make_intrusive<c10d::HashStore>();
    const auto name = [&](int rank, std::uint64_t number, ddprun::Milliseconds patience) {
        ddprun::worker::RuntimeLimits limits;
        limits.late_answer = patience;
        return name_late_ranks(store, {.rank = rank, .world_size = 3}, number, limits);
    };
    constexpr ddprun::Milliseconds kShort(1);
    say("alone: " + name(0, 7, kShort));
    say("two: " + name(2, 7, kShort));
    say("another: " + name(1, 8, kShort));
    say("all: " + name(1, 7, std::chrono::hours(1)));
    return 0;
}

/// device_failure HOW: rank 0's GPU or memory fails as it begins, and its process lives on.
int device_failure(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const std::string& how = arguments.at(0);
    if (worker.rank() == 1) {
        const Result<void> done = group.barrier();
        require(!done, "the barrier is done");
        say("error: " + done.error().what);
        hang();
    }
    const c10::SourceLocation here{__func__, __FILE__, __LINE__};
    const auto fails = [&]() -> Result<void> {
        if (how == "tensor memory") {
            // More rows than any address space holds.
            return fate_of(
                group.all_to_all(torch::ones({2, 1}), {1, 1}, {1, std::int64_t{1} << 46}));
        }
        return group.collective("all_reduce", [&]() -> c10::intrusive_ptr<c10d::Work> {
            if (how == "kernel") {
                throw c10::AcceleratorError(here, 710, "CUDA error: device-side assert triggered");
            }
            if (how == "GPU memory") {
                throw c10::OutOfMemoryError(here, "CUDA out of memory. Tried to allocate 2 GiB");
            }
            if (how == "memory") {
                throw std::bad_alloc();
            }
            throw c10::Error(here, how);
        });
    };
    const Result<void> done = fails();
    require(!done && done.error().code == ddprun::ErrorCode::System,
            "not a device's failure: " + (done ? "done" : done.error().what));
    const Result<void> later = group.barrier();
    require(!later && later.error().what == done.error().what, "a later call's error");
    say("error: " + done.error().what);
    hang();
}

/// spawn HOW: without a launcher. The workers of the second call must skip the first call.
int spawn_workers(const std::string& how) {
    say("main");
    const auto sum = [&how] {
        Worker worker = must(Worker::from_environment());
        ProcessGroup group = must(worker.process_group());
        Tensor ranks = torch::full({1}, worker.rank(), torch::kInt64);
        must(group.all_reduce(ranks));
        say(fmt::format("worker {} of {}: {}", worker.rank(), worker.world_size(),
                        ranks.item<int>()));
        if (how == "throw" && worker.rank() == 1) {
            throw std::runtime_error("no more memory for cats");
        }
        if (how == "kill" && worker.rank() == 1) {
            (void)raise(SIGKILL);
        }
        if (how == "code" && worker.rank() == 1) {
            std::_Exit(7);
        }
        if (how != "right") {
            hang();
        }
        return worker.finish();
    };
    const Result<void> first = ddprun::spawn(2, [] { return 0; });
    require(first.has_value(), first ? "" : first.error().what);
    const Result<void> ended = ddprun::spawn(3, sum);
    say(ended ? "all ended" : "failed: " + ended.error().what);
    return ended ? 0 : 9;
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(Worker&, const Arguments&)>> scenarios = {
        {"beside_python", beside_python},
        {"collectives", collectives},
        {"device_failure", device_failure},
        {"few_files", few_files},
        {"hanging_abort", hanging_abort},
        {"late_ranks", late_ranks},
        {"late_work", late_work},
        {"lost_twice", lost_twice},
        {"other_sockets", other_sockets},
        {"stuck_engine", stuck_engine},
        {"subgroups", subgroups},
        {"tied", tied},
        {"in_buckets", in_buckets},
        {"told", told},
        {"until_a_peer_dies", until_a_peer_dies},
        {"written_to_a_stopped_peer", written_to_a_stopped_peer},
    };
    torch::set_num_threads(1);
    try {
        if (std::string(argv[1]) == "spawn") {
            return spawn_workers(argv[2]);
        }
        Result<Worker> worker = Worker::from_environment();
        if (!worker) {
            say("refused: " + worker.error().what);
            return 2;
        }
        return scenarios.at(argv[1])(*worker, Arguments(argv + 2, argv + argc));
    } catch (const std::exception& failure) {
        wrong(failure.what());
    }
}
