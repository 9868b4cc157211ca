// One rank of the tests of saving and resuming by all ranks together: `save_peer SCENARIO
// [arguments]`. Says what it sees, one line each; exits 1 with a line that starts with "wrong:"
// when something is not as it must be.

#include <poll.h>
#include <signal.h>
#include <sys/resource.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <stdexcept>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/checkpoint/publishing.hpp"
#include "worker_runtime/comm/texts.hpp"
#include "worker_runtime/state/saving.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::Checkpoints;
using ddprun::CheckpointsOptions;
using ddprun::DistributedDataParallel;
using ddprun::ProcessGroup;
using ddprun::Result;
using ddprun::TrainingState;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::status_bytes;
using torch::nn::Linear;
using torch::nn::Sequential;
using Shape = std::vector<std::int64_t>;

/// Three layers of 16 MiB each, one of 1 KiB, and batch norm: with momentum 96 MiB of state.
struct LargeTraining {
    explicit LargeTraining(ProcessGroup group)
        : network(Linear(torch::nn::LinearOptions(2048, 2048).bias(false)),
                  torch::nn::BatchNorm1d(2048),
                  Linear(torch::nn::LinearOptions(2048, 2048).bias(false)),
                  Linear(torch::nn::LinearOptions(2048, 2048).bias(false))),
          model((torch::manual_seed(5), network), std::move(group)),
          optimizer(network->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9)),
          state(network.ptr(), optimizer) {
        state.add("step", step);
    }

    void train_step(int rank) {
        optimizer.zero_grad();
        const torch::Tensor inputs =
            torch::full({4, 2048}, 0.01 * static_cast<double>(rank + step));
        const torch::Tensor noise = torch::rand_like(inputs);
        model.forward(inputs + noise).pow(2).mean().backward();
        optimizer.step();
        ++step;
    }

    /// Covers all parameters and momenta, and rank 0's buffers, which all ranks have from the next
    /// forward pass on.
    std::string hash(int rank) {
        std::size_t sum = 0;
        const auto add = [&sum](const torch::Tensor& tensor) {
            const torch::Tensor flat = tensor.detach().contiguous();
            const std::string_view bytes(static_cast<const char*>(flat.const_data_ptr()),
                                         flat.nbytes());
            sum = sum * 31 + std::hash<std::string_view>()(bytes);
        };
        for (const torch::Tensor& parameter : network->parameters()) {
            add(parameter);
            const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
            if (found != optimizer.state().end()) {
                add(static_cast<torch::optim::SGDParamState&>(*found->second).momentum_buffer());
            }
        }
        for (const torch::Tensor& buffer : network->buffers()) {
            if (rank == 0) {
                add(buffer);
            }
        }
        return fmt::format("{:016x}", sum);
    }

    Sequential network;
    DistributedDataParallel<torch::nn::SequentialImpl> model;
    torch::optim::SGD optimizer;
    std::int64_t step = 0;
    TrainingState state;
};

/// spread DIR: a state that is large enough is written by several ranks, and comes back.
int spread(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    require(!must(checkpoints.resume(training.state)).has_value(), "there is a checkpoint");
    training.train_step(worker.rank());
    must(checkpoints.save(training.step, training.state));
    const std::string before = training.hash(worker.rank());
    training.train_step(worker.rank());
    require(training.hash(worker.rank()) != before, "the training has changed nothing");
    must(checkpoints.resume(training.state));
    require(training.hash(worker.rank()) == before, "what was saved does not come back");
    say("same");
    return worker.finish();
}

