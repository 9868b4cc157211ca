#include "launcher/run/run.hpp"

#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <memory>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <fmt/format.h>

#include "agent/daemon/agent.hpp"
#include "agent/daemon/life_watch.hpp"
#include "base/os/machine_identity.hpp"
#include "base/os/open_files.hpp"
#include "base/os/own_folder.hpp"
#include "base/os/own_variable.hpp"
#include "base/os/shared_file_system.hpp"
#include "base/os/start_program.hpp"
#include "base/rng.hpp"
#include "launcher/machine/fingerprint.hpp"
#include "launcher/place/requeue.hpp"
#include "launcher/plan/endpoint_place.hpp"
#include "launcher/run/agent_options.hpp"
#include "launcher/run/daemon_starter.hpp"
#include "launcher/run/endpoint_address.hpp"
#include "launcher/run/learned_imports.hpp"
#include "launcher/run/local_link.hpp"
#include "launcher/run/node_identity.hpp"
#include "launcher/run/node_tasks.hpp"
#include "launcher/run/old_runs.hpp"
#include "launcher/run/slurm_requeue.hpp"
#include "launcher/run/state_folder.hpp"
#include "rendezvous/client/rendezvous_client.hpp"
#include "rendezvous/transport/listener.hpp"
#include "rendezvous/transport/secret_file.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::launcher {

namespace {

/// How long a head node waits for the daemon it started; another job may still use it.
constexpr Milliseconds kDaemonPatience{1500};
constexpr std::size_t kOtherDescriptors = 64;  ///< besides one for each client of the store

void complain(const std::string& line) {
    fmt::print(stderr, "ddprun: {}\n", line);
}

/// Says why ddprun ends here, and returns what it exits with.
int fail(const Error& error) {
    complain(error.what);
    return exit_code_of(error.code, kExitInternal);
}

/// One start of ddprun: everything that lives as long as the process.
class Launch {
public:
    Launch(const LaunchPlan& plan, const agent::SavedProcessState& saved)
        : plan_(plan), saved_(saved), rng_(random_seed()) {}

    Launch(const Launch&) = delete;
    Launch& operator=(const Launch&) = delete;
    ~Launch() {
        if (!secret_to_remove_.empty()) {
            ::unlink(secret_to_remove_.c_str());
        }
    }

    int run() {
        if (plan_.is_log_dir_default) {
            const Result<void> made = make_own_folder(plan_.log_dir, "the log folder");
            if (!made) {
                complain(made.error().what + ", or choose another one with --log-dir");
                return kExitUsage;
            }
        }
        job_ = plan_.identity().job.value().empty() ? JobId(fmt::format("{:016x}", rng_.next()))
                                                    : plan_.identity().job;
        Result<std::unique_ptr<rdzv::Link>> link =
            plan_.is_single_node ? local_link() : remote_link();
        if (!link) {
            return fail(link.error());
        }
        Result<std::string> keeper = program_beside_us("ddprun-keeper");
        if (!keeper) {
            complain(keeper.error().what);
            return kExitInternal;
        }
        keeper_path_ = std::move(*keeper);
        Result<std::string> preload = preload_path_of(plan_);
        if (!preload) {
            return fail(preload.error());
        }
        preload_path_ = std::move(*preload);
        if (!preload_path_.empty() && !agent::LifeWatch::is_possible()) {
            notes_.push_back(
                "warning: --watch preload needs futex_waitv (Linux 5.16, and a sandbox that allows "
                "it): deaths are noticed when the process is gone");
        }
        agent_ = std::make_unique<agent::Agent>(io_, agent_options(), keeper_options(),
                                                std::move(*link));
        for (const std::string& note : notes_) {
            agent_->say(note);
        }
        const Result<void> started = agent_->start([this](int code) { ended(code); });
        if (!started) {
            return fail(started.error());
        }
        prepare_requeue();
        remove_old_runs();
        io_.run();
        agent_.reset();  // the last lines are written before the exit code is known
        return exit_code_;
    }

private:
    /// As --log-keep says. This run, which has no folder yet, is one of those that stay.
    void remove_old_runs() {
        if (plan_.log_runs_kept == 0 || log_root_.empty()) {
            return;
        }
        old_runs_ = std::make_unique<OldRuns>(
            io_, limits_,
            OldRuns::Events{.say = [this](const std::string& line) { agent_->say(line); },
                            .on_child = [this](int pid) { agent_->exclude_from_sweeps(pid); }});
        const std::string run = log_root_.substr(log_root_.rfind('/') + 1);
        old_runs_->begin(plan_.log_dir, run, static_cast<std::size_t>(plan_.log_runs_kept - 1));
    }

