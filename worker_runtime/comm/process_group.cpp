#include <algorithm>
#include <chrono>
#include <cstdio>
#include <exception>
#include <iterator>
#include <memory>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include "base/os/machine_identity.hpp"
#include "base/runtime_limits.hpp"
#include "worker_runtime/comm/exception_text.hpp"
#include "worker_runtime/comm/late_ranks.hpp"
#include "worker_runtime/comm/process_group_state.hpp"
#include "worker_runtime/comm/tensors_under_way.hpp"

namespace ddprun {

namespace {

c10::intrusive_ptr<c10d::Store> make_store(const worker::WorkerEnvironment& place,
                                           const ProcessGroupOptions& options) {
    if (!place.store.has_value()) {
        return c10::make_intrusive<c10d::HashStore>();
    }
    c10d::TCPStoreOptions at;
    at.port = place.store->port;
    at.isServer = place.serves_store;
    at.multiTenant = true;  // A group that is made before the last one is gone shares its store.
    at.waitWorkers = false;
    at.timeout = options.join_timeout;
    auto store = c10::make_intrusive<c10d::TCPStore>(place.store->host, at);
    // A fresh store per generation is ddprun's promise, not every launcher's.
    return c10::make_intrusive<c10d::PrefixStore>(
        fmt::format("ddprun/{}", place.generation.value()), std::move(store));
}

/// Says on stderr that a connection could not be watched, if one could not.
void tell_unwatched(const worker::BackendPlace& at, std::size_t watched) {
    const auto all = static_cast<std::size_t>(at.world_size - 1);
    if (watched < all) {
        fmt::print(stderr,
                   "worker: rank {} of {}: {} of its {} connections to other ranks are watched; a "
                   "death at another one may be known by the collective's time-out only; those "
                   "ranks have ended already, or the hard limit of open files (ulimit -Hn) is too "
                   "low\n",
                   at.rank, at.world_size, watched, all);
        (void)std::fflush(stderr);
    }
}

/// A store there is for workers of this machine alone.
bool is_loopback(const std::string& host) {
    return host == "localhost" || host == "::1" || host.starts_with("127.");
}

}  // namespace

std::shared_ptr<ProcessGroup::State> ProcessGroup::State::connect(
    const c10::intrusive_ptr<c10d::Store>& store, const worker::BackendPlace& at,
    const std::string& name, worker::Loss* whole) {
    auto state = std::make_shared<State>();
    state->store = store;
    state->at = at;
    worker::Gloo gloo = worker::make_gloo(c10::make_intrusive<c10d::PrefixStore>("gloo", store), at,
                                          whole != nullptr ? *whole : *state->loss);
    state->gloo = worker::make_guarded(std::move(gloo.backend), state->loss);
    state->watch = std::make_shared<worker::PeerWatch>(gloo.connections, state->loss);
    state->loss->explain_by([watch = std::weak_ptr(state->watch)](const std::string& failure) {
        const auto ours = watch.lock();
        return ours ? ours->explained(failure) : failure;
    });
    tell_unwatched(at, state->watch->watched());
    const auto group = c10::make_intrusive<worker::TimedGroup>(store, at.rank, at.world_size);
    group->setBackend(c10::DeviceType::CPU, c10d::ProcessGroup::BackendType::GLOO, state->gloo);
    group->setDefaultBackend(c10d::ProcessGroup::BackendType::GLOO);
    group->setGroupName(name);
    state->group = group;
    return state;
}

void ProcessGroup::State::use_gpus() {
    if (!at.gpus.empty()) {
        worker::connect_gpus(*group, *loss, store, at);
        devices.clear();
        for (const int gpu : at.gpus) {
            devices.emplace_back(torch::kCUDA, static_cast<c10::DeviceIndex>(gpu));
        }
        if (!at.is_gpu_shared) {
            group->use(deadlines_for_gpu());
        }
    }
    // All ranks are here. A collective, or a part of one, is all that waits from now on.
    gloo->setTimeout(at.timeout);
    store->setTimeout(at.timeout);
}

ProcessGroup::State::~State() {
    if (!is_finished && group) {
        cut("its owner has let the group go");
        (void)group.release();
    }
}

Result<void> ProcessGroup::State::check(const std::string& what) {
    if (broken.has_value()) {
        return *broken;
    }
    try {
        loss->check();
        return {};
    } catch (const std::exception& failure) {
        return broken_by(what, failure);
    }
}

Error ProcessGroup::State::broken_by(const std::string& what, const std::exception& failure) {
    const std::string text = worker::first_line(failure);
    if (worker::is_device_failure(failure)) {
        broken = Error{ErrorCode::System,
                       fmt::format("{} failed on rank {} of {}: {}; the group is cut, so that the "
                                   "other ranks do not wait for this one; end the process",
                                   what, at.rank, at.world_size, text)};
        cut(text);
        return *broken;
    }
    const std::string reason = watch->explained(text);
    watch->let_others_notice();
    broken = Error{ErrorCode::ConnectionLost,
                   fmt::format("{} failed on rank {} of {}: {}; a peer died, was late, or called "
                               "another collective",
                               what, at.rank, at.world_size, reason)};
    cut(reason);
    return *broken;
}

std::unique_ptr<worker::WorkDeadlines> ProcessGroup::State::deadlines_for_gpu() const {
    return std::make_unique<worker::WorkDeadlines>(
        at.timeout, [store = store, at = at, gloo = gloo,
                     watch = watch](const worker::WorkDeadlines::Operation& late) {
            const std::uint64_t number = late.work->getSequencenumber();
            const std::string who = late.peers.empty() ? worker::name_late_ranks(store, at, number)
                                                       : worker::late_peers_text(late.peers);
            cut(*gloo, *watch,
                fmt::format("collective {} ({}) is not done after {} ms: {}", number,
                            c10d::opTypeToString(late.work->retrieveOpType()), at.timeout.count(),
                            who));
        });
}

void ProcessGroup::State::cut(c10d::Backend& gloo, worker::PeerWatch& watch,
                              const std::string& why) {
    watch.expect_cut();
    try {
        gloo.abort();
    } catch (const std::exception&) {
        // A broken group cannot be broken further.
    }
    watch.cut(why);
}

void ProcessGroup::State::stand_down() {
    watch->stand_down();
    for (const std::shared_ptr<State>& part : parts) {
        part->stand_down();
    }
}

void ProcessGroup::State::end() {
    for (const std::shared_ptr<State>& part : parts) {
        if (!part->broken.has_value()) {
            part->end();
        }
    }
    if (!is_finished) {
        is_finished = true;
        group->shutdown();
    }
}

ProcessGroup::ProcessGroup(std::shared_ptr<State> state) : state_(std::move(state)) {}

Result<ProcessGroup> ProcessGroup::join(const worker::WorkerEnvironment& place, Backend backend,
                                        const ProcessGroupOptions& options) {
    const std::string who = fmt::format("rank {} of {}", place.rank.value(), place.world_size);
    try {
        const int most_gpus = worker::RuntimeLimits{}.gpus_per_rank_max;
        if (options.gpus_per_rank < 1 || options.gpus_per_rank > most_gpus) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{} asks for {} GPUs: gpus_per_rank is from 1 to {}", who,
                                     options.gpus_per_rank, most_gpus)};
        }
        const Result<std::vector<worker::Gpu>> gpus =
            backend == Backend::Gloo
                ? Result<std::vector<worker::Gpu>>()
                : worker::take_gpus(place.local_rank.value(), options.gpus_per_rank);
        if (!gpus) {
            return gpus.error();
        }
        if (backend == Backend::Nccl && gpus->empty()) {
            return Error{
                ErrorCode::InvalidArgument,
                fmt::format("{} cannot use NCCL: it sees no GPU, or this program was built "
                            "without NCCL; use Backend::Auto or Backend::Gloo",
                            who)};
        }
        const bool is_here_only = !place.store || is_loopback(place.store->host);
        worker::BackendPlace at{
            .rank = place.rank.value(),
            .world_size = place.world_size,
            .local_address =
                place.local_address.empty() && is_here_only ? "127.0.0.1" : place.local_address,
            .join_timeout = options.join_timeout,
            .timeout = options.timeout,
        };
        worker::RankGpus mine{.host = host_name()};
        for (const worker::Gpu& gpu : *gpus) {
            at.gpus.push_back(gpu.number);
            mine.uuids.push_back(gpu.uuid);
        }
        const auto state = State::connect(make_store(place, options), at,
                                          fmt::format("ddprun/{}", place.generation.value()));
        ProcessGroup group(state);
        if (backend != Backend::Gloo) {
            const Result<bool> is_shared =
                worker::agree_on_gpus(group, mine, options.allow_shared_gpus);
            if (!is_shared) {
                return is_shared.error();
            }
            state->at.is_gpu_shared = *is_shared && backend == Backend::Auto;
        }
        state->use_gpus();
        return group;
    } catch (const std::exception& failure) {
        const std::string store =
            place.store ? fmt::format("{}:{}", place.store->host, place.store->port) : "its own";
        return Error{ErrorCode::ConnectionLost,
                     fmt::format("{} could not join its process group through the store {}: {}",
                                 who, store, worker::first_line(failure))};
    }
}

