#include "agent/process/sweep.hpp"

#include <poll.h>

#include <utility>

#include <boost/system/error_code.hpp>

#include "agent/process/children.hpp"
#include "base/os/give_to_loop.hpp"
#include "base/os/start_program.hpp"
#include "base/os/unique_fd.hpp"

namespace ddprun::agent {

Sweep::Sweep(boost::asio::io_context& io, Containment& containment, Events events)
    : containment_(containment),
      events_(std::move(events)),
      io_(io),
      deadline_(io),
      cgroup_events_(io) {
    if (containment.events() >= 0) {
        // If the kernel has no memory to watch it, the ends of children or the deadline wake us.
        boost::system::error_code ignored;
        cgroup_events_.assign(containment.events(), ignored);
    }
}

Sweep::~Sweep() {
    if (cgroup_events_.is_open()) {
        (void)cgroup_events_.release();
    }
}

void Sweep::begin(Milliseconds allowed) {
    if (!is_running_) {
        is_running_ = true;
        is_stuck_ = false;
        deadline_.expires_after(allowed);
        deadline_.async_wait([this](const boost::system::error_code& error) {
            if (error || !is_running_) {
                return;
            }
            step();  // It may be able to look now, and was not when the last one died.
            if (is_running_) {
                is_stuck_ = true;
                events_.on_stuck(describe_rest());
            }
        });
        wait_for_cgroup();
    }
    step();
    if (is_running_ && is_stuck_) {
        events_.on_stuck(describe_rest());
    }
}

void Sweep::await_other(int pid) {
    UniqueFd pidfd = open_pidfd(pid);
    if (pidfd.is_open()) {
        boost::asio::posix::stream_descriptor other(io_);
        if (give_to_loop(other, std::move(pidfd))) {
            others_.emplace(pid, std::move(other));
            wait_for_other(pid);
        }
    }
}

void Sweep::wait_for_other(int pid) {
    others_.at(pid).async_wait(boost::asio::posix::descriptor_base::wait_read,
                               [this, pid](const boost::system::error_code& error) {
                                   const auto other = others_.find(pid);
                                   if (error || other == others_.end()) {
                                       return;
                                   }
                                   // The loop may wake us for what was here before in its tables.
                                   pollfd ended{other->second.native_handle(), POLLIN, 0};
                                   if (poll(&ended, 1, 0) == 0) {
                                       wait_for_other(pid);
                                       return;
                                   }
                                   others_.erase(other);
                                   step();
                               });
}

std::string Sweep::describe_rest() const {
    std::string text = containment_.describe_rest();
    for (const auto& [pid, pidfd] : others_) {
        text += (text.empty() ? "process " : ", ") + describe_process(pid, pid);
    }
    return text;
}

void Sweep::cancel() {
    is_running_ = false;
    deadline_.cancel();
    others_.clear();
    if (cgroup_events_.is_open()) {
        cgroup_events_.cancel();
    }
}

void Sweep::wait_for_cgroup() {
    if (!cgroup_events_.is_open()) {
        return;
    }
    cgroup_events_.async_wait(boost::asio::posix::descriptor_base::wait_error,
                              [this](const boost::system::error_code& error) {
                                  if (error || !is_running_) {
                                      return;
                                  }
                                  wait_for_cgroup();
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
    if (!containment_.is_empty() || !others_.empty()) {
        return;  // The rest is dying, and each death that frees others to be found is announced.
    }
    cancel();
    events_.on_empty();
}

}  // namespace ddprun::agent
