// A daemon's process: its host gets what arrives and the time, and what it wants is carried out on
// a network and a disk that are made up.

#include <algorithm>
#include <map>
#include <utility>

#include <fmt/format.h>

#include "base/overloaded.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/run_record.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::sim {

namespace {

constexpr const char* kDiskFull = "no space left on device";

}  // namespace

// ------------------------------------------------------------------------------------ judging
// steps

/// Judges each step of the coordinator in a daemon's host, by what is right then.
class Simulation::Watcher final : public rdzv::StepWatcher {
public:
    Watcher(Simulation& all, int daemon) : all_(all), daemon_(daemon) {}

    void before_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input,
                     Instant now) override {
        const rdzv::Run* run = coordinator.run();
        nodes_before_ = run != nullptr ? run->nodes.size() : 0;
        is_open_ = run != nullptr && !std::holds_alternative<rdzv::Closed>(run->phase);
        token_ = run != nullptr ? run->token : std::string();
        all_.judge_leadership(all_.daemon(daemon_));
        all_.checker_.before_step(coordinator, input, now);
    }

    void after_step(const rdzv::Coordinator& coordinator, const rdzv::Input& input,
                    const rdzv::Effects& effects, Instant now) override {
        all_.checker_.after_step(coordinator, input, effects, now);
        all_.note_program(coordinator, input);
        effects.for_each([this](const rdzv::Effect& effect) {
            all_.judge_effect(all_.daemon(daemon_), effect);
        });
        all_.has_last_step_acted_ = effects.record != rdzv::RecordWrite::None;
        effects.for_each([this](const rdzv::Effect& effect) {
            all_.has_last_step_acted_ |= std::holds_alternative<rdzv::Send>(effect) ||
                                         std::holds_alternative<rdzv::CloseConnection>(effect);
        });
        const rdzv::Run* run = coordinator.run();
        if (is_open_ && (run == nullptr || run->token != token_)) {
            all_.checker_.run_was_given_up();  // joins that had waited may have opened another
        }
        if (run != nullptr) {
            if (const auto* given = std::get_if<rdzv::OrderGiven>(&input)) {
                all_.note_drained(*run, *given, effects);
            }
            all_.judge_losses_of_living(*run, nodes_before_);
            all_.judge_everybodys_publishing(*run);
            all_.judge_hang(*run);
        }
    }

private:
    Simulation& all_;
    const int daemon_;
    bool is_open_ = false;  ///< there was a run, and no verdict
    std::string token_;     ///< its
    std::size_t nodes_before_ = 0;
};

/// A message of a machine's own past that came late takes its place, here; a second ddprun, in
/// life.
void Simulation::judge_effect(const Daemon& daemon, const rdzv::Effect& effect) {
    const auto* send = std::get_if<rdzv::Send>(&effect);
    if (send != nullptr && daemon.host->job_of(send->connection) == nullptr &&
        send->connection != ConnectionId(0)) {
        checker_.violate("IO", fmt::format("sent to connection {}, which has ended: {}",
                                           send->connection.value(), message_text(send->message)));
    }
    const rdzv::Refused* refused =
        send != nullptr ? std::get_if<rdzv::Refused>(&send->message) : nullptr;
    // When it is let out another run may have begun, with other settings.
    if (const rdzv::Run* run = daemon.run(); refused != nullptr && run != nullptr) {
        judge_refusal(*run, *send, *refused);
    }
    const std::optional<int> node =
        refused != nullptr ? network_.node_of(send->connection) : std::nullopt;
    if (node.has_value() && machine(*node).connection == send->connection) {
        machine(*node).is_replaced |= refused->exit_code == kExitRendezvousLost;
    }
}

// ------------------------------------------------------------------------------------- the process

/// The journal's records, by job.
std::map<JobId, std::string> Simulation::records_of(const JournalEntry& entry) {
    std::map<JobId, std::string> records;
    if (entry.record.has_value()) {
        records.emplace(kJob, rdzv::encode(*entry.record));
    }
    return records;
}

