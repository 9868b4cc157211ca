#include "base/os/helper.hpp"

#include <chrono>
#include <utility>

#include <fmt/format.h>

#include "base/os/child.hpp"
#include "base/os/unix_time.hpp"

namespace ddprun {

struct Helper::Run {
    Run(boost::asio::io_context& io, Helper* owner) : child(io), helper(owner) {}

    Child child;
    Helper* helper;  ///< null: it was given up
};

Helper::Helper(boost::asio::io_context& io, Events events)
    : io_(io),
      deadline_(io,
                [this] {
                    cancel();
                    events_.on_end(std::nullopt);
                }),
      events_(std::move(events)) {}

Result<void> Helper::start(ProgramSpec spec, std::optional<Milliseconds> timeout) {
    cancel();
    spec.dies_with_us = true;
    const auto run = std::make_shared<Run>(io_, this);
    Result<void> started = run->child.start(spec);
    if (!started) {
        return started;
    }
    run_ = run;
    events_.on_child(run->child.pid());
    if (timeout) {
        deadline_.set(clock_now() + *timeout);
    }
    // One that was given up is reaped, too, when it ends.
    ++*unreaped_;
    run->child.async_wait([run, unreaped = unreaped_](const siginfo_t& end) {
        --*unreaped;
        if (Helper* helper = run->helper) {
            helper->run_.reset();
            helper->deadline_.set(std::nullopt);
            helper->events_.on_end(end);
        }
    });
    return {};
}

void Helper::cancel() {
    deadline_.set(std::nullopt);
    if (run_) {
        // It leads a group; what it has started is in there.
        run_->child.signal_group(SIGKILL);
        run_->helper = nullptr;
        run_.reset();
    }
}

std::string fault_of(const std::optional<siginfo_t>& end, Milliseconds timeout) {
    if (!end) {
        return fmt::format("took longer than {:g} s",
                           std::chrono::duration<double>(timeout).count());
    }
    return has_succeeded(*end) ? std::string() : end_text(*end);
}

}  // namespace ddprun
