// One rank of the tests of collectives and of what is beside Python's DistributedDataParallel:
// `ddp_peer SCENARIO [arguments]`. Exits 1 with a line that starts with "wrong:" when something is
// not as it must be.

#include <signal.h>

#include <cstdint>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
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

/// What rank `rank` has for rank `other`: no two are alike.
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
    std::optional<ProcessGroup> alone = must(mine.subgroup({0}));
    require(alone.has_value() == (rank < 2), "who is in the part of a part");
    if (alone) {
        require(sum_over(*alone) == rank, "the sum over one");
        must(alone->finish());
    }
    // What is asked for differently is refused everywhere, and nobody waits.
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
        // The last rank is no part of it; it waits for nobody until it is killed.
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

/// What waits below the runtime while it writes to a rank that has stopped reading.
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

// What Python does the same way, in ddp_python.py. Numbers are sines, which both have alike.

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

/// spawn HOW: without a launcher. The first call is there to be skipped by the second's workers.
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
        {"subgroups", subgroups},
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
