#include "agent/process/sweep.hpp"

#include <utility>

namespace ddprun::agent {

Sweep::Sweep(boost::asio::io_context& io, Containment& containment, Events events)
    : containment_(containment), events_(std::move(events)), deadline_(io) {}

void Sweep::begin(Milliseconds allowed, std::shared_ptr<const void> owner) {
    if (!is_running_) {
        is_running_ = true;
        deadline_.expires_after(allowed);
        deadline_.async_wait(
            [this, kept = std::move(owner)](const boost::system::error_code& error) {
                if (!error && is_running_) {
                    events_.on_stuck(containment_.describe_rest());
                }
            });
    }
    step();
}

void Sweep::cancel() {
    is_running_ = false;
    deadline_.cancel();
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
