#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/contract/effects.hpp"
#include "agent/contract/inputs.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "tests/sim/checker.hpp"
#include "tests/sim/daemon.hpp"
#include "tests/sim/dice.hpp"
#include "tests/sim/etcd.hpp"
#include "tests/sim/event_queue.hpp"
#include "tests/sim/fault_plan.hpp"
#include "tests/sim/machine.hpp"
#include "tests/sim/network.hpp"
#include "tests/sim/options.hpp"
#include "tests/sim/trace_log.hpp"

namespace ddprun::sim {

struct SimResult {
    std::uint64_t hash = 0;
    std::uint64_t events = 0;
    Duration virtual_time{};
    std::string verdict;                   ///< the last one reached, for people
    std::optional<std::string> violation;  ///< "S3: …"
    std::size_t faults = 0;                ///< planned
    std::vector<std::string> trace;
};

/// One run: a real Coordinator, real Supervisors and the real codec under virtual time, with
/// everything around them faked and broken at random. The same options give the same trace.
///
/// driver.cpp             the loop
/// driver_rendezvous.cpp  a daemon: what its host wants, and its disk
/// driver_leading.cpp     one of several daemons: what its LeaderTerm wants, and etcd's answers
/// driver_agent.cpp       what an agent's shell does: effects, ticks
/// driver_link.cpp        its connection
/// driver_workers.cpp     keeper and workers
/// driver_faults.cpp      what goes wrong
/// driver_orders.cpp      what operators ask for
/// driver_judge.cpp       what only a view of all nodes can judge
class Simulation {
public:
    Simulation(SimOptions options, bool keeps_trace);

    [[nodiscard]] SimResult run();

private:
    using Action = std::function<void(Machine&)>;

    [[nodiscard]] bool is_over() const;
    void trace(const std::string& who, const std::string& text);
    [[nodiscard]] bool has_faults() const { return events_.now() < faults_end_; }
    [[nodiscard]] Machine& machine(int index) { return machines_[static_cast<std::size_t>(index)]; }

    // The rendezvous.
    void open_daemon(Daemon& daemon);
    class Watcher;
    [[nodiscard]] std::unique_ptr<rdzv::DaemonHost> new_host(Daemon& daemon);
    [[nodiscard]] static std::map<JobId, std::string> records_of(const JournalEntry& entry);
    void judge_restored(const Daemon& daemon, const JournalEntry& entry);
    void begin_deciding(Daemon& daemon);
    void end_deciding(Daemon& daemon);
    void rendezvous_timer_fires(Daemon& daemon, Instant at);
    void rendezvous_receives(Daemon& daemon, ConnectionId connection, const Packet& packet);
    void receive(Daemon& daemon, ConnectionId connection, const rdzv::AgentMessage& message);
    void carry_out(Daemon& daemon, const rdzv::DaemonEffects& effects);
    void carry_out(Daemon& daemon, const rdzv::DaemonEffect& effect);
    void note_records(Daemon& daemon);
    void arm(Daemon& daemon, const rdzv::SetJobTimer& wanted);
    /// Runs what has waited for the daemon. False: the daemon died of it.
    bool run_waiting(Daemon& daemon);
    void read_arrived(Daemon& daemon, const rdzv::JobLife& life);
    void gone(Daemon& daemon);
    void let_out(Daemon& daemon, const rdzv::Send& send);
    void write(Daemon& daemon, JournalWrite wanted);
    void write_to_disk(Daemon& daemon, JournalWrite wanted);
    void has_written(Daemon& daemon, const JournalWrite& done, const std::string& fault);
    [[nodiscard]] bool is_disk_well() const {
        return events_.now() >= disk_full_until_ && events_.now() >= disk_hangs_until_;
    }
    void in_daemon(Daemon& daemon, std::function<void()> action);
    /// In that process, unless it has died by then.
    void later_in_daemon(Daemon& daemon, Duration delay, std::function<void(Daemon&)> action);
    /// The one that decides now; null if none does.
    [[nodiscard]] Daemon* deciding();
    [[nodiscard]] const Daemon* deciding() const;
    [[nodiscard]] const rdzv::Run* decided_run() const;
    [[nodiscard]] Daemon& daemon(int index) { return daemons_[static_cast<std::size_t>(index)]; }
    [[nodiscard]] bool has_several() const { return daemons_.size() > 1; }
    [[nodiscard]] const JournalEntry& journal() const {
        return has_several() ? etcd_.entry() : disk_;
    }