    Result<std::unique_ptr<rdzv::Link>> local_link() {
        return std::unique_ptr<rdzv::Link>(
            std::make_unique<LocalLink>(io_, job_, limits_, Rng(rng_.next())));
    }

    Result<std::unique_ptr<rdzv::Link>> remote_link() {
        Result<std::string> state_folder = open_state_folder();
        if (!state_folder) {
            return state_folder.error();
        }
        state_folder_ = *std::move(state_folder);
        Result<NodeIdentity> identity =
            derive_node_identity(state_folder_, job_, own_variable("SLURMD_NODENAME"));
        if (!identity) {
            return identity.error();
        }
        identity_ = std::move(*identity);
        rdzv::ClientOptions options;
        options.endpoints = {{plan_.endpoint_host, plan_.endpoint_port}};
        std::vector<std::string> hosts = {plan_.endpoint_host};
        for (const rdzv::Endpoint& other : plan_.other_endpoints) {
            options.endpoints.push_back(other);
            hosts.push_back(other.host);
        }
        options.job = job_;
        options.limits = limits_;
        options.rng = Rng(rng_.next());
        if (!plan_.is_insecure) {
            Result<rdzv::JobSecret> secret = plan_.makes_secret
                                                 ? rdzv::load_or_create_secret_at(plan_.secret_file)
                                                 : rdzv::load_or_create_secret(plan_.secret_file);
            if (!secret) {
                return secret.error();
            }
            options.secret = *secret;
            secret_ = *secret;
            secret_to_remove_ = plan_.removes_secret ? plan_.secret_file : "";
        }
        if (plan_.tls.is_on()) {
            Result<std::shared_ptr<const rdzv::TlsContext>> tls =
                rdzv::TlsContext::for_client(plan_.tls, hosts);
            if (!tls) {
                return tls.error();
            }
            options.tls = *std::move(tls);
        }
        options.before_attempt = [this](const rdzv::Endpoint& asked,
                                        std::vector<rdzv::Endpoint>& addresses, bool is_lasting) {
            prepare_attempt(asked, addresses, is_lasting);
        };
        return std::unique_ptr<rdzv::Link>(
            std::make_unique<rdzv::RendezvousClient>(io_, std::move(options)));
    }

    /// `addresses` are what `asked` has just been resolved to, which may have changed since the
    /// last attempt. If this machine owns the endpoint, a daemon is started there unless one
    /// listens.
    void prepare_attempt(const rdzv::Endpoint& asked, std::vector<rdzv::Endpoint>& addresses,
                         bool is_daemon_lasting) {
        EndpointPlace place = place_endpoint({.endpoint = asked,
                                              .addresses = std::move(addresses),
                                              .own = interface_addresses(),
                                              .outside = default_route_address()});
        addresses = std::move(place.addresses);
        for (const std::string& note : endpoint_notes(plan_, asked, place)) {
            if (std::find(said_.begin(), said_.end(), note) == said_.end()) {
                agent_->say(note);
                said_.push_back(note);
            }
        }
        if (may_serve(plan_, place) && !is_daemon_lasting) {
            claim_endpoint(place.own);
        }
    }

    /// `own` are this machine's addresses of the endpoint; a daemon serves the first, and none is
    /// started while any of them is served.
    void claim_endpoint(const std::vector<rdzv::Endpoint>& own) {
        if (!daemon_) {
            const Result<std::string> program = program_beside_us("ddprun-rendezvous");
            if (!program) {
                say_problem(program.error().what);
                return;
            }
            daemon_ = std::make_unique<DaemonStarter>(io_, daemon_options(*program, own.front()));
        }
        if (daemon_->living_pids().empty() && is_served_elsewhere(own)) {
            return;
        }
        if (const Result<void> claimed = daemon_->claim(); !claimed) {
            say_problem(claimed.error().what);
        }
        for (const int pid : daemon_->living_pids()) {
            agent_->exclude_from_sweeps(pid);
        }
    }