/// A process of its own.
void Simulation::open_daemon(Daemon& daemon) {
    daemon.is_up = true;
    daemon.host = new_host(daemon);
    if (has_several()) {
        compete(daemon);
        return;
    }
    begin_deciding(daemon);
    rdzv::DaemonEffects effects;
    daemon.host->begin(events_.now(),
                       options_.is_in_process ? rdzv::Keeping::Nowhere : rdzv::Keeping::IfPossible,
                       records_of(disk_), effects);
    carry_out(daemon, effects);
    judge_restored(daemon, disk_);
}

std::unique_ptr<rdzv::DaemonHost> Simulation::new_host(Daemon& daemon) {
    daemon.watcher = std::make_unique<Watcher>(*this, daemon.index);
    rdzv::DaemonHostOptions options;
    options.coordinator = {.limits = options_.limits, .has_leases = !options_.is_in_process};
    options.is_one_of_several = has_several();
    options.watcher = daemon.watcher.get();
    return std::make_unique<rdzv::DaemonHost>(std::move(options), Rng(dice_.next()));
}

/// It goes on with what the last one left in the journal.
void Simulation::judge_restored(const Daemon& daemon, const JournalEntry& entry) {
    if (!entry.record.has_value()) {
        return;
    }
    restored_at_ = events_.now();
    if (daemon.run() == nullptr) {
        checker_.violate("journal", fmt::format("{} does not go on with its record", daemon.name));
    }
}

void Simulation::begin_deciding(Daemon& daemon) {
    daemon.host_number += 1;
    daemon.fails_since = events_.now();
}

/// It does nothing more of what it was about to do.
void Simulation::end_deciding(Daemon& daemon) {
    is_etcd_behind_ |= has_several() && daemon.is_behind;
    daemon.is_behind = daemon.is_behind && !has_several();
    daemon.host_number += 1;
    daemon.timer_at.reset();
    daemon.waiting_write.reset();
    daemon.is_writing = false;
    daemon.was_waiting = false;
}

void Simulation::in_daemon(Daemon& daemon, std::function<void()> action) {
    if (daemon.is_paused) {
        daemon.waits_for_it.push_back(std::move(action));
    } else {
        action();
    }
}

void Simulation::later_in_daemon(Daemon& daemon, Duration delay,
                                 std::function<void(Daemon&)> action) {
    events_.after(delay, [this, index = daemon.index, life = daemon.life,
                          action = std::move(action)]() mutable {
        Daemon& same = this->daemon(index);
        if (same.life == life && same.is_up) {
            in_daemon(same, [&same, action = std::move(action)] { action(same); });
        }
    });
}

Daemon* Simulation::deciding() {
    const Daemon* found = std::as_const(*this).deciding();
    return found == nullptr ? nullptr : &daemon(found->index);
}

const Daemon* Simulation::deciding() const {
    for (const Daemon& daemon : daemons_) {
        if (daemon.is_up && daemon.is_deciding() && may_decide(daemon)) {
            return &daemon;
        }
    }
    return nullptr;
}

const rdzv::Run* Simulation::decided_run() const {
    const Daemon* daemon = deciding();
    return daemon != nullptr ? daemon->run() : nullptr;
}

// ------------------------------------------------------------------------------------ what arrives

void Simulation::rendezvous_receives(Daemon& daemon, ConnectionId connection,
                                     const Packet& packet) {
    if (connection <= daemon.dead_connections) {
        network_.close_at_rendezvous(connection, PacketKind::Reset);
        return;
    }
    if (packet.kind != PacketKind::Message) {
        const bool is_gone = packet.kind == PacketKind::EndOfStream;
        rdzv::DaemonEffects effects;
        daemon.host->ended(events_.now(), connection,
                           is_gone ? rdzv::PeerEnd::ProcessGone : rdzv::PeerEnd::Lost, effects);
        carry_out(daemon, effects);
        return;
    }
    const Result<rdzv::AgentMessage> message =
        rdzv::decode_agent_message(packet.body, options_.limits);
    if (!message.has_value()) {
        checker_.violate("codec", message.error().what);
        return;
    }
    receive(daemon, connection, message.value());
}

