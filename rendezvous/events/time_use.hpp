#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/limits.hpp"
#include "rendezvous/events/event.hpp"

namespace ddprun::rdzv {

/// When the phases of one generation came, as far as that was told.
struct GenerationTimes {
    Generation generation;
    std::optional<Instant> ready;   ///< this node has nothing left to do before it
    std::optional<Instant> formed;  ///< all nodes are present
    std::optional<Instant> spawned;
    std::optional<Instant> main;
    std::optional<Instant> group_ready;
    std::optional<Instant> resumed;
    std::optional<Instant> first_step;
    std::optional<Instant> detected;            ///< its end has begun: a failure, an order to stop
    std::optional<Instant> stopped;             ///< its workers have ended, or are killed
    std::optional<Instant> empty;               ///< no process of it is left
    std::optional<std::uint64_t> first_number;  ///< of its first step
    std::optional<std::uint64_t> last_step;
    std::set<EventKind> estimated;  ///< of the moments above
    Duration checkpointing{};       ///< its training has stood still so long for that
    std::string cause;              ///< of its end

    /// From when on it trains. Without a step that was told: since its workers were started, which
    /// is an estimate.
    [[nodiscard]] std::optional<Instant> trains_from() const {
        return first_step ? first_step : spawned;
    }
};

/// How the time of a run was used. The first five together are the whole.
struct TimeShares {
    Duration starting{};       ///< to the first step of the first generation that trained
    Duration restarting{};     ///< from what ended a generation to the first step of the next
    Duration waiting{};        ///< this node was ready, others were not
    Duration checkpointing{};  ///< training stood still until a checkpoint was made
    Duration training{};
    /// The part of training that did steps anew, which were done after the last checkpoint: as many
    /// as were lost, each as long as in the generation that lost them. An estimate.
    Duration redone{};
    std::uint64_t generations = 0;
    bool has_trained = false;
    bool is_estimated = false;  ///< of a generation no step was told

    [[nodiscard]] Duration whole() const {
        return starting + restarting + waiting + checkpointing + training;
    }
};

/// One phase of a restart: what it ended with, and how long it took.
struct RestartPhase {
    std::string_view name;
    Duration took{};
    bool is_estimated = false;  ///< no report says when it ended
};

/// One way from what ended a generation to the first step of the next, or as far as it has come.
struct Restart {
    Generation from;
    Generation to;  ///< 0: it is not formed yet
    Instant at{};
    std::string cause;
    std::vector<RestartPhase> phases;  ///< in order; together they are the whole
    bool is_over = false;              ///< the next generation trains
};

/// Whose events they are.
enum class EventsOf {
    Node,  ///< an agent's, of what it does: it waits from when it is ready
    Job,   ///< a rendezvous's, of all nodes: it waits from when the first one could go on
};

/// Tells from a run's events where its time went. Pure; events come in order of their numbers, and
/// their times need not.
class TimeUse {
public:
    explicit TimeUse(const Limits& limits, EventsOf whose = EventsOf::Node)
        : generations_max_(limits.restarts_kept_max + 1), whose_(whose) {}

    void take(const Event& event);

    /// Takes the news of one node's workers, which are no events: the last step, and how long one
    /// of them has stood still for checkpoints since its first step. The largest of each counts.
    void note_told(Generation generation, const std::optional<std::uint64_t>& step,
                   Duration checkpointing);

    [[nodiscard]] TimeShares shares(Instant now) const;

    /// The newest, at most Limits::restarts_kept_max.
    [[nodiscard]] std::vector<Restart> restarts(Instant now) const;

private:
    [[nodiscard]] static bool is_estimated(const GenerationTimes& times);
    [[nodiscard]] GenerationTimes* find(Generation generation);
    void form(const Event& event);
    void note_joined(Instant at);
    void note_empty(const Event& event);
    void go_on(const Event& event);
    /// A moment of the generation that `event` is about; the first one counts.
    void note(const Event& event, std::optional<Instant> GenerationTimes::*moment);
    void note_end(GenerationTimes& times, Instant at, const std::string& cause);
    [[nodiscard]] Instant end_of(std::size_t index, Instant now) const;
    void add_way(TimeShares& shares, Instant from, std::optional<Instant> ready,
                 std::optional<Instant> formed, Instant until) const;
    [[nodiscard]] Duration training_in(std::size_t index, Instant now) const;
    [[nodiscard]] Duration redone_in(std::size_t index, Instant now) const;
    void add_generation(TimeShares& shares, std::size_t index, Instant now) const;

    std::size_t generations_max_;
    EventsOf whose_;
    std::optional<Instant> since_;  ///< from when on shares are not in `forgotten_`
    std::optional<Instant> ended_;
    std::optional<Instant> ready_;             ///< for the generation to come
    std::deque<GenerationTimes> generations_;  ///< the newest
    TimeShares forgotten_;                     ///< of those before
};

/// The shares as people read them: "training 93.1 %, restarting 4.0 % (2 restarts), …".
[[nodiscard]] std::string shares_text(const TimeShares& shares);

/// The waterfall of one restart: a line for people, without a line end.
[[nodiscard]] std::string restart_text(const Restart& restart);

/// The same for programs; docs/events.md lists the fields. `unix_now` is the time on the wall at
/// `now`.
[[nodiscard]] nlohmann::ordered_json time_use_json(const TimeUse& use, Instant now,
                                                   Milliseconds unix_now);

}  // namespace ddprun::rdzv
