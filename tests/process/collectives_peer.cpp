// One rank of the tests of pending collectives: `collectives_peer SCENARIO [arguments]`.

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/torch.h>

#include "tests/support/rank.hpp"
#include "worker_runtime/worker.hpp"

namespace {

using ddprun::P2PBatch;
using ddprun::Pending;
using ddprun::ProcessGroup;
using ddprun::Reduction;
using ddprun::Result;
using ddprun::Worker;
using ddprun::test::Arguments;
using ddprun::test::must;
using ddprun::test::require;
using ddprun::test::say;
using torch::Tensor;

/// An operation of a kind, once begun, and what it must give.
struct Begun {
    Pending<void> pending;
    Tensor given;
    Tensor wanted;
};

/// A row of each rank, that depends on the round.
class Rows {
public:
    Rows(const ProcessGroup& group, std::int64_t columns, std::int64_t round)
        : rank_(group.rank()), world_(group.world_size()) {
        all_ = torch::arange(world_ * columns, torch::kFloat64).reshape({world_, columns}) + round;
    }

    [[nodiscard]] Tensor all() const { return all_.clone(); }
    [[nodiscard]] Tensor own() const { return all_[rank_].clone(); }
    [[nodiscard]] Tensor of(std::int64_t rank) const {
        return all_[(rank + world_) % world_].clone();
    }
    [[nodiscard]] Tensor room() const { return torch::full_like(all_[0], -1); }
    [[nodiscard]] Tensor sum() const { return all_.sum(0); }
    [[nodiscard]] std::int64_t rank() const { return rank_; }
    [[nodiscard]] std::int64_t world() const { return world_; }

private:
    std::int64_t rank_;
    std::int64_t world_;
    Tensor all_;
};

/// The operation that makes a tensor, as one that has none, with that tensor.
Begun kept(Pending<Tensor> pending, Tensor room, Tensor wanted) {
    Pending<void> into = std::move(pending).then([room](const Tensor& made) -> Result<void> {
        Tensor(room).copy_(made.defined() ? made : room.clone());
        return {};
    });
    return {std::move(into), std::move(room), std::move(wanted)};
}

Begun begin_ring(ProcessGroup& group, const Rows& rows, bool is_batch) {
    const Tensor room = rows.room();
    const auto next = static_cast<int>((rows.rank() + 1) % rows.world());
    const auto before = static_cast<int>((rows.rank() + rows.world() - 1) % rows.world());
    Tensor wanted = rows.of(before);
    if (is_batch) {
        return {P2PBatch(group).send(rows.own(), next).recv(room, before).begin(), room, wanted};
    }
    std::vector<Pending<void>> both;
    both.push_back(group.send_async(rows.own(), next));
    both.push_back(group.recv_async(room, before));
    return {ddprun::all_of(std::move(both)), room, wanted};
}

using Begin = std::function<Begun(ProcessGroup&, const Rows&)>;

const std::map<std::string, Begin> kKinds = {
    {"all_reduce",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor tensor = rows.own();
         return Begun{group.all_reduce_async(tensor), tensor, rows.sum()};
     }},
    {"mean",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor tensor = rows.own();
         return Begun{group.all_reduce_async(tensor, Reduction::Mean), tensor,
                      rows.sum() / rows.world()};
     }},
    {"all_reduce_coalesced",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor tensor = rows.own();
         const std::vector<Tensor> halves = tensor.chunk(2);
         return Begun{group.all_reduce_coalesced_async(halves, Reduction::Mean), tensor,
                      rows.sum() / rows.world()};
     }},
    {"reduce",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor tensor = rows.own();
         Pending<void> pending = group.reduce_async(tensor, 0);
         return Begun{std::move(pending), tensor, rows.rank() == 0 ? rows.sum() : tensor};
     }},
    {"broadcast",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor tensor = rows.own();
         return Begun{group.broadcast_async(tensor, 0), tensor, rows.of(0)};
     }},
    {"all_gather",
     [](ProcessGroup& group, const Rows& rows) {
         return kept(group.all_gather_async(rows.own()), torch::empty_like(rows.all()), rows.all());
     }},
    {"all_gather_into",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor room = torch::empty_like(rows.all());
         return Begun{group.all_gather_into_async(room, rows.own()), room, rows.all()};
     }},
    {"all_gather_into_coalesced",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor room = torch::stack({rows.all(), rows.all()});
         room.fill_(-1);
         return Begun{
             group.all_gather_into_coalesced_async(room.unbind(0), {rows.own(), rows.own() + 1}),
             room, torch::stack({rows.all(), rows.all() + 1})};
     }},
    {"gather",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor room = torch::zeros_like(rows.all());
         return kept(group.gather_async(rows.own(), 0), room, rows.rank() == 0 ? rows.all() : room);
     }},
    {"scatter",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor room = rows.room();
         return Begun{group.scatter_async(room, rows.all(), 0), room, rows.own()};
     }},
    {"reduce_scatter",
     [](ProcessGroup& group, const Rows& rows) {
         return kept(group.reduce_scatter_async(rows.all() + rows.rank()), rows.room(),
                     rows.world() * rows.own() + rows.world() * (rows.world() - 1) / 2);
     }},
    {"reduce_scatter_into",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor room = rows.room();
         const Tensor parts = (rows.all() + rows.rank()).flatten();
         return Begun{group.reduce_scatter_into_async(room, parts, Reduction::Mean), room,
                      rows.own() + static_cast<double>(rows.world() - 1) / 2};
     }},
    {"reduce_scatter_into_coalesced",
     [](ProcessGroup& group, const Rows& rows) {
         const Tensor room = torch::stack({rows.room(), rows.room()});
         const std::vector<Tensor> parts = {rows.all(), rows.all() + rows.rank()};
         return Begun{
             group.reduce_scatter_into_coalesced_async(room.unbind(0), parts, Reduction::Mean),
             room,
             torch::stack({rows.own(), rows.own() + static_cast<double>(rows.world() - 1) / 2})};
     }},
    {"all_to_all",
     [](ProcessGroup& group, const Rows& rows) {
         return kept(group.all_to_all_async(rows.all() + rows.rank()), rows.all(),
                     rows.own() + torch::arange(rows.world(), torch::kFloat64).unsqueeze(1));
     }},
    {"send_recv",
     [](ProcessGroup& group, const Rows& rows) { return begin_ring(group, rows, false); }},
    {"batch", [](ProcessGroup& group, const Rows& rows) { return begin_ring(group, rows, true); }},
    {"barrier",
     [](ProcessGroup& group, const Rows& rows) {
         return Begun{group.barrier_async(), rows.own(), rows.own()};
     }},
};

