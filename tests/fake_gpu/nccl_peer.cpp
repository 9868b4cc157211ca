// One rank of the tests of the fake NCCL: `nccl_peer SCENARIO ENGINE`, with ENGINE nccl or nccl2,
// LibTorch's own process groups over NCCL. The program reads its place from RANK, WORLD_SIZE and
// MASTER_PORT. It prints each event on a line of its own. When a check fails, the program prints a
// line that begins with "wrong:" and exits 1.

#include <chrono>
#include <cstdlib>
#include <exception>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include <c10/cuda/CUDAFunctions.h>
#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <torch/csrc/distributed/c10d/nccl2/ProcessGroupNCCL.hpp>
#include <torch/torch.h>

#include "tests/support/rank.hpp"

namespace {

using c10d::ReduceOp;
using ddprun::test::hang;
using ddprun::test::number;
using ddprun::test::require;
using ddprun::test::say;
using ddprun::test::wrong;
using Group = c10::intrusive_ptr<c10d::Backend>;
using Store = c10::intrusive_ptr<c10d::Store>;

struct Place {
    int rank = number("RANK");
    int size = number("WORLD_SIZE");
    std::string engine;
    Store store;
    at::Device device{at::kCUDA, static_cast<c10::DeviceIndex>(rank)};
};

c10::intrusive_ptr<c10d::ProcessGroupNCCL::Options> make_options() {
    auto options = c10d::ProcessGroupNCCL::Options::create();
    const char* const seconds = std::getenv("GROUP_TIMEOUT");
    options->timeout = std::chrono::seconds(seconds == nullptr ? 60 : std::atoi(seconds));
    return options;
}

Group make_group(const Place& place) {
    Group group;
    if (place.engine == "nccl2") {
        group = c10::make_intrusive<c10d::nccl2::ProcessGroupNCCL>(place.store, place.rank,
                                                                   place.size, make_options());
    } else {
        group = c10::make_intrusive<c10d::ProcessGroupNCCL>(place.store, place.rank, place.size,
                                                            make_options());
    }
    group->setBoundDeviceId(place.device);
    return group;
}

Group connect(const Place& place) {
    Group group = make_group(place);
    try {
        group->eagerConnectSingleDevice(place.device);
    } catch (const std::exception& failure) {
        say("not connected: " + std::string(failure.what()));
        std::_Exit(3);
    }
    say("connected");
    return group;
}

at::Tensor filled(const Place& place, double value, at::ScalarType type = at::kFloat,
                  std::int64_t count = 4) {
    return at::full({count}, value, at::TensorOptions(place.device).dtype(type));
}

void require_all(const at::Tensor& tensor, double value, const std::string& what) {
    const at::Tensor numbers = tensor.cpu().to(at::kDouble);
    if (!numbers.eq(value).all().item<bool>()) {
        wrong(fmt::format("{} gives {}, not {}", what, numbers.flatten()[0].item<double>(), value));
    }
}

void all_reduce(const Group& group, const at::Tensor& tensor, const ReduceOp& op = ReduceOp::SUM) {
    std::vector<at::Tensor> tensors{tensor};
    c10d::AllreduceOptions options;
    options.reduceOp = op;
    group->allreduce(tensors, options)->wait();
}

/// A number of elements that does not fit into a ring at once.
constexpr std::int64_t kMany = 100'000;

void check_reductions(const Place& place, const Group& group) {
    const double sum = place.size * (place.size + 1) / 2.0;
    double product = 1;
    for (int rank = 0; rank < place.size; ++rank) {
        product *= rank + 1;
    }
    const std::map<std::string, std::pair<ReduceOp, double>> wanted = {
        {"sum", {ReduceOp::SUM, sum}},
        {"maximum", {ReduceOp::MAX, place.size}},
        {"minimum", {ReduceOp::MIN, 1}},
        {"product", {ReduceOp::PRODUCT, product}}};
    for (const auto type : {at::kChar, at::kByte, at::kInt, at::kLong, at::kHalf, at::kBFloat16,
                            at::kFloat, at::kDouble}) {
        for (const auto& [name, reduction] : wanted) {
            const at::Tensor numbers = filled(place, place.rank + 1, type, kMany);
            all_reduce(group, numbers, reduction.first);
            require_all(numbers, reduction.second,
                        fmt::format("the {} of {}", name, c10::toString(type)));
        }
        if (at::isFloatingType(type)) {
            const at::Tensor numbers = filled(place, place.rank + 1, type);
            all_reduce(group, numbers, ReduceOp::AVG);
            require_all(numbers, (place.size + 1) / 2.0, "the average");
        }
    }
    const at::Tensor flags = filled(place, place.rank == 1 ? 1 : 0, at::kBool);
    all_reduce(group, flags);
    require_all(flags, 1, "the sum of flags");
    if (place.engine == "nccl") {
        const at::Tensor numbers = filled(place, place.rank + 1);
        all_reduce(group, numbers, c10d::makePreMulSum(0.5));
        require_all(numbers, sum / 2, "the sum of halves");
    }
}

void check_movements(const Place& place, const Group& group) {
    const int last = place.size - 1;
    const at::Tensor mine = filled(place, place.rank);
    const auto room = [&place] {
        return at::full({place.size, 4}, -1.0, at::TensorOptions(place.device));
    };
    const auto require_ranks = [&place](const at::Tensor& rows, const std::string& what) {
        for (int rank = 0; rank < place.size; ++rank) {
            require_all(rows[rank], rank, what);
        }
    };

    std::vector<at::Tensor> sent{filled(place, place.rank, at::kFloat, kMany)};
    c10d::BroadcastOptions of_last;
    of_last.rootRank = last;
    group->broadcast(sent, of_last)->wait();
    require_all(sent[0], last, "broadcast");

    std::vector<at::Tensor> summed{filled(place, place.rank + 1)};
    c10d::ReduceOptions to_last;
    to_last.rootRank = last;
    group->reduce(summed, to_last)->wait();
    if (place.rank == last) {
        require_all(summed[0], place.size * (place.size + 1) / 2.0, "reduce");
    }

    at::Tensor rows = room();
    at::Tensor own = mine.clone();
    group->_allgather_base(rows, own)->wait();
    require_ranks(rows, "all-gather");
    std::vector<at::Tensor> inputs{own};
    std::vector<std::vector<at::Tensor>> lists{room().unbind(0)};
    group->allgather(lists, inputs)->wait();
    require_ranks(at::stack(lists[0]), "all-gather into a list");

    at::Tensor part = filled(place, -1);
    at::Tensor parts = at::arange(place.size, at::TensorOptions(place.device).dtype(at::kFloat))
                           .unsqueeze(1)
                           .expand({place.size, 4})
                           .contiguous();
    group->_reduce_scatter_base(part, parts)->wait();
    require_all(part, place.rank * place.size, "reduce-scatter");

    at::Tensor exchanged = room();
    at::Tensor given = mine.expand({place.size, 4}).contiguous();
    // LibTorch 2.14 takes ncclInProgress for an error where it calls ncclAlltoAll().
    std::vector<std::int64_t> even(std::getenv("TORCH_NCCL_USE_COMM_NONBLOCKING") == nullptr
                                       ? 0
                                       : static_cast<std::size_t>(place.size),
                                   1);
    group->alltoall_base(exchanged, given, even, even)->wait();
    require_ranks(exchanged, "all-to-all");
}

void check_point_to_point(const Place& place, const Group& group) {
    const int next = (place.rank + 1) % place.size;
    const int before = (place.rank + place.size - 1) % place.size;
    std::vector<at::Tensor> sent{filled(place, place.rank, at::kFloat, kMany)};
    std::vector<at::Tensor> received{filled(place, -1, at::kFloat, kMany)};
    // The ranks send around in a circle: a send that waits for its receive would wait for ever.
    group->startCoalescing();
    (void)group->send(sent, next, 0);
    (void)group->recv(received, before, 0);
    group->endCoalescing()->wait();
    require_all(received[0], before, "a circle of sends");
    if (place.rank == 0) {
        group->send(sent, 1, 0)->wait();
    } else if (place.rank == 1) {
        group->recv(received, 0, 0)->wait();
        require_all(received[0], 0, "send");
    }
}

void check_split(const Place& place, const Group& group) {
    auto options = make_options();
    options->group_name = "part";
    const Group part =
        group->split(c10::make_intrusive<c10d::PrefixStore>("part", place.store), {0, 1}, options);
    if (place.rank > 1) {
        require(!part, "a rank is in a part that it is not in");
        // split() does not call this, and the other ranks would wait for ever.
        dynamic_cast<c10d::ProcessGroupNCCL&>(*group).performNocolorSplit(place.device);
        return;
    }
    part->setBoundDeviceId(place.device);
    part->eagerConnectSingleDevice(place.device);
    const at::Tensor numbers = filled(place, place.rank + 1);
    all_reduce(part, numbers);
    require_all(numbers, 3, "the sum in a part");
    part->shutdown();
}

/// Returns when all ranks have called it with this name.
void meet(const Place& place, const std::string& name) {
    const auto key = [&name](int rank) { return name + std::to_string(rank); };
    place.store->set(key(place.rank), std::vector<std::uint8_t>{1});
    for (int rank = 0; rank < place.size; ++rank) {
        place.store->wait({key(rank)});
    }
}

int collectives(const Place& place) {
    const Group group = connect(place);
    check_reductions(place, group);
    check_movements(place, group);
    check_point_to_point(place, group);
    if (place.engine == "nccl") {
        check_split(place, group);
    }
    group->barrier()->wait();
    torch::cuda::synchronize(place.device.index());
    meet(place, "over");
    group->shutdown();
    say("right");
    return 0;
}

/// Rank 0 begins a collective, in which the last rank takes no part, or is killed by the test. The
/// test orders rank 0 by lines on stdin to begin, and to abort.
int lonely(const Place& place) {
    const Group group = connect(place);
    all_reduce(group, filled(place, 1));
    torch::cuda::synchronize(place.device.index());
    say("ready");
    if (place.rank != 0) {
        hang();
    }
    (void)std::getchar();
    const at::Tensor numbers = filled(place, 1);
    std::vector<at::Tensor> tensors{numbers};
    const auto work = group->allreduce(tensors);
    say("begun");
    std::thread([&group] {
        (void)std::getchar();
        group->abort();
        say("aborted");
    }).detach();
    try {
        work->wait();
        torch::cuda::synchronize(place.device.index());
        say("the wait has ended");
    } catch (const std::exception& failure) {
        say("the wait has failed: " + std::string(failure.what()));
    }
    say(fmt::format("completed: {}", work->isCompleted()));
    hang();
}

/// Collectives run one after another, until one fails.
int sums(const Place& place) {
    const Group group = connect(place);
    for (int i = 0; i < 10; ++i) {
        const at::Tensor numbers = filled(place, place.rank + 1);
        try {
            all_reduce(group, numbers);
            require_all(numbers, place.size * (place.size + 1) / 2.0, "the sum");
        } catch (const std::exception& failure) {
            say(fmt::format("sum {} has failed: {}", i, failure.what()));
            std::_Exit(4);
        }
        say(fmt::format("sum {}", i));
    }
    meet(place, "over");
    group->shutdown();
    return 0;
}

/// Rank 0 launches a collective that the others do not launch.
int behind(const Place& place) {
    const Group group = connect(place);
    const at::Tensor numbers = filled(place, 1);
    all_reduce(group, numbers);
    torch::cuda::synchronize(place.device.index());
    if (place.rank == 0) {
        all_reduce(group, numbers);
    }
    hang();
}

/// A collective runs after a copy that was begun earlier, and a host that does not wait sees old
/// numbers. The test delays each task of a stream.
int order(const Place& place) {
    const Group group = connect(place);
    const at::Tensor ones = at::ones({kMany}).pin_memory();
    const at::Tensor back = at::zeros({kMany}).pin_memory();
    at::Tensor numbers = at::empty({kMany}, place.device);
    numbers.copy_(ones, /*non_blocking=*/true);
    all_reduce(group, numbers);
    back.copy_(numbers, /*non_blocking=*/true);
    require_all(back, 0, "a copy that nobody has waited for");
    torch::cuda::synchronize(place.device.index());
    require_all(back, place.size, "a copy after a collective");
    meet(place, "over");
    group->shutdown();
    say("right");
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(const Place&)>> scenarios = {
        {"behind", behind},
        {"collectives", collectives},
        {"lonely", lonely},
        {"order", order},
        {"sums", sums}};
    torch::set_num_threads(1);
    try {
        require(argc == 3, "usage: nccl_peer SCENARIO ENGINE");
        c10d::TCPStoreOptions options;
        options.port = static_cast<std::uint16_t>(number("MASTER_PORT"));
        Place place{.engine = argv[2],
                    .store = c10::make_intrusive<c10d::TCPStore>("127.0.0.1", options)};
        c10::cuda::set_device(place.device.index());
        const int code = scenarios.at(argv[1])(place);
        // The process avoids exit(): LibTorch's threads of a process group that failed still run.
        std::_Exit(code);
    } catch (const std::exception& failure) {
        wrong(failure.what());
    }
}
