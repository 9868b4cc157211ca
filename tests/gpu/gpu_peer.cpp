// One rank of the tests on GPUs: `gpu_peer SCENARIO BACKEND SHARING [argument]`, with BACKEND auto,
// gloo or nccl, and SHARING own, shared, or pair for two GPUs of each rank. Says what it sees, one
// line each; exits 3 when it was refused, 1 with a line that starts with "wrong:" when something is
// not as it must be.
//
// No rank, for the test's script, which needs no PyTorch then: `gpu_peer gpus` says how many GPUs
// there are, with which libraries, and the UUID of the first; `gpu_peer stores` serves a store for
// each line `open` of its stdin, whose port it says, until `close PORT` or the end of stdin.

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <functional>
#include <iostream>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <c10/util/Logging.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/torch.h>

#include "tests/gpu/walk.hpp"
#include "tests/support/rank.hpp"
#include "worker_runtime/comm/backends.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::ProcessGroup;
using ddprun::Result;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::hang;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::wrong;
using torch::nn::Linear;
using Clock = std::chrono::steady_clock;
[[noreturn]] void leave(int code, const std::string& line) {
    say(line);
    std::exit(code);
}

long long ms_since(Clock::time_point start) {
    return std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - start).count();
}

void await(const torch::Device& device) {
    if (device.is_cuda()) {
        torch::cuda::synchronize(device.index());
    }
}

/// The engine for tensors on the group's device.
c10d::Backend& engine_of(const ProcessGroup& group) {
    return *group.c10d()->getBackend(group.device().type());
}

ProcessGroup join(Worker& worker, const Arguments& arguments) {
    const std::map<std::string, ddprun::Backend> backends = {{"auto", ddprun::Backend::Auto},
                                                             {"gloo", ddprun::Backend::Gloo},
                                                             {"nccl", ddprun::Backend::Nccl}};
    ddprun::ProcessGroupOptions options;
    options.allow_shared_gpus = arguments.at(1) == "shared";
    options.gpus_per_rank = arguments.at(1) == "pair" ? 2 : 1;
    if (arguments.size() > 3) {
        options.timeout = std::chrono::milliseconds(std::stoi(arguments[2]));
        options.join_timeout = std::chrono::milliseconds(std::stoi(arguments[3]));
    }
    const Clock::time_point start = Clock::now();
    const Result<ProcessGroup> group = worker.process_group(backends.at(arguments.at(0)), options);
    if (!group) {
        leave(3, fmt::format("refused in {} ms: {}", ms_since(start), group.error().what));
    }
    c10d::Backend& engine = engine_of(*group);
    const auto bound = engine.getBoundDeviceId();
    const char* const interface = std::getenv("NCCL_SOCKET_IFNAME");
    say(fmt::format("joined in {} ms: {} over {}, bound to {}, interface {}", ms_since(start),
                    group->device().str(), engine.getBackendName(), bound ? bound->str() : "none",
                    interface == nullptr ? "any" : interface));
    const auto longer = engine.getBackendOptions()->timeout - options.timeout;
    say(fmt::format("the group is {}, its default {}; its engine is {}, and waits {} ms longer",
                    group->c10d()->getGroupName(), group->c10d()->getBackendName(),
                    engine.getGroupUid(), longer.count()));
    return *group;
}

void check_sum(ProcessGroup& group) {
    torch::Tensor sum = torch::ones({1 << 20}, group.device());
    must(group.all_reduce(sum));
    if (!sum.eq(group.world_size()).all().item<bool>()) {
        wrong("the sum over the ranks");
    }
}

/// Times the parts of a start.
int start(Worker& worker, const Arguments& arguments) {
    const Clock::time_point before = Clock::now();
    if (torch::cuda::is_available()) {
        (void)torch::ones({1}, torch::kCUDA).item<float>();
        say(fmt::format("cuda in {} ms", ms_since(before)));
    }
    ProcessGroup group = join(worker, arguments);
    const Clock::time_point joined = Clock::now();
    check_sum(group);
    say(fmt::format("first collective in {} ms", ms_since(joined)));
    const Clock::time_point warm = Clock::now();
    check_sum(group);
    say(fmt::format("second collective in {} ms", ms_since(warm)));
    return worker.finish();
}

/// A network whose halves are on two devices.
struct Halves : torch::nn::Module {
    Halves(const torch::Device& first_device, const torch::Device& second_device)
        : devices{first_device, second_device} {
        torch::manual_seed(7);
        for (const Linear& layer : {Linear(16, 64), Linear(64, 64), Linear(64, 4)}) {
            const std::size_t half = layers.size() < 2 ? 0 : 1;
            layers.push_back(register_module(std::to_string(layers.size()), layer));
            layers.back()->to(devices[half], torch::kFloat64);
        }
    }

