#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "rendezvous/events/event.hpp"

namespace ddprun::rdzv {

/// How many of something took how long.
class DurationHistogram {
public:
    /// Upper bounds in seconds: from ddprun's own share of a restart to a slow file system.
    static constexpr std::array<double, 13> kBoundsSeconds{0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1,
                                                           5,     10,    30,   60,   300, 600};

    void observe(Duration took);

    /// How many took at most kBoundsSeconds[index].
    [[nodiscard]] std::uint64_t at_most(std::size_t index) const { return at_most_.at(index); }
    [[nodiscard]] std::uint64_t count() const { return count_; }
    [[nodiscard]] double sum_seconds() const { return sum_seconds_; }

private:
    std::array<std::uint64_t, kBoundsSeconds.size()> at_most_{};
    std::uint64_t count_ = 0;
    double sum_seconds_ = 0;
};

/// Counts the events of one run, from its first one on. Pure; bounded, as causes and phases are
/// words of docs/events.md.
class EventCounts {
public:
    void take(const Event& event);

    /// Generations after the first, by `cause` of the `stop` before: "failure", "grow", …; "lost"
    /// if there was none.
    [[nodiscard]] const std::map<std::string, std::uint64_t>& restarts() const { return restarts_; }
    /// Durations of each restart's phases: "stop" to "first_step", as far as told.
    [[nodiscard]] const std::map<std::string_view, DurationHistogram>& phases() const {
        return phases_;
    }
    [[nodiscard]] std::uint64_t failures() const { return failures_; }
    [[nodiscard]] std::uint64_t nodes_lost() const { return nodes_lost_; }
    [[nodiscard]] std::uint64_t refusals() const { return refusals_; }
    [[nodiscard]] std::uint64_t cut_off() const { return cut_off_; }
    [[nodiscard]] std::uint64_t hold_ups() const { return hold_ups_; }

private:
    void form(const Event& event);
    void note_end(Instant at);
    void reach(std::string_view phase, Instant at);

    std::map<std::string, std::uint64_t> restarts_;
    std::map<std::string_view, DurationHistogram> phases_;
    std::uint64_t failures_ = 0;
    std::uint64_t nodes_lost_ = 0;
    std::uint64_t refusals_ = 0;
    std::uint64_t cut_off_ = 0;
    std::uint64_t hold_ups_ = 0;
    bool has_formed_ = false;
    std::string cause_;               ///< of the end of the generation that runs
    std::optional<Instant> ended_;    ///< that end was known
    std::optional<Instant> emptied_;  ///< the last proof that nothing of it is left
    std::optional<Instant> reached_;  ///< the last phase of a restart that came to its end
    std::string_view last_phase_;
};

}  // namespace ddprun::rdzv
