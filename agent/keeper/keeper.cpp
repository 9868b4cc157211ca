#include "agent/keeper/keeper.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <set>
#include <utility>

#include <fmt/format.h>

#include "agent/process/children.hpp"
#include "base/check.hpp"
#include "base/os/give_to_loop.hpp"
#include "base/os/start_program.hpp"
#include "base/os/terminal_modes.hpp"

namespace ddprun::agent {

namespace {

using boost::asio::posix::stream_descriptor;

void say(const std::string& line) {
    fmt::print(stderr, "ddprun-keeper: {}\n", line);
}

/// A keeper without a channel to its agent ends; the agent learns of that.
std::shared_ptr<FrameChannel> channel_to(boost::asio::io_context& io, UniqueFd agent) {
    Result<std::shared_ptr<FrameChannel>> channel = FrameChannel::create(io, std::move(agent));
    DDP_CHECK(channel.has_value(), channel.error().what);
    return *std::move(channel);
}

/// For processes that this one's containment holds.
std::string path_of(const UniqueFd& file) {
    return fmt::format("/proc/{}/fd/{}", getpid(), file.get());
}

WorkerEnd end_of(const siginfo_t& info, int outer_pid) {
    WorkerEnd end;
    end.pid = outer_pid;
    if (info.si_code == CLD_EXITED) {
        end.exit_code = info.si_status;
    } else {
        end.signal = info.si_status;
        end.core_dumped = info.si_code == CLD_DUMPED;
    }
    return end;
}

}  // namespace

Keeper::Keeper(boost::asio::io_context& io, UniqueFd agent, const SavedProcessState& saved_state,
               Containment containment, Milliseconds unkillable_after)
    : io_(io),
      containment_(std::move(containment)),
      spawner_(containment_, saved_state),
      sweep_(io, containment_,
             {.reap = [this] { reap_all(); },
              .on_empty = [this] { on_empty(); },
              .on_stuck = [this](const std::string& rest) { on_stuck(rest); }}),
      child_signals_(io, SIGCHLD),
      agent_(channel_to(io, std::move(agent))),
      unkillable_after_(unkillable_after) {
    wait_for_orphans();
    agent_->start({.on_frame = [this](std::string_view body) { on_frame(body); },
                   .on_closed = [this](const std::string& why) { on_agent_gone(why); }});
}

void Keeper::on_frame(std::string_view body) {
    Result<KeeperRequest> request = decode_request(body);
    if (request.has_error()) {
        on_agent_gone(request.error().what);
        return;
    }
    std::visit([this](auto& message) { handle(std::move(message)); }, *request);
}

void Keeper::on_agent_gone(const std::string& why) {
    if (is_ending_) {
        return;
    }
    is_ending_ = true;
    agent_->close();
    restore_terminal();
    if (!why.empty()) {
        say(why);
        has_failed_ = true;
    }
    sweep_.begin(unkillable_after_);
}

void Keeper::handle(KeeperSpawn spawn) {
    const UniqueFd out = agent_->take_fd();
    const UniqueFd err = agent_->take_fd();
    UniqueFd page = spawn.page_variable.empty() ? UniqueFd() : agent_->take_fd();
    const UniqueFd standby = spawn.standby_variable.empty() ? UniqueFd() : agent_->take_fd();
    UniqueFd imports = spawn.imports_variable.empty() ? UniqueFd() : agent_->take_fd();
    if (!out.is_open() || !err.is_open() || page.is_open() == spawn.page_variable.empty() ||
        standby.is_open() == spawn.standby_variable.empty() ||
        imports.is_open() == spawn.imports_variable.empty()) {
        on_agent_gone("a worker was to be started without its descriptors");
        return;
    }
    const bool is_free = held_ == Generation() || held_ == kStandbyGeneration;
    if (emptying_ || (!is_free && held_ != spawn.generation)) {
        refuse(spawn, EBUSY);
        return;
    }
    if (held_ == Generation()) {
        if (const Result<void> begun = containment_.begin_generation(); begun.has_error()) {
            say(begun.error().what);
            refuse(spawn, EAGAIN);
            return;
        }
    }
    if (page.is_open()) {
        spawn.environment.emplace_back(spawn.page_variable,
                                       hold_page(spawn.generation, std::move(page)));
    }
    if (imports.is_open()) {
        UniqueFd& held = imports_[spawn.local_rank];
        held = std::move(imports);
        spawn.environment.emplace_back(spawn.imports_variable, path_of(held));
    }
    if (standby.is_open()) {
        spawn.environment.emplace_back(spawn.standby_variable, std::to_string(kStandbySocket));
    }
    auto spawned = spawner_.spawn(spawn, out, err, standby);
    if (spawned.has_error()) {
        refuse(spawn, spawned.error().value());
        return;
    }
    held_ = spawn.generation;
    Worker worker;
    worker.generation = spawn.generation;
    worker.local_rank = spawn.local_rank;
    worker.outer_pid = containment_.outer_pid(spawned->pid);
    const auto [entry, is_new] = workers_.emplace(spawned->pid, std::move(worker));
    DDP_CHECK(is_new, spawned->pid);
    watch(spawned->pid, entry->second, std::move(spawned->exec_status));
}

/// One for all workers of a generation. It stays open as long as one of them may look.
std::string Keeper::hold_page(Generation generation, UniqueFd page) {
    if (!page_.is_open() || held_ != generation) {
        page_ = std::move(page);
    }
    return path_of(page_);
}

void Keeper::handle(const KeeperAdopt& adopt) {
    UniqueFd page = adopt.has_page ? agent_->take_fd() : UniqueFd();
    if (page.is_open() != adopt.has_page) {
        on_agent_gone("a standby was to be adopted without its page");
        return;
    }
    if (emptying_ || (held_ != kStandbyGeneration && held_ != adopt.generation)) {
        return;  // Its standbys are dying, and their ends are told.
    }
    for (auto& [pid, worker] : workers_) {
        if (worker.generation == kStandbyGeneration && worker.local_rank == adopt.local_rank) {
            std::string path;
            if (page.is_open()) {
                path = hold_page(adopt.generation, std::move(page));
            }
            held_ = adopt.generation;
            worker.generation = adopt.generation;
            send(KeeperAdopted{adopt.generation, adopt.local_rank, worker.outer_pid,
                               std::move(path)});
            return;
        }
    }
}

void Keeper::handle(const KeeperSignal& signal) {
    const std::set<LocalRank> meant(signal.local_ranks.begin(), signal.local_ranks.end());
    for (const auto& [pid, worker] : workers_) {
        if (worker.generation != signal.generation || !meant.contains(worker.local_rank)) {
            continue;
        }
        // Not reaped, so that the number is still the worker's. It has no group of its own before
        // its setsid(): then the signal is for itself, and waits until it can take it.
        if (kill(-pid, signal.signal) != 0 && errno == ESRCH) {
            (void)kill(pid, signal.signal);
        }
    }
}

void Keeper::handle(const KeeperForward& forward) {
    for (const auto& [pid, worker] : workers_) {
        if (worker.generation == forward.generation && has_handler(pid, forward.signal)) {
            (void)kill(pid, forward.signal);
        }
    }
}

void Keeper::handle(const KeeperEmpty& empty) {
    const bool is_of_standbys_gone =
        empty.generation == kStandbyGeneration && held_ != kStandbyGeneration;
    if (held_ != Generation() && (empty.generation < held_ || is_of_standbys_gone)) {
        send(KeeperEmptied{empty.generation});  // Proven before the one that is held could start.
        return;
    }
    emptying_ = empty.generation;
    sweep_.begin(unkillable_after_);
}

void Keeper::handle(KeeperTerminal terminal) {
    terminal_ = std::move(terminal);
}

/// Leaves the terminal alone if its present user, a shell, has changed it since.
void Keeper::restore_terminal() const {
    const Result<TerminalModes> before = TerminalModes::from_bytes(terminal_.before);
    const Result<TerminalModes> raw = TerminalModes::from_bytes(terminal_.raw);
    const Result<TerminalModes> now = TerminalModes::of(STDIN_FILENO);
    if (before && raw && now && *now == *raw) {
        (void)before->apply(STDIN_FILENO);
    }
}

void Keeper::watch(int pid, Worker& worker, UniqueFd exec_status) {
    worker.exec_status = std::make_unique<stream_descriptor>(io_);
    if (give_to_loop(*worker.exec_status, std::move(exec_status))) {
        wait_for_exec(pid, worker);
    } else {
        // Whether it runs would not be known: it does not.
        worker.exec_status.reset();
        worker.exec_errno = ENOMEM;
        (void)kill(pid, SIGKILL);
    }
    UniqueFd pidfd = open_pidfd(pid);
    Result<void> watched = system_error(errno, "no pidfd on this machine");
    worker.pidfd = std::make_unique<stream_descriptor>(io_);
    if (pidfd.is_open()) {
        watched = give_to_loop(*worker.pidfd, std::move(pidfd));
    }
    if (!watched) {
        worker.pidfd.reset();
        if (!std::exchange(has_said_no_pidfd_, true)) {
            say("the ends of workers are seen by SIGCHLD alone: " + watched.error().what);
        }
        return;
    }
    worker.pidfd->async_wait(stream_descriptor::wait_read,
                             [this, pid](const boost::system::error_code& error) {
                                 const auto found = workers_.find(pid);
                                 if (!error && found != workers_.end()) {
                                     reap_worker(found);
                                 }
                             });
}

void Keeper::wait_for_exec(int pid, Worker& worker) {
    worker.exec_status->async_wait(stream_descriptor::wait_read,
                                   [this, pid](const boost::system::error_code& error) {
                                       const auto found = workers_.find(pid);
                                       if (!error && found != workers_.end()) {
                                           read_exec_status(pid, found->second);
                                       }
                                   });
}

/// Called when the pipe should have something to say, which an end of file is too.
void Keeper::read_exec_status(int pid, Worker& worker) {
    if (!worker.exec_status) {
        return;
    }
    int error = 0;
    ssize_t got = 0;
    do {
        got = read(worker.exec_status->native_handle(), &error, sizeof error);
    } while (got < 0 && errno == EINTR);
    if (got < 0 && errno == EAGAIN) {
        wait_for_exec(pid, worker);  // The loop may wake us for what was here before in its tables.
        return;
    }
    worker.exec_status.reset();
    if (got == static_cast<ssize_t>(sizeof error)) {
        worker.exec_errno = error;  // Told when the child has been reaped, instead of an exit.
        return;
    }
    send(KeeperStarted{worker.generation, worker.local_rank, worker.outer_pid});
}

/// Every dead child: workers, and orphans that we have adopted.
void Keeper::reap_all() {
    for (;;) {
        siginfo_t info{};
        if (waitid(P_ALL, 0, &info, WEXITED | WNOHANG | WNOWAIT) != 0 || info.si_pid == 0) {
            return;
        }
        const auto found = workers_.find(info.si_pid);
        if (found != workers_.end()) {
            reap_worker(found);
        } else {
            (void)waitid(P_PID, static_cast<id_t>(info.si_pid), &info, WEXITED | WNOHANG);
        }
    }
}

/// Reaps and reports `worker` if it is dead.
void Keeper::reap_worker(Workers::iterator worker) {
    siginfo_t info{};
    const int pid = worker->first;
    if (waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG) != 0 || info.si_pid == 0) {
        return;
    }
    read_exec_status(pid, worker->second);
    WorkerEnd end = end_of(info, worker->second.outer_pid);
    if (worker->second.exec_errno) {
        end = WorkerEnd{};
        end.exec_errno = worker->second.exec_errno;
    }
    const Generation generation = worker->second.generation;
    const LocalRank local_rank = worker->second.local_rank;
    workers_.erase(worker);
    send(KeeperExited{generation, local_rank, end});
}

