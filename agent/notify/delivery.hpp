#pragma once

#include <functional>
#include <string>

namespace ddprun::agent {

/// One way to hand over a notice. Owned and called by the agent's thread; outlives the run of its
/// loop.
class Delivery {
public:
    /// `fault` is for people; empty: it was taken.
    using OnEnd = std::function<void(const std::string& fault)>;

    virtual ~Delivery() = default;

    /// Begins an attempt; none is under way. Answered by one OnEnd within Limits::notice_timeout,
    /// never at once.
    virtual void begin(const std::string& line) = 0;

    /// Gives up what is under way; nothing is answered any more.
    virtual void cancel() = 0;
};

}  // namespace ddprun::agent