    // One of several daemons.
    /// Tells the daemon that asked how its request ended.
    using EtcdReply = std::function<void(Daemon&)>;
    /// Happens in etcd, and returns the reply.
    using EtcdRequest = std::function<EtcdReply()>;
    /// `unanswered` if there is no answer after `patience`; the request may still arrive.
    void ask_etcd(Daemon& daemon, Duration patience, EtcdRequest request, EtcdReply unanswered);
    [[nodiscard]] std::optional<Instant> passes_at(const Daemon& daemon);
    [[nodiscard]] Duration leader_lease() const { return options_.limits.leader_lease; }
    [[nodiscard]] Instant local_now(const Daemon& daemon) const;
    [[nodiscard]] static Instant true_time(const Daemon& daemon, Instant local);
    [[nodiscard]] bool may_decide(const Daemon& daemon) const;
    void compete(Daemon& daemon);
    void step_term(Daemon& daemon, const rdzv::TermInput& input);
    void carry_out(Daemon& daemon, const rdzv::TermEffects& effects);
    void arm_term(Daemon& daemon);
    void term_timer_fires(Daemon& daemon, Instant at);
    void ask_for_term(Daemon& daemon, const rdzv::AskEtcd& question);
    [[nodiscard]] rdzv::TermInput etcd_answers(const std::string& who, const rdzv::LookAtKey&);
    [[nodiscard]] rdzv::TermInput etcd_answers(const std::string& who, const rdzv::GrantLease&);
    [[nodiscard]] rdzv::TermInput etcd_answers(const std::string& who, const rdzv::TakeKey& asked);
    [[nodiscard]] rdzv::TermInput etcd_answers(const std::string& who,
                                               const rdzv::ProlongLease& asked);
    void read_record(Daemon& daemon);
    void begin_leading(Daemon& daemon, std::uint64_t term);
    void end_leading(Daemon& daemon, const std::string& why);
    void follow(Daemon& daemon, const std::string& leader);
    void watch_key(Daemon& daemon, const rdzv::WatchKey& asked);
    void tell_deletion(Daemon& daemon);
    void write_to_etcd(Daemon& daemon, JournalWrite wanted);
    void etcd_has_answered(Daemon& daemon, JournalWrite wanted, rdzv::WriteOutcome outcome);
    void watch_leaders_lease();
    void plan_full_etcd();
    /// Etcd took no writes at some moment from `since` on, until now.
    [[nodiscard]] bool was_etcd_full(Instant since) const;
    [[nodiscard]] bool is_etcd_full() const { return was_etcd_full(events_.now()); }
    /// So a leader cannot be elected either.
    [[nodiscard]] bool grants_lease() const {
        return options_.etcd_grants_when_full || !is_etcd_full();
    }

    // Agents.
    void boot(int index);
    void connect_again(Machine& machine);
    void connect(Machine& machine, const rdzv::EndpointAttempt& attempt);
    void lose_link(Machine& machine, const std::string& why);
    void drop_link(Machine& machine, const std::string& why);
    void ask(Machine& machine, rdzv::AgentMessage message);
    [[nodiscard]] rdzv::JobSettings settings_of(const Machine& machine) const;
    [[nodiscard]] std::string program_of(const Machine& machine) const;
    [[nodiscard]] std::string rack_of(const Machine& machine) const;
    void node_receives(ConnectionId connection, int node, Packet packet);
    void agent_receives(Machine& machine, ConnectionId connection, const Packet& packet);
    void hear(Machine& machine, const rdzv::RendezvousMessage& message);
    void step_agent(Machine& machine, const agent::Input& input);
    void carry_out(Machine& machine, const agent::Effect& effect);
    void send_to_rendezvous(Machine& machine, const rdzv::AgentMessage& message);
    void remember_report(Machine& machine, const rdzv::AgentMessage& message);
    void arm_agent(Machine& machine);
    void end_agent(Machine& machine, int code);
    void run_preflight(Machine& machine);
    void run_prepare(Machine& machine);
    void prepare_standbys(Machine& machine);
    void open_store(Machine& machine, const std::string& host);
    /// Runs `action` after `delay` unless that process is gone by then.
    void later(Machine& machine, Duration delay, Action action);
    /// Runs what the agent's process does itself: now, or when the process runs again.
    void in_agent(Machine& machine, Action action);
    void later_in_agent(Machine& machine, Duration delay, Action action);
    [[nodiscard]] std::string name_of(const Machine& machine) const;
    /// A machine's own clock, and back: rounded so that no timer fires early.
    [[nodiscard]] Instant local_now(const Machine& machine) const;
    [[nodiscard]] static Instant true_time(const Machine& machine, Instant local);