void Simulation::receive(Daemon& daemon, ConnectionId connection,
                         const rdzv::AgentMessage& message) {
    if (!network_.node_of(connection).has_value()) {
        return;  // closed meanwhile
    }
    if (!std::holds_alternative<rdzv::Beat>(message)) {
        trace(daemon.name, fmt::format("<- {} {}", connection.value(), message_text(message)));
    }
    rdzv::DaemonEffects effects;
    daemon.host->receives(events_.now(), connection, message, effects);
    carry_out(daemon, effects);
}

void Simulation::rendezvous_timer_fires(Daemon& daemon, Instant at) {
    if (daemon.timer_at != at) {
        return;
    }
    daemon.timer_at.reset();
    rdzv::DaemonEffects effects;
    daemon.host->timer_fired(events_.now(), daemon.timer_life, effects);
    carry_out(daemon, effects);
}

// --------------------------------------------------------------------------- effects of its host

void Simulation::carry_out(Daemon& daemon, const rdzv::DaemonEffects& effects) {
    note_records(daemon);
    for (const rdzv::DaemonEffect& effect : effects) {
        carry_out(daemon, effect);
    }
}

/// The effects of a job without a process or a network are left out: publishing, the port's store,
/// and when an idle daemon ends.
void Simulation::carry_out(Daemon& daemon, const rdzv::DaemonEffect& effect) {
    const Overloaded act{
        [&](const rdzv::Send& send) { let_out(daemon, send); },
        [&](const rdzv::CloseConnection& close) {
            trace(daemon.name,
                  fmt::format("closes {}: {}", close.connection.value(), close.reason));
            network_.close_at_rendezvous(close.connection);
        },
        [&](const rdzv::ResetConnection& reset) {
            trace(daemon.name,
                  fmt::format("resets {}: {}", reset.connection.value(), reset.reason));
            network_.close_at_rendezvous(reset.connection, PacketKind::Reset);
        },
        [&](const rdzv::DropConnection& drop) {
            network_.close_at_rendezvous(drop.connection, PacketKind::Reset);
        },
        [&](const rdzv::Trace& line) { trace(daemon.name, line.text); },
        [&](const rdzv::AnswerOrder& answer) { hear_answer(daemon, answer); },
        [&](const rdzv::WriteJobRecord& wanted) {
            daemon.last_write = wanted.write.number;
            write(daemon, JournalWrite{.host_number = daemon.host_number,
                                       .record = wanted.write.record,
                                       .answers = {{wanted.life, wanted.write.number}}});
        },
        [&](const rdzv::EraseJobRecord&) {
            write(daemon,
                  JournalWrite{.host_number = daemon.host_number, .record = {}, .answers = {}});
        },
        [&](const rdzv::SetJobTimer& wanted) { arm(daemon, wanted); },
        [&](const rdzv::ReadArrived& wanted) { read_arrived(daemon, wanted.life); },
        [&](const rdzv::JobGone&) { gone(daemon); },
        [](const rdzv::PublishToWatchers&) {},
        [](const rdzv::JobStepped&) {},
        [](const rdzv::ServeStore&) {},
        [](const rdzv::CloseStore&) {},
        [](const rdzv::SetIdleTimer&) {},
    };
    std::visit(act, effect);
}

void Simulation::note_records(Daemon& daemon) {
    daemon.is_behind |= daemon.job() != nullptr && !daemon.job()->awaits_records();
    const bool was_waiting = std::exchange(daemon.was_waiting, daemon.is_waiting());
    if (was_waiting) {
        daemon.let_out_at = events_.now();
    } else if (daemon.was_waiting) {
        daemon.waits_since = events_.now();
    }
}

