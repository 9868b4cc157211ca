// The simulation does the work of an agent's shell: effects, ticks.

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "rendezvous/wire/codec.hpp"
#include "tests/sim/driver.hpp"
#include "tests/sim/message_text.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::sim {

namespace {

constexpr std::size_t kReportsKept = 12;

}  // namespace

std::string Simulation::name_of(const Machine& machine) const {
    return fmt::format("{}.{}", machine.node.value(), machine.incarnation);
}

Instant Simulation::local_now(const Machine& machine) const {
    return Instant(events_.now().time_since_epoch() / 1000 * machine.clock_permille);
}

Instant Simulation::true_time(const Machine& machine, Instant local) {
    if (local == Instant::max() || local == Instant::min()) {
        return local;
    }
    const Duration::rep permille = machine.clock_permille;
    return Instant(Duration((local.time_since_epoch().count() + permille - 1) / permille * 1000));
}

void Simulation::later(Machine& machine, Duration delay, Action action) {
    const int index = machine.index;
    const std::uint64_t incarnation = machine.incarnation;
    events_.after(delay, [this, index, incarnation, action = std::move(action)] {
        Machine& same = machines_[static_cast<std::size_t>(index)];
        if (same.incarnation == incarnation && same.supervisor != nullptr) {
            action(same);
        }
    });
}

void Simulation::in_agent(Machine& machine, Action action) {
    if (machine.is_stalled) {
        machine.waits_for_agent.push_back(std::move(action));
    } else {
        action(machine);
    }
}

void Simulation::later_in_agent(Machine& machine, Duration delay, Action action) {
    later(machine, delay,
          [this, action = std::move(action)](Machine& same) { in_agent(same, action); });
}

/// One node may have been started with other flags than the rest.
rdzv::JobSettings Simulation::settings_of(const Machine& machine) const {
    rdzv::JobSettings settings = options_.settings;
    settings.max_restarts += machine.index >= options_.nodes - options_.odd_nodes ? 1 : 0;
    return settings;
}

std::string Simulation::program_of(const Machine& machine) const {
    return machine.index >= options_.nodes - options_.unlike_nodes ? "2" : "1";
}

/// Empty: its rack is not told. A machine stays on its rack.
std::string Simulation::rack_of(const Machine& machine) const {
    Dice dice(options_.seed, 200000 + static_cast<std::uint64_t>(machine.index));
    const int rack = dice.between(0, options_.racks);
    return rack == 0 ? std::string() : fmt::format("rack{}", rack);
}

void Simulation::boot(int index) {
    Machine& machine = machines_[static_cast<std::size_t>(index)];
    if (machine.supervisor != nullptr || machine.is_broken) {
        return;
    }
    alive_ += 1;
    machine.incarnation += 1;
    machine.connection.reset();
    machine.is_connected = false;
    machine.is_accepted = false;
    machine.token.clear();
    machine.tick_at.reset();
    machine.is_stalled = false;
    machine.waits_for_agent.clear();
    machine.start_digest.clear();
    machine.reports.clear();
    machine.listening_port = 0;
    machine.serving_port = 0;
    machine.shown.reset();
    machine.signalled_at.reset();
    machine.drained_at.reset();
    machine.is_keeper_gone = false;
    machine.is_lied_about = false;
    machine.is_replaced = false;
    machine.is_lost_for_fault = false;
    machine.silent_since.reset();
    machine.has_given_up = false;
    std::vector<rdzv::Endpoint> endpoints;
    for (const Daemon& one : daemons_) {
        endpoints.push_back(rdzv::parse_endpoint(one.name).value());
    }
    machine.choice.emplace(std::move(endpoints), options_.limits, Rng(machine.dice.next()));
    machine.unanswered.reset();
    agent::SupervisorOptions options;
    options.limits = options_.limits;
    options.identity.job = JobId("sim");
    options.identity.node = machine.node;
    options.identity.process = fmt::format("{}.{}", machine.index, machine.incarnation);
    options.identity.hostname = machine.node.value();
    options.identity.slots = machine.slots;
    options.identity.topology_key = rack_of(machine);
    options.identity.settings = settings_of(machine);
    options.command = {"/bin/work"};
    options.rendezvous_lost_timeout = options_.rendezvous_lost_timeout;
    options.connect_timeout = options_.connect_timeout;
    options.has_preflight_command = options_.has_preflight;
    options.identity.prepares = options_.prepares;
    options.identity.fingerprint.program = program_of(machine);
    machine.prepares = 0;
    machine.supervisor = std::make_unique<agent::Supervisor>(std::move(options));
    trace(name_of(machine), fmt::format("boots with {} slots", machine.slots));
    prepare_standbys(machine);
    step_agent(machine, agent::Tick{});
    connect_again(machine);
}

