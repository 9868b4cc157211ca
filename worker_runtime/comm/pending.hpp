#pragma once

#include <algorithm>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

#include "base/result.hpp"

namespace ddprun {

/// An operation that has begun, and its result once somebody waits for it. Several may be pending
/// at once; they may be waited for in any order, by the thread that uses their process group. One
/// that nobody waits for goes on, and its result is unknown; a transfer on CPUs then keeps its
/// tensor until the group ends.
template <typename T>
class [[nodiscard]] Pending {
public:
    /// How long to wait; without it the operation's own time-out holds.
    using Bound = std::optional<std::chrono::milliseconds>;

    /// `wait` waits for the operation, and is called once at most.
    explicit Pending(std::function<Result<T>(Bound)> wait) : wait_(std::move(wait)) {}
    /// An operation that has ended already.
    explicit Pending(Result<T> result) : result_(std::move(result)) {}
    Pending(Pending&&) noexcept = default;
    Pending& operator=(Pending&&) noexcept = default;
    Pending(const Pending&) = delete;
    Pending& operator=(const Pending&) = delete;
    ~Pending() = default;

    /// Waits for the end of the operation. An operation on CPUs that is not done after `bound` is
    /// late, as after its group's time-out. On GPUs a bound counts from the operation's beginning,
    /// and the caller waits, too. Later calls return the same at once.
    Result<T> wait(Bound bound = {}) {
        if (!result_) {
            result_.emplace(wait_(bound));
            wait_ = nullptr;
        }
        return *result_;
    }

    /// The operation followed by `next`, which takes its value and returns a Result. `next` runs
    /// in wait(), on the thread that waits, unless the operation has failed.
    template <typename Next>
    auto then(Next next) && {
        if constexpr (std::is_void_v<T>) {
            using Value = typename std::invoke_result_t<Next>::value_type;
            return Pending<Value>([first = std::move(*this).shared(),
                                   next = std::move(next)](Bound bound) -> Result<Value> {
                const Result<void> done = first->wait(bound);
                return done ? next() : Result<Value>(done.error());
            });
        } else {
            using Value = typename std::invoke_result_t<Next, T>::value_type;
            return Pending<Value>([first = std::move(*this).shared(),
                                   next = std::move(next)](Bound bound) -> Result<Value> {
                Result<T> done = first->wait(bound);
                return done ? next(*std::move(done)) : Result<Value>(done.error());
            });
        }
    }

private:
    /// std::function copies what it holds.
    std::shared_ptr<Pending> shared() && { return std::make_shared<Pending>(std::move(*this)); }

    std::function<Result<T>(Bound)> wait_;
    std::optional<Result<T>> result_;
};

/// All of them; the first error. `bound` is that of all together.
[[nodiscard]] inline Pending<void> all_of(std::vector<Pending<void>> pending) {
    const auto all = std::make_shared<std::vector<Pending<void>>>(std::move(pending));
    return Pending<void>([all](Pending<void>::Bound bound) {
        using Clock = std::chrono::steady_clock;
        const Clock::time_point begin = Clock::now();
        Result<void> first;
        for (Pending<void>& one : *all) {
            const auto passed =
                std::chrono::duration_cast<std::chrono::milliseconds>(Clock::now() - begin);
            Result<void> done = one.wait(
                bound ? std::optional(std::max(*bound - passed, std::chrono::milliseconds(0)))
                      : bound);
            if (first && !done) {
                first = std::move(done);
            }
        }
        return first;
    });
}

}  // namespace ddprun
