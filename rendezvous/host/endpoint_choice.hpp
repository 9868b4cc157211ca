#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/rng.hpp"
#include "rendezvous/wire/endpoint.hpp"
#include "rendezvous/wire/messages.hpp"

namespace ddprun::rdzv {

/// One try to reach a daemon.
struct EndpointAttempt {
    Endpoint endpoint;
    Milliseconds pause{0};            ///< before it
    Milliseconds connect_timeout{0};  ///< for each address of the endpoint
    Milliseconds hello_timeout{0};    ///< for the handshake
};

/// Decides which of the given daemons an agent asks next, after which pause and with how much
/// patience. Daemons are asked in turn, with a jittered, doubled pause before each new round. Out
/// of turn is asked who is named by a redirect, and once more who fell silent: a daemon that was
/// stopped for less than its term still leads, and expects its agents within a lease.
///
/// Pure: an agent's client and the simulator call it in the same way. next() begins an attempt.
/// Then failed(), or any number of answered(), and at most one of redirected(), nobody_leads() and
/// fell_silent(); whichever way the connection ends, next() follows. One thread.
class EndpointChoice {
public:
    /// `endpoints` are at least one.
    EndpointChoice(std::vector<Endpoint> endpoints, const Limits& limits, Rng rng);

    [[nodiscard]] EndpointAttempt next();

    /// No rendezvous answered there; `is_timed_out`: the attempt was not refused either.
    void failed(bool is_timed_out);

    /// The daemon was asked before, over the connection that is up now, and says nothing any more.
    void fell_silent();

    /// The daemon follows the one at `endpoint` (HOST:PORT). At most Limits::redirects_max in a row
    /// are followed: daemons that send agents to each other disagree, and may agree in a moment.
    void redirected(const std::string& endpoint);

    /// The daemon has not answered a join within the time that asking() said.
    void nobody_leads();

    /// It said anything else.
    void answered();

    /// `message` is about to be sent. With several daemons, a Join or Unfit names the one that does
    /// not answer. Returns how long to wait for the answer to it; none: for ever.
    [[nodiscard]] std::optional<Milliseconds> asking(AgentMessage& message) const;

private:
    // The suspicion against one of the daemons.
    struct NothingKnown {};
    /// It fell silent on a connection: is asked out of turn, with little patience.
    struct AskAgain {
        Endpoint endpoint;
    };
    /// It does not answer: followers are told not to send us there. If asking it takes long, it
    /// misses so many turns.
    struct Unreachable {
        Endpoint endpoint;
        int turns_left = 0;
    };
    using Suspect = std::variant<NothingKnown, AskAgain, Unreachable>;

    /// Was just asked out of turn, or in vain: so many others are asked before it, whatever becomes
    /// known of them.
    struct AskOthersFirst {
        Endpoint endpoint;
        std::size_t others_left = 0;
    };

    [[nodiscard]] bool has_several() const { return endpoints_.size() > 1; }
    [[nodiscard]] EndpointAttempt attempt_at(const Endpoint& endpoint) const;
    [[nodiscard]] EndpointAttempt next_in_turn();
    [[nodiscard]] bool misses_turn(const Endpoint& endpoint);
    [[nodiscard]] Milliseconds next_pause();

    const std::vector<Endpoint> endpoints_;
    const Limits limits_;
    Rng rng_;
    Endpoint asked_;               ///< by the attempt or connection of now
    bool is_out_of_turn_ = false;  ///< that one
    std::size_t turn_ = 0;         ///< whose it is next
    bool is_first_round_ = true;   ///< no endpoint has been asked in turn
    Suspect suspect_;
    std::optional<AskOthersFirst> just_asked_;
    std::optional<Endpoint> sent_to_;  ///< by a redirect, to be asked next
    int redirects_ = 0;                ///< in a row
    Milliseconds backoff_;             ///< the next pause is between half of it and all
};

}  // namespace ddprun::rdzv
