#include "agent/daemon/agent.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstddef>
#include <set>
#include <utility>
#include <variant>
#include <vector>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "agent/daemon/evidence.hpp"
#include "agent/process/cgroup.hpp"
#include "base/check.hpp"
#include "base/os/network_interfaces.hpp"
#include "base/overloaded.hpp"
#include "rendezvous/core/first_failure.hpp"

namespace ddprun::agent {

namespace {

std::string prefix_of_prepare(const OutputOptions& output) {
    return output.prefix_host.empty() ? "[prepare] "
                                      : fmt::format("[{} prepare] ", output.prefix_host);
}

PrepareEnded prepare_ended(const WorkerEnd& end) {
    if (end.exit_code == 0) {
        return {};
    }
    WorkerSpec shell;
    shell.command = {"/bin/sh"};
    const rdzv::Evidence evidence = evidence_of(end, shell, std::nullopt, {});
    return {.fault = rdzv::describe_end(evidence), .exit_code = rdzv::exit_code_of(evidence)};
}

}  // namespace

Agent::Agent(boost::asio::io_context& io, AgentOptions options, KeeperOptions keeper,
             std::unique_ptr<rdzv::Link> link)
    : io_(io),
      options_(std::move(options)),
      keeper_options_(std::move(keeper)),
      link_(std::move(link)),
      output_(std::make_unique<WorkerOutput>(options_.output, io.get_executor())),
      store_(options_.supervisor.limits,
             options_.supervisor.is_store_of_rank_0 ? StoreHost::Server::Rank0
                                                    : StoreHost::Server::Agent,
             options_.store_port,
             [this](const std::string& line) {
                 // On the store's thread.
                 boost::asio::post(io_, [this, line] { say(line); });
             }),
      helpers_(io, options_.supervisor, options_.preflight_command, options_.preflight_timeout,
               {.say = [this](const std::string& line) { say(line); },
                .on_child = [this](int pid) { exclude_from_sweeps(pid); },
                .on_input = [this](Input input) { feed(std::move(input)); }}),
      prepare_output_(io, prefix_of_prepare(options_.output),
                      options_.supervisor.limits.console_line_bytes_max,
                      {.show = [this](const std::string& line) { output_->say(line); },
                       .log =
                           [this](std::string bytes, std::function<void()> done) {
                               output_->log_prepare(std::move(bytes), std::move(done));
                           }}),
      notices_(io, options_.supervisor.limits, options_.drain_on,
               {.say = [this](const std::string& line) { say(line); },
                .on_notice = [this](const LeaveNotice& notice) { feed(notice); },
                .on_child = [this](int pid) { exclude_from_sweeps(pid); }}),
      timer_(io, [this] { feed(Tick{}); }),
      signals_(io, [this](int signal) { be_signalled(signal); }),
      workers_signals_(io, [this](int signal) { feed(WorkersSignalled{signal}); }),
      window_signals_(io, [this](int /*signal*/) { follow_window(); }) {
    if (options_.memory.bytes_max) {
        const rdzv::JobSettings& settings = options_.supervisor.identity.settings;
        memory_.emplace(
            io, std::exchange(options_.memory, {}), options_.supervisor.identity.job,
            /*has_partners=*/settings.memory_replicas > 0 && settings.max_nodes > 1,
            MemoryProgram::Events{.say = [this](const std::string& line) { say(line); },
                                  .on_child = [this](int pid) { exclude_from_sweeps(pid); }});
    }
    if (options_.notify) {
        const rdzv::Join& identity = options_.supervisor.identity;
        notifier_.emplace(
            io, options_.supervisor.limits,
            NotifierOptions{.target = *options_.notify,
                            .job = identity.job.value(),
                            .run = options_.supervisor.tracked_run,
                            .host = identity.hostname},
            Notifier::Events{.say = [this](const std::string& line) { say(line); },
                             .on_child = [this](int pid) { exclude_from_sweeps(pid); }});
    }
}

Agent::~Agent() {
    // Ends the thread first, which posts work for the rest.
    output_.reset();
}

Result<void> Agent::start(std::function<void(int)> on_exit) {
    if (allows_cgroup(keeper_options_.containment)) {
        // Processes left over from other runs may hold ports, files and GPU memory.
        const std::string line = clear_stale_cgroups(options_.supervisor.limits.unkillable_after);
        if (!line.empty()) {
            say(line);
        }
    }
    Result<std::unique_ptr<KeeperHandle>> keeper =
        KeeperHandle::start(io_, keeper_options_, keeper_events());
    if (!keeper) {
        return keeper.error();
    }
    keeper_ = std::move(*keeper);
    options_.supervisor.identity.containment = names_of(keeper_->containment()).word;
    supervisor_.emplace(options_.supervisor);
    GpuHelper* gpus = options_.supervisor.awaits_gpu_memory ? &helpers_.gpu_helper : nullptr;
    events_.emplace(
        io_, options_.supervisor, options_.watch_limits, options_.program, *output_,
        options_.output.has_live_line, AgentView{*supervisor_, generation_, store_},
        WatchMeans{*link_, store_, gpus, [this](int pid) { exclude_from_sweeps(pid); }});
    if (keeper_->containment() == ContainmentLevel::Session) {
        say("warning: containment C0 (session): what a worker starts in a session of its own "
            "may outlive it; look at `ps` after a failure");
    }
    if (options_.output.debug) {
        relay_.emplace(io_, STDIN_FILENO, options_.supervisor.limits, relay_events());
    }
    if (options_.supervisor.debugging && std::exchange(options_.warm, {}).is_on()) {
        say("--warm: a worker that has a terminal starts cold, and so does every other");
    }
    warm_.emplace(io_, options_.supervisor, options_.warm, warm_events());
    warm_->begin();
    on_exit_ = std::move(on_exit);
    const auto complain = [this](const std::string& line) { say(line); };
    signals_.start(options_.signals_to_handle, complain);
    workers_signals_.start(options_.signals_to_forward, complain);
    if (options_.is_on_terminal) {
        window_signals_.start({SIGWINCH}, complain);
    }
    start_link();
    feed(Tick{});  // the time to connect counts from now
    notices_.start();
    return {};
}

void Agent::start_link() {
    rdzv::LinkEvents events;
    events.on_up = [this](std::string address, rdzv::Endpoint rendezvous) {
        LinkUp up{.local_address = std::move(address), .rendezvous = std::move(rendezvous)};
        if (options_.supervisor.interface && options_.supervisor.interface->follows_link) {
            up.interface = interface_with(network_interfaces(), up.local_address);
        }
        hear_of_link(std::move(up));
    };
    events.on_down = [this](std::string why, bool is_final) {
        hear_of_link(LinkDown{std::move(why), is_final});
    };
    events.on_message = [this](rdzv::RendezvousMessage message) {
        if (notifier_) {
            notifier_->hear(message);
        }
        const bool is_last = std::holds_alternative<rdzv::Verdict>(message) ||
                             std::holds_alternative<rdzv::Released>(message);
        if (is_last) {
            hear_last(FromRendezvous{std::move(message)});
        } else {
            feed(FromRendezvous{std::move(message)});
        }
    };
    link_->start(std::move(events));
}

/// This node goes when it has taken `last`: readers of its logs get the last lines before that.
void Agent::hear_last(Input last) {
    held_back_.push_back(std::move(last));
    if (held_back_.size() == 1) {
        events_->finish_reading([this] {
            for (Input& input : std::exchange(held_back_, {})) {
                feed(std::move(input));
            }
        });
    }
}

/// If the link goes down while a verdict is held back, LinkDown follows the verdict. Readers over
/// that link are cut off at once, so that the run's end does not wait for them.
void Agent::hear_of_link(Input change) {
    if (held_back_.empty()) {
        feed(std::move(change));
        return;
    }
    const bool is_down = std::holds_alternative<LinkDown>(change);
    held_back_.push_back(std::move(change));
    if (is_down) {
        events_->cut_readers_off();
    }
}

/// Both keepers have these, the generation's and the standbys': they change places when a
/// generation starts.
KeeperHandle::Events Agent::keeper_events() {
    KeeperHandle::Events events;
    events.on_started = [this](Generation number, LocalRank local_rank, int pid) {
        worker_runs(number, local_rank, pid);
    };
    events.on_exited = [this](const KeeperHandle& from, Generation generation, LocalRank local_rank,
                              WorkerEnd end) {
        if (generation == kPrepareGeneration) {
            feed(prepare_ended(end));
        } else if (generation != kStandbyGeneration) {
            if (!start_cold(generation, local_rank, end)) {
                worker_ended(generation, local_rank, end);
            }
        } else if (warm_->holds(from)) {
            warm_->has_ended(local_rank);
        } else if (generation_) {
            // It was to be adopted; any other here was given up.
            (void)start_cold(generation_->number(), local_rank, end);
        }
    };
    events.on_adopted = [this](Generation, LocalRank local_rank, int pid, const std::string& page) {
        warm_->tell_place(local_rank, pid, page);
    };
    events.on_relaunched = [this](const KeeperHandle& from) {
        // A child of this process, as the other's orphans are when it has died.
        if (warm_->holds(from)) {
            keeper_->exclude(from.keeper_pid());
        } else {
            warm_->exclude(from.keeper_pid());
        }
    };
    events.on_emptied = [this](Generation generation) { emptied(generation); };
    events.on_not_emptied = [this](const KeeperHandle& from, Generation generation,
                                   std::string what) {
        if (warm_->holds(from)) {
            warm_->cannot_be_emptied(what);
        } else {
            feed(NotEmptied{generation, std::move(what)});
        }
    };
    events.on_lost = [this](const KeeperHandle& from) {
        if (warm_->holds(from)) {
            warm_->are_lost();
            return;
        }
        if (relay_) {
            relay_->end();
        }
        prepare_output_.finish();
        feed(KeeperLost{});
    };
    return events;
}

void Agent::emptied(Generation number) {
    if (number == kStandbyGeneration) {
        return;
    }
    if (number == kPrepareGeneration) {
        prepare_output_.finish();
    } else {
        output_->close(number);
        if (held(number) != nullptr) {
            generation_.reset();
        }
    }
    feed(Emptied{number});
}

WarmStart::Events Agent::warm_events() {
    WarmStart::Events events;
    events.say = [this](const std::string& line) { say(line); };
    // While a generation runs, or before the first one: nothing is left of any other, so that this
    // process has no child that the second keeper would have to prove gone.
    events.start_keeper = [this] {
        Result<std::unique_ptr<KeeperHandle>> second =
            KeeperHandle::start(io_, keeper_options_, keeper_events());
        if (second) {
            keeper_->exclude((*second)->keeper_pid());
        }
        return second;
    };
    events.on_child = [this](int pid) { exclude_from_sweeps(pid); };
    events.open_stand_in = [this](LocalRank local_rank, Rank rank, int world_size) {
        return output_->stand_in(local_rank, rank, world_size);
    };
    events.moments = [this] {
        return generation_ ? generation_->moments() : std::vector<WorkerMoments>();
    };
    events.checkpoints = [this] {
        return generation_ ? generation_->checkpoints() : std::vector<std::string>();
    };
    events.on_gone = [this](LocalRank local_rank, int pid) {
        if (generation_) {
            worker_runs(generation_->number(), local_rank, pid);
        }
    };
    events.on_hung = [this](LocalRank local_rank) {
        if (generation_) {
            keeper_->signal_workers(generation_->number(), {local_rank}, SIGKILL);
        }
    };
    return events;
}

/// True if it was a standby that has ended before it went on as this worker, which starts anew
/// unless the workers are being stopped.
bool Agent::start_cold(Generation number, LocalRank local_rank, const WorkerEnd& end) {
    GenerationOnNode* generation = held(number);
    std::optional<OutputPipes> pipes;
    if (generation == nullptr || !(pipes = warm_->take_back(local_rank))) {
        return false;
    }
    if (!generation->may_start_again()) {
        worker_ended(number, local_rank, end);
        return true;
    }
    say(fmt::format("--warm: local rank {} starts cold: its standby has ended",
                    local_rank.value()));
    start_worker(number, generation->worker(local_rank), std::move(*pipes));
    return true;
}

void Agent::worker_runs(Generation number, LocalRank local_rank, int pid) {
    GenerationOnNode* generation = held(number);
    if (generation == nullptr) {
        return;
    }
    events_->worker_started(number, local_rank, pid);
    if (const auto early_sign = generation->worker_started(local_rank, pid)) {
        worker_may_die(number, local_rank, *early_sign);
    }
}

TerminalRelay::Events Agent::relay_events() {
    TerminalRelay::Events events;
    events.on_raw = [this](const TerminalModes& before, const TerminalModes& raw) {
        keeper_->guard_terminal({.before = before.to_bytes(), .raw = raw.to_bytes()});
    };
    events.on_interrupt = [this] { be_signalled(SIGINT); };
    events.on_continued = [this] { follow_window(); };
    events.is_interrupt_ours = [this](LocalRank local_rank) {
        // A user of a debugger wants Ctrl-C to stop the program, not to make it save.
        return !options_.supervisor.debugging->is_asked && generation_ &&
               generation_->looks_at_page(local_rank);
    };
    events.say = [this](const std::string& line) { say(line); };
    return events;
}

GenerationOnNode* Agent::held(Generation number) {
    return generation_ && generation_->number() == number ? &*generation_ : nullptr;
}

void Agent::worker_ended(Generation number, LocalRank local_rank, const WorkerEnd& end) {
    int typed_signal = 0;
    if (relay_ && relay_->is_with(number, local_rank)) {
        typed_signal = relay_->cause_of(end.exit_code, end.signal);
        relay_->end();
    }
    if (GenerationOnNode* generation = held(number)) {
        feed(WorkerExited{number, local_rank, generation->evidence(local_rank, end), typed_signal,
                          generation->saved_by(local_rank)});
    }
}

void Agent::be_signalled(int signal) {
    const bool workers_save = generation_ && generation_->all_look_at_page();
    feed(Signalled{.signal = signal, .workers_save = workers_save});
}

void Agent::collect_last_words(const CollectLastWords& effect) {
    output_->collect(effect.generation, effect.local_rank, [this, effect](Collected collected) {
        feed(LastWords{effect.generation, effect.local_rank, std::move(collected.stderr_tail),
                       std::move(collected.error_file), std::move(collected.stdout_tail)});
    });
}

void Agent::worker_may_die(Generation number, LocalRank local_rank, FatalSignal told) {
    GenerationOnNode* generation = held(number);
    if (generation == nullptr) {
        return;
    }
    if (const auto end = generation->abnormal_end(local_rank, told)) {
        feed(WorkerDying{number, local_rank, generation->evidence(local_rank, *end)});
    }
}

/// Effects may answer at once (OpenStore does): their inputs wait until this one is done.
void Agent::feed(Input input) {
    inputs_.push_back(std::move(input));
    if (is_feeding_ || has_ended_) {
        return;
    }
    is_feeding_ = true;
    while (!inputs_.empty() && !has_ended_) {
        const Input next = std::move(inputs_.front());
        inputs_.pop_front();
        Effects effects;
        const Instant now = std::chrono::steady_clock::now();
        supervisor_->step(now, next, effects);
        events_->observe(now, next, effects);
        warm_->observe(next, effects, supervisor_->exit_reason().has_value());
        for (Effect& effect : effects) {
            carry_out(std::move(effect));
        }
    }
    is_feeding_ = false;
    timer_.set(has_ended_ ? std::nullopt : supervisor_->next_deadline());
}

void Agent::carry_out(Effect effect) {
    std::visit(Overloaded{
                   [&](SendToRendezvous& e) { link_->send(e.message); },
                   [&](DropLink& e) { link_->drop(e.why); },
                   [&](RunPrepare& e) { run_prepare(e); },
                   [&](OpenStore& e) { open_store(e.host); },
                   [&](ServeStore& e) { store_.serve(std::move(e)); },
                   [&](CloseStore&) { store_.close(); },
                   [&](StartWorkers& e) { start_workers(std::move(e)); },
                   [&](AskWorkersToLeave& e) {
                       if (generation_) {
                           generation_->carry_out(e);
                       }
                   },
                   [&](SignalWorkers& e) { signal_workers(e); },
                   [&](ForwardSignal& e) { keeper_->forward_signal(e.generation, e.signal); },
                   [&](AllowPublishing& e) {
                       if (generation_) {
                           generation_->carry_out(e);
                       }
                   },
                   [&](LookAtWorkers& e) { look_at_workers(e.generation); },
                   [&](LookAtGpus& e) { helpers_.gpus.look(e, pids_of(e.generation)); },
                   [&](AwaitGpuMemory&) { helpers_.gpu_memory.wait(); },
                   [&](RunPreflight&) { helpers_.preflight.run(); },
                   [&](SaveStacks& e) { helpers_.stacks.save(e, pids_of(e.generation)); },
                   [&](CollectLastWords& e) { collect_last_words(e); },
                   [&](EmptyGeneration& e) { empty_generation(e.generation); },
                   [&](Say& e) { say(e.text); },
                   [&](ShowVerdict& e) { show(e.verdict); },
                   [&](Exit& e) { end(e.code, e.why); },
                   [&](Trace& e) { note_event(e.text); },
               },
               effect);
}

void Agent::run_prepare(const RunPrepare& effect) {
    Result<UniqueFd> out = prepare_output_.open();
    UniqueFd err;
    if (out) {
        err = UniqueFd(fcntl(out->get(), F_DUPFD_CLOEXEC, 3));
    }
    if (!out || !err.is_open()) {
        WorkerEnd end{};
        end.exec_errno = EMFILE;
        feed(prepare_ended(end));
        return;
    }
    say(fmt::format("runs the prepare command: {}", options_.prepare_command));
    keeper_->start_worker(kPrepareGeneration, LocalRank(0),
                          {"/bin/sh", "-c", options_.prepare_command}, effect.environment,
                          *std::move(out), std::move(err), {}, {}, WorkerStdin::Nothing);
}

void Agent::open_store(const std::string& host) {
    Result<StoreAddress> opened = store_.open(host);
    if (opened) {
        feed(StoreOpened{std::move(*opened)});
    } else {
        feed(StoreFailed{opened.error().what});
    }
}

void Agent::start_workers(StartWorkers start) {
    DDP_CHECK(!generation_, start.generation.value());
    const Generation number = start.generation;
    const Rank base_rank = start.base_rank;
    const int world_size = start.world_size;
    helpers_.begin_generation();
    offer_memory(start);
    if (start.relayed_store) {
        store_.relay(start);
    }
    generation_.emplace(
        std::move(start),
        [this](Generation of, LocalRank local_rank, FatalSignal told) {
            // On the thread of the watch, as the next.
            boost::asio::post(io_, [=, this] { worker_may_die(of, local_rank, told); });
        },
        [this] {
            // However often workers ring, at most one look waits.
            if (!is_save_look_due_.exchange(true)) {
                boost::asio::post(io_, [this] {
                    is_save_look_due_ = false;
                    events_->look_at_saves();
                });
            }
        });
    if (const Result<void> made = generation_->make_page(); !made) {
        say(fmt::format("warning: {}; workers learn of a drain by signals alone",
                        made.error().what));
    }
    std::vector<OutputPipes> pipes;
    for (const WorkerSpec& spec : generation_->workers()) {
        const Rank rank(base_rank.value() + spec.local_rank.value());
        Result<OutputPipes> opened =
            output_->open(number, spec.local_rank, rank, world_size, spec.log_dir);
        if (!opened) {
            say(fmt::format("rank {} cannot be started: {}", rank.value(), opened.error().what));
            // LimitExceeded is about the log disk, every other error about descriptors.
            const bool is_disk = opened.error().code == ErrorCode::LimitExceeded;
            opened = OutputPipes{};
            opened->fault = is_disk ? EIO : EMFILE;
        }
        pipes.push_back(*std::move(opened));
    }
    generation_->await_folders(std::move(pipes));
    output_->when_ready([this, number] { spawn(number); });
}

void Agent::offer_memory(StartWorkers& start) {
    if (!memory_ || start.workers.empty()) {
        return;
    }
    const Environment& variables = start.workers.front().environment;
    const auto address = std::ranges::find(variables, worker_variable::kLocalAddress.key,
                                           &Environment::value_type::first);
    const std::string socket =
        memory_->begin_generation(address == variables.end() ? std::string() : address->second);
    if (!socket.empty()) {
        for (WorkerSpec& worker : start.workers) {
            worker.environment.emplace_back(worker_variable::kMemoryCheckpoints.key, socket);
        }
    }
}

void Agent::spawn(Generation number) {
    GenerationOnNode* generation = held(number);
    std::optional<std::vector<OutputPipes>> pipes;
    if (generation == nullptr || !(pipes = generation->take_pipes())) {
        return;
    }
    const std::set<LocalRank> warm = warm_->take(generation->workers(), keeper_);
    for (const WorkerSpec& worker : generation->workers()) {
        OutputPipes& own = pipes->at(static_cast<std::size_t>(worker.local_rank.value()));
        const bool is_warm = warm.contains(worker.local_rank);
        if (!own.out.is_open()) {
            WorkerEnd end{};
            end.exec_errno = own.fault;
            if (is_warm) {
                (void)warm_->take_back(worker.local_rank);
                keeper_->signal_workers(kStandbyGeneration, {worker.local_rank}, SIGKILL);
            }
            worker_ended(number, worker.local_rank, end);
        } else if (is_warm) {
            warm_->leave(worker, std::move(own));
            keeper_->adopt(number, worker.local_rank, generation->page_file());
        } else {
            start_worker(number, worker, std::move(own));
        }
    }
    events_->begin_to_answer();
}

void Agent::start_worker(Generation number, const WorkerSpec& worker, OutputPipes own) {
    const WorkerStdin from = own.keyboard.is_open() ? WorkerStdin::Terminal
                             : worker.is_bystander  ? WorkerStdin::Nothing
                                                    : WorkerStdin::Inherited;
    if (own.keyboard.is_open()) {
        relay_->begin(number, worker.local_rank, std::move(own.keyboard));
    }
    keeper_->start_worker(number, worker.local_rank, worker.command, worker.environment,
                          std::move(own.out), std::move(own.err), worker.cpus,
                          generation_->page_file(), from, warm_->imports_pipe(worker.local_rank));
}

void Agent::signal_workers(const SignalWorkers& effect) {
    if (effect.generation == kPrepareGeneration) {
        keeper_->signal_workers(effect.generation, {LocalRank(0)}, effect.signal);
        return;
    }
    GenerationOnNode* generation = held(effect.generation);
    if (generation == nullptr) {
        return;
    }
    if (generation->end_before_spawn()) {
        for (const WorkerSpec& worker : generation->workers()) {
            feed(WorkerExited{effect.generation, worker.local_rank,
                              generation->evidence_before_spawn(worker.local_rank, effect.signal)});
        }
        return;
    }
    generation->note_signal();
    std::vector<LocalRank> meant = generation->meant_by(effect);
    if (!meant.empty()) {
        keeper_->signal_workers(effect.generation, std::move(meant), effect.signal);
    }
}

void Agent::follow_window() {
    // A worker that is told asks for the size: so it has that first. One that its terminal controls
    // is told by the kernel.
    output_->follow_window([this] {
        if (generation_ && !has_ended_ && !relay_) {
            keeper_->forward_signal(generation_->number(), SIGWINCH);
        }
    });
}

/// The output thread reads the CPU time, for a sweep of /proc may take long. Not answered while
/// the disk holds up the workers' output: they may wait for that.
void Agent::look_at_workers(Generation number) {
    output_->measure([this, number, cpu = keeper_->cpu_time()](const OutputMeasure& output) {
        boost::asio::post(io_, [this, number, output, used = cpu.used()] {
            if (const GenerationOnNode* generation = held(number)) {
                feed(Looked{number, generation->seen(output, used)});
            }
        });
    });
}

void Agent::empty_generation(Generation number) {
    if (GenerationOnNode* generation = held(number)) {
        generation->begin_emptying();
    }
    helpers_.end_generation();
    keeper_->empty_generation(number);
}

/// Returns the pids, by local rank, of the workers of `number` that have been started.
std::map<LocalRank, int> Agent::pids_of(Generation number) {
    const GenerationOnNode* generation = held(number);
    return generation == nullptr ? std::map<LocalRank, int>() : generation->pids();
}

void Agent::show(const rdzv::Verdict& verdict) {
    verdict_text_ = verdict.text;
    show_verdict(verdict, options_.program, options_.output.log_root, options_.error_file,
                 events_->time_use(), options_.supervisor.identity.node, *output_);
}

void Agent::end(int code, const std::string& why) {
    if (has_ended_) {
        return;
    }
    has_ended_ = true;
    output_->end_run(code, verdict_text_.empty() ? why : verdict_text_, supervisor_->saving());
    inputs_.clear();
    timer_.set(std::nullopt);
    helpers_.stop();
    if (memory_) {
        memory_->stop();
    }
    notices_.stop();
    if (relay_) {
        relay_->end();
    }
    workers_signals_.stop();
    window_signals_.stop();
    signals_.stop();  // from here on a signal ends this process: nothing is left to lose
    store_.close();
    exit_code_ = code;
    keeper_->stop();
    // ddprun leaves no standby behind, though nothing has waited for their end.
    warm_->stop([this] { finish_end(); });
}

void Agent::finish_end() {
    link_->stop([this] { events_->stop([this] { finish_notices(); }); });
}

void Agent::finish_notices() {
    if (notifier_) {
        notifier_->finish([this] { on_exit_(exit_code_); });
    } else {
        on_exit_(exit_code_);
    }
}

void Agent::exclude_from_sweeps(int pid) {
    keeper_->exclude(pid);
    warm_->exclude(pid);
}

void Agent::say(const std::string& line) {
    output_->say("ddprun: " + line);
}

}  // namespace ddprun::agent