/// Several of each kind are pending at once, and are waited for from the last to the first.
int pend(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    constexpr std::int64_t kColumns = 1000;
    std::vector<std::pair<std::string, Begun>> all;
    for (std::int64_t round = 0; round < 3; ++round) {
        const Rows rows(group, kColumns, round);
        for (const auto& [kind, begin] : kKinds) {
            if (group.world_size() > 1 || (kind != "send_recv" && kind != "batch")) {
                all.emplace_back(kind, begin(group, rows));
            }
        }
    }
    while (!all.empty()) {
        auto& [kind, begun] = all.back();
        must(begun.pending.wait());
        must(begun.pending.wait());
        require(torch::equal(begun.given, begun.wanted), kind + " gives something else");
        all.pop_back();
    }
    say("equal");
    return worker.finish();
}

/// cross MIBIBYTES batch|single: two ranks send to each other at once, again and again.
int cross(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const int other = 1 - worker.rank();
    const std::int64_t numbers = (std::stoll(arguments.at(0)) << 20) / 8;
    for (std::int64_t round = 0; round < 4; ++round) {
        const Tensor sent = torch::full({numbers}, 10 * round + worker.rank(), torch::kFloat64);
        const Tensor received = torch::empty_like(sent);
        if (arguments.at(1) == "batch") {
            must(P2PBatch(group).send(sent, other).recv(received, other).begin().wait());
        } else {
            Pending<void> sending = group.send_async(sent, other);
            must(group.recv_async(received, other).wait());
            must(sending.wait());
        }
        require(received.eq(10 * round + other).all().item<bool>(), "what was received");
    }
    say("crossed");
    return worker.finish();
}

/// die KIND: the last rank takes part until it is killed. The others have several of that kind
/// pending, and say how the first that fails ended, and when.
int die(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    const Begin& begin = kKinds.at(arguments.at(0));
    constexpr std::int64_t kColumns = 1 << 14;
    for (std::int64_t round = 0;; ++round) {
        const Rows rows(group, kColumns, round);
        Begun first = begin(group, rows);
        Begun second = begin(group, rows);
        const Result<void> done = first.pending.wait();
        const Result<void> then = second.pending.wait();
        if (round == 3) {
            say("pends");
        }
        if (done && then) {
            require(torch::equal(first.given, first.wanted) &&
                        torch::equal(second.given, second.wanted),
                    "a result that is no error is something else");
            continue;
        }
        const std::string what = (done ? then : done).error().what;
        require(done || then.error().what == what, "the second one's error: " + what);
        const Result<void> later = begin(group, rows).pending.wait();
        require(!later && later.error().what == what, "a later one's error");
        say(fmt::format("error at {}: {}",
                        std::chrono::steady_clock::now().time_since_epoch().count(), what));
        ddprun::test::hang();
    }
}

/// Transfers that nobody waits for hold up nothing that follows.
int abandon(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    const int other = 1 - worker.rank();
    for (int round = 0; round < 3; ++round) {
        { const Pending<void> dropped = group.send_async(torch::ones({1 << 20}), other, 1); }
        { const Pending<void> dropped = group.recv_async(torch::ones({1 << 20}), other, 1); }
        Tensor sum = torch::ones({4});
        must(group.all_reduce(sum));
        Tensor received = torch::zeros({3});
        must(P2PBatch(group)
                 .send(torch::full({3}, static_cast<float>(round)), other)
                 .recv(received, other)
                 .begin()
                 .wait());
        require(received.eq(round).all().item<bool>(), "what was received");
    }
    say("goes on");
    return worker.finish();
}