    static bool is_served_elsewhere(const std::vector<rdzv::Endpoint>& own) {
        return std::any_of(own.begin() + 1, own.end(), [](const rdzv::Endpoint& other) {
            const Result<rdzv::Listener> probe = rdzv::listen_on(other.host, other.port);
            return !probe && probe.error().code == ErrorCode::AddressInUse;
        });
    }

    DaemonStarterOptions daemon_options(const std::string& program,
                                        const rdzv::Endpoint& endpoint) const {
        DaemonStarterOptions options;
        options.program = program;
        options.endpoint = endpoint;
        options.is_insecure = plan_.is_insecure;
        if (!plan_.is_insecure) {
            options.secret_file = rdzv::secret_file_path(plan_.secret_file);
        }
        options.operator_secret_file = plan_.operator_secret_file;
        options.tls = plan_.tls;
        options.state_folder =
            fmt::format("{}/rendezvous-{}-{}", state_folder_, endpoint.host, endpoint.port);
        options.log_file = fmt::format("{}/rendezvous-{}.log", state_folder_, endpoint.port);
        options.limits = limits_;
        return options;
    }

    /// Attempts follow each other quickly: each problem is said when it is new.
    void say_problem(const std::string& what) {
        if (std::exchange(last_problem_, what) != what) {
            agent_->say(what);
        }
    }

    agent::AgentOptions agent_options() {
        // Several ddprun on one machine are told apart in every line that names a node.
        NodeFacts facts;
        facts.hostname = identity_.number == 0
                             ? host_name()
                             : fmt::format("{}#{}", host_name(), identity_.number);
        facts.job = job_;
        facts.tracked_run = tracked_run_of(plan_, job_);
        facts.node = identity_.id;
        facts.process = fmt::format("{:016x}", rng_.next());
        log_root_ = log_dir_of(plan_, job_, rng_.next());
        facts.log_dir = log_root_;
        facts.preload_path = preload_path_;
        if (Result<std::string> start = python_start_of(plan_)) {
            facts.python_start = *std::move(start);
        } else {
            notes_.push_back(start.error().what);
        }
        if (!plan_.is_single_node) {
            facts.addresses = interface_addresses();
            facts.fingerprint = fingerprint();
        }
        if (plan_.agent.warm.learns && plan_.agent.warm.program.empty()) {
            facts.learned = learned_imports();
            if (!facts.learned.problem.empty()) {
                notes_.push_back(facts.learned.problem);
            }
        }
        notes_.insert(notes_.end(), plan_.warnings.begin(), plan_.warnings.end());
        notes_.insert(notes_.end(), plan_.notes.begin(), plan_.notes.end());
        agent::AgentOptions options = options_of_agent(plan_, facts, saved_, limits_);
        options.memory.secret = secret_;
        options.memory.tls = plan_.tls;
        return options;
    }

    agent::KeeperOptions keeper_options() const {
        return {
            .program = {.path = keeper_path_, .may_stall = is_on_shared_file_system(keeper_path_)},
            .containment = plan_.containment,
            .limits = limits_,
            .saved_state = saved_};
    }

    /// The facts in which other nodes may differ.
    rdzv::Fingerprint fingerprint() const {
        if (plan_.identity().settings.same == rdzv::Sameness::Off) {
            return {};
        }
        FingerprintPlaces places;
        places.program = plan_.program_file;
        places.python = plan_.python;
        places.python_path = own_variable("PYTHONPATH");
        places.home = own_variable("HOME");
        return read_fingerprint(places, limits_);
    }

    LearnedImports learned_imports() const {
        return read_learned_imports({.program = plan_.program_file,
                                     .python = plan_.python,
                                     .cache = own_variable("XDG_CACHE_HOME"),
                                     .home = own_variable("HOME")},
                                    limits_);
    }

    void prepare_requeue() {
        if (plan_.requeues == 0) {
            return;
        }
        requeue_ = std::make_unique<SlurmRequeue>(
            io_, limits_, plan_.scontrol, plan_.slurm_job,
            SlurmRequeue::Events{
                .say = [this](const std::string& line) { agent_->say(line); },
                .on_child = [this](int pid) { agent_->exclude_from_sweeps(pid); }});
        if (plan_.place->node_rank == 0) {
            requeue_->check();
        }
    }

    RequeueChoice choose_to_requeue() const {
        const agent::LeaveCause cause = agent_->leave_cause();
        const Departure departure = cause == agent::LeaveCause::None     ? Departure::None
                                    : cause == agent::LeaveCause::Notice ? Departure::ThisNode
                                                                         : Departure::WholeJob;
        return choose_requeue(*plan_.place, {.departure = departure,
                                             .nodes_min = plan_.identity().settings.min_nodes,
                                             .most = plan_.requeues});
    }