/// background DIR engine|call: after each step a save beside the training. Then every
/// checkpoint holds what the training had when it was saved. `engine`: a DistributedDataParallel
/// makes the steps wait; `call`: the program, without one.
int background(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    CheckpointsOptions options;
    options.keep = 100;
    Checkpoints checkpoints(arguments.at(0), worker, group, options);
    (void)must(checkpoints.resume(training.state));
    std::map<std::int64_t, std::string> hashes;
    for (int i = 0; i < 6; ++i) {
        if (arguments.at(1) == "engine") {
            training.train_step(worker.rank());
        } else {
            // No pass of the engine: the gradients are the last ones.
            if (i == 0) {
                training.train_step(worker.rank());
            }
            checkpoints.before_step();
            training.optimizer.step();
            ++training.step;
        }
        hashes[training.step] = training.hash(worker.rank());
        must(checkpoints.save_async(training.step, training.state));
        // The next forward pass changes them at once.
        for (const torch::Tensor& buffer : training.network->buffers()) {
            buffer.zero_();
        }
    }
    must(checkpoints.wait());
    for (const auto& [step, hash] : hashes) {
        // The newest goes, so that the one before it is the newest.
        const std::int64_t newest = hashes.rbegin()->first - (step - hashes.begin()->first);
        const std::optional<std::int64_t> resumed = must(checkpoints.resume(training.state));
        require(resumed == newest, fmt::format("step {} is resumed", resumed.value_or(-1)));
        require(training.step == newest, "another step's number is in it");
        require(training.hash(worker.rank()) == hashes.at(newest),
                fmt::format("the checkpoint of step {} is not what was saved", newest));
        must(group.barrier());
        if (worker.rank() == 0) {
            std::filesystem::remove_all(fmt::format("{}/step-{:012}", arguments.at(0), newest));
        }
        must(group.barrier());
    }
    say("same");
    return worker.finish();
}

/// endless DIR: saves beside the training at each step, until it is killed. Says what each
/// checkpoint holds, and which are on the disk.
int endless(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    const std::optional<std::int64_t> resumed = must(checkpoints.resume(training.state));
    if (resumed) {
        // Its buffers are rank 0's from the next pass on.
        say(fmt::format("resumed {} {}", *resumed, training.hash(/*rank=*/1)));
    }
    say("trains");
    for (;;) {
        training.train_step(worker.rank());
        const std::int64_t step = training.step;
        say(fmt::format("saves {} {}", step, training.hash(/*rank=*/1)));
        must(checkpoints.save_async(step, training.state));
        if (step % 3 == 0) {
            must(checkpoints.wait());
            say(fmt::format("durable {}", step));
        }
    }
}

/// other_states DIR: each rank has tensors that the other lacks; a checkpoint holds rank 0's.
int other_states(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    Sequential network(Linear(torch::nn::LinearOptions(2048, 2048).bias(false)),
                       Linear(torch::nn::LinearOptions(2048, 2048).bias(false)));
    torch::manual_seed(5);
    for (const torch::Tensor& parameter : network->parameters()) {
        torch::NoGradGuard no_grad;
        parameter.normal_();
    }
    torch::optim::SGD optimizer(network->parameters(),
                                torch::optim::SGDOptions(0.01).momentum(0.9));
    // Each rank steps one half: its optimizer has no state of the other.
    const std::string half = std::to_string(worker.rank()) + ".weight";
    network->named_parameters()[half].mutable_grad() = torch::ones({2048, 2048});
    optimizer.step();
    TrainingState state(network.ptr(), optimizer);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    const torch::Tensor before = network->parameters()[0].detach().clone();
    must(checkpoints.save(1, state));
    must(checkpoints.save_async(2, state));
    // Loads at once, while that save is under way.
    require(must(checkpoints.resume(state)) == 2, "the newest is not resumed");
    require(torch::equal(network->parameters()[0], before) == (worker.rank() == 0),
            "rank 0's network is not resumed");
    say("same");
    return worker.finish();
}

