#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>

#include "base/limits.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/events/event_counts.hpp"
#include "rendezvous/events/save_figures.hpp"
#include "rendezvous/events/time_use.hpp"

namespace ddprun::rdzv {

/// The newest events of one run as lines, numbered from 1 on: at most Limits::events_kept_max, of
/// Limits::events_kept_bytes_max together. And, of all, where the run's time went and how often
/// what has happened. Pure.
class EventLog {
public:
    explicit EventLog(const Limits& limits, EventsOf whose = EventsOf::Node)
        : limits_(limits), whose_(whose), time_use_(limits, whose) {}

    /// Adds `event`, which was learned at `now`, when the clock on the wall showed `unix_now`.
    /// Returns its line; it is valid until the next call.
    const std::string& add(const Event& event, Instant now, Milliseconds unix_now);

    /// Adds an event that was made before, as its line. It counts nowhere else.
    void restore(std::string line) { keep(std::move(line)); }

    /// As TimeUse::note_told(); no event.
    void note_told(Generation generation, const std::optional<std::uint64_t>& step,
                   Duration checkpointing) {
        time_use_.note_told(generation, step, checkpointing);
    }

    /// No event comes any more: the run is over.
    void close() { is_closed_ = true; }
    [[nodiscard]] bool is_closed() const { return is_closed_; }

    /// Numbers of the oldest event that is kept, and of the next one to come. Equal: none is kept.
    [[nodiscard]] std::uint64_t first() const { return next_ - lines_.size(); }
    [[nodiscard]] std::uint64_t next() const { return next_; }

    /// The line of an event that is kept.
    [[nodiscard]] const std::string& line(std::uint64_t sequence) const;

    /// A transient line: not numbered among events; only the newest of each `about` is kept. Read
    /// by those who follow as server-sent events.
    void pass(const std::string& about, std::string line);
    void drop_passing();

    /// The number of the next line to pass, and the lines that are the last, by their numbers.
    [[nodiscard]] const std::map<std::uint64_t, std::string>& passing() const { return passing_; }

    [[nodiscard]] const TimeUse& time_use() const { return time_use_; }
    /// Counts of a whole job; a node's own events are not counted.
    [[nodiscard]] const EventCounts& counts() const { return counts_; }
    /// Counts a node's own events, too.
    [[nodiscard]] const SaveFigures& saves() const { return saves_; }

private:
    void keep(std::string line);

    Limits limits_;
    EventsOf whose_;
    TimeUse time_use_;
    EventCounts counts_;
    SaveFigures saves_;
    std::deque<std::string> lines_;
    std::size_t bytes_ = 0;  ///< of lines_
    std::uint64_t next_ = 1;
    std::map<std::string, std::uint64_t> passing_about_;
    std::map<std::uint64_t, std::string> passing_;
    std::uint64_t next_passing_ = 1;
    bool is_closed_ = false;
};

}  // namespace ddprun::rdzv