    // Workers.
    void start_workers(Machine& machine, const agent::StartWorkers& effect);
    void plan_life(Machine& machine, FakeWorker& worker);
    /// All nodes of a generation live through the same course, drawn from the generation's digest.
    enum class Course { Works, WaitsForOne, Hangs };
    [[nodiscard]] Course course_of(const std::string& digest) const;
    void look_at_workers(Machine& machine, Generation generation);
    void look_at_gpus(Machine& machine, const agent::LookAtGpus& effect);
    void save_stacks(Machine& machine, Generation generation);
    [[nodiscard]] bool dies_slowly(const FakeWorker& worker, const rdzv::Evidence& evidence) const;
    void begin_to_die(Machine& machine, FakeWorker& worker, const rdzv::Evidence& evidence);
    void bury_worker(Machine& machine, std::uint64_t id, rdzv::Evidence evidence);
    void ask_workers(Machine& machine, const agent::AskWorkersToLeave& effect);
    void signal_workers(Machine& machine, const agent::SignalWorkers& effect);
    void end_stopped_worker(Machine& machine, FakeWorker& worker, rdzv::Evidence evidence);
    void collect_last_words(Machine& machine, const agent::CollectLastWords& effect);
    void empty_generation(Machine& machine, Generation generation);
    void end_worker(Machine& machine, std::uint64_t worker, rdzv::Evidence evidence);
    void drop_workers(Machine& machine);
    void disappoint_peers(const std::string& digest);
    void keeper_says(Machine& machine, agent::Input input);
    [[nodiscard]] Duration local_delay(Machine& machine);

    // Faults.
    void inject(const PlannedFault& fault);
    void note_fault(FaultKind kind);
    void inject_at_node(const PlannedFault& fault, Machine& machine, Dice& dice);
    void inject_at_rendezvous(const PlannedFault& fault, Dice& dice);
    void inject_at_network(const PlannedFault& fault, Machine& machine, Dice& dice);
    void crash_worker(Machine& machine, Dice& dice);
    void exit_early(Machine& machine);
    void kill_node(Machine& machine, Dice& dice, bool is_renamed);
    void break_connection(Machine& machine, PacketKind kind);
    void clog_connection(Machine& machine, Duration time);
    void cut_off(Machine& machine, bool is_up, bool is_down, Duration time);
    void flap_link(Machine& machine, Dice& dice);
    void slow_network(Dice& dice);
    void stall_agent(Machine& machine, Duration time);
    void signal_agent(Machine& machine, int signal);
    void signal_everything(Dice& dice);
    void lose_keeper(Machine& machine);
    [[nodiscard]] Daemon& draw_daemon(Dice& dice);
    void kill_rendezvous(Dice& dice, bool forgets);
    void pause_rendezvous(Dice& dice);
    void resume_rendezvous(Daemon& daemon);
    void return_rendezvous(Daemon& daemon);
    void fail_journal(Dice& dice);
    void slow_etcd(Dice& dice);
    void cut_off_from_etcd(Dice& dice);
    void cut_off_daemon(Dice& dice);
    void take_name(Machine& machine, Dice& dice);
    void replay_report(Machine& machine, Dice& dice);
    void let_stranger_speak(Dice& dice);
    void let_stranger_join(Daemon& daemon, bool is_larger, const std::string& name);
    void let_unfit_speak(Daemon& daemon, std::uint64_t word, const std::string& name);
    void speak_without_joining(Daemon& daemon, std::uint64_t word);
    void maybe_return(Machine& machine, Dice& dice);
    [[nodiscard]] Machine* draw_machine(Dice& dice);
    /// From now until `until` nothing is expected of this node.
    void disturb(Machine& machine, Instant until);
    void disturb_all(Instant until);

    // Operators.
    void plan_orders();
    void give_order(Dice& dice);
    void hear_answer(const Daemon& daemon, const rdzv::AnswerOrder& answer);
    void note_drained(const rdzv::Run& run, const rdzv::OrderGiven& given,
                      const rdzv::Effects& effects);
    void judge_drained(const rdzv::Run& run, const Machine& machine);

