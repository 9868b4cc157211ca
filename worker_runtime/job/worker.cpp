#include "worker_runtime/job/worker.hpp"

#include <atomic>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <stdexcept>
#include <system_error>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "worker_runtime/comm/peer_watch.hpp"
#include "worker_runtime/contract/exit_codes.hpp"
#include "worker_runtime/env/standby.hpp"
#include "worker_runtime/job/run.hpp"
#include "worker_runtime/scalars/scalars.hpp"

namespace ddprun {

namespace {

/// Behind LibTorch's own initialisers, which are of libraries, and before all of the program's.
[[gnu::constructor(101)]] void wait_before_main() {
    static const char place_in_program = 0;
    worker::wait_for_place(&place_in_program);
}

}  // namespace

struct Worker::State {
    worker::WorkerEnvironment place;
    worker::Page page;
    std::optional<ProcessGroup> group;  ///< set once; other threads read joined() alone
    std::atomic<bool> has_joined = false;
    std::optional<worker::Scalars> scalars;  ///< from the first scalar()

    // For trainings without DistributedDataParallel: 1 where the agent has asked to stop.
    torch::Tensor stop_word;
    std::optional<Pending<void>> stop_vote;  ///< on its way since the last stop_requested()
    bool has_agreed_to_stop = false;

    ~State() {
        if (group.has_value()) {
            group->stop_ballot().is_stop_wanted = [] { return false; };
        }
    }

    /// The group, or nothing yet; any thread.
    [[nodiscard]] const ProcessGroup* joined() const { return has_joined ? &*group : nullptr; }

    /// The training's numbers may then come of a GPU's memory that holds anything. Any thread.
    [[nodiscard]] bool is_lost() const {
        const ProcessGroup* const all = joined();
        return all != nullptr && all->loss()->find();
    }

    [[nodiscard]] bool is_stop_wanted() const { return page.stop_request().has_value(); }

    void warn(const std::string& what) const {
        fmt::print(stderr, "worker: rank {}: {}\n", place.rank.value(), what);
        (void)std::fflush(stderr);
    }

    void begin_stop_vote() {
        stop_word.fill_(is_stop_wanted() ? 1 : 0);
        stop_vote = group->collective_async("agreeing on a stop request", [this] {
            std::vector<torch::Tensor> words{stop_word};
            return group->c10d()->allreduce(words, {.reduceOp = c10d::ReduceOp::MAX});
        });
    }

    Result<void> end_stop_vote() {
        if (auto vote = std::exchange(stop_vote, std::nullopt)) {
            if (Result<void> done = vote->wait(); !done) {
                return done;
            }
            has_agreed_to_stop = has_agreed_to_stop || stop_word.item<std::int32_t>() != 0;
        }
        return {};
    }

    /// True if a bucket of gradients has brought an answer since the last look.
    bool take_ballot() {
        const torch::Tensor word = std::exchange(group->stop_ballot().word, torch::Tensor());
        if (!word.defined()) {
            return false;
        }
        has_agreed_to_stop = has_agreed_to_stop || word.item<double>() > 0;
        return true;
    }

