#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <string_view>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "rendezvous/store/protocol/replies.hpp"

namespace ddprun::rdzv {

/// The next act of a client that has a limited time. Time runs from the moment at which the client
/// owes this and not another act: each request, and each reading of some replies, has its own.
struct StoreDebt {
    enum class Kind : std::uint8_t {
        Nothing,
        Greeting,  ///< VALIDATE
        Request,   ///< the rest of a request
        Replies,   ///< to read some of the replies that wait for it
    };
    Kind kind = Kind::Nothing;
    std::uint64_t number = 0;  ///< of the request; of replies: how many bytes have been sent

    bool operator==(const StoreDebt&) const = default;
};

/// "its request is incomplete"; for people.
[[nodiscard]] std::string_view text_of(StoreDebt::Kind kind);

/// Whose time runs. All debts of a kind have the same time, so deadlines are in order and nothing
/// here takes time in the number of clients.
class StoreStalls {
    struct Entry {
        StoreClient client;
        StoreDebt::Kind kind;
        Instant deadline;
    };
    using Entries = std::list<Entry>;

public:
    /// The debt of one client. A Stall begins without a debt and must end without one.
    class Stall {
    public:
        [[nodiscard]] const StoreDebt& debt() const { return debt_; }

    private:
        friend class StoreStalls;
        StoreDebt debt_;
        Entries::iterator entry_;
    };
    struct Overdue {
        StoreClient client;
        StoreDebt::Kind kind;
        Milliseconds patience;
    };

    explicit StoreStalls(const Limits& limits)
        : greeting_patience_(limits.hello_timeout), patience_(limits.store_stall_timeout) {}

    /// `client`, whose stall this is, owes `debt` from `now` on, if it has not owed it before.
    void owe(Stall& stall, StoreClient client, const StoreDebt& debt, Instant now);

    [[nodiscard]] std::optional<Instant> next_deadline() const;
    /// Whose time is over; it stays so until they owe something else.
    [[nodiscard]] std::vector<Overdue> overdue(Instant now) const;

private:
    [[nodiscard]] Entries& entries_of(StoreDebt::Kind kind) {
        return kind == StoreDebt::Kind::Greeting ? greetings_ : others_;
    }

    const Milliseconds greeting_patience_;
    const Milliseconds patience_;
    Entries greetings_;  ///< by deadline, as the others
    Entries others_;
};

}  // namespace ddprun::rdzv
