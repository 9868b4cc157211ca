#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <nlohmann/json_fwd.hpp>

#include "base/instant.hpp"
#include "base/tagged.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/messages.hpp"

/// How the saves of a run go. Pure.
namespace ddprun::rdzv {

/// The last save that is complete.
struct LastSave {
    std::optional<std::uint64_t> step;
    Instant at{};  ///< it was complete
    std::int64_t bytes = 0;
    Milliseconds stall{0};
    Milliseconds took{0};
    std::string where;  ///< "disk", or several such words with commas
};

/// The events checkpoint_saved, checkpoint_failed and checkpoint_behind of the worker `rank`, whose
/// saves were last seen as `before`. Several saves since then are one event, of the last one.
[[nodiscard]] std::vector<Event> save_events(Instant now, Generation generation, Rank rank,
                                             const SavesSeen& before, const SavesSeen& seen);

/// Counts these events of one run, and keeps the last save.
class SaveFigures {
public:
    void take(const Event& event);

    [[nodiscard]] bool has_any() const { return saves_ > 0 || failures_ > 0 || !behind_.empty(); }
    [[nodiscard]] const std::optional<LastSave>& last() const { return last_; }
    [[nodiscard]] std::uint64_t saves() const { return saves_; }
    [[nodiscard]] std::uint64_t failures() const { return failures_; }
    /// Why saves fall behind, for people; empty: they do not.
    [[nodiscard]] const std::string& behind() const { return behind_; }

private:
    std::optional<LastSave> last_;
    std::uint64_t saves_ = 0;
    std::uint64_t failures_ = 0;
    std::string behind_;
};

/// "12 ms", "3.4 s", "5 min 3 s", "2 h 10 min".
[[nodiscard]] std::string save_time_text(Milliseconds time);

/// "1.2 GiB in 0.8 s, stalled 12 ms, on disk": a save, as people read it.
[[nodiscard]] std::string save_text(const LastSave& save);

/// "step 1200, 1.2 GiB in 0.8 s, stalled 12 ms, on disk, 34 s ago; 2 saves failed; …". Empty: there
/// was no save.
[[nodiscard]] std::string saves_text(const SaveFigures& saves, Instant now);

/// The same for programs; docs/events.md lists the fields. `unix_now` is the time on the wall at
/// `now`.
[[nodiscard]] nlohmann::ordered_json saves_json(const SaveFigures& saves, Instant now,
                                                Milliseconds unix_now);

}  // namespace ddprun::rdzv
