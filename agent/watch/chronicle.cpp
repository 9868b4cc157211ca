#include "agent/watch/chronicle.hpp"

#include <algorithm>
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

constexpr std::array kMomentKinds = {std::pair{EventKind::Main, &WorkerMoments::main},
                                     std::pair{EventKind::GroupReady, &WorkerMoments::group_ready},
                                     std::pair{EventKind::Resumed, &WorkerMoments::resumed},
                                     std::pair{EventKind::FirstStep, &WorkerMoments::first_step}};

/// A function that appends an event of `now`, which has no rank and no step.
auto teller(Instant now, Chronicle::Events& out) {
    return [now, &out](EventKind kind, std::vector<rdzv::EventField> fields = {},
                       Generation generation = {}) {
        out.push_back(
            {.kind = kind, .at = now, .generation = generation, .fields = std::move(fields)});
    };
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
    const auto tell = teller(now, out);
    std::visit(Overloaded{
                   [&](const LinkUp& in) {
                       tell(EventKind::LinkUp, {{"address", in.local_address}});
                   },
                   [&](const LinkDown& in) {
                       tell(EventKind::LinkDown, {{"text", in.why}});
                   },
                   [&](const FromRendezvous& in) { hear(now, in.message, out); },
                   [&](const GpuMemoryAwaited&) { tell(EventKind::GpuMemory); },
                   [&](const PreflightDone& in) {
                       tell(EventKind::Preflight, {{"fit", in.why.empty()}, {"text", in.why}});
                   },
                   [&](const PrepareEnded& in) {
                       tell(EventKind::Prepared,
                            {{"exit_code", std::int64_t{in.exit_code}}, {"text", in.fault}});
                   },
                   [&](const Signalled& in) {
                       tell(EventKind::Leave,
                            {{"signal", std::int64_t{in.signal}},
                             {"signal_name", std::string(signal_name(in.signal))}});
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
    const auto tell = teller(now, out);
    std::visit(Overloaded{
                   [&](const rdzv::Waiting& waiting) {
                       if (std::exchange(waiting_, waiting.text) != waiting.text) {
                           tell(EventKind::Waiting, {{"text", waiting.text}});
                       }
                   },
                   [&](const rdzv::Notice& notice) {
                       tell(EventKind::Notice, {{"text", notice.text}});
                   },
                   [&](const rdzv::Start& row) { row_ = row; },
                   [&](const rdzv::Stop& stop) {
                       const bool is_ours = started_ && started_->generation == stop.generation;
                       if (is_ours && !std::exchange(started_->is_stop_told, true)) {
                           tell(EventKind::Stop, rdzv::fields_of(stop), stop.generation);
                       }
                   },
                   [&](const rdzv::Released&) { tell(EventKind::Released); },
                   [&](const rdzv::Refused& refused) {
                       tell(EventKind::Refused, {{"text", refused.text},
                                                 {"exit_code", std::int64_t{refused.exit_code}}});
                   },
                   [&](const rdzv::Verdict& verdict) {
                       tell(EventKind::Verdict, rdzv::fields_of(verdict));
                   },
                   [](const auto&) {},
               },
               message);
}

void Chronicle::carry_out(Instant now, const Effect& effect, Events& out) {
    const auto tell = teller(now, out);
    std::visit(
        Overloaded{
            [&](const SendToRendezvous& e) { send(now, e.message, out); },
            [&](const RunPrepare&) { tell(EventKind::Prepare); },
            [&](const StartWorkers& e) {
                started_ = Started{.generation = e.generation,
                                   .base_rank = e.base_rank.value(),
                                   .pids = std::vector<std::int64_t>(e.workers.size()),
                                   .at = now};
                waiting_.clear();
                tell(EventKind::Formed,
                     {{"nodes", std::int64_t{row_->group_world_size}},
                      {"workers", std::int64_t{e.world_size}},
                      {"group_rank", std::int64_t{row_->group_rank}},
                      {"base_rank", std::int64_t{e.base_rank.value()}},
                      {"restarts", std::int64_t{row_->restart_count}},
                      {"text", row_->why}},
                     e.generation);
            },
            [&](const AskWorkersToLeave& e) {
                tell(EventKind::Stopping, {{"asked", true}}, e.generation);
            },
            [&](const SignalWorkers& e) {
                if (e.generation != kPrepareGeneration && !e.spares_asked) {
                    tell(EventKind::Stopping, {{"signal", std::int64_t{e.signal}}}, e.generation);
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
                tell(EventKind::Exit, {{"exit_code", std::int64_t{e.code}}});
            },
            [](const auto&) {},
        },
        effect);
}

void Chronicle::send(Instant now, const rdzv::AgentMessage& message, Events& out) {
    const auto tell = teller(now, out);
    std::visit(
        Overloaded{
            [&](const rdzv::Join&) { tell(EventKind::Joined); },
            [&](const rdzv::Stopped& stopped) { tell(EventKind::Ready, {}, stopped.generation); },
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
                tell(EventKind::Quiet, {{"quiet_ms", std::int64_t{quiet.quiet_for.count()}}},
                     quiet.generation);
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
            out.push_back({.kind = kMomentKinds.at(i).first,
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
        const auto [kind, moment] = kMomentKinds[i];
        for (std::size_t local_rank = 0; local_rank < workers.size(); ++local_rank) {
            const std::optional<Instant> at = workers[local_rank].*moment;
            count += at ? 1 : 0;
            if (at && (!last || *at > *last)) {
                last = at;
                slowest = local_rank;
            }
        }
        if (count == workers.size() && !std::exchange(started_->is_told[i], true)) {
            const int rank = started_->base_rank + static_cast<int>(slowest);
            const bool is_step = kind == EventKind::FirstStep;
            out.push_back({.kind = kind,
                           .at = *last,
                           .generation = generation,
                           .rank = Rank(rank),
                           .step = is_step ? first_number : std::nullopt});
        }
    }
    started_->step = std::max(started_->step, step);
}

}  // namespace ddprun::agent