    // Judging.
    void judge_regularly();
    void judge_machine(Machine& machine);
    void judge_calm(const Daemon& daemon, Machine& machine, bool is_held_back);
    void judge_patience(const Daemon& daemon);
    void judge_retries(Daemon& daemon);
    [[nodiscard]] Duration silence_max(Instant since) const;
    /// The daemon's messages to nodes waited for a record at some moment from `since` on.
    [[nodiscard]] static bool has_held_back(const Daemon& daemon, Instant since);
    void judge_explanations(const Daemon& daemon);
    void judge_start_is_due(const Daemon& daemon);
    void judge_leaver(Machine& machine);
    void judge_member(const Daemon& daemon, Machine& machine);
    void judge_publishing(const Machine& machine);
    void judge_everybodys_publishing(const rdzv::Run& run);
    void judge_leadership(const Daemon& daemon);
    void judge_effect(const Daemon& daemon, const rdzv::Effect& effect);
    void judge_environment(const Machine& machine, const agent::StartWorkers& effect);
    void judge_false_deaths(const Machine& machine, const rdzv::RendezvousMessage& message);
    void judge_start(const rdzv::Run& run, const rdzv::Send& send, const rdzv::Start& start);
    void note_program(const rdzv::Coordinator& coordinator, const rdzv::Input& input);
    [[nodiscard]] bool is_unlike(const rdzv::Run& run, std::optional<int> node);
    void judge_refusal(const rdzv::Run& run, const rdzv::Send& send, const rdzv::Refused& refused);
    void judge_losses_of_living(const rdzv::Run& run, std::size_t nodes_before);
    void judge_durability(const Daemon& daemon, const rdzv::Run& run,
                          const rdzv::RendezvousMessage& message);
    void expect_notice_of_death(const Machine& machine, bool is_silent);
    void expect_end_of_workers(Machine& machine, const rdzv::Stop& stop);
    void expect_nothing_restarts(const Daemon& daemon);
    void expect_succession(const Daemon& daemon);
    void judge_hang(const rdzv::Run& run);
    void judge_end();
    [[nodiscard]] bool is_calm(const Machine& machine) const;
    [[nodiscard]] bool is_undisturbed(const Machine& machine, Instant when) const;
    [[nodiscard]] bool is_dead_one_missed(const std::string& digest, const NodeId& node) const;
    void judge_notice(Instant died, const std::string& digest, const NodeId& node);
    void judge_return(const Daemon& daemon);
    [[nodiscard]] Duration there_and_back(const Machine& machine) const;
    [[nodiscard]] bool are_delays_short(const Machine& machine) const;

    SimOptions options_;
    EventQueue events_;
    TraceLog log_;
    Checker checker_;
    Network network_;
    Dice dice_;  ///< of daemons and their journal
    std::vector<Daemon> daemons_;
    JournalEntry disk_;  ///< of the only daemon
    Instant disk_full_until_{};
    Instant disk_hangs_until_{};
    Etcd etcd_;  ///< of several
    Instant etcd_away_until_{};
    Instant etcd_slow_until_{};
    std::uint64_t last_watch_ = 0;
    std::vector<Machine> machines_;
    std::set<ConnectionId> strangers_;                            ///< of no machine
    std::map<std::string, std::set<std::string>> programs_told_;  ///< by the token of the run
    std::vector<PlannedFault> plan_;
    std::set<std::uint64_t> orders_;  ///< not answered yet
    std::uint64_t last_order_ = 0;
    Instant faults_end_{};
    Instant calm_since_{};              ///< no fault of the whole is in effect
    Instant doubt_end_{};               ///< the daemon had a reason to suspect itself until then
    Instant last_fault_at_{};           ///< of any kind but the death or pause of a daemon
    Instant last_daemon_fault_at_{};    ///< of these, and what is between daemons and etcd
    Instant restored_at_{};             ///< a coordinator took over from another
    std::optional<Instant> due_since_;  ///< enough healthy nodes, and nothing runs
    std::string expected_digest_;       ///< is to go on when the daemon is back
    Instant expected_since_{};
    int expected_verdicts_ = 0;  ///< were reached by then
    std::string judged_digest_;
    std::uint64_t last_worker_ = 0;
    std::uint16_t last_port_ = 1000;
    int alive_ = 0;                     ///< agents that run
    bool has_last_step_acted_ = false;  ///< more than a line came of it
    bool has_forgotten_ = false;        ///< a daemon had no journal, or an old one
    bool is_record_old_ = false;        ///< a daemon had an old one
    bool is_etcd_behind_ = false;       ///< the last leader has told what etcd does not know
};

}  // namespace ddprun::sim
