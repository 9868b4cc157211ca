#include "agent/daemon/keeper_handle.hpp"

#include <fcntl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>

#include <boost/asio/post.hpp>
#include <fmt/format.h>

#include "base/check.hpp"
#include "worker_runtime/contract/worker_environment.hpp"

namespace ddprun::agent {

KeeperHandle::KeeperHandle(boost::asio::io_context& io, KeeperOptions options, Events events,
                           std::optional<Cgroup> cgroup, const std::vector<int>& children_before)
    : io_(io),
      options_(std::move(options)),
      events_(std::move(events)),
      containment_({children_before.begin(), children_before.end()}, std::move(cgroup),
                   options_.containment),
      sweep_(io, containment_,
             {.reap = [this] { reap_orphans(); },
              .on_empty = [this] { on_swept(); },
              .on_stuck = [this](const std::string& rest) { tell_unkillable(rest); }}),
      child_signals_(io),
      process_(io, options_.limits.unkillable_after,
               {.on_ended = [this] { on_keeper_ended(); },
                .on_stuck = [this](const std::string& rest) { on_keeper_stuck(rest); }}) {}

Result<void> KeeperHandle::launch() {
    Result<std::pair<UniqueFd, UniqueFd>> sockets = FrameChannel::make_sockets();
    if (sockets.has_error()) {
        return sockets.error();
    }
    Result<std::shared_ptr<FrameChannel>> channel =
        FrameChannel::create(io_, std::move(sockets->first));
    if (channel.has_error()) {
        return channel.error();
    }
    const Result<void> started =
        process_.start(options_.program, options_.saved_state, containment_, sockets->second);
    if (started.has_error()) {
        return started.error();
    }
    if (std::exchange(has_launched_, true) && events_.on_relaunched) {
        events_.on_relaunched(*this);
    }
    has_keeper_worked_ = false;
    channel_ = *std::move(channel);
    channel_->start({.on_frame = [this](std::string_view body) { on_frame(body); },
                     .on_closed = [this](const std::string& /*why*/) { on_channel_closed(); }});
    if (guarded_) {
        request(*guarded_);
    }
    return {};
}

void KeeperHandle::leave_child_signals() {
    boost::system::error_code ignored;
    child_signals_.cancel(ignored);  // The wait, which holds us; clear() does not end it.
    child_signals_.clear(ignored);
}

void KeeperHandle::wait_for_child_signal() {
    child_signals_.async_wait([this](const boost::system::error_code& error, int /*signal*/) {
        if (error) {
            return;
        }
        wait_for_child_signal();
        if (sweep_.is_running()) {
            sweep_.on_child_died();
        } else {
            reap_orphans();
        }
    });
}

void KeeperHandle::ask_for_worker(KeeperSpawn spawn, std::vector<UniqueFd> fds) {
    if (is_stopping_ || sweep_.is_running()) {
        return;  // on_lost is the answer.
    }
    if (process_.pid() == 0 && launch().has_error()) {
        refuse_later(spawn, EAGAIN);
        return;
    }
    Result<std::string> frame = encode_frame(KeeperRequest(spawn));
    if (frame.has_error()) {
        refuse_later(spawn, E2BIG);
        return;
    }
    if (channel_->queued_bytes() + frame->size() > kKeeperQueueBytesMax) {
        refuse_later(spawn, ENOBUFS);
        return;
    }
    held_ = spawn.generation;
    channel_->send(std::move(*frame), std::move(fds));
}

void KeeperHandle::request(const KeeperRequest& message, std::vector<UniqueFd> fds) {
    if (is_stopping_ || sweep_.is_running()) {
        return;
    }
    if (process_.pid() == 0) {
        // No keeper could be started after the last one was lost, so nothing lives.
        if (const auto* empty = std::get_if<KeeperEmpty>(&message)) {
            boost::asio::post(io_, [this, empty = *empty] {
                if (!is_stopping_) {
                    deliver(KeeperEmptied{empty.generation});
                }
            });
        }
        return;
    }
    Result<std::string> frame = encode_frame(message);
    if (!frame.has_error()) {
        channel_->send(std::move(*frame), std::move(fds));
    }
}

CpuTime KeeperHandle::cpu_time() const {
    const int folder = containment_.cgroup_folder();
    return {UniqueFd(folder >= 0 ? fcntl(folder, F_DUPFD_CLOEXEC, 0) : -1), process_.pid(),
            options_.proc};
}

void KeeperHandle::stop(std::function<void()> done) {
    if (done) {
        on_stopped_ = std::move(done);
    }
    if (is_stopping_) {
        return;
    }
    is_stopping_ = true;
    if (channel_) {
        channel_->close();
    }
    // The keeper does so too, unless it dies with us before.
    containment_.release();
    // stop() does not wait any longer for processes that nothing can kill.
    if (process_.pid() == 0 && (!sweep_.is_running() || is_rest_stuck_)) {
        boost::asio::post(io_, [this] { finish_stop(); });
    }
}

void KeeperHandle::finish_stop() {
    sweep_.cancel();
    leave_child_signals();
    containment_.release();
    if (const std::function<void()> done = std::exchange(on_stopped_, {})) {
        done();
    }
}

void KeeperHandle::on_frame(std::string_view body) {
    const Result<KeeperEvent> event = decode_event(body);
    if (event.has_error()) {
        on_channel_closed();
        return;
    }
    has_keeper_worked_ = true;
    std::visit([this](const auto& message) { deliver(message); }, *event);
}

/// The keeper is dying: its descriptors are closed before its children are given to us, so that
/// only its death counts. One that closed its socket without dying has gone wrong.
void KeeperHandle::on_channel_closed() {
    process_.kill();
}

void KeeperHandle::on_keeper_ended() {
    channel_->close();
    sweep_what_it_left();
}

/// It is a child of ours like those that it leaves behind: the sweep waits for it too.
void KeeperHandle::on_keeper_stuck(const std::string& rest) {
    channel_->close();
    tell_unkillable(rest);
    sweep_what_it_left();
}

void KeeperHandle::sweep_what_it_left() {
    if (containment_.level() == ContainmentLevel::Session) {
        kill_groups_of_workers();
    }
    // The keeper's orphans are our children now, also those that a stopping keeper gave up.
    sweep_.begin(options_.limits.unkillable_after);
}

/// Only the worker itself died with the keeper. A worker's children have a parent now that we
/// cannot find. The number of a worker that had not ended a moment ago is hardly another's now.
void KeeperHandle::kill_groups_of_workers() {
    for (const int pid : running_) {
        DDP_CHECK(pid > 1, pid);
        sweep_.await_other(pid);
        (void)kill(-pid, SIGKILL);
    }
}

/// Reaps processes that other ones have left to this one. The keeper's own watch reaps the keeper.
void KeeperHandle::reap_orphans() {
    for (const int child : containment_.children()) {
        if (child != process_.pid()) {
            siginfo_t info{};
            (void)waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOHANG);
        }
    }
}