    Result<void> end_group() {
        if (!group.has_value()) {
            return {};
        }
        const Result<void> voted = end_stop_vote();
        return voted ? group->finish() : voted;
    }
};

Worker::Worker(std::unique_ptr<State> state) : state_(std::move(state)) {}
Worker::~Worker() = default;
Worker::Worker(Worker&&) noexcept = default;
Worker& Worker::operator=(Worker&&) noexcept = default;

Result<Worker> Worker::from_environment() {
    Result<worker::WorkerEnvironment> place = worker::read_environment();
    if (!place) {
        return place.error();
    }
    auto state = std::make_unique<State>();
    state->place = std::move(*place);
    if (!state->place.page.empty()) {
        Result<worker::Page> page =
            worker::Page::open(state->place.page, state->place.generation, state->place.slot,
                               state->place.local_world_size);
        if (page) {
            state->page = std::move(*page);
        } else {
            state->warn(page.error().what + "; a request to stop will come as a signal");
        }
    }
    return Worker(std::move(state));
}

const worker::WorkerEnvironment& Worker::environment() const {
    return state_->place;
}

Result<ProcessGroup> Worker::process_group(Backend backend, const ProcessGroupOptions& options) {
    if (state_->group.has_value()) {
        return *state_->group;
    }
    Result<ProcessGroup> group = ProcessGroup::join(state_->place, backend, options);
    if (group) {
        state_->page.tell_group_ready(std::chrono::steady_clock::now());
        state_->group = *group;
        state_->has_joined = true;
        state_->stop_word = torch::zeros({1}, torch::kInt32);
        group->stop_ballot().is_stop_wanted = [state = state_.get()] {
            return state->is_stop_wanted();
        };
    }
    return group;
}

void Worker::progress(std::int64_t step, std::int64_t samples, std::optional<double> loss) {
    if (state_->is_lost()) {
        return;
    }
    if (const ProcessGroup* const group = state_->joined(); group != nullptr) {
        if (const std::int64_t waited = group->waited_ns()->exchange(0); waited > 0) {
            state_->page.tell_waited(std::chrono::nanoseconds(waited));
        }
    }
    state_->page.tell_progress(step, samples, loss);
}

void Worker::scalar(const std::string& name, double value, std::int64_t step) {
    if (state_->is_lost()) {
        return;
    }
    if (name == "loss") {
        state_->page.tell_loss(value);
    }
    if (!state_->scalars.has_value()) {
        state_->scalars.emplace(state_->place);
    }
    const Result<void> added = state_->scalars->add(name, value, step);
    if (!added) {
        state_->warn(added.error().what + "; no curve is written from now on");
    }
}

void Worker::total_steps(std::int64_t steps) {
    state_->page.tell_total_steps(steps);
}

void Worker::resumed() const {
    state_->page.tell_resumed(std::chrono::steady_clock::now());
}

void Worker::checkpointing(Duration time) const {
    state_->page.tell_checkpointing(time);
}

void Worker::save_asked(bool is_late) const {
    state_->page.tell_save_asked(is_late);
}

void Worker::save_begun(std::int64_t step) const {
    state_->page.tell_save_begun(step);
}

void Worker::save_stalled(Duration time) const {
    state_->page.tell_save_stalled(time);
}

void Worker::save_ended(const worker::SaveEnd& end) const {
    state_->page.tell_save_ended(end);
}

void Worker::checkpoints_in(const std::string& dir) const {
    std::error_code failure;
    const std::filesystem::path path = std::filesystem::absolute(dir, failure);
    if (!failure) {
        state_->page.tell_checkpoints(path.lexically_normal().native());
    }
}

bool Worker::stop_requested() {
    if (state_->group.has_value() && state_->group->stop_ballot().holds_gradients()) {
        return false;
    }
    if (state_->has_agreed_to_stop) {
        return true;
    }
    if (!state_->group.has_value() || state_->place.world_size == 1) {
        state_->has_agreed_to_stop = state_->is_stop_wanted();
        return state_->has_agreed_to_stop;
    }
    if (!state_->end_stop_vote()) {
        return false;
    }
    if (!state_->take_ballot() && !state_->has_agreed_to_stop) {
        state_->begin_stop_vote();  // its wait reports every failure
    }
    return state_->has_agreed_to_stop;
}

std::optional<Instant> Worker::stop_deadline() const {
    const std::optional<worker::StopRequest> request = state_->page.stop_request();
    return request ? std::optional(request->deadline) : std::nullopt;
}

bool Worker::is_isolated() const {
    return state_->page.is_isolated();
}

int Worker::finish() {
    checked(state_->end_group());
    return kExitSuccess;
}

int Worker::leave(const Result<void>& saved) {
    const Result<void> ended = state_->end_group();
    if (!saved) {
        throw std::runtime_error("leaving without a checkpoint: " + saved.error().what);
    }
    checked(ended);
    return kExitDrained;
}

}  // namespace ddprun