/// part_fails DIR: a part cannot be saved on rank 1 alone; no rank waits for it.
int part_fails(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    bool is_failing = true;
    TrainingState state;
    const auto save = [&] {
        if (is_failing && worker.rank() == 1) {
            throw std::runtime_error("the schedule is broken");
        }
        return TrainingState::Snapshot{.tensors = {}, .values = {{"kind", "cosine"}}};
    };
    state.add("schedule", save, [](const TrainingState::Snapshot& /*stored*/) {});
    Checkpoints checkpoints(arguments.at(0), worker, group);
    const Result<void> refused = checkpoints.save(1, state);
    require(!refused, "it was saved");
    say("refused: " + refused.error().what);
    is_failing = false;
    must(checkpoints.save_async(2, state));
    must(checkpoints.wait());
    say("saved");
    return worker.finish();
}

/// versions DIR: a section of another version is upgraded, or refused by name.
int versions(Worker& worker, const Arguments& arguments) {
    using Snapshot = TrainingState::Snapshot;
    const ProcessGroup group = must(worker.process_group());
    Checkpoints checkpoints(arguments.at(0), worker, group);
    Snapshot loaded;
    std::int64_t upgraded_from = -1;
    const auto save = [] { return Snapshot{.tensors = {}, .values = {{"kind", "cosine"}}}; };
    const auto load = [&](const Snapshot& stored) { loaded = stored; };
    const auto upgrade = [&](std::int64_t from, Snapshot stored) {
        upgraded_from = from;
        stored.values["warmup"] = "0";
        return stored;
    };
    const auto state_of = [&](std::int64_t version, const TrainingState::Upgrade& how) {
        TrainingState state;
        if (version == 0) {
            state.add("schedule", save, load);
        } else {
            state.add("schedule", version, save, load, how);
        }
        return state;
    };
    TrainingState none = state_of(0, nullptr);
    TrainingState first = state_of(1, nullptr);
    TrainingState second = state_of(2, nullptr);
    TrainingState upgrading = state_of(2, upgrade);
    must(checkpoints.save(1, first));
    require(must(checkpoints.resume(first)) == 1, "the same version is not resumed");
    require(loaded.values == save().values, "other values are loaded");
    for (TrainingState* const other : {&none, &second}) {
        loaded = {};
        const auto refused = checkpoints.resume(*other);
        require(!refused && loaded.values.empty(), "another version was taken");
        say("refused: " + refused.error().what);
    }
    require(must(checkpoints.resume(upgrading)) == 1, "it is not upgraded");
    require(upgraded_from == 1 && loaded.values.contains("warmup") && loaded.values.size() == 2,
            "it is not upgraded from version 1");
    must(checkpoints.save(2, none));
    require(must(checkpoints.resume(upgrading)) == 2 && upgraded_from == 0,
            "a section without a version is not upgraded");
    say("upgraded");
    return worker.finish();
}

/// one_vote DIR: a save beside the training has one collective before it returns.
int one_vote(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    torch::Tensor losses = torch::ones({3});
    training.state.add_sum("losses", losses);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    training.train_step(worker.rank());
    must(checkpoints.save_async(1, training.state));
    must(checkpoints.wait());
    const auto gloo = group.c10d()->getBackend(c10::DeviceType::CPU);
    const std::uint64_t before = gloo->getSequenceNumberForGroup();
    must(checkpoints.save_async(2, training.state));
    const std::uint64_t votes = gloo->getSequenceNumberForGroup() - before;
    require(votes == 1, fmt::format("{} collectives", votes));
    must(checkpoints.wait());
    losses.zero_();
    require(must(checkpoints.resume(training.state)) == 2, "nothing is resumed");
    require(losses.sum().item<int>() == (worker.rank() == 0 ? 6 : 0), "the sum is another");
    say("voted");
    return worker.finish();
}