/// The kernel reports no process left: only now may another keeper answer for the generation.
void KeeperHandle::on_swept() {
    containment_.end_generation();
    if (is_stopping_) {
        finish_stop();
        return;
    }
    is_rest_stuck_ = false;
    held_ = Generation();
    running_.clear();
    // A keeper that died before its first work would die again, so only the next worker starts
    // another keeper: the number of workers is bounded. That worker also retries a failed launch().
    if (has_keeper_worked_) {
        (void)launch();
    }
    events_.on_lost(*this);
}

/// The sweep goes on, and no other keeper is started: it would know nothing of what is left, and
/// would take the generation for empty.
void KeeperHandle::tell_unkillable(const std::string& rest) {
    if (std::exchange(is_rest_stuck_, true)) {
        return;
    }
    if (is_stopping_) {
        finish_stop();
        return;
    }
    events_.on_not_emptied(
        *this, held_,
        fmt::format("{} is still there {} ms after SIGKILL (the keeper had died)", rest,
                    options_.limits.unkillable_after.count()));
}

void KeeperHandle::refuse_later(const KeeperSpawn& spawn, int error) {
    WorkerEnd end;
    end.exec_errno = error;
    boost::asio::post(io_,
                      [this, generation = spawn.generation, local_rank = spawn.local_rank, end] {
                          if (!is_stopping_) {
                              events_.on_exited(*this, generation, local_rank, end);
                          }
                      });
}

