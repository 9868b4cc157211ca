#include "rendezvous/server/recorder.hpp"

#include <algorithm>
#include <utility>
#include <variant>

#include <fmt/format.h>

namespace ddprun::rdzv {

namespace {

bool is_acknowledgement(const Effect& effect) {
    const Send* send = std::get_if<Send>(&effect);
    return send != nullptr && std::holds_alternative<Acknowledge>(send->message);
}

}  // namespace

Recorder::Recorder(boost::asio::io_context& io, JobId job, const Limits& limits, Durable durable,
                   RecorderHooks hooks)
    : job_(std::move(job)),
      limits_(limits),
      durable_(durable),
      hooks_(std::move(hooks)),
      patience_(io),
      retry_(io) {}

void Recorder::take(const Effects& effects) {
    for (const Effect& effect : effects) {
        if (const Persist* asked = std::get_if<Persist>(&effect)) {
            persist(asked->is_awaited);
        } else if (is_acknowledgement(effect)) {
            hooks_.carry_out(effect);
        } else {
            held_.emplace_back(gate_, effect);
        }
    }
    release();
}

void Recorder::stop() {
    is_stopped_ = true;
    held_.clear();
    patience_.cancel();
    retry_.cancel();
}

void Recorder::persist(bool is_awaited) {
    if (durable_.journal == nullptr) {
        return;
    }
    is_outdated_ = true;
    // One record at a time, unless somebody waits for this one: the newest is all that counts.
    if (is_awaited || answered_ == asked_) {
        write();
    }
    if (is_awaited) {
        gate_ = asked_;
        if (!durable_.is_strict && fault_.empty()) {
            patience_.expires_after(limits_.journal_timeout);
            patience_.async_wait(
                [self = shared_from_this(), number = gate_](boost::system::error_code cancelled) {
                    if (!cancelled) {
                        self->given_up(number);
                    }
                });
        } else if (!durable_.is_strict) {
            open_ = std::max(open_, gate_);  // it is known to fail: nobody waits for it
        }
    }
}

void Recorder::write() {
    is_outdated_ = false;
    std::string record = hooks_.record();
    if (record.empty()) {
        return;
    }
    const std::uint64_t number = ++asked_;
    durable_.journal->write(job_, std::move(record),
                            [self = shared_from_this(), number](const Result<void>& result) {
                                self->written(number, result);
                            });
}

void Recorder::written(std::uint64_t number, const Result<void>& result) {
    if (is_stopped_) {
        return;
    }
    answered_ = std::max(answered_, number);
    if (result) {
        tell({});
        open_ = std::max(open_, number);
    } else {
        tell(result.error().what);
        if (durable_.is_strict) {
            try_again();
        } else {
            open_ = std::max(open_, number);
        }
    }
    if (open_ >= gate_) {
        patience_.cancel();
    }
    if (is_outdated_ && answered_ == asked_) {
        write();
    }
    release();
}

void Recorder::given_up(std::uint64_t number) {
    if (is_stopped_ || open_ >= number) {
        return;
    }
    open_ = number;
    tell(fmt::format("the journal has not answered for {} ms", limits_.journal_timeout.count()));
    release();
}

// The leader's lease ends first if this goes on; then stop() is called.
void Recorder::try_again() {
    if (answered_ != asked_) {
        return;
    }
    retry_.expires_after(limits_.reconnect_backoff_min);
    retry_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
        if (!cancelled && !self->is_stopped_) {
            self->write();
        }
    });
}

void Recorder::tell(const std::string& fault) {
    if (fault.empty() != fault_.empty()) {
        fault_ = fault;
        hooks_.durability(fault);
    }
}

// A hook may cause a step, which comes back to take(): then the outer call goes on.
void Recorder::release() {
    if (is_releasing_) {
        return;
    }
    is_releasing_ = true;
    while (!is_stopped_ && !held_.empty() && held_.front().first <= open_) {
        const Effect effect = std::move(held_.front().second);
        held_.pop_front();
        hooks_.carry_out(effect);
    }
    is_releasing_ = false;
}

}  // namespace ddprun::rdzv
