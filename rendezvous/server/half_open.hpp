#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <variant>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/tagged.hpp"

namespace ddprun::rdzv {

/// Which connections may be in the handshake at once: decides who makes room for whom, so that
/// strangers who say nothing crowd out only each other. Pure.
///
/// One address has at most Limits::half_open_per_source_max of them, all have
/// Limits::half_open_max. The clients that a store on this port expects come on top, for the
/// addresses that they are expected from. A connection makes room for a newer one of its address;
/// when all are full, one of the address furthest beyond its allowance does. A connection younger
/// than Limits::half_open_grace never has to: a peer that speaks at once gets through.
class HalfOpen {
public:
    explicit HalfOpen(const Limits& limits) : limits_(limits) {}

    /// So many clients of the store may come at the same moment, before one of them speaks.
    void expect(std::size_t clients) { expected_ = clients; }

    struct Free {};
    struct Evict {
        ConnectionId oldest;
    };
    struct Full {
        Instant until;  ///< then the oldest may be evicted
    };
    using Room = std::variant<Free, Evict, Full>;

    /// For one connection more, wherever it comes from. To be asked before it is accepted.
    [[nodiscard]] Room room(Instant now) const;
    /// The same when this process has no descriptor left for one more. Nothing: no half-open
    /// connection has them.
    [[nodiscard]] std::optional<Room> room_without_descriptors(Instant now) const;
    /// For one connection more from `source`. `is_expected`: clients of the store come from there.
    [[nodiscard]] Room room_of(Instant now, const std::string& source, bool is_expected) const;

    /// Takes in connection `id`, newer than all before it.
    void enter(Instant now, ConnectionId id, const std::string& source, bool is_expected);
    /// It has proved itself, or is gone. Nothing happens if it is not here.
    void leave(ConnectionId id);

    [[nodiscard]] std::size_t size() const { return source_of_.size(); }

private:
    struct Source {
        std::map<ConnectionId, Instant> since;  ///< the oldest comes first
        bool is_expected = false;
    };

    [[nodiscard]] std::size_t allowance(bool is_expected) const;
    [[nodiscard]] Room oldest_of(Instant now, const Source& source) const;

    const Limits limits_;
    std::size_t expected_ = 0;
    std::map<std::string, Source> sources_;  ///< those that have connections here
    std::map<ConnectionId, std::string> source_of_;
};

}  // namespace ddprun::rdzv
