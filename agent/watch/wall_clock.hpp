#pragma once

#include <chrono>
#include <string>

#include "agent/watch/report.hpp"
#include "base/instant.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::agent {

/// The wall clock's time at moments of a run that has its verdict. Moments are given as the verdict
/// gives them: since the first join. Pure.
class WallClock {
public:
    WallClock(const rdzv::Verdict& verdict, const HeardAt& heard);

    /// From the first join to the last event.
    [[nodiscard]] Milliseconds lasted() const { return lasted_; }
    [[nodiscard]] bool is_one_day() const;

    [[nodiscard]] std::string time(Milliseconds at) const;          ///< "18:20:33"
    [[nodiscard]] std::string day_and_time(Milliseconds at) const;  ///< "2026-11-22 18:20:33"
    [[nodiscard]] std::string zone() const;                         ///< "+0100"
    [[nodiscard]] std::string iso(Milliseconds at) const;           ///< "2026-11-22T17:20:33.120Z"

private:
    using Time = std::chrono::sys_time<Milliseconds>;

    [[nodiscard]] Time utc(Milliseconds at) const { return start_ + at; }
    [[nodiscard]] std::chrono::sys_seconds local(Milliseconds at) const;

    Milliseconds lasted_;
    Time start_;
    std::chrono::seconds offset_;
};

}  // namespace ddprun::agent
