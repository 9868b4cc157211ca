// The prepare command: the user's own, before the first workers. No deadline of a job passes while
// it runs, and nothing of it is left when this node goes on, or goes.

#include <csignal>

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "agent/supervise/worker_group.hpp"
#include "base/probe.hpp"

namespace ddprun::agent {

bool Supervisor::holds_prepare() const {
    return prepare_ == PrepareState::Runs || prepare_ == PrepareState::Stops ||
           prepare_ == PrepareState::Killing;
}

void Supervisor::hear(const rdzv::Prepare& /*message*/) {
    if (prepare_ == PrepareState::Done) {
        // The answer was lost with a connection.
        tell_prepared();
    } else if (prepare_ == PrepareState::NotRun && !is_leaving() && !holds_workers()) {
        prepare_ = PrepareState::Runs;
        prepare_since_ = now_;
        emit(RunPrepare{.environment = environment_of_prepare(options_, local_address_)});
    }
}

void Supervisor::take(const PrepareEnded& input) {
    if (prepare_ != PrepareState::Runs && prepare_ != PrepareState::Stops) {
        return;
    }
    prepare_end_ = input;
    kill_prepare();
}

/// This node goes: the command may tidy up, for as long as a failed job's workers.
void Supervisor::stop_prepare() {
    if (prepare_ == PrepareState::Runs) {
        prepare_ = PrepareState::Stops;
        prepare_kill_at_ = now_ + options_.identity.settings.failure_grace;
        emit(SignalWorkers{.generation = kPrepareGeneration, .signal = SIGTERM});
    }
}

void Supervisor::kill_prepare() {
    prepare_ = PrepareState::Killing;
    emit(EmptyGeneration{kPrepareGeneration});
}

void Supervisor::judge_prepare() {
    if (prepare_ == PrepareState::Stops && now_ >= prepare_kill_at_) {
        kill_prepare();
    }
}

std::optional<Instant> Supervisor::prepare_deadline() const {
    return prepare_ == PrepareState::Stops ? std::optional(prepare_kill_at_) : std::nullopt;
}

/// No process of it is left.
void Supervisor::prepare_is_gone() {
    prepare_ = PrepareState::Done;
    if (ending_.has_value()) {
        finish();
        return;
    }
    if (is_leaving()) {
        return;  // The rendezvous has been told; what is left undone is another node's to do.
    }
    if (!prepare_end_.fault.empty()) {
        DDP_PROBE(prepare_failed);
        end_saying(
            fmt::format("the prepare command {}: no workers are started", prepare_end_.fault),
            {.reason = ExitReason::Unprepared,
             .exit_code = prepare_end_.exit_code,
             .unprepared = prepare_end_.fault});
        return;
    }
    tell_prepared();
}

void Supervisor::tell_prepared() {
    tell(rdzv::Stopped{.generation = Generation(), .store = store_address_});
}

}  // namespace ddprun::agent