/// shards DIR save|load: each rank has some rows of a table of 7 rows and 5 columns, and some
/// columns of another one.
int shards(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    const std::int64_t rank = worker.rank();
    const std::int64_t world = worker.world_size();
    const torch::Tensor whole = torch::arange(35).reshape({7, 5});
    // Ranks without a row have an empty part.
    const std::int64_t row = 7 * rank / world;
    const std::int64_t rows = 7 * (rank + 1) / world - row;
    const std::int64_t column = 5 * rank / world;
    const std::int64_t columns = 5 * (rank + 1) / world - column;
    torch::Tensor own_rows = whole.narrow(0, row, rows).clone();
    torch::Tensor own_columns = whole.narrow(1, column, columns).clone();
    TrainingState state;
    // The mesh of the resume may be another one.
    state.add_part("rows", own_rows, {7, 5}, {row, 0},
                   arguments.at(1) == "save" ? "shard" : "data");
    state.add_part("columns", own_columns, {7, 5}, {0, column});
    Checkpoints checkpoints(arguments.at(0), worker, group);
    if (arguments.at(1) == "save") {
        must(checkpoints.save(1, state));
        say("saved");
        return worker.finish();
    }
    own_rows.zero_();
    own_columns.zero_();
    require(must(checkpoints.resume(state)) == 1, "nothing is resumed");
    require(torch::equal(own_rows, whole.narrow(0, row, rows)), "these are other rows");
    require(torch::equal(own_columns, whole.narrow(1, column, columns)), "these are other columns");
    TrainingState taller;
    taller.add_part("rows", own_rows, {8, 5}, {row, 0}, "data");
    const auto refused = checkpoints.resume(taller);
    require(!refused && refused.error().what.find(
                            "extra.rows is Long [7, 5] sharded along `shard`, this program's is "
                            "Long [8, 5] sharded along `data`") != std::string::npos,
            refused ? "a part of another tensor is taken" : refused.error().what);
    say("same");
    return worker.finish();
}

/// bad_parts DIR overlap|hole|shapes|whole|meshes: the ranks' parts of a table are not the table.
int bad_parts(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    const std::string& flaw = arguments.at(1);
    const bool is_second = worker.rank() == 1;
    torch::Tensor table = torch::zeros({2, 3});
    TrainingState state;
    if (flaw == "whole" && !is_second) {
        state.add("table", table);
    } else {
        const std::int64_t row = flaw == "overlap" ? 1 : flaw == "hole" ? 3 : 2;
        const std::int64_t rows = flaw == "hole" || (flaw == "shapes" && is_second) ? 5 : 4;
        const std::string dimension = flaw != "meshes" ? "" : is_second ? "shard" : "data";
        state.add_part("table", table, {rows, 3}, {is_second ? row : 0, 0}, dimension);
    }
    Checkpoints checkpoints(arguments.at(0), worker, group);
    const Result<void> refused = checkpoints.save(1, state);
    require(!refused, "it was saved");
    say("refused: " + refused.error().what);
    must(checkpoints.save_async(2, state));
    const Result<void> later = checkpoints.wait();
    require(!later, "it was saved beside the training");
    say("refused beside: " + later.error().what);
    return worker.finish();
}

/// one_cannot_write DIR: rank 1 may write no large file for a while.
int one_cannot_write(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    training.train_step(worker.rank());
    ::signal(SIGXFSZ, SIG_IGN);
    rlimit before{};
    require(::getrlimit(RLIMIT_FSIZE, &before) == 0, "no limits");
    rlimit small = before;
    small.rlim_cur = 1 << 20;
    if (worker.rank() == 1) {
        require(::setrlimit(RLIMIT_FSIZE, &small) == 0, "the limit cannot be set");
    }
    const Result<void> refused = checkpoints.save(1, training.state);
    require(!refused, "it was saved");
    say("not saved: " + refused.error().what);
    must(checkpoints.save_async(2, training.state));
    training.train_step(worker.rank());
    const Result<void> later = checkpoints.wait();
    require(!later, "it was saved beside the training");
    say("not saved beside: " + later.error().what);
    if (worker.rank() == 1) {
        require(::setrlimit(RLIMIT_FSIZE, &before) == 0, "the limit cannot be lifted");
    }
    training.train_step(worker.rank());
    must(checkpoints.save(3, training.state));
    say("saved");
    return worker.finish();
}

