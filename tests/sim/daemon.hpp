#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "rendezvous/base/instant.hpp"
#include "rendezvous/base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/protocol/run_record.hpp"

namespace ddprun::sim {

/// What is on stable storage.
struct JournalEntry {
    std::optional<rdzv::RunRecord> record;  ///< goes through the codec when it is read
    [[nodiscard]] bool is_closed() const {
        return record.has_value() && record->phase == rdzv::RecordedPhase::Closed;
    }
    /// Of the generation in it; empty if none.
    [[nodiscard]] std::string digest() const {
        return record.has_value() ? record->digest : std::string();
    }
};

/// The rendezvous' process, with everything around its coordinator that the real daemon owns.
struct Daemon {
    std::uint64_t life = 0;  ///< events of an earlier one are void
    std::unique_ptr<rdzv::Coordinator> coordinator;
    bool is_up = true;
    Instant up_at{};
    bool is_paused = false;
    Instant paused_until{};
    std::deque<std::function<void()>> waits_for_it;  ///< while it is paused, in order
    std::optional<Instant> tick_at;
    std::set<ConnectionId> served;  ///< connections that it knows
    ConnectionId dead_connections;  ///< this one and all before it were of earlier lives
    bool has_journal = true;        ///< writing works
    bool is_behind = false;         ///< it failed, and has not the newest record again
    bool is_writing = false;
    std::uint64_t orders = 0;   ///< to write, in this life
    std::uint64_t written = 0;  ///< of them
    std::uint64_t awaited = 0;  ///< what follows waits for this one
    struct Held {
        std::uint64_t order = 0;
        rdzv::Effect effect;
    };
    std::deque<Held> held;  ///< effects that wait for an order
};

}  // namespace ddprun::sim
