#include "agent/daemon/stack_saver.hpp"

#include <sys/wait.h>

#include <csignal>
#include <utility>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <fmt/format.h>

#include "agent/process/start_program.hpp"

namespace ddprun::agent {

using boost::asio::posix::stream_descriptor;

StackSaver::StackSaver(boost::asio::io_context& io, const rdzv::Limits& limits, Events events)
    : io_(io), deadline_(io), limits_(limits), events_(std::move(events)) {}

void StackSaver::begin_generation() {
    pids_.clear();
}

void StackSaver::worker_started(LocalRank local_rank, int pid) {
    pids_[local_rank] = pid;
}

int StackSaver::pid_of(LocalRank local_rank) const {
    const auto found = pids_.find(local_rank);
    return found == pids_.end() ? 0 : found->second;
}

void StackSaver::save(const SaveStacks& order, std::shared_ptr<const void> owner) {
    cancel();
    generation_ = order.generation;
    if (order.folder.empty()) {
        events_.on_done(generation_);
        return;
    }
    if (const Result<void> started = start(order, owner); !started) {
        events_.say(fmt::format("no stacks are saved: {}", started.error().what));
        events_.on_done(generation_);
        return;
    }
    deadline_.expires_after(limits_.stacks_timeout);
    deadline_.async_wait([this, owner](boost::system::error_code failure) {
        if (!failure && child_ != 0) {
            events_.say("saving the workers' stacks took too long; what is there is kept");
            finish();
        }
    });
}

Result<void> StackSaver::start(const SaveStacks& order, std::shared_ptr<const void> owner) {
    Result<std::string> program = program_beside_us("ddprun-stacks");
    if (!program) {
        return program.error();
    }
    // What it gives up by itself is told in the files.
    const Milliseconds own_timeout = limits_.stacks_timeout - limits_.stacks_timeout / 10;
    ProgramSpec spec;
    spec.command = {std::move(*program), order.folder, std::to_string(own_timeout.count()),
                    std::to_string(limits_.stacks_bytes_max)};
    for (const LocalRank local_rank : order.workers) {
        if (const int pid = pid_of(local_rank); pid != 0) {
            spec.command.push_back(
                fmt::format("{}:{}", order.base_rank.value() + local_rank.value(), pid));
        }
    }
    Result<StartedProgram> started = start_program(spec);
    if (!started) {
        return started.error();
    }
    child_ = started->pid;
    events_.on_child(child_);
    if (!started->pidfd.is_open()) {
        return {};  // A kernel without pidfd: all of its time is waited for.
    }
    // One that was given up is reaped, too, when it ends.
    auto end = std::make_shared<stream_descriptor>(io_, started->pidfd.release());
    end->async_wait(
        stream_descriptor::wait_read,
        [this, owner = std::move(owner), end, pid = child_](boost::system::error_code failure) {
            siginfo_t info{};
            (void)waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOHANG);
            if (!failure && child_ == pid) {
                child_ = 0;
                finish();
            }
        });
    return {};
}

void StackSaver::finish() {
    cancel();
    events_.on_done(generation_);
}

void StackSaver::cancel() {
    deadline_.cancel();
    if (child_ != 0) {
        // It leads a group; what it has started is in there. Not reaped yet, its number is its own.
        (void)kill(-child_, SIGKILL);
        child_ = 0;
    }
}

}  // namespace ddprun::agent