void Keeper::wait_for_orphans() {
    child_signals_.async_wait([this](const boost::system::error_code& error, int /*signal*/) {
        if (error) {
            return;
        }
        reap_all();
        sweep_.on_child_died();
        wait_for_orphans();
    });
}

void Keeper::on_empty() {
    held_ = Generation();
    page_.reset();
    imports_.clear();
    containment_.end_generation();
    if (is_ending_) {
        containment_.release();
        io_.stop();
        return;
    }
    if (emptying_) {
        send(KeeperEmptied{*std::exchange(emptying_, std::nullopt)});
    }
}

void Keeper::on_stuck(const std::string& rest) {
    const std::string what =
        fmt::format("{} is still there {} ms after SIGKILL", rest, unkillable_after_.count());
    if (is_ending_) {
        say(what + "; the kernel will end it, nobody waits for it any more");
        has_failed_ = true;
        io_.stop();
        return;
    }
    if (emptying_) {
        send(KeeperNotEmptied{*emptying_, what});
    }
}

void Keeper::send(const KeeperEvent& event) {
    Result<std::string> frame = encode_frame(event);
    DDP_CHECK(!frame.has_error(), frame.error().what);
    // At most two events for every worker the agent asked for, and it cannot ask for more without
    // having sent as much: only an agent that does not read can fill this.
    DDP_CHECK(agent_->queued_bytes() < kKeeperQueueBytesMax, agent_->queued_bytes());
    agent_->send(std::move(*frame));
}

void Keeper::refuse(const KeeperSpawn& spawn, int error) {
    WorkerEnd end;
    end.exec_errno = error;
    send(KeeperExited{spawn.generation, spawn.local_rank, end});
}

}  // namespace ddprun::agent
