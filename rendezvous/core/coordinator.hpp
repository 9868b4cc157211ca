#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"
#include "base/result.hpp"
#include "base/rng.hpp"
#include "base/tagged.hpp"
#include "rendezvous/events/event.hpp"
#include "rendezvous/wire/control.hpp"
#include "rendezvous/wire/messages.hpp"
#include "rendezvous/wire/run_record.hpp"

namespace ddprun::rdzv {

// ---------------------------------------------------------------------------------------- inputs

/// A message of an authenticated agent. The first one of a connection is its Join, or Unfit.
struct Received {
    ConnectionId connection;
    AgentMessage message;
};

/// A connection ended, and not because of an effect of this coordinator.
struct ConnectionEnded {
    ConnectionId connection;
    /// The peer's process is gone (end of stream, no Goodbye): death at once. False for a reset,
    /// a bad frame or a close by the daemon: a suspicion until the lease ends.
    bool is_end_of_stream = false;
};

/// The loop of this process stalled, or its writes are refused: silent nodes are not to blame yet.
struct HeldUp {
    Duration by{};  ///< how long; of a stall that goes on, how long so far
};

/// Time passed; due deadlines are judged.
struct Tick {};

/// Records reach stable storage no more, or again if `fault` is empty.
struct Durability {
    std::string fault;
};

/// An operator, who has proved to be one, asks for something; answered by Ordered.
struct OrderGiven {
    std::uint64_t number = 0;  ///< of the answer
    OperatorOrder order;
    std::string from;  ///< where it came from, for people
};

/// A peer asked for this job and was turned away at the handshake: it did not prove that it may
/// join. Its address and the reason are for people.
struct StrangerRefused {
    std::string address;
    std::string why;  ///< of this process's own words only
};

using Input =
    std::variant<Received, ConnectionEnded, HeldUp, Tick, Durability, OrderGiven, StrangerRefused>;

// --------------------------------------------------------------------------------------- effects

struct Send {
    ConnectionId connection;
    RendezvousMessage message;
};

/// Flush what was sent, then close. No ConnectionEnded follows.
struct CloseConnection {
    ConnectionId connection;
    std::string reason;
};

/// A line for the log; the simulator hashes it.
struct Trace {
    std::string text;
};

/// For those who watch the job; no decision depends on it.
struct Publish {
    Event event;
};

/// The outcome of an order. If the order is taken, the last published event `operator` is its
/// record, and the caller that carries out this effect fills in that event's number.
struct Ordered {
    std::uint64_t number = 0;
    OperatorReply reply;
};

using Effect = std::variant<Send, CloseConnection, Trace, Publish, Ordered>;

/// It says only that a beat has arrived: no record delays it, or a slow disk would cost leases.
[[nodiscard]] inline bool is_acknowledgement(const Effect& effect) {
    const Send* send = std::get_if<Send>(&effect);
    return send != nullptr && std::holds_alternative<Acknowledge>(send->message);
}

/// Whether Coordinator::record() is to be written after a step.
enum class RecordWrite {
    None,     ///< nothing has changed that must survive this process
    Behind,   ///< written behind: a later record will do as well
    Awaited,  ///< this one must be durable, or given up, before anybody is told
};

/// The effects of a step: `now` in order, then the write of the record, then, in order,
/// `after_record`, which only an awaited record has.
struct Effects {
    std::vector<Effect> now;
    RecordWrite record = RecordWrite::None;
    std::vector<Effect> after_record;

    /// Decided next: it waits for the record once that is awaited.
    void add(Effect effect) {
        (record == RecordWrite::Awaited ? after_record : now).push_back(std::move(effect));
    }

    /// Calls `visit` with each of both lists, in order.
    template <typename Visit>
    void for_each(Visit visit) const {
        for (const Effect& effect : now) {
            visit(effect);
        }
        for (const Effect& effect : after_record) {
            visit(effect);
        }
    }

    [[nodiscard]] bool is_empty() const {
        return now.empty() && record == RecordWrite::None && after_record.empty();
    }
};

struct CoordinatorOptions {
    Limits limits;
    /// False inside a single-node ddprun: its one member is in this process and cannot be silent.
    /// The run ends with this process, too: nothing is persisted.
    bool has_leases = true;
    bool is_lasting = false;  ///< members are told: as Accepted::is_lasting
};

struct Run;  // run.hpp: what one life of the job holds

/// Decides everything about one job: who is a member, when a generation starts and stops, who may
/// go, and the verdict. Pure: no clock, socket, thread or log. rendezvous/core/README.md holds its
/// phase × input table. Owned and called by one thread.
class Coordinator {
public:
    Coordinator(JobId job, CoordinatorOptions options, Rng rng);
    ~Coordinator();
    Coordinator(const Coordinator&) = delete;
    Coordinator& operator=(const Coordinator&) = delete;

    /// Goes on with a run that another process decided about until it died. Before the first step.
    /// Its nodes have a whole grace to come back. Failure: the record contradicts itself, and
    /// nothing has changed.
    [[nodiscard]] Result<void> restore(Instant now, const RunRecord& record);

    /// Returns the record that restore() takes; nothing while no state must survive.
    [[nodiscard]] std::optional<RunRecord> record(Instant now) const;

    /// Takes one input at `now`, which never goes backwards, and adds what must be done to `out`.
    void step(Instant now, const Input& input, Effects& out);

    /// When step() wants a Tick at the latest; none while only inputs can change anything.
    [[nodiscard]] std::optional<Instant> next_deadline() const;

    /// Text for people about what the job waits for; empty when it waits for nothing.
    [[nodiscard]] std::string explain() const;

    /// The run is closed and no node is left to be told (its verdict may still be kept).
    [[nodiscard]] bool is_done() const;

    /// is_done(), and the verdict needs no longer be kept: this object can go.
    [[nodiscard]] bool is_forgettable(Instant now) const;

    /// There is no run, nor is anything known that the next one must be told: the same.
    [[nodiscard]] bool is_empty() const { return run_ == nullptr && unfit_.empty(); }

    /// The state for checkers, status pages and tests; null before the first join.
    [[nodiscard]] const Run* run() const;

private:
    /// Was said before a run could judge it.
    struct PendingUnfit {
        Unfit message;
        Instant until{};
    };

    void give_up_restored(const Input& input, Effects& out);
    void forget_restored(Effects& out);
    void take_unfit(ConnectionId connection, const Unfit& message, Effects& out);
    /// Takes all messages out of unfit_; empty while the run cannot judge them.
    std::vector<Unfit> take_due_unfit();

    JobId job_;
    CoordinatorOptions options_;
    Rng rng_;
    Instant now_{};
    std::unique_ptr<Run> run_;
    std::map<NodeId, PendingUnfit> unfit_;  // at most nodes_max
};

}  // namespace ddprun::rdzv