    void ended(int code) {
        exit_code_ = code;
        if (old_runs_) {
            old_runs_->finish([this] { requeue_or_end(); });
        } else {
            requeue_or_end();
        }
    }

    void requeue_or_end() {
        const RequeueChoice choice = requeue_ ? choose_to_requeue() : RequeueChoice::No;
        if (choice == RequeueChoice::Yes) {
            requeue_->carry_out([this] { await_daemon(); });
            return;
        }
        if (choice == RequeueChoice::UsedUp) {
            agent_->say(fmt::format(
                "{} is not put back into the queue: it was {} times already (--requeue {})",
                plan_.place->job, plan_.place->restarts, plan_.requeues));
        }
        await_daemon();
    }

    void await_daemon() {
        if (daemon_) {
            daemon_->wait_until_ended(kDaemonPatience, [this] { io_.stop(); });
        } else {
            io_.stop();
        }
    }

    const LaunchPlan& plan_;
    const agent::SavedProcessState& saved_;
    const Limits limits_{};
    Rng rng_;
    JobId job_;
    boost::asio::io_context io_{1};
    NodeIdentity identity_;
    std::string keeper_path_;
    std::string preload_path_;
    std::string state_folder_;
    std::string log_root_;                   ///< of this run; empty: there are no logs
    std::optional<rdzv::JobSecret> secret_;  ///< none: --insecure, or no other node
    std::string secret_to_remove_;           ///< at the end; empty: none
    std::vector<std::string> notes_;
    std::vector<std::string> said_;  ///< about the endpoint: a handful
    std::string last_problem_;       ///< of starting a daemon
    std::unique_ptr<DaemonStarter> daemon_;
    std::unique_ptr<agent::Agent> agent_;
    std::unique_ptr<SlurmRequeue> requeue_;  ///< after the agent, whose lines it says
    std::unique_ptr<OldRuns> old_runs_;      ///< the same
    int exit_code_ = kExitInternal;
};

/// An extra task on a node, which is any but the first, ends as the first one does.
int follow(const LaunchPlan& plan, const std::string& path) {
    // The first one is asked to leave, too, and knows better when that is done.
    for (const int number : plan.agent.signals_to_handle) {
        signal(number, SIG_IGN);
    }
    const Result<int> code = follow_first_task(
        path, Limits{}.task_patience, Limits{}.say_waiting_after,
        [] { complain("waiting for the first ddprun of this node, which starts the workers"); });
    if (!code) {
        const int exit_code = fail(code.error());
        return code.error().code == ErrorCode::TimedOut ? kExitNodesMissing : exit_code;
    }
    return *code;
}

int launch(const LaunchPlan& plan, const agent::SavedProcessState& saved) {
    raise_open_files(kOtherDescriptors +
                     static_cast<std::size_t>(plan.identity().settings.max_nodes) *
                         static_cast<std::size_t>(plan.identity().slots));
    Launch one(plan, saved);
    return one.run();
}

/// One of several ddprun that a scheduler has started on this node.
int run_as_task(const LaunchPlan& plan, const agent::SavedProcessState& saved) {
    const Result<std::string> path = node_tasks_path(*plan.place);
    if (!path) {
        return fail(path.error());
    }
    if (plan.place->task_here != 0) {
        return follow(plan, *path);
    }
    Result<FirstTask> first = FirstTask::open(*path);
    if (!first) {
        return fail(first.error());
    }
    const int code = launch(plan, saved);
    first->end(code, plan.place->tasks_here - 1, Limits{}.task_patience);
    return code;
}

}  // namespace

int run(const LaunchPlan& plan, const agent::SavedProcessState& saved) {
    // A console or peer that goes away is an error code, not a death.
    signal(SIGPIPE, SIG_IGN);
    // It may hold a token, which is nothing for workers, commands and daemons.
    ::unsetenv("PET_NOTIFY");
    signal(SIGCHLD, SIG_DFL);  // Ignored, the kernel would reap our children before us.
    if (plan.ignores_hup) {
        signal(SIGHUP, SIG_IGN);
    }
    return has_other_tasks(plan) ? run_as_task(plan, saved) : launch(plan, saved);
}

}  // namespace ddprun::launcher