void Simulation::hear(Machine& machine, const rdzv::RendezvousMessage& message) {
    if (!std::holds_alternative<rdzv::Acknowledge>(message)) {
        trace(name_of(machine), "<- " + message_text(message));
    }
    if (const auto* accepted = std::get_if<rdzv::Accepted>(&message)) {
        machine.token = accepted->run_token;
        machine.is_accepted = true;
        machine.accepted_at = events_.now();
    }
    if (const rdzv::Start* start = std::get_if<rdzv::Start>(&message)) {
        machine.start_digest = start->digest;
    }
    judge_false_deaths(machine, message);
    if (const rdzv::Stop* stop = std::get_if<rdzv::Stop>(&message)) {
        expect_end_of_workers(machine, *stop);
    }
    step_agent(machine, agent::FromRendezvous{message});
}

// ----------------------------------------------------------------------------------------- steps

void Simulation::step_agent(Machine& machine, const agent::Input& input) {
    agent::Effects effects;
    machine.supervisor->step(local_now(machine), input, effects);
    const std::optional<agent::ExitReason> exit_reason = machine.supervisor->exit_reason();
    machine.has_given_up |= exit_reason == agent::ExitReason::RendezvousLost;
    if (exit_reason == agent::ExitReason::Bug) {
        checker_.violate("agent", fmt::format("{} finds a bug of its own", name_of(machine)));
    }
    for (const agent::Effect& effect : effects) {
        if (machine.supervisor == nullptr) {
            checker_.violate("IO", "an effect after Exit");
            return;
        }
        carry_out(machine, effect);
    }
    if (machine.supervisor != nullptr) {
        judge_machine(machine);
        arm_agent(machine);
    }
}

void Simulation::arm_agent(Machine& machine) {
    const std::optional<Instant> deadline = machine.supervisor->next_deadline();
    if (!deadline.has_value()) {
        return;
    }
    Instant at = std::max(true_time(machine, *deadline), events_.now());
    if (options_.timer_grain > Milliseconds::zero()) {
        const Duration grain = options_.timer_grain;
        at = Instant((at.time_since_epoch() + grain - Duration(1)) / grain * grain);
    }
    if (machine.tick_at.has_value() && *machine.tick_at <= at) {
        return;
    }
    machine.tick_at = at;
    later_in_agent(machine, at - events_.now(), [this, at](Machine& same) {
        if (same.tick_at != at) {
            return;
        }
        same.tick_at.reset();
        const std::optional<Instant> due = same.supervisor->next_deadline();
        if (due.has_value() && *due <= local_now(same)) {
            step_agent(same, agent::Tick{});
        } else {
            arm_agent(same);
        }
    });
}