int ProcessGroup::rank() const {
    return state_->group->getRank();
}

int ProcessGroup::world_size() const {
    return state_->group->getSize();
}

const std::vector<torch::Device>& ProcessGroup::devices() const {
    return state_->devices;
}

c10::intrusive_ptr<c10d::ProcessGroup> ProcessGroup::c10d() const {
    return state_->group;
}

worker::StopBallot& ProcessGroup::stop_ballot() const {
    return state_->stop_ballot;
}

worker::BackgroundSaves& ProcessGroup::background_saves() const {
    return *state_->background_saves;
}

const std::shared_ptr<worker::Loss>& ProcessGroup::loss() const {
    return state_->loss;
}

std::size_t ProcessGroup::watched_connections() const {
    return state_->watch->watched();
}

const std::shared_ptr<std::atomic<std::int64_t>>& ProcessGroup::waited_ns() const {
    return state_->waited_ns;
}

Result<std::optional<ProcessGroup>> ProcessGroup::subgroup(const std::vector<int>& ranks,
                                                           const std::string& name) {
    const std::set<int> members(ranks.begin(), ranks.end());
    const bool is_possible = !members.empty() && members.size() == ranks.size() &&
                             *members.begin() >= 0 && *members.rbegin() < world_size();
    // All ranks send what they ask for, so that none waits for a rank that asks for something else.
    torch::Tensor asked = torch::full({world_size()}, is_possible ? 0 : -1, torch::kInt64);
    for (const int member : is_possible ? members : std::set<int>()) {
        asked[member] = 1;
    }
    const Result<torch::Tensor> all = all_gather(asked);
    if (!all) {
        return all.error();
    }
    const std::string what = fmt::format("a sub-group of ranks {} was refused on rank {} of {}",
                                         fmt::join(ranks, ", "), rank(), world_size());
    if (!is_possible) {
        return Error{
            ErrorCode::InvalidArgument,
            fmt::format("{}: name at least one rank, each once, below {}", what, world_size())};
    }
    for (int other = 0; other < world_size(); ++other) {
        if (!torch::equal((*all)[other], asked)) {
            return Error{ErrorCode::InvalidArgument,
                         fmt::format("{}: rank {} asks for others; every rank of the group must "
                                     "ask for the same sub-groups in the same order",
                                     what, other)};
        }
    }
    const auto own = members.find(rank());
    if (own == members.end()) {
        ++state_->parts_made;
        return std::optional<ProcessGroup>();
    }
    worker::BackendPlace at = state_->at;
    at.rank = static_cast<int>(std::distance(members.begin(), own));
    at.world_size = static_cast<int>(members.size());
    const Result<std::shared_ptr<State>> part = connect_part(
        at, name, fmt::format("making a sub-group of ranks {}", fmt::join(ranks, ", ")));
    if (!part) {
        return part.error();
    }
    (*part)->stop_ballot.is_adding_up = state_->stop_ballot.is_adding_up;
    (*part)->background_saves = state_->background_saves;
    (*part)->waited_ns = state_->waited_ns;
    return std::optional(ProcessGroup(*part));
}

