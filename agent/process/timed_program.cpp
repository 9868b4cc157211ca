#include "agent/process/timed_program.hpp"

#include <utility>

namespace ddprun::agent {

TimedProgram::TimedProgram(boost::asio::io_context& io, Events events)
    : io_(io), deadline_(io), events_(std::move(events)) {}

Result<void> TimedProgram::start(ProgramSpec spec, std::optional<Milliseconds> timeout) {
    cancel();
    spec.dies_with_us = true;
    const auto child = std::make_shared<Child>(io_);
    const Result<void> started = child->start(spec);
    if (!started) {
        return started.error();
    }
    child_ = child;
    events_.on_child(child->pid());
    if (timeout) {
        deadline_.expires_after(*timeout);
        deadline_.async_wait([this, child](boost::system::error_code failure) {
            if (!failure && child_ == child) {
                cancel();
                events_.on_end(std::nullopt);
            }
        });
    }
    // One that was given up is reaped, too, when it ends.
    unreaped_ += 1;
    child->async_wait([this, child](const siginfo_t& end) {
        unreaped_ -= 1;
        if (child_ == child) {
            child_.reset();
            deadline_.cancel();
            events_.on_end(end);
        }
    });
    return {};
}

void TimedProgram::cancel() {
    deadline_.cancel();
    if (child_) {
        // It leads a group; what it has started is in there.
        child_->signal_group(SIGKILL);
        child_.reset();
    }
}

}  // namespace ddprun::agent