/// late MILLISECONDS: rank 0 waits so long for what rank 1 never begins.
int late(Worker& worker, const Arguments& arguments) {
    ProcessGroup group = must(worker.process_group());
    must(group.barrier());
    if (worker.rank() == 1) {
        ddprun::test::hang();
    }
    Tensor tensor = torch::ones({4});
    const Result<void> done =
        group.all_reduce_async(tensor).wait(std::chrono::milliseconds(std::stoi(arguments.at(0))));
    require(!done, "a collective that one rank has begun is done");
    say("error: " + done.error().what);
    return 0;
}

/// Mistakes of this rank in one call end nothing else.
int refuse(Worker& worker, const Arguments& /*arguments*/) {
    ProcessGroup group = must(worker.process_group());
    Tensor three = torch::ones({3});
    Tensor four = torch::ones({4});
    const auto tell = [](const Result<void>& done) {
        require(!done, "a mistake is taken");
        say("refused: " + done.error().what);
    };
    Pending<void> pending = group.all_reduce_async(four);
    tell(group.all_gather_into(four, three));
    tell(group.reduce_scatter_into(three, four));
    tell(group.all_gather_into_coalesced({torch::ones({6}), four}, {three, three}));
    tell(group.reduce_scatter_into_coalesced({three}, {four, four}));
    tell(group.all_reduce_coalesced({}));
    tell(group.all_reduce_coalesced({four, torch::ones({4}, torch::kInt64)}));
    tell(P2PBatch(group).send(four, worker.rank()).begin().wait());
    tell(P2PBatch(group)
             .send(four, 1 - worker.rank())
             .recv(three, 1 - worker.rank(), -1)
             .begin()
             .wait());
    tell(P2PBatch(group).send(Tensor(), 1 - worker.rank()).begin().wait());
    const Result<Tensor> nowhere = group.reduce_scatter(torch::ones({2}, torch::kMeta));
    require(!nowhere, "a tensor without memory is reduced");
    say("refused: " + nowhere.error().what);
    tell(P2PBatch(group).recv(torch::ones({4, 4}).t(), 1 - worker.rank()).begin().wait());
    const Tensor whole = torch::ones({4}, torch::kInt64);
    tell(group.reduce_scatter_into_async(whole[0], whole, Reduction::Mean).wait());
    must(pending.wait());
    require(four.eq(worker.world_size()).all().item<bool>(), "the sum");
    return worker.finish();
}

/// Six ranks as 2 x 3: sums along each dimension, and meshes that are refused.
int mesh(Worker& worker, const Arguments& /*arguments*/) {
    const ProcessGroup group = must(worker.process_group());
    const ddprun::Mesh made = must(ddprun::Mesh::make(group, {{"data", 2}, {"shard", 3}}));
    const int column = worker.rank() % 3;
    const int row = worker.rank() / 3;
    const std::map<std::string, std::pair<int, int>> expected = {
        {"data", {row, column + column + 3}}, {"shard", {column, 3 * (3 * row + 1)}}};
    for (const auto& [name, place_and_sum] : expected) {
        ProcessGroup along = must(made.along(name));
        Tensor sum = torch::full({1}, worker.rank(), torch::kInt64);
        must(along.all_reduce(sum));
        require(along.rank() == place_and_sum.first && sum.item<int>() == place_and_sum.second,
                name + ": another place or sum");
    }
    const auto tell = [](const auto& result) {
        require(!result, "a mistake is taken");
        say("refused: " + result.error().what);
    };
    tell(made.along("pipe"));
    tell(ddprun::Mesh::make(group, {{"data", 4}, {"shard", 2}}));
    tell(ddprun::Mesh::make(group, {{"data", 6}, {"data", 1}}));
    tell(ddprun::Mesh::make(group, {{worker.rank() == 4 ? "b" : "a", 6}}));
    return worker.finish();
}

}  // namespace

int main(int argc, char** argv) {
    const std::map<std::string, std::function<int(Worker&, const Arguments&)>> scenarios = {
        {"abandon", abandon}, {"cross", cross}, {"die", die},      {"late", late},
        {"mesh", mesh},       {"pend", pend},   {"refuse", refuse}};
    if (argc == 2 && std::string(argv[1]) == "kinds") {
        for (const auto& [kind, begin] : kKinds) {
            say(kind);
        }
        return 0;
    }
    require(argc > 1 && scenarios.contains(argv[1]), "usage: collectives_peer SCENARIO …");
    torch::set_num_threads(1);
    return ddprun::run(argc, argv, [&](Worker& worker) {
        return scenarios.at(argv[1])(worker, Arguments(argv + 2, argv + argc));
    });
}
