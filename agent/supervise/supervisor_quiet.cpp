// Signs of life of the workers here, and what is done about a generation that shows none.

#include <fmt/format.h>

#include "agent/supervise/supervisor.hpp"
#include "base/check.hpp"

namespace ddprun::agent {

namespace {

std::int64_t seconds_of(Duration time) {
    return std::chrono::duration_cast<std::chrono::seconds>(time).count();
}

}  // namespace

void Supervisor::look_if_due() {
    if (quiet_.take_due_look(now_)) {
        DDP_CHECK(holds_workers());
        emit(LookAtWorkers{group_->generation()});
    }
}

/// Workers that run here; none of another generation, or of one that is being stopped.
int Supervisor::count_watched(Generation generation) const {
    const bool is_watched =
        holds_workers() && generation == group_->generation() && group_->is_in<WorkersRun>();
    return is_watched ? static_cast<int>(group_->running().size()) : 0;
}

void Supervisor::take(const Looked& input) {
    const int running = count_watched(input.generation);
    if (running == 0) {
        return;
    }
    if (quiet_.take(now_, input.seen, running)) {
        tell_quiet();
    }
    if (quiet_.take_due_gpu_look(now_)) {
        emit(LookAtGpus{
            .generation = input.generation,
            .quiet_for = std::chrono::duration_cast<Milliseconds>(quiet_.quiet_for(now_))});
    }
}

void Supervisor::take(const GpusLooked& input) {
    if (count_watched(input.generation) > 0 && quiet_.take_gpus(now_, input.are_used)) {
        tell_quiet();
        say_quiet();
    }
}

void Supervisor::say_quiet() {
    // On a single node the order to stop is next, and says more.
    if (quiet_.is_quiet() && group_->row().group_world_size > 1) {
        say(
            fmt::format("the workers here have shown no sign of life for {} s: no output, CPU use, "
                        "GPU use or progress; they hang if those of all other nodes fall silent "
                        "too",
                        seconds_of(quiet_.quiet_for(now_))));
    }
}

void Supervisor::tell_quiet() {
    const Duration since = quiet_.is_quiet() ? quiet_.quiet_for(now_) : Duration::zero();
    tell(rdzv::Quiet{.generation = group_->generation(),
                     .quiet_for = std::chrono::duration_cast<Milliseconds>(since)});
}

/// The workers have failed already: what they do from now on proves nothing.
void Supervisor::begin_to_save_stacks(const rdzv::Stop& message) {
    if (group_->is_in<WorkersHang>()) {
        return;
    }
    const Duration silence = quiet_.quiet_for(now_);
    const std::string folder = stacks_dir(options_.log_dir, group_->generation());
    const std::vector<LocalRank> running = group_->running();
    for (const LocalRank local_rank : running) {
        const auto index = static_cast<std::size_t>(local_rank.value());
        if (std::holds_alternative<Failing>(group_->fates[index])) {
            continue;
        }
        Failing hung{.at = now_ - silence};
        hung.evidence.hung = true;
        hung.evidence.quiet_for = std::chrono::duration_cast<Milliseconds>(silence);
        hung.evidence.program = options_.command.front();
        hung.evidence.log_dir = worker_log_dir(options_.log_dir, group_->generation(), local_rank);
        hung.evidence.stacks = folder;
        hung.evidence.pid = quiet_.worker(local_rank).pid;
        hung.evidence.progress = quiet_.worker(local_rank).progress;
        report_failure(local_rank, hung.evidence, hung.at);
        group_->fates[index] = std::move(hung);
    }
    quiet_.end();
    group_->phase = WorkersHang{.signal = message.signal, .grace = message.grace};
    say(fmt::format("{}{}", message.why,
                    folder.empty() ? "; without a log dir stacks are not saved"
                                   : "; the workers' stacks are saved in " + folder));
    emit(SaveStacks{.generation = group_->generation(),
                    .folder = folder,
                    .base_rank = Rank(group_->row().base_rank),
                    .workers = running});
}

void Supervisor::take(const StacksSaved& input) {
    if (!holds_workers() || input.generation != group_->generation()) {
        return;
    }
    if (const WorkersHang* hang = std::get_if<WorkersHang>(&group_->phase)) {
        stop_workers({.signal = hang->signal, .grace = hang->grace});
    }
}

void Supervisor::end_failing_workers() {
    for (WorkerFate& fate : group_->fates) {
        if (Failing* failing = std::get_if<Failing>(&fate)) {
            fate = failed_of(std::move(*failing));
        }
    }
}

}  // namespace ddprun::agent