    torch::Tensor forward(const torch::Tensor& inputs) {
        const torch::Tensor first = layers[1]->forward(layers[0]->forward(inputs).tanh());
        return layers[2]->forward(first.to(devices[1]).tanh());
    }

    std::array<torch::Device, 2> devices;
    std::vector<Linear> layers;
};

/// Data-parallel training beside the same one in this process alone, with the whole batch.
int train(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    const auto shared = std::make_shared<Halves>(group.device(), group.devices().back());
    const auto alone = std::make_shared<Halves>(group.device(), group.device());
    if (worker.rank() != 0) {
        const torch::NoGradGuard no_grad;
        for (torch::Tensor& parameter : shared->parameters()) {
            parameter.zero_();  // it gets rank 0's
        }
    }
    // Gloo's mean is not relied on: not every LibTorch has one.
    require(group.has_mean(group.device()) == (engine_of(group).getBackendName() == "nccl"),
            "which engine has a mean of its own");
    ddprun::DistributedDataParallel model(shared, group);
    torch::optim::SGD optimizer(shared->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    torch::optim::SGD alone_optimizer(alone->parameters(),
                                      torch::optim::SGDOptions(0.1).momentum(0.9));
    constexpr int kSteps = 50;
    for (int step = 0; step < kSteps; ++step) {
        torch::manual_seed(static_cast<std::uint64_t>(step));
        const torch::Tensor batch =
            torch::randn({std::int64_t{8} * worker.world_size(), 16}, torch::kFloat64)
                .to(group.device());
        const torch::Tensor own =
            batch.chunk(worker.world_size())[static_cast<std::size_t>(worker.rank())];
        optimizer.zero_grad();
        model.forward(own).pow(2).mean().backward();
        optimizer.step();
        alone_optimizer.zero_grad();
        alone->forward(batch).pow(2).mean().backward();
        alone_optimizer.step();
    }
    double difference = 0;
    for (std::size_t i = 0; i < shared->parameters().size(); ++i) {
        const torch::Tensor apart =
            shared->parameters()[i].to(torch::kCPU) - alone->parameters()[i].to(torch::kCPU);
        difference = std::max(difference, apart.abs().max().item<double>());
    }
    say(fmt::format("largest difference {:g}", difference));
    if (!(difference <= 1e-12)) {
        wrong("it is above 1e-12");
    }
    return worker.finish();
}

/// A network whose second half is on a GPU that this rank does not have.
int misplace(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    const torch::Device other(torch::kCUDA,
                              static_cast<c10::DeviceIndex>(1 - group.device().index()));
    try {
        const ddprun::DistributedDataParallel<Halves> model(
            std::make_shared<Halves>(group.device(), other), group);
    } catch (const std::exception& failure) {
        const std::string text = failure.what();
        leave(3, "refused: " + text.substr(0, text.find('\n')));
    }
    wrong("it is wrapped");
}

/// Holds so many MiB of the GPU, or of memory, until it is killed.
int hold(Worker& /*worker*/, const Arguments& arguments) {
    const torch::Device device(torch::cuda::is_available() ? torch::kCUDA : torch::kCPU);
    const torch::Tensor held =
        torch::ones({std::int64_t{std::stoi(arguments.at(2))} << 20}, torch::dtype(torch::kInt8))
            .to(device);
    await(device);
    say("holding");
    hang();
}

/// Rank 0 waits in a collective that rank 1 never calls.
int wait(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    check_sum(group);
    if (worker.rank() != 0) {
        say("idle");
        hang();
    }
    std::vector<torch::Tensor> tensors{torch::ones({1 << 20}, group.device())};
    const auto work = group.c10d()->allreduce(tensors);
    say("waiting");
    hang();
}

/// lose … TIMEOUT JOIN_TIMEOUT, in ms: rank 0 waits, once it is told to, for a collective that the
/// others never call, as a training does: it reads the result. Then it goes on for a while, as who
/// saves what it has.
int lose(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    check_sum(group);
    say("ready");
    if (worker.rank() != 0) {
        hang();
    }
    (void)std::getchar();
    const Clock::time_point begun = Clock::now();
    torch::Tensor sum = torch::ones({1 << 20}, group.device());
    Result<void> done = group.all_reduce(sum);
    say("begun");
    if (done) {
        (void)sum[0].item<float>();
        done = group.check("reading the sum");
    }
    if (done) {
        wrong("the sum is whole");
    }
    say(fmt::format("lost in {} ms: {}", ms_since(begun), done.error().what));
    while (std::getchar() != EOF) {}
    say("alive");
    return 0;
}

/// walk … TIMEOUT JOIN_TIMEOUT FOLDER
int walk(Worker& worker, const Arguments& arguments) {
    ddprun::test::load_batches(worker);
    ProcessGroup group = join(worker, arguments);
    ddprun::test::walk(worker, group, arguments.at(4));
    if (worker.stop_requested() || worker.stop_requested()) {
        wrong("a stop that nobody has asked for");
    }
    return worker.finish();
}

/// break_in … TIMEOUT JOIN_TIMEOUT WHAT
int break_in(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    ddprun::test::break_in(arguments.at(4), group);
    return 0;
}

/// exit … TIMEOUT JOIN_TIMEOUT finished|waiting: the process exits and still holds its group, which
/// is finished, or whose rank 0 waits for a collective that rank 1 never calls.
int exit_with_group(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    check_sum(group);
    if (arguments.at(4) == "finished") {
        must(group.finish());
    } else if (worker.rank() == 0) {
        torch::Tensor sum = torch::ones({1 << 20}, group.device());
        must(group.all_reduce(sum));
    } else {
        hang();
    }
    std::exit(0);
}

/// lose_in … TIMEOUT JOIN_TIMEOUT WHAT
int lose_in(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    ddprun::test::lose_in(arguments.at(4), worker, group);
    return 0;
}

/// save_sum … TIMEOUT JOIN_TIMEOUT FOLDER
int save_sum(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    ddprun::test::save_sum(worker, group, arguments.at(4));
    return 0;
}

/// wait_in_all … TIMEOUT JOIN_TIMEOUT
int wait_in_all(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    ddprun::test::wait_in_all(group);
    return 0;
}

/// lose_in_part … TIMEOUT JOIN_TIMEOUT WHO
int lose_in_part(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = join(worker, arguments);
    ddprun::test::lose_in_part(arguments.at(4), group);
    return 0;
}

/// The number that a function of a loaded library gives as the library's version; 0 without it.
int version_by(const char* function) {
    int version = 0;
    if (void* const found = dlsym(RTLD_DEFAULT, function); found != nullptr) {
        reinterpret_cast<int (*)(int*)>(found)(&version);
    }
    return version;
}

int tell_gpus() {
    const auto count = static_cast<int>(torch::cuda::device_count());
    const int nccl = version_by("ncclGetVersion");
    const int cuda = version_by("cudaRuntimeGetVersion");
    say(fmt::format("{} GPUs, LibTorch {}, NCCL {}.{}.{}, CUDA {}.{}", count, TORCH_VERSION,
                    nccl / 10000, nccl / 100 % 100, nccl % 100, cuda / 1000, cuda / 10 % 100));
    if (count > 0) {
        say("the first is " + must(ddprun::worker::take_gpus(0, 1)).front().uuid);
    }
    return 0;
}

/// c10d's own: a machine with nothing but LibTorch has no other.
int serve_stores() {
    std::map<int, c10::intrusive_ptr<c10d::TCPStore>> stores;
    for (std::string order; std::cin >> order;) {
        if (order == "open") {
            c10d::TCPStoreOptions options;
            options.port = 0;
            options.isServer = true;
            options.waitWorkers = false;
            const auto store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options);
            stores[store->getPort()] = store;
            say(fmt::format("port {}", store->getPort()));
        } else {
            int port = 0;
            std::cin >> port;
            stores.erase(port);
        }
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int()>> services = {{"gpus", tell_gpus},
                                                                  {"stores", serve_stores}};
    const std::map<std::string, std::function<int(Worker&, const Arguments&)>> scenarios = {
        {"break_in", break_in}, {"exit", exit_with_group},
        {"hold", hold},         {"lose", lose},
        {"lose_in", lose_in},   {"lose_in_part", lose_in_part},
        {"misplace", misplace}, {"save_sum", save_sum},
        {"start", start},       {"train", train},
        {"wait", wait},         {"wait_in_all", wait_in_all},
        {"walk", walk}};
    torch::set_num_threads(1);
    c10::initLogging();  // TORCH_CPP_LOG_LEVEL
    try {
        if (const auto service = services.find(argv[1]); service != services.end()) {
            return service->second();
        }
        Result<Worker> worker = Worker::from_environment();
        if (!worker) {
            leave(2, "refused: " + worker.error().what);
        }
        return scenarios.at(argv[1])(*worker, Arguments(argv + 2, argv + argc));
    } catch (const std::exception& failure) {
        wrong(failure.what());
    }
}