void Simulation::carry_out(Machine& machine, const agent::Effect& effect) {
    if (const auto* send = std::get_if<agent::SendToRendezvous>(&effect)) {
        const auto* goodbye = std::get_if<rdzv::Goodbye>(&send->message);
        if (goodbye != nullptr && !goodbye->unprepared.empty()) {
            checker_.note_leaving();
        }
        send_to_rendezvous(machine, send->message);
    } else if (const auto* drop = std::get_if<agent::DropLink>(&effect)) {
        // After this step: what is said in it still goes the old way.
        later_in_agent(machine, Duration{},
                       [this, at = machine.connection, why = drop->why](Machine& same) {
                           if (same.connection.has_value() && same.connection == at) {
                               drop_link(same, why);
                           }
                       });
    } else if (std::holds_alternative<agent::RunPreflight>(effect)) {
        run_preflight(machine);
    } else if (std::holds_alternative<agent::RunPrepare>(effect)) {
        run_prepare(machine);
    } else if (const auto* open = std::get_if<agent::OpenStore>(&effect)) {
        open_store(machine, open->host);
    } else if (std::holds_alternative<agent::ServeStore>(effect)) {
        if (machine.listening_port == 0 || machine.serving_port != 0) {
            checker_.violate("IO", "a store is served without a socket");
        }
        machine.serving_port = std::exchange(machine.listening_port, 0);
    } else if (std::holds_alternative<agent::CloseStore>(effect)) {
        machine.serving_port = 0;
    } else if (const auto* start = std::get_if<agent::StartWorkers>(&effect)) {
        start_workers(machine, *start);
    } else if (const auto* ask = std::get_if<agent::AskWorkersToLeave>(&effect)) {
        ask_workers(machine, *ask);
    } else if (const auto* signal = std::get_if<agent::SignalWorkers>(&effect)) {
        signal_workers(machine, *signal);
    } else if (const auto* allow = std::get_if<agent::AllowPublishing>(&effect)) {
        if (allow->until == Instant::min()) {
            trace(name_of(machine), "isolates its workers");
        }
        machine.publish_until = true_time(machine, allow->until);
        judge_publishing(machine);
    } else if (const auto* look = std::get_if<agent::LookAtWorkers>(&effect)) {
        look_at_workers(machine, look->generation);
    } else if (const auto* look_closer = std::get_if<agent::LookAtGpus>(&effect)) {
        look_at_gpus(machine, *look_closer);
    } else if (const auto* save = std::get_if<agent::SaveStacks>(&effect)) {
        save_stacks(machine, save->generation);
    } else if (const auto* words = std::get_if<agent::CollectLastWords>(&effect)) {
        collect_last_words(machine, *words);
    } else if (const auto* empty = std::get_if<agent::EmptyGeneration>(&effect)) {
        empty_generation(machine, empty->generation);
    } else if (const auto* say = std::get_if<agent::Say>(&effect)) {
        trace(name_of(machine), "says: " + say->text);
    } else if (const auto* verdict = std::get_if<agent::ShowVerdict>(&effect)) {
        trace(name_of(machine), "shows " + message_text(rdzv::RendezvousMessage(verdict->verdict)));
        machine.shown = verdict->verdict;
    } else if (const auto* exit = std::get_if<agent::Exit>(&effect)) {
        end_agent(machine, exit->code);
    } else if (const auto* line = std::get_if<agent::Trace>(&effect)) {
        trace(name_of(machine), line->text);
    }
}

void Simulation::send_to_rendezvous(Machine& machine, const rdzv::AgentMessage& message) {
    if (!machine.connection.has_value()) {
        checker_.violate("IO", fmt::format("{} sends without a link: {}", name_of(machine),
                                           message_text(message)));
        return;
    }
    ask(machine, message);
    if (!std::holds_alternative<rdzv::Beat>(message)) {
        trace(name_of(machine), "-> " + message_text(message));
        remember_report(machine, message);
    }
}

void Simulation::remember_report(Machine& machine, const rdzv::AgentMessage& message) {
    const Generation generation = generation_of(message);
    if (generation == Generation() || std::holds_alternative<rdzv::Join>(message)) {
        return;
    }
    if (machine.reports.size() >= kReportsKept) {
        machine.reports.erase(machine.reports.begin());
    }
    machine.reports.push_back(
        OldReport{.generation = generation, .token = machine.token, .message = message});
}