Result<std::unique_ptr<KeeperHandle>> KeeperHandle::start(boost::asio::io_context& io,
                                                          KeeperOptions options, Events events) {
    Result<std::optional<Cgroup>> cgroup = Cgroup::make_if_wanted(options.containment);
    if (cgroup.has_error()) {
        return cgroup.error();
    }
    const std::optional<std::vector<int>> children = own_children();
    if (!children) {
        return system_error(errno, "listing the children of this process");
    }
    auto handle = std::make_unique<KeeperHandle>(io, std::move(options), std::move(events),
                                                 std::move(*cgroup), *children);
    const Result<void> started = handle->launch();
    if (started.has_error()) {
        return started.error();
    }
    boost::system::error_code failure;
    handle->child_signals_.add(SIGCHLD, failure);
    if (failure) {
        return system_error(failure.value(), "cannot be told of the ends of child processes");
    }
    handle->wait_for_child_signal();
    return handle;
}

KeeperHandle::~KeeperHandle() {
    stop();
}

void KeeperHandle::start_worker(Generation generation, LocalRank local_rank,
                                const std::vector<std::string>& command,
                                const Environment& environment, UniqueFd out, UniqueFd err,
                                const std::vector<int>& cpus, UniqueFd page, WorkerStdin stdin_from,
                                UniqueFd imports) {
    KeeperSpawn spawn{generation, local_rank, command, environment, cpus, {}, stdin_from};
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(out));
    fds.push_back(std::move(err));
    if (page.is_open()) {
        spawn.page_variable = worker_variable::kPage.key;
        fds.push_back(std::move(page));
    }
    if (imports.is_open()) {
        spawn.imports_variable = worker_variable::kImports.key;
        fds.push_back(std::move(imports));
    }
    ask_for_worker(std::move(spawn), std::move(fds));
}

void KeeperHandle::start_standby(LocalRank local_rank, const std::vector<std::string>& command,
                                 const Environment& environment, UniqueFd out, UniqueFd err,
                                 const std::vector<int>& cpus, WorkerStdin stdin_from,
                                 UniqueFd socket) {
    KeeperSpawn spawn{kStandbyGeneration, local_rank, command, environment, cpus, {}, stdin_from};
    spawn.standby_variable = worker_variable::kStandby.key;
    std::vector<UniqueFd> fds;
    fds.push_back(std::move(out));
    fds.push_back(std::move(err));
    fds.push_back(std::move(socket));
    ask_for_worker(std::move(spawn), std::move(fds));
}

void KeeperHandle::adopt(Generation generation, LocalRank local_rank, UniqueFd page) {
    std::vector<UniqueFd> fds;
    const bool has_page = page.is_open();
    if (has_page) {
        fds.push_back(std::move(page));
    }
    request(KeeperAdopt{generation, local_rank, has_page}, std::move(fds));
}

void KeeperHandle::signal_workers(Generation generation, std::vector<LocalRank> local_ranks,
                                  int signal) {
    request(KeeperSignal{generation, std::move(local_ranks), signal});
}

void KeeperHandle::forward_signal(Generation generation, int signal) {
    request(KeeperForward{generation, signal});
}

void KeeperHandle::guard_terminal(KeeperTerminal terminal) {
    guarded_ = std::move(terminal);
    request(*guarded_);
}

void KeeperHandle::empty_generation(Generation generation) {
    request(KeeperEmpty{generation});
}

}  // namespace ddprun::agent