/// refuses DIR: a save while another one is under way is refused on all ranks or on none.
int refuses(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    CheckpointsOptions options;
    options.while_saving = CheckpointsOptions::WhileSaving::Refuse;
    Checkpoints checkpoints(arguments.at(0), worker, group, options);
    int refused = 0;
    for (int i = 0; i < 20; ++i) {
        const Result<void> saved = checkpoints.save_async(i, training.state);
        require(saved || saved.error().what.find("still under way on rank") != std::string::npos,
                "refused for another reason");
        refused += saved ? 0 : 1;
        torch::Tensor both = torch::full({1}, saved ? 1 : 0, torch::kInt32);
        must(group.all_reduce(both));
        require(both.item<int>() == (saved ? 2 : 0), "the ranks do not agree");
    }
    require(refused > 0, "none was refused");
    must(checkpoints.wait());
    say("agreed");
    return worker.finish();
}

/// no_memory DIR: copies of the state do not fit into the memory.
int no_memory(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    torch::Tensor huge = torch::ones({1}).expand({std::int64_t{1} << 46});
    torch::Tensor small = torch::ones({1});
    TrainingState state;
    state.add("table", worker.rank() == 0 ? huge : small);
    CheckpointsOptions options;
    options.prepares_save_async = true;
    options.say = [](const std::string& line) { say("line: " + line); };
    Checkpoints checkpoints(arguments.at(0), worker, group, options);
    require(!must(checkpoints.resume(state)).has_value(), "there is a checkpoint");
    const Result<void> refused = checkpoints.save_async(1, state);
    require(!refused, "it was begun");
    say("refused: " + refused.error().what);
    must(checkpoints.wait());
    TrainingState summed;
    summed.add_sum("table", worker.rank() == 0 ? huge : small);
    const Result<void> not_copied = checkpoints.save(1, summed);
    require(!not_copied, "a sum was copied");
    say("not copied: " + not_copied.error().what);
    TrainingState other;
    other.add("table", small);
    must(checkpoints.save_async(2, other));
    must(checkpoints.wait());
    say("saved");
    return worker.finish();
}

/// partial DIR: a program with other parts, and another name, resumes if it may.
int partial(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    torch::Tensor table = torch::arange(4);
    torch::Tensor gone = torch::ones({2});
    std::int64_t step = 7;
    TrainingState before;
    before.add("table", table);
    before.add("gone", gone);
    before.add("step", step);
    CheckpointsOptions options;
    options.say = [](const std::string& line) { say("line: " + line); };
    Checkpoints checkpoints(arguments.at(0), worker, group, options);
    must(checkpoints.save(1, before));

    torch::Tensor renamed = torch::zeros({4}, torch::kInt64);
    torch::Tensor fresh = torch::full({3}, 5.0);
    std::int64_t step_after = 0;
    Sequential network(Linear(2, 1));
    torch::optim::Adam optimizer(network->parameters());
    TrainingState after(network.ptr(), optimizer);
    after.add("renamed", renamed);
    after.add("fresh", fresh);
    after.add("step", step_after);
    const auto rename = [](const std::string& name) {
        return name == "extra.table" ? "extra.renamed" : name;
    };
    const auto strict = checkpoints.resume(after, {.rename = rename});
    require(!strict && step_after == 0 && renamed.sum().item<int>() == 0, "it was taken");
    say("refused: " + strict.error().what);
    require(must(checkpoints.resume(after, {.is_strict = false, .rename = rename})) == 1, "none");
    require(torch::equal(renamed, table), "the renamed one is another");
    require(fresh.sum().item<double>() == 15, "the new one was changed");
    require(step_after == 7, "the step is another");
    say("taken");
    return worker.finish();
}

