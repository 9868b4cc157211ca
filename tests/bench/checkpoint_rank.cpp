// One rank of `scripts/bench.sh checkpoint`: `checkpoint_rank MEBIBYTES FOLDER`. Reads commands,
// one line each, carries a command out once all ranks have read it, and answers with its Times and
// the CPU seconds of this process. Exits at the end of its input.

#include <sys/resource.h>

#include <cstdint>
#include <functional>
#include <iostream>
#include <map>
#include <sstream>
#include <stdexcept>
#include <string>
#include <utility>

#include <torch/torch.h>

#include "tests/bench/checkpoint_training.hpp"
#include "tests/support/rank.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::checked;
using ddprun::Checkpoints;
using ddprun::ProcessGroup;
using ddprun::Worker;
using ddprun::test::Clock;
using ddprun::test::Pages;
using ddprun::test::seconds_since;
using ddprun::test::Times;
using ddprun::test::Training;

constexpr std::int64_t kMatrix = 512;

/// The CPU time of this process so far, all threads.
double cpu_seconds() {
    rusage use{};
    (void)::getrusage(RUSAGE_SELF, &use);
    const auto seconds = [](const timeval& time) {
        return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_usec) * 1e-6;
    };
    return seconds(use.ru_utime) + seconds(use.ru_stime);
}

double compute(int multiplications) {
    static const torch::Tensor matrix = torch::rand({kMatrix, kMatrix});
    const Clock::time_point begin = Clock::now();
    for (int i = 0; i < multiplications; ++i) {
        (void)torch::matmul(matrix, matrix);
    }
    return seconds_since(begin);
}

/// One exchange between the ranks, as save_async() has one: the floor of its stall.
Times exchange(ProcessGroup& group) {
    const torch::Tensor own = torch::ones({1}, torch::kInt64);
    const Clock::time_point begin = Clock::now();
    (void)checked(group.all_gather(own));
    return {.stall = seconds_since(begin)};
}

Times save(Checkpoints& checkpoints, Training& training) {
    const Clock::time_point begin = Clock::now();
    checked(checkpoints.save(++training.step, training.state));
    const double durable = seconds_since(begin);
    return {.stall = durable, .durable = durable};
}

/// Saves beside the training, which computes and then wants to step.
Times save_beside(Checkpoints& checkpoints, Training& training, int multiplications) {
    const Clock::time_point begin = Clock::now();
    checked(checkpoints.save_async(++training.step, training.state));
    Times times{.stall = seconds_since(begin)};
    times.work = compute(multiplications);
    const Clock::time_point ready = Clock::now();
    checkpoints.before_step();
    times.stall += seconds_since(ready);
    checked(checkpoints.wait());
    times.durable = seconds_since(begin);
    return times;
}

Times resume(Checkpoints& checkpoints, Training& training) {
    const torch::Tensor first = training.network->parameters().front().detach();
    first.zero_();
    const Clock::time_point begin = Clock::now();
    const bool is_resumed = checked(checkpoints.resume(training.state)) == training.step;
    const Times times{.stall = seconds_since(begin)};
    if (!is_resumed || first.count_nonzero().item<std::int64_t>() == 0) {
        throw std::runtime_error("what was saved does not come back");
    }
    return times;
}

int serve(Worker& worker, std::int64_t bytes, const std::string& folder) {
    ProcessGroup group = checked(worker.process_group());
    Training training(bytes);
    const Pages pages(static_cast<std::size_t>(bytes / worker.world_size()));
    // Nothing is removed in the time that is measured, as with PyTorch's.
    Checkpoints checkpoints(folder, worker, group, {.keep = 1000, .prepares_save_async = true});
    (void)checked(checkpoints.resume(training.state));
    Checkpoints removing(folder + "-removing", worker, group, {.keep = 1});
    const std::string scratch = folder + ".direct-" + std::to_string(worker.rank());
    const std::map<std::string, std::function<Times(int)>> commands = {
        {"memcpy", [&](int) { return pages.copy(training); }},
        {"direct", [&](int) { return pages.write(scratch); }},
        {"compute", [](int count) { return Times{.work = compute(count)}; }},
        {"exchange", [&](int) { return exchange(group); }},
        {"save", [&](int) { return save(checkpoints, training); }},
        {"save_removing", [&](int) { return save(removing, training); }},
        {"beside", [&](int count) { return save_beside(checkpoints, training, count); }},
        {"resume", [&](int) { return resume(checkpoints, training); }},
    };
    for (std::string line; std::getline(std::cin, line);) {
        std::istringstream words(line);
        std::string command;
        int count = 0;
        words >> command >> count;
        checked(group.barrier());
        const double cpu = cpu_seconds();
        const Times times = commands.at(command)(count);
        ddprun::test::say(fmt::format("{} {} {} {}", times.stall, times.durable, times.work,
                                      cpu_seconds() - cpu));
    }
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    return ddprun::run(argc, argv, [&](Worker& worker) {
        if (argc != 3) {
            throw std::runtime_error("usage: checkpoint_rank MEBIBYTES FOLDER");
        }
        return serve(worker, std::stoll(argv[1]) << 20, argv[2]);
    });
}
