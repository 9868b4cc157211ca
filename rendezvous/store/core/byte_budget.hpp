#pragma once

#include <cstdint>

namespace ddprun::rdzv {

/// Memory that all clients of a store hold together for one purpose, and the most it may be.
class ByteBudget {
public:
    explicit ByteBudget(std::uint64_t max) : max_(max) {}
    ByteBudget(const ByteBudget&) = delete;
    ByteBudget& operator=(const ByteBudget&) = delete;

    /// A holder of `held` bytes asks to hold `wanted`. Returns false and changes nothing if all
    /// holders together would exceed the budget. Shrinking is always granted.
    [[nodiscard]] bool change(std::uint64_t held, std::uint64_t wanted) {
        if (wanted > held && wanted - held > max_ - used_) {
            return false;
        }
        used_ += wanted - held;
        return true;
    }
    void give_back(std::uint64_t held) { used_ -= held; }

    [[nodiscard]] std::uint64_t used() const { return used_; }
    [[nodiscard]] std::uint64_t max() const { return max_; }

private:
    const std::uint64_t max_;
    std::uint64_t used_ = 0;
};

}  // namespace ddprun::rdzv