/// other_parameters DIR: a program that has one layer more keeps what its optimizer has for it.
int other_parameters(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    const auto step = [](Sequential& network, torch::optim::Adam& optimizer, bool has_bias) {
        for (const auto& parameter : network->named_parameters()) {
            torch::Tensor value = parameter.value();
            value.mutable_grad() =
                has_bias || parameter.key() != "0.bias" ? torch::ones_like(value) : torch::Tensor();
        }
        optimizer.step();
    };
    const auto state_of = [](torch::optim::Adam& optimizer, const torch::Tensor& parameter) {
        const auto found = optimizer.state().find(parameter.unsafeGetTensorImpl());
        return found == optimizer.state().end()
                   ? nullptr
                   : static_cast<torch::optim::AdamParamState*>(found->second.get());
    };
    Sequential small(Linear(2, 2));
    torch::optim::Adam small_optimizer(small->parameters());
    TrainingState before(small.ptr(), small_optimizer);
    step(small, small_optimizer, /*has_bias=*/false);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    must(checkpoints.save(1, before));

    Sequential large(Linear(2, 2), Linear(2, 1));
    torch::optim::Adam optimizer(large->parameters());
    for (int i = 0; i < 3; ++i) {
        step(large, optimizer, /*has_bias=*/true);
    }
    TrainingState after(large.ptr(), optimizer);
    const torch::Tensor kept = state_of(optimizer, large->parameters()[2])->exp_avg().clone();
    require(must(checkpoints.resume(after, {.is_strict = false})) == 1, "none");
    const auto* const stored = state_of(optimizer, large->parameters()[0]);
    require(stored != nullptr && stored->step() == 1, "the stored state is not put back");
    require(state_of(optimizer, large->parameters()[1]) == nullptr,
            "a parameter had no state when it was saved, and has some now");
    auto* const own = state_of(optimizer, large->parameters()[2]);
    require(own != nullptr && own->step() == 3 && torch::equal(own->exp_avg(), kept),
            "the state of the layer that the checkpoint lacks is gone");
    say("kept");
    return worker.finish();
}

/// wrong_random DIR: a checkpoint holds random states of another size.
int wrong_random(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    std::int64_t step = 7;
    const std::vector<std::byte> bytes(5);
    const ddprun::worker::CheckpointInfo info{.step = 1, .values = {{"step", "3"}}};
    (void)must(ddprun::worker::publish_checkpoint(
        arguments.at(0), info,
        {{.name = "random.cpu", .dtype = "U8", .shape = {1, 5}, .bytes = bytes},
         {.name = "extra.table", .dtype = "U8", .shape = {5}, .bytes = bytes}}));
    torch::Tensor table = torch::ones({5}, torch::kUInt8);
    TrainingState state;
    state.add("table", table);
    state.add("step", step);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    const auto refused = checkpoints.resume(state);
    require(!refused, "it was taken");
    say("refused: " + refused.error().what);
    require(step == 7 && table.sum().item<int>() == 5, "the state was changed");
    return worker.finish();
}

/// other_folder DIR: DIR is another folder on each rank; rank 1's is missing.
int other_folder(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    std::int64_t step = 7;
    TrainingState state;
    state.add("step", step);
    Checkpoints checkpoints(arguments.at(0), worker, group);
    const auto refused = checkpoints.resume(state);
    require(!refused, "it was taken");
    say("refused: " + refused.error().what);
    return worker.finish();
}

/// slow_writer DIR: publishing takes longer than a collective may.
int slow_writer(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    constexpr std::chrono::milliseconds kTimeout(300);
    torch::Tensor table = torch::ones({3});
    const ddprun::worker::CheckpointInfo info{.step = 1, .world_size = 2};
    ddprun::worker::CollectedState state;
    state.others["extra.table"] = {.tensor = table};
    ddprun::worker::PublishOptions options;
    // The only wait: no event says that a time-out that must not come has not come.
    options.is_isolated = [kTimeout] { return ::poll(nullptr, 0, 4 * kTimeout.count()) < 0; };
    must(group.barrier());
    const auto gloo = group.c10d()->getBackend(c10::DeviceType::CPU);
    gloo->setTimeout(kTimeout);
    must(ddprun::worker::write_together(
        group, arguments.at(0), ddprun::worker::share_of(state, info, worker.rank(), 1), options));
    say("saved");
    return worker.finish();
}

