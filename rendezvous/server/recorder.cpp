#include "rendezvous/server/recorder.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace ddprun::rdzv {

Recorder::Recorder(boost::asio::io_context& io, JobId job, const Limits& limits, Durable durable,
                   RecorderHooks hooks)
    : job_(std::move(job)),
      limits_(limits),
      durable_(durable),
      hooks_(std::move(hooks)),
      patience_(io),
      retry_(io) {}

void Recorder::take(Effects effects) {
    hold(std::move(effects.now));
    if (effects.record != RecordWrite::None) {
        persist(effects.record == RecordWrite::Awaited);
    }
    hold(std::move(effects.after_record));
    release();
}

void Recorder::hold(std::vector<Effect> effects) {
    for (Effect& effect : effects) {
        if (is_acknowledgement(effect)) {
            hooks_.carry_out(effect);
        } else {
            held_.emplace_back(gate_, std::move(effect));
        }
    }
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
        const bool is_first = open_ >= gate_;
        gate_ = asked_;
        if (durable_.is_strict) {
            return;
        }
        if (!fault_.empty()) {
            open_ = gate_;  // it is known to fail: nobody waits for it
        } else if (is_first) {
            limit_wait();
        }
    }
}

void Recorder::limit_wait() {
    patience_.expires_after(limits_.journal_timeout);
    patience_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
        if (!cancelled) {
            self->give_up();
        }
    });
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
    tell(result ? std::string() : result.error().what);
    if (is_stopped_) {
        return;
    }
    if (result) {
        open_ = std::max(open_, number);
    } else {
        if (!durable_.is_strict) {
            open_ = std::max(open_, gate_);
        }
        try_again();
    }
    if (open_ >= gate_) {
        patience_.cancel();
    } else if (!durable_.is_strict) {
        limit_wait();  // it works, and a later record is under way
    }
    if (is_outdated_ && answered_ == asked_) {
        write();
    }
    release();
}

void Recorder::give_up() {
    if (is_stopped_ || open_ >= gate_) {
        return;
    }
    open_ = gate_;
    tell(fmt::format("the journal has not answered for {} ms", limits_.journal_timeout.count()));
    release();
}

// With is_strict the leader's lease ends first if this goes on; then stop() is called. Else the
// disk may have room again in an hour, and nothing else may happen to the run until then.
void Recorder::try_again() {
    if (answered_ != asked_) {
        return;
    }
    retry_.expires_after(durable_.is_strict ? limits_.reconnect_backoff_min
                                            : limits_.reconnect_backoff_max);
    retry_.async_wait([self = shared_from_this()](boost::system::error_code cancelled) {
        if (!cancelled && !self->is_stopped_ && self->answered_ == self->asked_) {
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
