#pragma once

#include <cstdint>
#include <functional>
#include <utility>
#include <vector>

#include "base/instant.hpp"

namespace ddprun::sim {

/// Virtual time: actions run in the order of their instants, equal instants in the order in which
/// they were asked for. Nothing here waits.
class EventQueue {
public:
    [[nodiscard]] Instant now() const { return now_; }
    [[nodiscard]] std::uint64_t executed() const { return executed_; }
    /// How many actions have run without time moving on: a loop shows as a large number.
    [[nodiscard]] std::uint64_t executed_at_once() const { return executed_at_once_; }
    [[nodiscard]] bool is_empty() const { return heap_.empty(); }
    /// Precondition: not empty.
    [[nodiscard]] Instant next_at() const { return heap_.front().at; }

    /// An instant that is over means now.
    void at(Instant when, std::function<void()> action);
    void after(Duration delay, std::function<void()> action) {
        at(now_ + delay, std::move(action));
    }

    /// Precondition: not empty.
    void run_next();

private:
    struct Event {
        Instant at{};
        std::uint64_t order = 0;
        std::function<void()> action;
    };
    static bool is_later(const Event& left, const Event& right);

    Instant now_{};
    std::uint64_t orders_ = 0;
    std::uint64_t executed_ = 0;
    std::uint64_t executed_at_once_ = 0;
    std::vector<Event> heap_;
};

}  // namespace ddprun::sim