/// slow_reader DIR: rank 1 takes longer to load than a collective may take.
int slow_reader(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    constexpr std::chrono::milliseconds kTimeout(300);
    TrainingState state;
    state.add(
        "table",
        [] {
            return TrainingState::Snapshot{.tensors = {}, .values = {{"rows", "3"}}};
        },
        [&](const TrainingState::Snapshot& /*stored*/) {
            // The only wait: no event says that a time-out that must not come has not come.
            (void)::poll(nullptr, 0, worker.rank() == 1 ? 4 * kTimeout.count() : 0);
        });
    Checkpoints checkpoints(arguments.at(0), worker, group);
    must(checkpoints.save(1, state));
    group.c10d()->getBackend(c10::DeviceType::CPU)->setTimeout(kTimeout);
    require(must(checkpoints.resume(state)) == 1, "nothing is resumed");
    say("resumed");
    return worker.finish();
}

/// Connections of this process.
int sockets() {
    int count = 0;
    for (const auto& file : std::filesystem::directory_iterator("/proc/self/fd")) {
        std::error_code gone;
        const std::string target = std::filesystem::read_symlink(file, gone);
        count += target.starts_with("socket:") ? 1 : 0;
    }
    return count;
}

/// prepared DIR: the memory for the copies has its pages before the first save beside the training,
/// the optimizer's state included, which does not exist yet. The ranks are connected for it, too.
int prepared(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    LargeTraining training(group);
    constexpr std::int64_t kState = 96 << 20;
    const std::int64_t share = kState / worker.world_size();
    CheckpointsOptions options;
    options.prepares_save_async = true;
    Checkpoints checkpoints(arguments.at(0), worker, group, options);
    // Gloo's threads may still let go of what they have given to all.
    std::int64_t least = status_bytes("VmRSS");
    require(!must(checkpoints.resume(training.state)).has_value(), "there is a checkpoint");
    const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(120);
    for (std::int64_t now = least; now < least + share * 9 / 10; now = status_bytes("VmRSS")) {
        require(std::chrono::steady_clock::now() < end,
                fmt::format("the pages do not come: {} bytes, and at least {}", now, least));
        least = std::min(least, now);
        std::this_thread::yield();
    }
    training.train_step(worker.rank());
    const std::string saved = training.hash(worker.rank());
    const std::int64_t trained = status_bytes("VmRSS");
    const int connected = sockets();
    must(checkpoints.save_async(training.step, training.state));
    require(sockets() == connected, "the first save connects the ranks");
    checkpoints.before_step();
    const std::int64_t grown = status_bytes("VmRSS") - trained;
    require(grown < share / 4, fmt::format("the copies took {} bytes more", grown));
    must(checkpoints.wait());
    training.train_step(worker.rank());
    must(checkpoints.resume(training.state));
    require(training.hash(worker.rank()) == saved, "what was saved does not come back");
    say("same");
    return worker.finish();
}

/// saved_twice DIR WAYS: saves one step again and again, to the disk for a `d` in WAYS and into
/// memory for an `m`. The last save is resumed.
int saved_twice(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    constexpr std::int64_t kStep = 7;
    torch::Tensor table = torch::zeros({3});
    TrainingState state;
    state.add("table", table);
    CheckpointsOptions options;
    options.disk_every = kStep + 1;
    Checkpoints checkpoints(arguments.at(0), worker, group, options);
    (void)must(checkpoints.resume(state));
    for (const char way : arguments.at(1)) {
        table.add_(1);
        must(way == 'd' ? checkpoints.save(kStep, state) : checkpoints.save_async(kStep, state));
        must(checkpoints.wait());
    }
    const torch::Tensor last = table.clone();
    table.zero_();
    require(must(checkpoints.resume(state)) == kStep, "nothing is resumed");
    require(torch::equal(table, last), fmt::format("save {} is resumed", table[0].item<float>()));
    say("the last save is resumed");
    return worker.finish();
}