Result<ProcessGroup> ProcessGroup::gloo_twin() {
    worker::BackendPlace at = state_->at;
    at.gpus.clear();
    const Result<std::shared_ptr<State>> part = connect_part(at, "", "connecting once more");
    return part ? Result<ProcessGroup>(ProcessGroup(*part)) : part.error();
}

Result<std::shared_ptr<ProcessGroup::State>> ProcessGroup::connect_part(
    const worker::BackendPlace& at, const std::string& name, const std::string& what) {
    if (state_->broken.has_value()) {
        return *state_->broken;
    }
    const int number = state_->parts_made++;
    try {
        const auto part = State::connect(
            c10::make_intrusive<c10d::PrefixStore>(fmt::format("part/{}", number), state_->store),
            at,
            fmt::format("{}/{}", state_->group->getGroupName(),
                        name.empty() ? std::to_string(number) : name),
            state_->loss.get());
        part->use_gpus();
        std::erase_if(state_->parts, [](const auto& earlier) { return earlier->is_finished; });
        state_->parts.push_back(part);
        state_->loss->carry_on_to(part->watch);
        return part;
    } catch (const std::exception& failure) {
        return state_->broken_by(what, failure);
    }
}

ProcessGroup::LongerWait::LongerWait(const ProcessGroup& group, std::chrono::milliseconds at_least)
    : state_(*group.state_) {
    // 0 is none.
    if (state_.at.timeout.count() > 0) {
        state_.gloo->setTimeout(std::max(state_.at.timeout, at_least));
    }
}

ProcessGroup::LongerWait::~LongerWait() {
    state_.gloo->setTimeout(state_.at.timeout);
}

Result<void> ProcessGroup::finish() {
    if (state_->is_finished) {
        return {};
    }
    const Result<void> written = worker::TensorsUnderWay::wait_for_all();
    state_->background_saves->before_end();
    Result<void> done = written ? barrier() : written;
    if (done) {
        state_->stand_down();
        // Over Gloo, whose connections end with a peer that dies here: the watch says nothing now.
        done = collective("barrier", [&] { return state_->gloo->barrier(c10d::BarrierOptions()); });
    }
    if (done) {
        state_->end();
    }
    return done;
}

}  // namespace ddprun
