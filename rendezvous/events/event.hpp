#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/tagged.hpp"

/// Events of a run, told as a stream: one JSON object a line. docs/events.md is its specification;
/// programs read it, so names and meanings stay, and a change that breaks a reader raises
/// kEventSchema.
namespace ddprun::rdzv {

inline constexpr int kEventSchema = 1;

/// The kinds of events. A new kind has its name in event.cpp and its row in docs/events.md, which
/// tests/unit/test_event_names.py compares. Chronicle (agent/watch/chronicle.cpp) makes the event
/// for the stream of a node, and publish() (rendezvous/core/publish.cpp) for the stream of a job.
enum class EventKind {
    Begun,
    LinkUp,
    LinkDown,
    Joined,
    Waiting,
    Formed,
    Spawned,
    Main,
    GroupReady,
    Resumed,
    FirstStep,
    Finished,
    Failure,
    LastWords,
    Stop,
    Stopping,
    Stopped,
    Empty,
    GpuMemory,
    Preflight,
    Prepare,
    Prepared,
    Ready,
    Quiet,
    HangNotice,
    Leave,
    Released,
    Refused,
    Notice,
    Verdict,
    Exit,
    Spare,
    Lost,
    Quarantine,
    HeldUp,
    Durability,
    Restored,
    Operator,
    CheckpointSaved,
    CheckpointFailed,
    CheckpointBehind,
};

[[nodiscard]] std::string_view name_of(EventKind kind);

using FieldValue = std::variant<std::int64_t, bool, std::string>;

struct EventField {
    std::string_view name;  ///< a literal
    FieldValue value;
};

/// One thing that happened. `at` may lie before the moment when it was learned.
struct Event {
    EventKind kind = EventKind::Begun;
    Instant at{};
    Generation generation = Generation();  ///< 0: of none
    std::optional<Rank> rank = {};         ///< of the whole run
    std::optional<std::uint64_t> step = {};
    bool is_estimated = false;  ///< no node reported it; `at` follows from something else
    std::vector<EventField> fields = {};
};

/// The field of that name, if it is a text; else empty.
[[nodiscard]] std::string text_of(const Event& event, std::string_view name);
/// The same of a number; else 0.
[[nodiscard]] std::int64_t number_of(const Event& event, std::string_view name);

/// "2026-11-23T08:29:32.123Z"
[[nodiscard]] std::string utc_text(Milliseconds unix_time);

/// `event` as one line of JSON without a line end. Texts longer than `text_bytes_max` lose their
/// beginning; bytes that are no UTF-8 are replaced.
[[nodiscard]] std::string event_line(const Event& event, std::uint64_t sequence,
                                     Milliseconds unix_time, std::size_t text_bytes_max);

/// The word by which --notify names `event`: "hang", "restart", "spare", "quarantine"
/// or "verdict". Empty: `event` is none of these.
[[nodiscard]] std::string_view notified_as(const Event& event);

/// The text of such an event as a JSON object: `notice` with that word, then the fields of
/// event_line() except those that only a stream has (v, seq, time, mono_ns).
[[nodiscard]] std::string notified_text(const Event& event, std::size_t text_bytes_max);

}  // namespace ddprun::rdzv
