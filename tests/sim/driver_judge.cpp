// The simulation judges what only an observer of all nodes can judge.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"
#include "worker_runtime/contract/exit_codes.hpp"
#include "worker_runtime/env/environment.hpp"

namespace ddprun::sim {

namespace {

constexpr Milliseconds kJudgeEvery{500};
/// An action that is due at once may take so long, besides the time of messages.
constexpr Milliseconds kAtOnce{2000};
/// From the end of a connection to the others' signals, besides the time of messages (L2).
constexpr Milliseconds kNoticeMax{50};
/// From a daemon's return to that of its nodes (L5).
constexpr Milliseconds kReturnMax{2000};
/// Etcd ends a lease up to half a second late, and the winner asks it a few things.
constexpr Milliseconds kSuccessionMax{1000};
/// After trouble with etcd a follower may not watch it for so long.
constexpr Milliseconds kEtcdSettles{12000};

bool is_of_run(const GenerationTruth* truth, const rdzv::Run& run) {
    return truth != nullptr && truth->token == run.token;
}

bool has_workers_of(const Machine& machine, const std::string& digest, bool is_signalled) {
    return std::any_of(machine.workers.begin(), machine.workers.end(),
                       [&](const FakeWorker& worker) {
                           return worker.digest == digest && worker.was_signalled == is_signalled;
                       });
}

}  // namespace

Duration Simulation::there_and_back(const Machine& machine) const {
    return network_.delay_max_now(machine.index) * 4 + options_.journal_delay_max * 4 +
           options_.local_delay_max * 4 + options_.timer_grain * 2;
}

/// Below a third of the lease they cause no false alarm. A node that comes back has three messages
/// to get through within one lease that runs since the first of them arrived: Join, Accepted, Beat.
bool Simulation::are_delays_short(const Machine& machine) const {
    return network_.delay_max_now(machine.index) * 3 < options_.limits.lease;
}

/// Nothing has troubled it and its connection for so long that everything due has happened.
bool Simulation::is_calm(const Machine& machine) const {
    const Instant settled = events_.now() - kAtOnce - there_and_back(machine);
    const Daemon* daemon = deciding();
    return machine.supervisor != nullptr && machine.is_accepted && !machine.is_stalled &&
           !machine.has_given_up && machine.accepted_at < settled &&
           machine.disturbed_until < settled && calm_since_ < settled && daemon != nullptr &&
           !daemon->is_paused && network_.daemon_of(*machine.connection) == daemon->index &&
           !network_.is_disturbed(machine.index);
}

/// At `when` its last fault is over for so long that its silence is forgiven or judged: if the
/// rendezvous gives it up then, it is not for that.
bool Simulation::is_undisturbed(const Machine& machine, Instant when) const {
    const Duration judged_within =
        options_.limits.lease + options_.limits.self_doubt + kAtOnce + there_and_back(machine);
    return machine.disturbed_until == Instant{} || machine.disturbed_until + judged_within < when;
}

// --------------------------------------------------------------------------------- now and then

void Simulation::judge_regularly() {
    if (checker_.violation().has_value() || (is_over() && events_.now() > faults_end_)) {
        return;
    }
    Daemon* const daemon = deciding();
    if (daemon != nullptr && !daemon->is_paused) {
        judge_patience(*daemon);
        judge_retries(*daemon);
        judge_explanations(*daemon);
        judge_start_is_due(*daemon);
        for (Machine& machine : machines_) {
            const Instant settled = events_.now() - kAtOnce - there_and_back(machine);
            if (is_calm(machine)) {
                judge_calm(*daemon, machine, has_held_back(*daemon, settled));
            }
        }
    }
    events_.after(kJudgeEvery, [this] { judge_regularly(); });
}

/// The daemon may have held back a message to the machine for a record: `is_held_back`.
void Simulation::judge_calm(const Daemon& daemon, Machine& machine, bool is_held_back) {
    const rdzv::Run* const run = daemon.run();
    if (!is_held_back || !has_several()) {
        judge_leaver(machine);
        if (run != nullptr) {
            judge_drained(*run, machine);
        }
    }
    if (!is_held_back) {
        judge_member(daemon, machine);
    }
}

/// Without a word about what is waited for: a leader may have held it back.
Duration Simulation::silence_max(Instant since) const {
    constexpr Milliseconds kSilenceMax{4000};
    return kSilenceMax +
           (was_etcd_full(since) ? options_.limits.etcd_record_patience : Milliseconds(0));
}

/// A leader that etcd keeps, and whose record it does not take, holds nothing back for ever (L3).
void Simulation::judge_patience(const Daemon& daemon) {
    const Duration most = options_.limits.etcd_record_patience + kAtOnce;
    if (has_several() && daemon.is_waiting() && events_.now() - daemon.waits_since > most) {
        checker_.violate(
            "L3", fmt::format("{} leads, and holds back what waits for a record", daemon.name));
    }
}

/// A record that failed is written again once the journal works (L3).
void Simulation::judge_retries(Daemon& daemon) {
    const Instant now = events_.now();
    const bool is_etcd_well =
        !is_etcd_full() &&
        now >= std::max({etcd_away_until_, etcd_slow_until_, daemon.cut_off_until});
    const bool is_well = has_several() ? is_etcd_well : is_disk_well();
    const bool has_record = daemon.record(now).has_value();
    if (!is_well || daemon.job() == nullptr || daemon.job()->fault().empty() || !has_record) {
        daemon.fails_since = now;
    }
    const Duration most = options_.limits.reconnect_backoff_max + options_.limits.etcd_timeout +
                          kAtOnce + options_.journal_delay_max * 8;
    if (now - std::max(daemon.fails_since, daemon.paused_until) > most) {
        checker_.violate("L3", fmt::format("{} does not write its record again", daemon.name));
    }
}

bool Simulation::has_held_back(const Daemon& daemon, Instant since) {
    return daemon.is_waiting() || daemon.let_out_at >= since;
}

/// A daemon or agent that waits knows for what (L3).
void Simulation::judge_explanations(const Daemon& daemon) {
    const Instant now = events_.now();
    const rdzv::Run* run = daemon.run();
    const bool waits = run != nullptr && !std::holds_alternative<rdzv::Running>(run->phase) &&
                       !std::holds_alternative<rdzv::Closed>(run->phase);
    if (waits && daemon.explain().empty()) {
        checker_.violate("L3", "the rendezvous waits and does not say for what");
    }
    for (Machine& machine : machines_) {
        const bool is_silent = is_calm(machine) &&
                               !machine.supervisor->held_generation().has_value() &&
                               (machine.supervisor->waits_for() == agent::Wait::Nothing ||
                                machine.supervisor->waits_for() == agent::Wait::Generation);
        if (!is_silent) {
            machine.silent_since.reset();
        } else if (!machine.silent_since.has_value()) {
            machine.silent_since = now;
        } else if (now - *machine.silent_since >
                   silence_max(*machine.silent_since) + there_and_back(machine)) {
            checker_.violate("L3",
                             fmt::format("{} waits and nobody says for what", name_of(machine)));
        }
    }
}

/// Enough nodes, and no reason to wait: a generation runs (L1).
void Simulation::judge_start_is_due(const Daemon& daemon) {
    const Instant now = events_.now();
    const rdzv::Run* run = daemon.run();
    const std::optional<Instant> startable = checker_.startable_since();
    const Duration soon = options_.settings.patience + kAtOnce + options_.timer_grain;
    if (startable.has_value() && now - std::max(*startable, calm_since_) > soon) {
        checker_.violate("L1", fmt::format("{} nodes are ready, and nothing starts: '{}'",
                                           run->nodes.ready().size(), daemon.explain()));
    }
    const auto healthy =
        std::count_if(machines_.begin(), machines_.end(), [this](const Machine& machine) {
            return is_calm(machine) && !machine.signalled_at.has_value() &&
                   !machine.drained_at.has_value() && !machine.token.empty() &&
                   !machine.shown.has_value();
        });
    const bool is_held = run != nullptr && run->hold.has_value() && run->hold->until > now;
    const bool is_due = healthy >= options_.settings.min_nodes && run != nullptr && !is_held &&
                        !std::holds_alternative<rdzv::Running>(run->phase) &&
                        !std::holds_alternative<rdzv::Closed>(run->phase);
    if (!is_due) {
        due_since_.reset();
        return;
    }
    const Limits& limits = options_.limits;
    const Duration most =
        limits.lease + limits.self_doubt + limits.reconnect_grace + limits.adoption_patience +
        limits.restart_backoff_max + limits.unkillable_after + limits.stop_slack +
        options_.settings.shutdown_timeout + options_.settings.failure_grace + soon;
    due_since_ = due_since_.value_or(now);
    if (now - *due_since_ > most) {
        checker_.violate("L1", fmt::format("{} nodes are healthy, and nothing runs: '{}'", healthy,
                                           daemon.explain()));
    }
}

/// A node that was told to leave drains and may go (L3, L4).
void Simulation::judge_leaver(Machine& machine) {
    if (!machine.signalled_at.has_value()) {
        return;
    }
    const Duration waited = events_.now() - std::max({*machine.signalled_at, machine.accepted_at,
                                                      machine.disturbed_until, calm_since_});
    const bool runs_on = !machine.signalled_digest.empty() &&
                         has_workers_of(machine, machine.signalled_digest, false);
    if (runs_on && waited > kAtOnce + there_and_back(machine)) {
        checker_.violate(
            "L4", fmt::format("{} was told to leave, its workers were not", name_of(machine)));
    }
    const Duration stopping = options_.settings.shutdown_timeout + options_.settings.failure_grace +
                              options_.limits.unkillable_after + options_.limits.stop_slack;
    if (machine.workers.empty() &&
        waited > stopping + Milliseconds(5000) + there_and_back(machine)) {
        checker_.violate("L3", fmt::format("{} was told to leave, is empty and is not let go: '{}'",
                                           name_of(machine), machine.supervisor->explain()));
    }
}

/// A daemon repeats what a member missed while it was away, if nothing was held back.
void Simulation::judge_member(const Daemon& daemon, Machine& machine) {
    const rdzv::Run* run = daemon.run();
    if (run == nullptr || machine.token != run->token) {
        return;
    }
    const auto node = run->nodes.find(machine.node);
    if (node == run->nodes.end() || node->second.standing() != rdzv::Standing::Member) {
        return;
    }
    const Instant settled = events_.now() - kAtOnce - there_and_back(machine);
    const rdzv::Stopping* stopping = std::get_if<rdzv::Stopping>(&run->phase);
    const bool hangs = stopping != nullptr && stopping->order.cause == rdzv::StopCause::Hang;
    const Duration saving = hangs ? options_.limits.stacks_timeout : Milliseconds(0);
    if (stopping != nullptr && stopping->since + saving < settled &&
        has_workers_of(machine, run->current.digest, false)) {
        checker_.violate("L4", fmt::format("{} does not know that generation {} stops",
                                           name_of(machine), run->current.number.value()));
    }
    const rdzv::Running* running = std::get_if<rdzv::Running>(&run->phase);
    if (running != nullptr && running->since < settled &&
        machine.start_digest != run->current.digest) {
        checker_.violate("L1", fmt::format("{} does not know that generation {} runs",
                                           name_of(machine), run->current.number.value()));
    }
}

// ------------------------------------------------------------------------------ after each step

void Simulation::judge_machine(Machine& machine) {
    if (!machine.workers.empty() && !machine.supervisor->held_generation().has_value()) {
        checker_.violate("S3",
                         fmt::format("{} believes to be empty and has workers of generation {}",
                                     name_of(machine), machine.workers.front().generation.value()));
    }
}

/// Once the run has another generation, workers of the last one may publish nothing (S19), by the
/// clock alone: their agent may be stalled.
void Simulation::judge_publishing(const Machine& machine) {
    const rdzv::Run* run = decided_run();
    if (run == nullptr || run->current.digest.empty() || machine.supervisor == nullptr ||
        machine.workers.empty() || events_.now() >= machine.publish_until) {
        return;
    }
    // A daemon without memory cannot wait for nodes it does not know. It takes an end of stream for
    // the death of all processes of the node, and a new ddprun on the same node, too.
    if (machine.workers.front().digest != run->current.digest && !machine.is_lied_about &&
        !machine.is_replaced && !machine.has_namesake && !has_forgotten_) {
        checker_.violate("S19", fmt::format("generation {} runs and {} may still publish",
                                            run->current.number.value(), name_of(machine)));
    }
}

void Simulation::judge_everybodys_publishing(const rdzv::Run& run) {
    if (run.current.digest == judged_digest_) {
        return;
    }
    judged_digest_ = run.current.digest;
    for (const Machine& machine : machines_) {
        judge_publishing(machine);
    }
}

/// No rank of a generation that is stopped for a hang has shown a sign of life lately.
void Simulation::judge_hang(const rdzv::Run& run) {
    const rdzv::Stopping* stopping = std::get_if<rdzv::Stopping>(&run.phase);
    if (stopping == nullptr || stopping->order.cause != rdzv::StopCause::Hang ||
        stopping->since != events_.now()) {
        return;
    }
    // Clocks of nodes may run a fifth too fast.
    const Instant latest = events_.now() - options_.settings.hang_timeout * 3 / 4;
    for (const Machine& machine : machines_) {
        for (const FakeWorker& worker : machine.workers) {
            if (worker.digest == run.current.digest && worker.quiet_from > latest) {
                checker_.violate("hang", fmt::format("generation {} is said to hang, and rank {} "
                                                     "on {} works",
                                                     run.current.number.value(),
                                                     worker.rank.value(), name_of(machine)));
            }
        }
    }
}

/// With delays below a third of the lease no undisturbed node is ever believed dead (S6). One that
/// was lost for a fault learns of it when it reaches a rendezvous, however late.
void Simulation::judge_false_deaths(const Machine& machine,
                                    const rdzv::RendezvousMessage& message) {
    const rdzv::Run* run = decided_run();
    if (run == nullptr) {
        return;
    }
    const rdzv::Stop* stop = std::get_if<rdzv::Stop>(&message);
    const bool is_fence =
        stop != nullptr && stop->cause == rdzv::StopCause::Fenced && !machine.has_namesake;
    const bool is_of_same_run =
        machine.start_digest.empty() || is_of_run(checker_.truth_of(machine.start_digest), *run);
    if (is_fence && is_of_same_run && is_undisturbed(machine, events_.now()) &&
        !machine.is_lost_for_fault && !has_forgotten_ && are_delays_short(machine)) {
        checker_.violate("S6", fmt::format("{} was fenced without a reason", name_of(machine)));
    }
}

void Simulation::judge_losses_of_living(const rdzv::Run& run, std::size_t nodes_before) {
    const bool is_decided = std::holds_alternative<rdzv::Closed>(run.phase) ||
                            std::holds_alternative<rdzv::Adopting>(run.phase);
    if (run.doubt.until.has_value()) {
        doubt_end_ = std::max(doubt_end_, *run.doubt.until);
    }
    if (run.nodes.size() >= nodes_before) {
        return;
    }
    for (Machine& machine : machines_) {
        const bool is_innocent =
            machine.supervisor != nullptr && machine.is_accepted &&
            is_undisturbed(machine, events_.now()) && !machine.signalled_at.has_value() &&
            !machine.drained_at.has_value() && !machine.has_given_up && !machine.has_namesake &&
            are_delays_short(machine) && !machine.is_replaced;
        const bool is_lost = machine.token == run.token && !run.nodes.contains(machine.node);
        if (is_innocent && is_lost && !machine.is_lost_for_fault && !is_decided &&
            !has_forgotten_) {
            checker_.violate("S6", fmt::format("{} lives and was given up", name_of(machine)));
        }
        machine.is_lost_for_fault |= is_lost && !is_undisturbed(machine, events_.now());
    }
}

/// A start goes to nodes without workers, and when no node has any of the last generation (S3).
void Simulation::judge_start(const rdzv::Run& run, const rdzv::Send& send,
                             const rdzv::Start& start) {
    const GenerationTruth* truth = checker_.truth_of(start.digest);
    const bool is_first = truth != nullptr && !truth->was_told;
    checker_.told(start);
    const auto judge = [&](const Machine& machine, const char* what) {
        if (machine.supervisor != nullptr && !machine.workers.empty()) {
            checker_.violate("S3", fmt::format("generation {} starts and {} {} of generation {}",
                                               start.generation.value(), name_of(machine), what,
                                               machine.workers.front().generation.value()));
        }
    };
    const std::optional<int> index = network_.node_of(send.connection);
    if (index.has_value() && machine(*index).connection == send.connection) {
        judge(machine(*index), "is told so with workers");
        machine(*index).is_lost_for_fault = false;
    }
    for (auto it = machines_.begin(); is_first && it != machines_.end(); ++it) {
        const auto node = run.nodes.find(it->node);
        if (node != run.nodes.end() && node->second.standing() != rdzv::Standing::Unready &&
            node->second.connection().has_value() && node->second.connection() == it->connection) {
            judge(*it, "still has workers");
        }
        const bool is_in_use = !is_record_old_ && node != run.nodes.end() && !it->workers.empty() &&
                               is_of_run(checker_.truth_of(it->workers.front().digest), run) &&
                               it->workers.front().digest != start.digest &&
                               node->second.connection() == it->connection &&
                               it->workers.front().generation >= start.generation;
        if (is_in_use) {
            checker_.violate("S1", fmt::format("number {} is in use on {}",
                                               start.generation.value(), name_of(*it)));
        }
    }
}

/// Collects the programs that nodes told a run: some may be gone when a refusal is let out.
void Simulation::note_program(const rdzv::Coordinator& coordinator, const rdzv::Input& input) {
    const rdzv::Received* received = std::get_if<rdzv::Received>(&input);
    const rdzv::Join* join =
        received == nullptr ? nullptr : std::get_if<rdzv::Join>(&received->message);
    if (join != nullptr && coordinator.run() != nullptr && !join->fingerprint.program.empty()) {
        programs_told_[coordinator.run()->token].insert(join->fingerprint.program);
    }
}

/// That `node` has another program than some node of the run, and that matters.
bool Simulation::is_unlike(const rdzv::Run& run, std::optional<int> node) {
    if (run.settings.same != rdzv::Sameness::Strict) {
        return false;
    }
    std::set<std::string> told = programs_told_[run.token];
    for (const auto& [id, known] : run.nodes) {
        told.insert(known.info.fingerprint.program);  // It may have told it to another daemon.
    }
    told.erase("");
    return !node.has_value() ||  // it is gone: its program is not known
           std::any_of(told.begin(), told.end(), [&](const std::string& program) {
               return program != program_of(machine(*node));
           });
}

/// Spares are welcome. A node is sent away only for another that took its place, or for flags that
/// are not the run's (S15).
void Simulation::judge_refusal(const rdzv::Run& run, const rdzv::Send& send,
                               const rdzv::Refused& refused) {
    const std::optional<int> node = network_.node_of(send.connection);
    const bool is_odd = node.has_value()
                            ? settings_of(machine(*node)).max_restarts != run.settings.max_restarts
                            : options_.odd_nodes > 0;  // it is gone: its flags are not known
    const bool is_right = refused.exit_code == kExitRendezvousLost ||
                          refused.exit_code == kExitUnfit || strangers_.contains(send.connection) ||
                          (is_odd && refused.exit_code == kExitUsage) ||
                          (is_unlike(run, node) && refused.exit_code == kExitUsage);
    if (!is_right) {
        checker_.violate("S15", "refused: " + refused.text);
    }
}

/// No node may act on a decision that the next daemon would not know.
void Simulation::judge_durability(const Daemon& daemon, const rdzv::Run& run,
                                  const rdzv::RendezvousMessage& message) {
    if (daemon.is_behind || options_.is_in_process) {
        return;
    }
    const rdzv::Start* start = std::get_if<rdzv::Start>(&message);
    const JournalEntry& known = journal();
    // A newer record serves older orders, too.
    const bool is_known = start != nullptr && known.record.has_value() &&
                          (known.record->generation >= start->generation ||
                           !is_of_run(checker_.truth_of(start->digest), run));
    if (start != nullptr && !is_known) {
        checker_.violate("S1", fmt::format("generation {} was told before it was in the journal",
                                           start->generation.value()));
    }
    // One that waited for its record may be told after another run has begun, or a later run may be
    // in the journal by a leader of before.
    const bool is_of_this_run = std::holds_alternative<rdzv::Closed>(run.phase) &&
                                (!known.record.has_value() || known.record->token == run.token);
    const bool has_run = run.current.number != Generation() && is_of_this_run;
    if (std::holds_alternative<rdzv::Verdict>(message) && has_run && !known.is_closed()) {
        checker_.violate("S5", "the verdict was told before it was in the journal");
    }
}

/// When there are several daemons, only the one whose key etcd still keeps decides (S1).
void Simulation::judge_leadership(const Daemon& daemon) {
    if (!has_several()) {
        return;
    }
    const bool leads = etcd_.leader().has_value() && etcd_.leader()->term == daemon.leads_term;
    if (!leads) {
        checker_.violate("S1", fmt::format("{} decides after its lease of term {}", daemon.name,
                                           daemon.leads_term));
    }
}

/// The whole of the contract, and it fits the place that the rendezvous gave (S16).
void Simulation::judge_environment(const Machine& machine, const agent::StartWorkers& effect) {
    for (const agent::WorkerSpec& spec : effect.workers) {
        const auto lookup = [&](const std::string& key) -> std::optional<std::string> {
            const auto found =
                std::find_if(spec.environment.begin(), spec.environment.end(),
                             [&](const auto& variable) { return variable.first == key; });
            return found == spec.environment.end() ? std::nullopt : std::optional(found->second);
        };
        const Result<worker::WorkerEnvironment> read = worker::read_environment(lookup);
        if (!read.has_value()) {
            checker_.violate("S16", read.error().what);
            continue;
        }
        const worker::WorkerEnvironment& seen = read.value();
        const Rank rank(effect.base_rank.value() + spec.local_rank.value());
        if (seen.rank != rank || seen.generation != effect.generation ||
            seen.node != machine.node || !seen.store.has_value()) {
            checker_.violate(
                "S16", fmt::format("rank {} on {} was told to be rank {} of {}", rank.value(),
                                   name_of(machine), seen.rank.value(), seen.generation.value()));
        }
    }
}

// ------------------------------------------------------------------------------------- deadlines

bool Simulation::is_dead_one_missed(const std::string& digest, const NodeId& node) const {
    const GenerationTruth* truth = checker_.truth_of(digest);
    if (truth == nullptr) {
        return false;
    }
    const auto row = truth->group_ranks.find(node);
    if (row == truth->group_ranks.end()) {
        return false;
    }
    const auto reports = truth->finished_reports.find(node);
    const bool has_finished = reports != truth->finished_reports.end() &&
                              reports->second == truth->places[row->second].slots;
    return row->second == 0 || !has_finished;
}

/// `machine` is about to die: by then its peers' workers have been signalled (L2).
void Simulation::expect_notice_of_death(const Machine& machine, bool is_silent) {
    if (machine.workers.empty() || options_.is_in_process) {
        return;
    }
    const Instant died = events_.now();
    const Duration way = there_and_back(machine);
    Instant due = died + kNoticeMax + way;
    if (machine.connection.has_value()) {
        due = std::max(due, network_.held_up_stream(*machine.connection) + kNoticeMax + way);
    }
    const bool was_disturbed = machine.disturbed_until + options_.limits.lease >= died;
    if (is_silent || !machine.is_accepted || was_disturbed || machine.is_stalled) {
        due += options_.limits.lease;
        if (restored_at_ > Instant{}) {
            // A daemon that came back lets no lease end before every node could come back.
            due = std::max(due, restored_at_ + options_.limits.reconnect_grace +
                                    options_.limits.adoption_patience + way);
        }
    }
    const std::string digest = machine.workers.front().digest;
    events_.at(due,
               [this, died, digest, node = machine.node] { judge_notice(died, digest, node); });
}

void Simulation::judge_notice(Instant died, const std::string& digest, const NodeId& node) {
    const rdzv::Run* run = decided_run();
    const bool is_held_back = run != nullptr && has_several() && has_held_back(*deciding(), died);
    const bool is_excused = run == nullptr || is_held_back || calm_since_ >= died ||
                            doubt_end_ >= died || run->current.digest != digest ||
                            !std::holds_alternative<rdzv::Running>(run->phase) ||
                            !is_dead_one_missed(digest, node);
    if (is_excused) {
        return;
    }
    for (const Machine& machine : machines_) {
        // A slow node hears of it later, and delays no other node (L7).
        const bool could_know = machine.supervisor != nullptr && machine.is_accepted &&
                                !network_.is_slow(machine.index) && machine.accepted_at < died &&
                                !machine.is_stalled && machine.disturbed_until < died;
        if (could_know && has_workers_of(machine, digest, false)) {
            checker_.violate("L2", fmt::format("{} died and {} was not told in time", node.value(),
                                               name_of(machine)));
        }
    }
}

/// They were told to go: after the grace nothing is left (L4).
void Simulation::expect_end_of_workers(Machine& machine, const rdzv::Stop& stop) {
    if (machine.workers.empty() || options_.unkillable_percent > 0) {
        return;
    }
    const Instant told = events_.now();
    const std::string digest = machine.workers.front().digest;
    const bool hangs = stop.cause == rdzv::StopCause::Hang;
    const Duration saving = hangs ? options_.limits.stacks_timeout : Milliseconds(0);
    const Duration grace = stop.grace;
    const Duration most = grace * 1000 / machine.clock_permille + saving + Milliseconds(1000) +
                          options_.timer_grain + options_.local_delay_max * 4;
    later(machine, most, [this, told, digest](Machine& same) {
        const bool is_excused = same.is_stalled || same.has_given_up ||
                                same.disturbed_until >= told || same.is_keeper_gone ||
                                same.workers.empty();
        if (!is_excused && same.workers.front().digest == digest) {
            checker_.violate("L4", fmt::format("{} has workers after the grace", name_of(same)));
        }
    });
}

/// The daemon is about to die or to be stopped, and the next one will have its journal: nothing
/// else happens (L5).
void Simulation::expect_nothing_restarts(const Daemon& daemon) {
    const Instant died = events_.now();
    if (deciding() != &daemon || daemon.is_paused) {
        return;
    }
    expect_succession(daemon);
    const rdzv::Run* run = daemon.run();
    if (run == nullptr || !std::holds_alternative<rdzv::Running>(run->phase) ||
        journal().digest() != run->current.digest || !is_disk_well() ||
        (has_several() && daemon.is_behind) || last_fault_at_ > died - kAtOnce ||
        course_of(run->current.digest) != Course::Works) {
        return;
    }
    for (const rdzv::Place& place : run->current.places) {
        const auto found =
            std::find_if(machines_.begin(), machines_.end(),
                         [&](const Machine& machine) { return machine.node == place.node; });
        if (found == machines_.end() || !is_calm(*found) || !are_delays_short(*found) ||
            found->has_namesake || found->signalled_at.has_value() ||
            found->drained_at.has_value()) {
            return;
        }
    }
    expected_digest_ = run->current.digest;
    expected_since_ = died;
    expected_verdicts_ = checker_.verdicts();
}

/// Another daemon that is well takes over as soon as the lease is over (L5).
void Simulation::expect_succession(const Daemon& daemon) {
    const Instant died = events_.now();
    const auto is_well = [&](const Daemon& one) {
        return one.index != daemon.index && one.is_up && !one.is_paused && one.is_watched &&
               one.host->leader() == daemon.name;
    };
    const bool has_heir = std::any_of(daemons_.begin(), daemons_.end(), is_well);
    if (!has_heir || last_daemon_fault_at_ > died - kEtcdSettles) {
        return;
    }
    const Duration most = leader_lease() + kSuccessionMax + options_.journal_delay_max * 8;
    events_.after(most, [this, died] {
        const bool is_excused = last_daemon_fault_at_ > died || etcd_away_until_ > died ||
                                etcd_slow_until_ > died || was_etcd_full(died);
        const Daemon* leader = deciding();  // maybe the same, awake again
        if (!is_excused && (leader == nullptr || leader->is_paused)) {
            checker_.violate("L5", "the leader is gone, and nobody has taken over");
        }
    });
}

/// It is back, or there is another: its nodes too, soon, and with the workers that they had.
void Simulation::judge_return(const Daemon& daemon) {
    const Instant died = expected_since_;
    const Instant back = events_.now();
    // A node counts from what it last heard, and its last attempt may be a whole pause before the
    // end of the time-out: back later than this, a node may rightly have given up.
    const Duration in_vain = options_.limits.reconnect_backoff_max + options_.limits.beat_interval +
                             there_and_back(machines_.back()) * 2;
    const Duration away_most = std::min<Duration>(options_.rendezvous_lost_timeout * 4 / 5,
                                                  options_.rendezvous_lost_timeout - in_vain);
    if (expected_digest_.empty() || back - died > away_most) {
        return;
    }
    const std::string digest = std::exchange(expected_digest_, std::string());
    // A daemon that is cut off from etcd knows no leader: it keeps a node for a lease, by that
    // node's clock.
    const bool is_one_cut_off =
        std::any_of(daemons_.begin(), daemons_.end(),
                    [died](const Daemon& one) { return one.cut_off_until > died; });
    const Duration kept =
        is_one_cut_off ? Duration(options_.limits.leader_lease) * 5 / 4 : Duration();
    // Answers to joins may wait for a record that etcd does not take.
    const Duration held =
        was_etcd_full(died) ? Duration(options_.limits.etcd_record_patience) : Duration();
    const Duration most = kReturnMax + there_and_back(machines_.back()) * 2 + kept + held;
    events_.after(most, [this, &daemon, host_number = daemon.host_number, digest, back, died,
                         verdicts = expected_verdicts_] {
        const rdzv::Run* run = decided_run();
        if (run == nullptr || host_number != daemon.host_number || last_fault_at_ > died ||
            last_daemon_fault_at_ > back || checker_.last_drain() > died ||
            checker_.verdicts() != verdicts) {
            return;
        }
        if (run->current.digest != digest) {
            checker_.violate("L5", "the restarted rendezvous does not go on with its run");
        }
        for (const Machine& machine : machines_) {
            if (has_workers_of(machine, digest, true)) {
                checker_.violate("L5", fmt::format("{} stops workers because the rendezvous was "
                                                   "restarted",
                                                   name_of(machine)));
            }
            if (has_workers_of(machine, digest, false) && !machine.is_accepted) {
                checker_.violate("L5", fmt::format("{} is not back {} ms after the rendezvous",
                                                   name_of(machine), kReturnMax.count()));
            }
        }
    });
}

void Simulation::judge_end() {
    if (checker_.violation().has_value()) {
        return;
    }
    const Daemon* daemon = deciding();
    for (const Machine& machine : machines_) {
        if (machine.supervisor != nullptr) {
            checker_.violate("L3",
                             fmt::format("{} never ended; it waits: '{}'; the rendezvous: '{}'",
                                         name_of(machine), machine.supervisor->explain(),
                                         daemon != nullptr ? daemon->explain() : "gone"));
        }
    }
}

}  // namespace ddprun::sim
