// A daemon's process: its host gets what arrives and the time, and what it wants is carried out on
// a network and a disk that are made up.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

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
    if (send != nullptr && !daemon.served.contains(send->connection) &&
        send->connection != ConnectionId(0)) {
        checker_.violate("IO", fmt::format("sent to connection {}, which has ended: {}",
                                           send->connection.value(), message_text(send->message)));
    }
    const rdzv::Refused* refused =
        send != nullptr ? std::get_if<rdzv::Refused>(&send->message) : nullptr;
    // When it is let out another run may have begun, with other settings.
    if (const rdzv::Run* run = daemon.coordinator().run(); refused != nullptr && run != nullptr) {
        judge_refusal(*run, *send, *refused);
    }
    const std::optional<int> node =
        refused != nullptr ? network_.node_of(send->connection) : std::nullopt;
    if (node.has_value() && machine(*node).connection == send->connection) {
        machine(*node).is_replaced |= refused->exit_code == kExitRendezvousLost;
    }
}

// ------------------------------------------------------------------------------------- the process

/// A process of its own.
void Simulation::open_daemon(Daemon& daemon) {
    daemon.is_up = true;
    if (has_several()) {
        compete(daemon);
    } else {
        open_host(daemon, disk_);
    }
}

std::unique_ptr<rdzv::JobHost> Simulation::new_host(Daemon& daemon) {
    daemon.watcher = std::make_unique<Watcher>(*this, daemon.index);
    rdzv::HostOptions options;
    options.coordinator = {.limits = options_.limits, .has_leases = !options_.is_in_process};
    options.watcher = daemon.watcher.get();
    if (has_several()) {
        options.keeping = rdzv::Keeping::Strictly;
        options.may_decide = [this, &daemon](Instant) { return may_decide(daemon); };
    } else if (!options_.is_in_process) {
        options.keeping = rdzv::Keeping::IfPossible;
    }
    return std::make_unique<rdzv::JobHost>(kJob, std::move(options), Rng(dice_.next()));
}

/// Decides from now on, beginning with what the last one left in the journal.
void Simulation::open_host(Daemon& daemon, const JournalEntry& entry) {
    const Instant now = events_.now();
    daemon.host_number += 1;
    daemon.host = new_host(daemon);
    daemon.fails_since = now;
    if (!entry.record.has_value()) {
        return;
    }
    const Result<rdzv::RunRecord> record =
        rdzv::decode<rdzv::RunRecord>(rdzv::encode(*entry.record), options_.limits);
    if (!record.has_value()) {
        checker_.violate("codec", record.error().what);
        return;
    }
    rdzv::HostEffects wanted;
    const Result<void> restored = daemon.host->restore(now, record.value(), wanted);
    if (!restored.has_value()) {
        checker_.violate("journal", restored.error().what);
    }
    restored_at_ = now;
    trace(daemon.name, "goes on with the journal's run");
    carry_out(daemon, wanted);
}

/// A closed host does nothing more of what it was about to do.
void Simulation::close_host(Daemon& daemon) {
    is_etcd_behind_ |= has_several() && daemon.is_behind;
    daemon.is_behind = daemon.is_behind && !has_several();
    daemon.host_number += 1;
    daemon.host.reset();
    daemon.timer_at.reset();
    daemon.served.clear();
    daemon.waiting_write.reset();
    daemon.is_writing = false;
    daemon.was_waiting = false;
}

/// The run is over and reported, or no node came back to it.
void Simulation::forget_run(Daemon& daemon) {
    daemon.host_number += 1;
    daemon.host = new_host(daemon);
    daemon.timer_at.reset();
    daemon.waiting_write.reset();
    if (!options_.is_in_process) {
        write(daemon, JournalWrite{.host_number = daemon.host_number, .record = {}, .numbers = {}});
    }
    checker_.forget_run();
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
        if (daemon.is_up && daemon.host != nullptr && may_decide(daemon)) {
            return &daemon;
        }
    }
    return nullptr;
}

const rdzv::Run* Simulation::decided_run() const {
    const Daemon* daemon = deciding();
    return daemon != nullptr ? daemon->coordinator().run() : nullptr;
}

// ------------------------------------------------------------------------------------ what arrives

void Simulation::rendezvous_receives(Daemon& daemon, ConnectionId connection,
                                     const Packet& packet) {
    if (connection <= daemon.dead_connections) {
        network_.close_at_rendezvous(connection, PacketKind::Reset);
        return;
    }
    if (packet.kind != PacketKind::Message) {
        if (daemon.lobby.has_value()) {
            daemon.lobby->ended(connection);
        }
        if (daemon.served.contains(connection)) {
            step_rendezvous(
                daemon,
                rdzv::ConnectionEnded{.connection = connection,
                                      .is_end_of_stream = packet.kind == PacketKind::EndOfStream});
            daemon.served.erase(connection);
        }
        return;
    }
    const Result<rdzv::AgentMessage> message =
        rdzv::decode_agent_message(packet.body, options_.limits);
    if (!message.has_value()) {
        checker_.violate("codec", message.error().what);
        return;
    }
    take_message(daemon, connection, message.value());
}