/// texts DIR: texts of all lengths come whole, and short ones in one exchange.
int texts(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const auto gloo = group.c10d()->getBackend(c10::DeviceType::CPU);
    const auto text_of = [](std::size_t length, int rank) {
        std::string text(length, static_cast<char>('a' + rank));
        if (!text.empty()) {
            text.back() = '\0';
        }
        return text;
    };
    for (const std::size_t length : {0, 1, 500, 1015, 1016, 1017, 5000}) {
        for (int longest = 0; longest < worker.world_size(); ++longest) {
            const auto length_on = [&](int rank) { return rank == longest ? length : length / 2; };
            const std::string own = text_of(length_on(worker.rank()), worker.rank());
            const std::uint64_t before = gloo->getSequenceNumberForGroup();
            const std::vector<std::string> all = must(ddprun::worker::gather_texts(group, own));
            const std::string one = must(ddprun::worker::broadcast_text(group, own, longest));
            const std::uint64_t exchanges = gloo->getSequenceNumberForGroup() - before;
            require(one == text_of(length, longest), fmt::format("{} bytes, broadcast", length));
            for (int rank = 0; rank < worker.world_size(); ++rank) {
                require(all.at(static_cast<std::size_t>(rank)) == text_of(length_on(rank), rank),
                        fmt::format("{} bytes, gathered", length));
            }
            require(length > 1000 || exchanges == 2,
                    fmt::format("{} bytes: {} exchanges", length, exchanges));
        }
    }
    say("whole");
    return worker.finish();
}

/// memory DIR save|load: a resume takes no more anonymous memory than the rank's own state and a
/// tenth.
int memory(Worker& worker, const Arguments& arguments) {
    const ProcessGroup group = must(worker.process_group());
    const std::int64_t rows = 64 << 10;
    const std::int64_t own = rows / worker.world_size();
    torch::Tensor table = torch::full({own, 256}, worker.rank() + 1.0);
    TrainingState state;
    state.add_part("table", table, {rows, 256}, {own * worker.rank(), 0});
    Checkpoints checkpoints(arguments.at(0), worker, group);
    if (arguments.at(1) == "save") {
        must(checkpoints.save(1, state));
        return worker.finish();
    }
    // Counts what is private and writable, so no mapped file.
    const auto bytes = static_cast<std::int64_t>(table.nbytes());
    rlimit limit{};
    require(::getrlimit(RLIMIT_DATA, &limit) == 0, "no limits");
    limit.rlim_cur = static_cast<rlim_t>(status_bytes("VmData") + bytes / 10);
    require(::setrlimit(RLIMIT_DATA, &limit) == 0, "the limit cannot be set");
    require(must(checkpoints.resume(state)) == 1, "nothing is resumed");
    say(fmt::format("resumed {} bytes", bytes));
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(Worker&, const Arguments&)>> scenarios = {
        {"background", background},
        {"bad_parts", bad_parts},
        {"endless", endless},
        {"memory", memory},
        {"no_memory", no_memory},
        {"one_cannot_write", one_cannot_write},
        {"one_vote", one_vote},
        {"other_folder", other_folder},
        {"other_parameters", other_parameters},
        {"other_states", other_states},
        {"part_fails", part_fails},
        {"partial", partial},
        {"prepared", prepared},
        {"refuses", refuses},
        {"shards", shards},
        {"saved_twice", saved_twice},
        {"slow_reader", slow_reader},
        {"slow_writer", slow_writer},
        {"spread", spread},
        {"texts", texts},
        {"versions", versions},
        {"wrong_random", wrong_random},
    };
    torch::set_num_threads(1);
    return ddprun::run(argc, argv, [&](Worker& worker) {
        return scenarios.at(argv[1])(worker, Arguments(argv + 2, argv + argc));
    });
}
