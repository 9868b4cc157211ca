#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/system/error_code.hpp>

#include "base/instant.hpp"

namespace ddprun {

/// Timer with one deadline that may change: calls `on_due` from the loop once for each deadline
/// that has passed, and never for one that was taken back or moved. Lives on the thread of `io`;
/// outlives the loop, as its owner does.
class DeadlineTimer {
public:
    DeadlineTimer(boost::asio::io_context& io, std::function<void()> on_due)
        : timer_(io), on_due_(std::move(on_due)) {}

    /// From now on this is the deadline; nothing: there is none. Costs nothing while it is the
    /// same.
    void set(std::optional<Instant> deadline) {
        if (deadline == deadline_) {
            return;
        }
        deadline_ = deadline;
        if (!deadline) {
            timer_.cancel();
            return;
        }
        timer_.expires_at(*deadline);
        timer_.async_wait([this](boost::system::error_code cancelled) {
            // A wait that is over already cannot be cancelled; it may be that of an old deadline.
            if (!cancelled && deadline_ && *deadline_ <= std::chrono::steady_clock::now()) {
                deadline_.reset();
                on_due_();
            }
        });
    }

    /// The deadline that is set; nothing if there is none or it has passed.
    [[nodiscard]] std::optional<Instant> deadline() const { return deadline_; }

private:
    boost::asio::steady_timer timer_;
    std::function<void()> on_due_;
    std::optional<Instant> deadline_;
};

}  // namespace ddprun