void Simulation::take_message(Daemon& daemon, ConnectionId connection,
                              const rdzv::AgentMessage& message) {
    if (daemon.host == nullptr) {
        receive_as_follower(daemon, connection, message);
        return;
    }
    const bool is_first =
        std::holds_alternative<rdzv::Join>(message) || std::holds_alternative<rdzv::Unfit>(message);
    if (is_first && network_.node_of(connection).has_value()) {
        daemon.served.insert(connection);
    } else if (!daemon.served.contains(connection)) {
        return;  // closed meanwhile
    }
    if (!std::holds_alternative<rdzv::Beat>(message)) {
        trace(daemon.name, fmt::format("<- {} {}", connection.value(), message_text(message)));
    }
    step_rendezvous(daemon, rdzv::Received{.connection = connection, .message = message});
}

void Simulation::step_rendezvous(Daemon& daemon, const rdzv::Input& input) {
    rdzv::HostEffects wanted;
    daemon.host->step(events_.now(), input, wanted);
    carry_out(daemon, wanted);
    if (daemon.host->is_forgettable(events_.now())) {
        forget_run(daemon);
    }
}

void Simulation::rendezvous_timer_fires(Daemon& daemon, Instant at) {
    if (daemon.timer_at != at) {
        return;
    }
    daemon.timer_at.reset();
    rdzv::HostEffects wanted;
    const bool is_due = daemon.host->wakes(events_.now(), wanted);
    carry_out(daemon, wanted);
    if (is_due) {
        rdzv::HostEffects judged;
        daemon.host->judge(events_.now(), judged);
        carry_out(daemon, judged);
    }
    if (daemon.host->is_forgettable(events_.now())) {
        forget_run(daemon);
    }
}

// ------------------------------------------------------------------------------ what its host
// wants

void Simulation::carry_out(Daemon& daemon, const rdzv::HostEffects& wanted) {
    daemon.is_behind |= !daemon.host->awaits_records();
    const bool was_waiting = std::exchange(daemon.was_waiting, daemon.host->is_waiting());
    if (was_waiting) {
        daemon.let_out_at = events_.now();
    } else if (daemon.was_waiting) {
        daemon.waits_since = events_.now();
    }
    for (const rdzv::Effect& effect : wanted.now) {
        if (const auto* send = std::get_if<rdzv::Send>(&effect)) {
            let_out(daemon, *send);
        } else if (const auto* close = std::get_if<rdzv::CloseConnection>(&effect)) {
            trace(daemon.name,
                  fmt::format("closes {}: {}", close->connection.value(), close->reason));
            daemon.served.erase(close->connection);
            network_.close_at_rendezvous(close->connection);
        } else if (const auto* line = std::get_if<rdzv::Trace>(&effect)) {
            trace(daemon.name, line->text);
        } else if (const auto* answer = std::get_if<rdzv::Ordered>(&effect)) {
            hear_answer(daemon, *answer);
        }
    }
    for (const rdzv::WriteRecord& record : wanted.writes) {
        daemon.last_write = record.number;
        write(daemon, JournalWrite{.host_number = daemon.host_number,
                                   .record = record.record,
                                   .numbers = {record.number}});
    }
    if (wanted.timer.has_value()) {
        daemon.timer_at = wanted.timer;
        events_.at(*wanted.timer,
                   [this, &daemon, at = *wanted.timer, host_number = daemon.host_number] {
                       if (host_number == daemon.host_number && daemon.is_up && !daemon.is_paused) {
                           rendezvous_timer_fires(daemon, at);
                       }
                   });
    }
}

void Simulation::let_out(Daemon& daemon, const rdzv::Send& send) {
    judge_leadership(daemon);
    if (const rdzv::Run* run = daemon.coordinator().run(); run != nullptr) {
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
            const std::vector<std::uint64_t>& earlier = daemon.waiting_write->numbers;
            wanted.numbers.insert(wanted.numbers.begin(), earlier.begin(), earlier.end());
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
    for (const std::uint64_t number : done.numbers) {
        if (done.host_number != daemon.host_number) {
            return;
        }
        rdzv::HostEffects wanted;
        daemon.host->written(events_.now(), number, fault, wanted);
        if (fault.empty()) {
            daemon.waits_since = events_.now();
            daemon.is_behind = daemon.is_behind && number != daemon.last_write;
        }
        carry_out(daemon, wanted);
    }
}

}  // namespace ddprun::sim