/// The machine may be fit again the next time.
void Simulation::run_preflight(Machine& machine) {
    const bool is_unfit = has_faults() && machine.dice.percent(options_.unfit_percent);
    later_in_agent(machine, local_delay(machine), [this, is_unfit](Machine& same) {
        if (is_unfit) {
            trace("fault", fmt::format("{} is not fit", name_of(same)));
            checker_.note_leaving();
            last_fault_at_ = events_.now();
        }
        step_agent(same, agent::PreflightDone{is_unfit ? "exited with code 1" : ""});
    });
}

/// It takes its time, longer than a job waits for nodes, and ends well: those that fail end the
/// job.
void Simulation::run_prepare(Machine& machine) {
    machine.prepares += 1;
    if (machine.prepares > 1) {
        checker_.violate("agent", fmt::format("{} prepares twice", name_of(machine)));
    }
    later_in_agent(machine, machine.dice.up_to(Milliseconds(20000)),
                   [this](Machine& same) { step_agent(same, agent::PrepareEnded{}); });
}

void Simulation::prepare_standbys(Machine& machine) {
    if (!options_.is_warm) {
        return;
    }
    const auto index = static_cast<std::uint64_t>(machine.index);
    FakeStandbys::Shell shell{
        .now = [this, at = machine.index] { return local_now(this->machine(at)); },
        .later =
            [this, at = machine.index](Duration delay, std::function<void()> action) {
                later_in_agent(this->machine(at), delay,
                               [action = std::move(action)](Machine&) { action(); });
            },
        .violate =
            [this, at = machine.index](const std::string& what) {
                checker_.violate("warm", fmt::format("{}: {}", name_of(this->machine(at)), what));
            },
        .trace = [this, at = machine.index](
                     const std::string& line) { trace(name_of(this->machine(at)), line); }};
    machine.standbys = std::make_unique<FakeStandbys>(
        options_.limits, machine.slots, Dice(options_.seed, 1000 * index + machine.incarnation),
        std::move(shell));
    machine.standbys->begin();
}

void Simulation::open_store(Machine& machine, const std::string& host) {
    if (machine.listening_port != 0) {
        checker_.violate("IO", "a second store socket is opened");
    }
    const StoreAddress address{.host = host, .port = ++last_port_};
    later_in_agent(machine, local_delay(machine), [this, address](Machine& same) {
        same.listening_port = address.port;
        step_agent(same, agent::StoreOpened{address});
    });
}

void Simulation::end_agent(Machine& machine, int code) {
    trace(name_of(machine), fmt::format("exits {}", code));
    if (!machine.workers.empty() && code != kExitUnkillable) {
        checker_.violate("S3", fmt::format("{} exits and leaves workers", name_of(machine)));
    }
    const bool is_own_signal = machine.shown.has_value() && machine.signalled_at.has_value() &&
                               machine.shown->kind == rdzv::VerdictKind::Stopped;
    if (machine.shown.has_value() && !is_own_signal && code != kExitUnkillable &&
        code != machine.shown->exit_code) {
        checker_.violate("S10", fmt::format("{} exits {} after a verdict of {}", name_of(machine),
                                            code, machine.shown->exit_code));
    }
    if (machine.connection.has_value()) {
        // Unread input turns the end of the stream into a reset.
        network_.close_at_node(*machine.connection, machine.dice.percent(10)
                                                        ? PacketKind::Reset
                                                        : PacketKind::EndOfStream);
    }
    machine.connection.reset();
    machine.is_connected = false;
    machine.is_accepted = false;
    machine.is_broken = code == kExitUnkillable;
    drop_workers(machine);
    // The supervisor is in the middle of step_agent(); its end is seen by the null pointer.
    machine.supervisor.reset();
    alive_ -= 1;
    if (code == kExitRendezvousLost || code == kExitUnkillable) {
        checker_.note_leaving();
    }
    maybe_return(machine, machine.dice);
}

}  // namespace ddprun::sim
