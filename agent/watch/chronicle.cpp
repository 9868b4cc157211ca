#include "agent/watch/chronicle.hpp"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/overloaded.hpp"
#include "base/signal_name.hpp"
#include "rendezvous/events/event_fields.hpp"
#include "rendezvous/wire/last_words.hpp"
#include "rendezvous/wire/message_fields.hpp"

namespace ddprun::agent {

namespace {

using rdzv::Event;
using rdzv::EventKind;

constexpr std::array kMomentKinds = {EventKind::Main, EventKind::GroupReady, EventKind::Resumed,
                                     EventKind::FirstStep};

std::optional<Instant> moment_of(const WorkerMoments& worker, EventKind kind) {
    switch (kind) {
        case EventKind::Main:
            return worker.main;
        case EventKind::GroupReady:
            return worker.group_ready;
        case EventKind::Resumed:
            return worker.resumed;
        default:
            return worker.first_step;
    }
}

}  // namespace

Chronicle::Chronicle(const SupervisorOptions& options, std::string program, int pid)
    : job_(options.identity.job.value()),
      hostname_(options.identity.hostname),
      node_(options.identity.node.value()),
      program_(std::move(program)),
      pid_(pid),
      slots_(options.identity.slots) {}

void Chronicle::begin(Instant now, Events& out) const {
    out.push_back({.kind = EventKind::Begun,
                   .at = now,
                   .fields = {{"job", job_},
                              {"program", program_},
                              {"host", hostname_},
                              {"node", node_},
                              {"pid", std::int64_t{pid_}},
                              {"workers", std::int64_t{slots_}}}});
}

void Chronicle::observe(Instant now, const Input& input, const std::vector<Effect>& effects,
                        Events& out) {
    std::visit(
        Overloaded{
            [&](const LinkUp& in) {
                out.push_back({.kind = EventKind::LinkUp,
                               .at = now,
                               .fields = {{"address", in.local_address}}});
            },
            [&](const LinkDown& in) {
                out.push_back(
                    {.kind = EventKind::LinkDown, .at = now, .fields = {{"text", in.why}}});
            },
            [&](const FromRendezvous& in) { hear(now, in.message, out); },
            [&](const GpuMemoryAwaited&) {
                out.push_back({.kind = EventKind::GpuMemory, .at = now});
            },
            [&](const PreflightDone& in) {
                out.push_back({.kind = EventKind::Preflight,
                               .at = now,
                               .fields = {{"fit", in.why.empty()}, {"text", in.why}}});
            },
            [&](const PrepareEnded& in) {
                out.push_back(
                    {.kind = EventKind::Prepared,
                     .at = now,
                     .fields = {{"exit_code", std::int64_t{in.exit_code}}, {"text", in.fault}}});
            },
            [&](const Signalled& in) {
                out.push_back({.kind = EventKind::Leave,
                               .at = now,
                               .fields = {{"signal", std::int64_t{in.signal}},
                                          {"signal_name", std::string(signal_name(in.signal))}}});
            },
            [](const auto&) {},
        },
        input);
    for (const Effect& effect : effects) {
        carry_out(now, effect, out);
    }
    // After what it has led to: the group may be stopped by it.
    const Emptied* emptied = std::get_if<Emptied>(&input);
    if (emptied != nullptr && emptied->generation != kPrepareGeneration) {
        const auto place = std::find_if(out.begin(), out.end(), [](const Event& event) {
            return event.kind == EventKind::Ready || event.kind == EventKind::Exit;
        });
        out.insert(place, {.kind = EventKind::Empty, .at = now, .generation = emptied->generation});
    }
}

void Chronicle::hear(Instant now, const rdzv::RendezvousMessage& message, Events& out) {
    std::visit(
        Overloaded{
            [&](const rdzv::Waiting& waiting) {
                if (std::exchange(waiting_, waiting.text) != waiting.text) {
                    out.push_back({.kind = EventKind::Waiting,
                                   .at = now,
                                   .fields = {{"text", waiting.text}}});
                }
            },
            [&](const rdzv::Notice& notice) {
                out.push_back(
                    {.kind = EventKind::Notice, .at = now, .fields = {{"text", notice.text}}});
            },
            [&](const rdzv::Start& row) { row_ = row; },
            [&](const rdzv::Stop& stop) {
                const bool is_ours = started_ && started_->generation == stop.generation;
                if (is_ours && !std::exchange(started_->is_stop_told, true)) {
                    out.push_back({.kind = EventKind::Stop,
                                   .at = now,
                                   .generation = stop.generation,
                                   .fields = rdzv::fields_of(stop)});
                }
            },
            [&](const rdzv::Released&) { out.push_back({.kind = EventKind::Released, .at = now}); },
            [&](const rdzv::Refused& refused) {
                out.push_back({.kind = EventKind::Refused,
                               .at = now,
                               .fields = {{"text", refused.text},
                                          {"exit_code", std::int64_t{refused.exit_code}}}});
            },
            [&](const rdzv::Verdict& verdict) {
                out.push_back(
                    {.kind = EventKind::Verdict, .at = now, .fields = rdzv::fields_of(verdict)});
            },
            [](const auto&) {},
        },
        message);
}

void Chronicle::carry_out(Instant now, const Effect& effect, Events& out) {
    std::visit(
        Overloaded{
            [&](const SendToRendezvous& e) { send(now, e.message, out); },
            [&](const RunPrepare&) { out.push_back({.kind = EventKind::Prepare, .at = now}); },
            [&](const StartWorkers& e) {
                started_ = Started{.generation = e.generation,
                                   .base_rank = e.base_rank.value(),
                                   .pids = std::vector<std::int64_t>(e.workers.size()),
                                   .failed = {},
                                   .worded = {},
                                   .finished = {},
                                   .at = now};
                waiting_.clear();
                out.push_back({.kind = EventKind::Formed,
                               .at = now,
                               .generation = e.generation,
                               .fields = {{"nodes", std::int64_t{row_->group_world_size}},
                                          {"workers", std::int64_t{e.world_size}},
                                          {"group_rank", std::int64_t{row_->group_rank}},
                                          {"base_rank", std::int64_t{e.base_rank.value()}},
                                          {"restarts", std::int64_t{row_->restart_count}},
                                          {"text", row_->why}}});
            },
            [&](const AskWorkersToLeave& e) {
                out.push_back({.kind = EventKind::Stopping,
                               .at = now,
                               .generation = e.generation,
                               .fields = {{"asked", true}}});
            },
            [&](const SignalWorkers& e) {
                if (e.generation != kPrepareGeneration && !e.spares_asked) {
                    out.push_back({.kind = EventKind::Stopping,
                                   .at = now,
                                   .generation = e.generation,
                                   .fields = {{"signal", std::int64_t{e.signal}}}});
                }
            },
            [&](const EmptyGeneration& e) {
                if (e.generation != kPrepareGeneration) {
                    out.push_back({.kind = EventKind::Stopped,
                                   .at = now,
                                   .generation = e.generation,
                                   .step = started_ ? started_->step : std::nullopt});
                }
            },
            [&](const Exit& e) {
                out.push_back({.kind = EventKind::Exit,
                               .at = now,
                               .fields = {{"exit_code", std::int64_t{e.code}}}});
            },
            [](const auto&) {},
        },
        effect);
}

void Chronicle::send(Instant now, const rdzv::AgentMessage& message, Events& out) {
    std::visit(
        Overloaded{
            [&](const rdzv::Join&) { out.push_back({.kind = EventKind::Joined, .at = now}); },
            [&](const rdzv::Stopped& stopped) {
                out.push_back(
                    {.kind = EventKind::Ready, .at = now, .generation = stopped.generation});
            },
            [&](const rdzv::WorkerFinished& finished) {
                // Said again after each reconnect.
                const bool is_new =
                    started_ && started_->finished.insert(finished.local_rank.value()).second;
                if (is_new) {
                    out.push_back({.kind = EventKind::Finished,
                                   .at = now,
                                   .generation = finished.generation,
                                   .rank = rank_of(finished.generation, finished.local_rank)});
                }
            },
            [&](const rdzv::WorkerFailed& failed) { tell_failure(now, failed, out); },
            [&](const rdzv::Quiet& quiet) {
                out.push_back({.kind = EventKind::Quiet,
                               .at = now,
                               .generation = quiet.generation,
                               .fields = {{"quiet_ms", std::int64_t{quiet.quiet_for.count()}}}});
            },
            [](const auto&) {},
        },
        message);
}

/// Told at once, and again with its last words; what is only repeated is told no more.
void Chronicle::tell_failure(Instant now, const rdzv::WorkerFailed& failed, Events& out) {
    const rdzv::Evidence& evidence = failed.evidence;
    if (!started_ || started_->generation != failed.generation) {
        return;
    }
    const std::optional<Rank> rank = rank_of(failed.generation, failed.local_rank);
    if (started_->failed.insert(failed.local_rank.value()).second) {
        Event event{.kind = EventKind::Failure,
                    .at = now - evidence.age,
                    .generation = failed.generation,
                    .rank = rank,
                    .step = evidence.progress,
                    .fields = {{"local_rank", std::int64_t{failed.local_rank.value()}},
                               {"host", hostname_}}};
        for (rdzv::EventField& field : rdzv::fields_of(evidence)) {
            event.fields.push_back(std::move(field));
        }
        out.push_back(std::move(event));
    }
    const bool has_words = !evidence.stderr_tail.empty() || !evidence.stdout_tail.empty() ||
                           !evidence.error_file.empty();
    if (has_words && started_->worded.insert(failed.local_rank.value()).second) {
        out.push_back({.kind = EventKind::LastWords,
                       .at = now,
                       .generation = failed.generation,
                       .rank = rank,
                       .fields = {{"text", rdzv::cause_line(evidence).text},
                                  {"stderr", evidence.stderr_tail},
                                  {"stdout", evidence.stdout_tail}}});
    }
}

std::optional<Rank> Chronicle::rank_of(Generation generation, LocalRank local_rank) const {
    if (!started_ || started_->generation != generation) {
        return std::nullopt;
    }
    return Rank(started_->base_rank + local_rank.value());
}

void Chronicle::worker_started(Instant now, Generation generation, LocalRank local_rank, int pid,
                               Events& out) {
    const auto index = static_cast<std::size_t>(local_rank.value());
    if (!started_ || started_->generation != generation || index >= started_->pids.size()) {
        return;
    }
    started_->pids[index] = pid;
    const bool are_all =
        std::find(started_->pids.begin(), started_->pids.end(), 0) == started_->pids.end();
    if (are_all) {
        out.push_back({.kind = EventKind::Spawned,
                       .at = now,
                       .generation = generation,
                       .fields = {{"workers", static_cast<std::int64_t>(started_->pids.size())}}});
    }
}

rdzv::RankPhase Chronicle::phase_of(LocalRank local_rank, const WorkerMoments& told) const {
    using rdzv::RankPhase;
    if (started_ && started_->failed.contains(local_rank.value())) {
        return RankPhase::Failed;
    }
    if (started_ && started_->finished.contains(local_rank.value())) {
        return RankPhase::Finished;
    }
    return told.first_step    ? RankPhase::Training
           : told.resumed     ? RankPhase::Resumed
           : told.group_ready ? RankPhase::GroupReady
           : told.main        ? RankPhase::Main
                              : RankPhase::Spawned;
}

bool Chronicle::needs_estimates() const {
    return started_ && !started_->tells_moments && !started_->is_told.back();
}

void Chronicle::estimate(Generation generation, const Estimates& estimates, Events& out) {
    if (!needs_estimates() || started_->generation != generation) {
        return;
    }
    const std::array<std::optional<Instant>, kMoments> moments = {
        estimates.main, estimates.group_ready, std::nullopt, estimates.first_step};
    for (std::size_t i = 0; i < kMoments; ++i) {
        const bool is_of_this = moments.at(i) && *moments.at(i) >= started_->at;
        if (is_of_this && !std::exchange(started_->is_told.at(i), true)) {
            out.push_back({.kind = kMomentKinds.at(i),
                           .at = *moments.at(i),
                           .generation = generation,
                           .is_estimated = true});
        }
    }
}

void Chronicle::look_at(Generation generation, const std::vector<WorkerMoments>& workers,
                        Events& out) {
    if (!started_ || started_->generation != generation || workers.empty()) {
        return;
    }
    std::optional<std::uint64_t> step;
    std::optional<std::uint64_t> first_number;
    for (const WorkerMoments& worker : workers) {
        step = std::max(step, worker.step);
        first_number = first_number ? first_number : worker.first_number;
        started_->tells_moments |= worker.main || worker.group_ready || worker.first_step;
    }
    for (std::size_t i = 0; i < kMoments; ++i) {
        std::optional<Instant> last;
        std::size_t slowest = 0;
        std::size_t count = 0;
        for (std::size_t local_rank = 0; local_rank < workers.size(); ++local_rank) {
            const std::optional<Instant> at = moment_of(workers[local_rank], kMomentKinds[i]);
            count += at ? 1 : 0;
            if (at && (!last || *at > *last)) {
                last = at;
                slowest = local_rank;
            }
        }
        if (count == workers.size() && !std::exchange(started_->is_told[i], true)) {
            const int rank = started_->base_rank + static_cast<int>(slowest);
            const bool is_step = kMomentKinds[i] == EventKind::FirstStep;
            out.push_back({.kind = kMomentKinds[i],
                           .at = *last,
                           .generation = generation,
                           .rank = Rank(rank),
                           .step = is_step ? first_number : std::nullopt});
        }
    }
    started_->step = std::max(started_->step, step);
}

}  // namespace ddprun::agent