void Simulation::arm(Daemon& daemon, const rdzv::SetJobTimer& wanted) {
    daemon.timer_at = wanted.at;
    daemon.timer_life = wanted.life;
    events_.at(wanted.at, [this, &daemon, at = wanted.at, host_number = daemon.host_number] {
        if (host_number == daemon.host_number && daemon.is_up && !daemon.is_paused) {
            rendezvous_timer_fires(daemon, at);
        }
    });
}

bool Simulation::run_waiting(Daemon& daemon) {
    const std::uint64_t life = daemon.life;
    while (!daemon.waits_for_it.empty() && life == daemon.life) {
        const std::function<void()> next = std::move(daemon.waits_for_it.front());
        daemon.waits_for_it.pop_front();
        next();
    }
    return life == daemon.life;
}

/// Packets that came while the daemon was stopped, and have not been read.
void Simulation::read_arrived(Daemon& daemon, const rdzv::JobLife& life) {
    if (run_waiting(daemon)) {
        rdzv::DaemonEffects effects;
        daemon.host->nothing_more_arrived(events_.now(), life, effects);
        carry_out(daemon, effects);
    }
}

/// The run is over and reported, or no node came back to it; or another daemon decides about it.
void Simulation::gone(Daemon& daemon) {
    daemon.timer_at.reset();
    if (daemon.is_deciding()) {
        checker_.forget_run();
    }
}

void Simulation::let_out(Daemon& daemon, const rdzv::Send& send) {
    if (!std::holds_alternative<rdzv::Redirect>(send.message)) {
        judge_leadership(daemon);
    }
    if (const rdzv::Run* run = daemon.run(); run != nullptr) {
        if (const rdzv::Start* start = std::get_if<rdzv::Start>(&send.message)) {
            judge_start(*run, send, *start);
        }
        judge_durability(daemon, *run, send.message);
    }
    network_.send_to_node(send.connection, rdzv::encode(send.message));
}

// --------------------------------------------------------------------------------------- journal

/// Writes one at a time. A later write supersedes one that waits; both are answered then.
void Simulation::write(Daemon& daemon, JournalWrite wanted) {
    if (daemon.is_writing) {
        if (daemon.waiting_write.has_value()) {
            const std::vector<AskedWrite>& earlier = daemon.waiting_write->answers;
            wanted.answers.insert(wanted.answers.begin(), earlier.begin(), earlier.end());
        }
        daemon.waiting_write = std::move(wanted);
        return;
    }
    daemon.is_writing = true;
    if (has_several()) {
        write_to_etcd(daemon, std::move(wanted));
    } else {
        write_to_disk(daemon, std::move(wanted));
    }
}

void Simulation::write_to_disk(Daemon& daemon, JournalWrite wanted) {
    const Instant done =
        std::max(events_.now(), disk_hangs_until_) + dice_.up_to(options_.journal_delay_max);
    events_.at(done, [this, &daemon, life = daemon.life, wanted = std::move(wanted)] {
        if (life != daemon.life) {
            return;
        }
        const bool is_full = events_.now() < disk_full_until_;
        if (!is_full) {
            disk_ = JournalEntry{.record = wanted.record};  // a paused process does not pause it
        }
        in_daemon(daemon, [this, &daemon, life, wanted, is_full] {
            if (life == daemon.life) {
                has_written(daemon, wanted, is_full ? kDiskFull : "");
            }
        });
    });
}

void Simulation::has_written(Daemon& daemon, const JournalWrite& done, const std::string& fault) {
    daemon.is_writing = false;
    if (daemon.waiting_write.has_value()) {
        write(daemon, *std::exchange(daemon.waiting_write, std::nullopt));
    }
    for (const auto& [life, number] : done.answers) {
        if (done.host_number != daemon.host_number) {
            return;
        }
        rdzv::DaemonEffects effects;
        daemon.host->written(events_.now(), life, number, fault, effects);
        if (fault.empty()) {
            daemon.waits_since = events_.now();
            daemon.is_behind = daemon.is_behind && number != daemon.last_write;
        }
        carry_out(daemon, effects);
    }
}

}  // namespace ddprun::sim
