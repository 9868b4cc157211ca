#pragma once

#include <array>
#include <limits>
#include <string_view>
#include <utility>

#include "base/is.hpp"
#include "base/limits.hpp"
#include "rendezvous/wire/messages.hpp"

/// The fields of every struct that travels as JSON, listed once. A visitor is called with each
/// field's name, the field and its bounds; the codec's two visitors write and read them, tests fill
/// them with made-up values. A visitor has to offer:
///
///     limits()                          the Limits that bounds come from
///     flag(name, bool)
///     number(name, integer, least, most)           also Tagged<…, integer>
///     number(name, optional<integer>, least, most) left out when it is not set
///     numbers(name, vector<int>, count_max, least, most)
///     duration(name, Milliseconds)                 0 to kDurationMax
///     name(name, string, is_required)              printable, at most name_bytes_max
///     names(name, vector<string>, count_max)       each as above
///     text(name, string)                           any UTF-8
///     bytes(name, string, bytes_max)               any bytes, as base64
///     choice(name, enumerator, names)
///     object(name, struct)  object(name, optional<struct>)
///     objects(name, vector<struct>, count_max)
namespace ddprun::rdzv {

/// No setting means anything beyond ten years, and sums of such durations cannot overflow.
inline constexpr Milliseconds kDurationMax = std::chrono::hours(24 * 3650);
inline constexpr auto kMillisecondsMax = static_cast<std::uint64_t>(kDurationMax.count());

inline constexpr std::array kStopCauseNames = {
    std::pair{std::string_view("failure"), StopCause::Failure},
    std::pair{std::string_view("hang"), StopCause::Hang},
    std::pair{std::string_view("grow"), StopCause::Grow},
    std::pair{std::string_view("leave"), StopCause::Leave},
    std::pair{std::string_view("fenced"), StopCause::Fenced},
};

inline constexpr std::array kVerdictKindNames = {
    std::pair{std::string_view("succeeded"), VerdictKind::Succeeded},
    std::pair{std::string_view("failed"), VerdictKind::Failed},
    std::pair{std::string_view("stopped"), VerdictKind::Stopped},
    std::pair{std::string_view("incomplete"), VerdictKind::Incomplete},
    std::pair{std::string_view("ended"), VerdictKind::Ended},
};

inline constexpr std::array kPreparesNames = {
    std::pair{std::string_view("nobody"), Prepares::Nobody},
    std::pair{std::string_view("node"), Prepares::Node},
    std::pair{std::string_view("job"), Prepares::Job},
    std::pair{std::string_view("job_here"), Prepares::JobHere},
};

inline constexpr std::array kMomentNames = {
    std::pair{std::string_view("spawned"), Moment::Spawned},
    std::pair{std::string_view("main"), Moment::Main},
    std::pair{std::string_view("group_ready"), Moment::GroupReady},
    std::pair{std::string_view("resumed"), Moment::Resumed},
    std::pair{std::string_view("first_step"), Moment::FirstStep},
};

inline constexpr std::array kWorkersTextNames = {
    std::pair{std::string_view("logs"), WorkersText::Logs},
    std::pair{std::string_view("stacks"), WorkersText::Stacks},
};

inline constexpr std::array kRankPhaseNames = {
    std::pair{std::string_view("spawned"), RankPhase::Spawned},
    std::pair{std::string_view("main"), RankPhase::Main},
    std::pair{std::string_view("group_ready"), RankPhase::GroupReady},
    std::pair{std::string_view("resumed"), RankPhase::Resumed},
    std::pair{std::string_view("training"), RankPhase::Training},
    std::pair{std::string_view("finished"), RankPhase::Finished},
    std::pair{std::string_view("failed"), RankPhase::Failed},
};

inline constexpr std::array kActivityNames = {
    std::pair{std::string_view("unknown"), Activity::Unknown},
    std::pair{std::string_view("computes"), Activity::Computes},
    std::pair{std::string_view("sleeps"), Activity::Sleeps},
    std::pair{std::string_view("waits"), Activity::Waits},
    std::pair{std::string_view("waits_for_store"), Activity::WaitsForStore},
    std::pair{std::string_view("blocked"), Activity::Blocked},
    std::pair{std::string_view("stopped"), Activity::Stopped},
};

inline constexpr std::array kSamenessNames = {
    std::pair{std::string_view("warn"), Sameness::Warn},
    std::pair{std::string_view("strict"), Sameness::Strict},
    std::pair{std::string_view("off"), Sameness::Off},
};

/// Word of an enumerator in such a list; empty: it has none.
template <typename Names, typename Value>
[[nodiscard]] std::string_view word_of(Value wanted, const Names& names) {
    for (const auto& [word, value] : names) {
        if (value == wanted) {
            return word;
        }
    }
    return {};
}

inline constexpr int kIntMax = std::numeric_limits<int>::max();

void visit_natural(auto& visit, const char* key, auto& value, std::uint64_t least = 0) {
    visit.number(key, value, least, std::numeric_limits<std::uint64_t>::max());
}

void visit_generation(auto& visit, auto& generation) {
    visit_natural(visit, "generation", generation);
}

void visit_local_rank(auto& visit, auto& local_rank) {
    visit.number("local_rank", local_rank, 0, visit.limits().slots_max - 1);
}

void visit_reader(auto& visit, auto& reader) {
    visit_natural(visit, "reader", reader);
}

// ---------------------------------------------------------------------------------------- values

void visit_fields(Is<JobSettings> auto& settings, auto& visit) {
    const int nodes_max = static_cast<int>(visit.limits().nodes_max);
    visit.number("min_nodes", settings.min_nodes, 1, nodes_max);
    visit.number("max_nodes", settings.max_nodes, 1, nodes_max);
    visit.number("node_unit", settings.node_unit, 1, nodes_max);
    visit.numbers("node_sizes", settings.node_sizes, visit.limits().node_sizes_max, 1, nodes_max);
    visit.number("max_restarts", settings.max_restarts, 0, kIntMax);
    visit.number("max_node_losses", settings.max_node_losses, -1, kIntMax);
    visit.number("max_restarts_at_step", settings.max_restarts_at_step, 0, kIntMax);
    visit.flag("grow", settings.grow);
    visit.duration("patience_ms", settings.patience);
    visit.duration("join_timeout_ms", settings.join_timeout);
    visit.duration("grow_delay_ms", settings.grow_delay);
    visit.duration("failure_grace_ms", settings.failure_grace);
    visit.duration("shutdown_timeout_ms", settings.shutdown_timeout);
    visit.duration("hang_timeout_ms", settings.hang_timeout);
    visit.flag("learns_hang_timeout", settings.learns_hang_timeout);
    visit.flag("store_admits_any", settings.store_admits_any);
    visit.choice("same", settings.same, kSamenessNames);
    visit.number("memory_replicas", settings.memory_replicas, 0, 1);
}

void visit_fields(Is<Fingerprint> auto& fingerprint, auto& visit) {
    visit.name("program", fingerprint.program, false);
    visit.name("python", fingerprint.python, false);
    visit.name("torch", fingerprint.torch, false);
    visit.name("nccl", fingerprint.nccl, false);
    visit.name("driver", fingerprint.driver, false);
}

void visit_fields(Is<StoreAddress> auto& address, auto& visit) {
    visit.name("host", address.host, false);
    visit.number("port", address.port, 0, 65535);
}

void visit_fields(Is<HeldGeneration> auto& held, auto& visit) {
    visit_generation(visit, held.generation);
    visit.name("digest", held.digest, false);
    visit.number("group_rank", held.group_rank, 0, kIntMax);
    visit.number("group_world_size", held.group_world_size, 1, kIntMax);
    visit.number("base_rank", held.base_rank, 0, kIntMax);
    visit.number("world_size", held.world_size, 1, kIntMax);
    visit.number("restart_count", held.restart_count, 0, kIntMax);
    visit.number("node_losses", held.node_losses, 0, kIntMax);
    visit.object("store", held.store);
}

void visit_fields(Is<Evidence> auto& evidence, auto& visit) {
    visit.number("pid", evidence.pid, 0, kIntMax);
    visit.number("exit_code", evidence.exit_code, 0, 255);
    visit.number("signal", evidence.signal, 1, 127);
    visit.number("exec_errno", evidence.exec_errno, 1, 4095);
    visit.flag("core_dumped", evidence.core_dumped);
    visit.flag("keeper_lost", evidence.keeper_lost);
    visit.flag("hung", evidence.hung);
    visit.duration("quiet_for_ms", evidence.quiet_for);
    visit.duration("age_ms", evidence.age);
    visit.text("program", evidence.program);
    visit.bytes("stderr_tail", evidence.stderr_tail, visit.limits().stderr_tail_bytes_max);
    visit.bytes("stdout_tail", evidence.stdout_tail, visit.limits().stderr_tail_bytes_max);
    visit.bytes("error_file", evidence.error_file, visit.limits().error_file_bytes_max);
    visit.text("log_dir", evidence.log_dir);
    visit.text("kernel_note", evidence.kernel_note);
    visit.text("stacks", evidence.stacks);
    visit_natural(visit, "progress", evidence.progress);
}

void visit_fields(Is<FailureReport> auto& report, auto& visit) {
    visit_generation(visit, report.generation);
    visit.number("rank", report.rank, 0, kIntMax);
    visit_local_rank(visit, report.local_rank);
    visit.name("hostname", report.hostname, false);
    visit.name("node", report.node, false);
    visit.duration("at_ms", report.at);
    visit.object("evidence", report.evidence);
}

void visit_fields(Is<FailedRank> auto& failed, auto& visit) {
    visit.name("hostname", failed.hostname, false);
    visit.number("rank", failed.rank, 0, kIntMax);
    visit.text("end", failed.end);
    visit.number("exit_code", failed.exit_code, 0, 255);
    visit.duration("at_ms", failed.at);
    visit.text("cause", failed.cause);
}

void visit_fields(Is<TimelineEvent> auto& event, auto& visit) {
    visit.duration("at_ms", event.at);
    visit.text("text", event.text);
}

void visit_fields(Is<ReachedMoment> auto& moment, auto& visit) {
    visit.choice("what", moment.what, kMomentNames);
    visit_local_rank(visit, moment.last);
    visit.duration("age_ms", moment.age);
    visit_natural(visit, "step", moment.step);
    visit.flag("is_estimated", moment.is_estimated);
}

void visit_fields(Is<RankProgress> auto& rank, auto& visit) {
    visit_local_rank(visit, rank.local_rank);
    visit.choice("phase", rank.phase, kRankPhaseNames);
    visit.choice("activity", rank.activity, kActivityNames);
    visit.number("output_age_ms", rank.output_age_ms, std::uint64_t{0}, kMillisecondsMax);
    visit_natural(visit, "step", rank.step);
    visit.number("step_age_ms", rank.step_age_ms, std::uint64_t{0}, kMillisecondsMax);
    visit.number("step_ns", rank.step_ns, std::uint64_t{1}, kMillisecondsMax * 1'000'000);
    visit_natural(visit, "own_ns", rank.own_ns);
    visit_natural(visit, "memory_bytes", rank.memory_bytes);
    visit_natural(visit, "memory_peak_bytes", rank.memory_peak_bytes);
    visit.number("gpu_permille", rank.gpu_permille, 0, 1000);
    visit_natural(visit, "gpu_memory_bytes", rank.gpu_memory_bytes);
    visit_natural(visit, "gpu_memory_total_bytes", rank.gpu_memory_total_bytes);
    visit_natural(visit, "gpu_milliwatts", rank.gpu_milliwatts);
    visit_natural(visit, "steps", rank.steps);
    visit_natural(visit, "samples", rank.samples);
    visit_natural(visit, "log_bytes", rank.log_bytes);
}

void visit_fields(Is<HostMemory> auto& memory, auto& visit) {
    visit_natural(visit, "bytes", memory.bytes);
    visit_natural(visit, "limit_bytes", memory.limit_bytes);
    visit.number("pressure_permille", memory.pressure_permille, 0, 1000);
}

inline constexpr std::size_t kStoreOperationsMax = 32;  ///< kinds of them

void visit_fields(Is<StoreOperations> auto& operations, auto& visit) {
    visit.name("operation", operations.operation, true);
    visit_natural(visit, "count", operations.count);
    visit_natural(visit, "timed", operations.timed);
    visit_natural(visit, "time_ns", operations.time_ns);
}

// ---------------------------------------------------------------------- agent to the rendezvous

void visit_fields(Is<Join> auto& join, auto& visit) {
    visit.name("job", join.job, true);
    visit.name("node", join.node, true);
    visit.name("process", join.process, false);
    visit.name("hostname", join.hostname, false);
    visit.number("slots", join.slots, 1, visit.limits().slots_max);
    visit.name("role", join.role, false);
    visit.number("node_rank", join.node_rank, 0, static_cast<int>(visit.limits().nodes_max) - 1);
    visit.name("topology_key", join.topology_key, false);
    visit.name("containment", join.containment, false);
    visit.names("addresses", join.addresses, visit.limits().addresses_max);
    visit.object("store", join.store);
    visit.object("settings", join.settings);
    visit.name("run_token", join.run_token, false);
    visit.object("held", join.held);
    visit_natural(visit, "newest", join.newest);
    visit.name("unreachable", join.unreachable, false);
    visit.choice("prepares", join.prepares, kPreparesNames);
    visit.object("fingerprint", join.fingerprint);
    visit.flag("tells_progress", join.tells_progress);
    visit.flag("shows_workers", join.shows_workers);
    visit.flag("hears_events", join.hears_events);
    visit.number("workers_max", join.workers_max, 0, kIntMax);
}

void visit_fields(Is<WorkerFinished> auto& finished, auto& visit) {
    visit_generation(visit, finished.generation);
    visit_local_rank(visit, finished.local_rank);
}

void visit_fields(Is<WorkerFailed> auto& failed, auto& visit) {
    visit_generation(visit, failed.generation);
    visit_local_rank(visit, failed.local_rank);
    visit.object("evidence", failed.evidence);
}

void visit_fields(Is<Quiet> auto& quiet, auto& visit) {
    visit_generation(visit, quiet.generation);
    visit.duration("quiet_for_ms", quiet.quiet_for);
}

void visit_fields(Is<HangSeen> auto& hang, auto& visit) {
    visit.number("rank", hang.rank, 0, kIntMax);
    visit_natural(visit, "step", hang.step);
    visit.text("host", hang.host);
    visit.text("collective", hang.collective);
    visit.text("text", hang.text);
    visit.duration("looks_every_ms", hang.looks_every);
}

void visit_fields(Is<SavesSeen> auto& saves, auto& visit) {
    visit_local_rank(visit, saves.local_rank);
    visit_natural(visit, "saved", saves.saved);
    visit_natural(visit, "step", saves.step);
    visit_natural(visit, "bytes", saves.bytes);
    visit.duration("stall_ms", saves.stall);
    visit.duration("took_ms", saves.took);
    visit.duration("age_ms", saves.age);
    visit_natural(visit, "places", saves.places);
    visit_natural(visit, "failed", saves.failed);
    visit_natural(visit, "failed_step", saves.failed_step);
    visit.duration("failed_age_ms", saves.failed_age);
    visit.text("failed_reason", saves.failed_reason);
    visit.text("behind", saves.behind);
}

void visit_fields(Is<Reached> auto& reached, auto& visit) {
    visit_generation(visit, reached.generation);
    visit.objects("moments", reached.moments, kMomentNames.size());
    visit.duration("checkpointing_ms", reached.checkpointing);
    visit_natural(visit, "step", reached.step);
    visit.object("hang", reached.hang);
    visit.object("saves", reached.saves);
}

void visit_fields(Is<Progress> auto& progress, auto& visit) {
    visit_generation(visit, progress.generation);
    visit.objects("ranks", progress.ranks, static_cast<std::size_t>(visit.limits().slots_max));
    visit.object("memory", progress.memory);
    visit.objects("store", progress.store, kStoreOperationsMax);
    visit.text("log_lost", progress.log_lost);
}

void visit_fields(Is<WorkersRead> auto& read, auto& visit) {
    visit_reader(visit, read.reader);
    visit.bytes("bytes", read.bytes, visit.limits().read_piece_bytes_max);
    visit.flag("is_last", read.is_last);
    visit.text("error", read.error);
}

void visit_fields(Is<Stopped> auto& stopped, auto& visit) {
    visit_generation(visit, stopped.generation);
    visit.object("store", stopped.store);
    visit.duration("ended_age_ms", stopped.ended_age);
    visit.duration("empty_age_ms", stopped.empty_age);
}

void visit_fields(Is<Leave> auto& leave, auto& visit) {
    visit.number("signal", leave.signal, 0, 127);
    visit.duration("within_ms", leave.within);
}

void visit_fields(Is<Unkillable> auto& unkillable, auto& visit) {
    visit_generation(visit, unkillable.generation);
}

void visit_fields(Is<Goodbye> auto& goodbye, auto& visit) {
    visit.name("unfit", goodbye.unfit, false);
    visit.name("unprepared", goodbye.unprepared, false);
    visit.number("exit_code", goodbye.exit_code, 0, 255);
}

void visit_fields(Is<Unfit> auto& unfit, auto& visit) {
    visit.name("job", unfit.job, true);
    visit.name("node", unfit.node, true);
    visit.name("process", unfit.process, false);
    visit.name("hostname", unfit.hostname, false);
    visit.name("run_token", unfit.run_token, false);
    visit.name("why", unfit.why, true);
    visit.name("unreachable", unfit.unreachable, false);
}

// ---------------------------------------------------------------------- rendezvous to the agent

void visit_fields(Is<Accepted> auto& accepted, auto& visit) {
    visit.name("run_token", accepted.run_token, false);
    visit.duration("lease_ms", accepted.lease);
    visit.duration("beat_interval_ms", accepted.beat_interval);
    visit.flag("is_lasting", accepted.is_lasting);
    visit.flag("keeps_sizes", accepted.keeps_sizes);
    visit.flag("compares_nodes", accepted.compares_nodes);
    visit.flag("names_partners", accepted.names_partners);
    visit.flag("hears_moments", accepted.hears_moments);
    visit.flag("tells_events", accepted.tells_events);
}

void visit_fields(Is<Refused> auto& refused, auto& visit) {
    visit.text("text", refused.text);
    visit.number("exit_code", refused.exit_code, 0, 255);
}

void visit_fields(Is<Waiting> auto& waiting, auto& visit) {
    visit.text("text", waiting.text);
    visit.duration("waited_ms", waiting.waited);
    visit.duration("limit_ms", waiting.limit);
    visit.duration("over_in_ms", waiting.over_in);
}

void visit_fields(Is<Notice> auto& notice, auto& visit) {
    visit.text("text", notice.text);
}

void visit_fields(Is<Watch> auto& watch, auto& visit) {
    visit.duration("interval_ms", watch.interval);
    visit.duration("lasts_ms", watch.lasts);
}

void visit_fields(Is<ReadWorkers> auto& read, auto& visit) {
    visit_reader(visit, read.reader);
    visit.choice("what", read.what, kWorkersTextNames);
    visit.number("rank", read.rank, 0, kIntMax);
    visit_natural(visit, "generation", read.generation, 1);
    visit.text("pattern", read.pattern);
    visit.number("last_lines", read.last_lines, 0, kIntMax);
    visit.flag("follows", read.follows);
    visit.number("piece_bytes", read.piece_bytes, 1,
                 static_cast<int>(visit.limits().read_piece_bytes_max));
}

void visit_fields(Is<ReadOn> auto& on, auto& visit) {
    visit_reader(visit, on.reader);
    visit.flag("stops", on.stops);
}

void visit_fields(Is<Happened> auto& happened, auto& visit) {
    visit.text("event", happened.event);
}

void visit_fields(Is<Redirect> auto& redirect, auto& visit) {
    visit.name("endpoint", redirect.endpoint, false);
}

void visit_fields(Is<Prepare> auto& /*prepare*/, auto& /*visit*/) {}

void visit_fields(Is<Start> auto& start, auto& visit) {
    const std::size_t admitted_max = visit.limits().nodes_max * visit.limits().addresses_max;
    visit_generation(visit, start.generation);
    visit.name("digest", start.digest, false);
    visit.number("group_rank", start.group_rank, 0, kIntMax);
    visit.number("group_world_size", start.group_world_size, 1, kIntMax);
    visit.number("base_rank", start.base_rank, 0, kIntMax);
    visit.number("world_size", start.world_size, 1, kIntMax);
    visit.number("target_world_size", start.target_world_size, 0, kIntMax);
    visit.number("role_base_rank", start.role_base_rank, 0, kIntMax);
    visit.number("role_world_size", start.role_world_size, 1, kIntMax);
    visit.number("restart_count", start.restart_count, 0, kIntMax);
    visit.number("max_restarts", start.max_restarts, 0, kIntMax);
    visit.number("node_losses", start.node_losses, 0, kIntMax);
    visit.object("store", start.store);
    visit.names("admitted", start.admitted, admitted_max);
    visit.number("memory_partner", start.memory_partner, 0, kIntMax);
    visit.text("why", start.why);
}

void visit_fields(Is<Stop> auto& stop, auto& visit) {
    visit_generation(visit, stop.generation);
    visit.choice("cause", stop.cause, kStopCauseNames);
    visit.number("signal", stop.signal, 0, 127);
    visit.duration("grace_ms", stop.grace);
    visit.duration("within_ms", stop.within);
    visit.text("why", stop.why);
}

void visit_fields(Is<Released> auto& /*released*/, auto& /*visit*/) {}

void visit_fields(Is<Verdict> auto& verdict, auto& visit) {
    visit.choice("kind", verdict.kind, kVerdictKindNames);
    visit.number("exit_code", verdict.exit_code, 0, 255);
    visit.text("text", verdict.text);
    visit.object("first_failure", verdict.first_failure);
    visit.number("failure_count", verdict.failure_count, 0, kIntMax);
    visit.objects("failures", verdict.failures, visit.limits().failures_shown_max);
    visit.objects("timeline", verdict.timeline, visit.limits().timeline_events_max);
    visit.duration("age_ms", verdict.age);
}

}  // namespace ddprun::rdzv
