#include "agent/process/sweep.hpp"

#include <fcntl.h>

#include <cerrno>
#include <utility>

#include "base/check.hpp"

namespace ddprun::agent {

Sweep::Sweep(boost::asio::io_context& io, Containment& containment, Events events)
    : containment_(containment), events_(std::move(events)), deadline_(io), cgroup_events_(io) {
    if (containment.events() >= 0) {
        const int copy = fcntl(containment.events(), F_DUPFD_CLOEXEC, 0);
        DDP_CHECK(copy >= 0, errno);
        cgroup_events_.assign(copy);
    }
}

void Sweep::begin(Milliseconds allowed, std::shared_ptr<const void> owner) {
    if (!is_running_) {
        is_running_ = true;
        deadline_.expires_after(allowed);
        deadline_.async_wait([this, kept = owner](const boost::system::error_code& error) {
            if (!error && is_running_) {
                events_.on_stuck(containment_.describe_rest());
            }
        });
        wait_for_cgroup(std::move(owner));
    }
    step();
}

void Sweep::cancel() {
    is_running_ = false;
    deadline_.cancel();
    if (cgroup_events_.is_open()) {
        cgroup_events_.cancel();
    }
}

void Sweep::wait_for_cgroup(std::shared_ptr<const void> owner) {
    if (!cgroup_events_.is_open()) {
        return;
    }
    cgroup_events_.async_wait(
        boost::asio::posix::descriptor_base::wait_error,
        [this, kept = std::move(owner)](const boost::system::error_code& error) {
            if (error || !is_running_) {
                return;
            }
            wait_for_cgroup(kept);
            step();
        });
}

void Sweep::on_child_died() {
    if (is_running_) {
        step();
    }
}

void Sweep::step() {
    containment_.kill_all();
    events_.reap();
    if (!containment_.is_empty()) {
        return;  // Who is left is dying, and each death that frees others to be found is announced.
    }
    cancel();
    events_.on_empty();
}

}  // namespace ddprun::agent
