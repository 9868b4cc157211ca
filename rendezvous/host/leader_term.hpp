#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "base/instant.hpp"
#include "base/limits.hpp"

namespace ddprun::rdzv {

/// The leader's key as etcd holds it.
struct LeaderKey {
    std::uint64_t term = 0;  ///< the revision at which it was made
    std::int64_t lease = 0;  ///< that it is bound to
    std::string endpoint;    ///< of who made it
};

// ---------------------------------------------------------------------------------------- inputs

/// The answer to LookAtKey and TakeKey.
struct KeySeen {
    std::optional<LeaderKey> key;  ///< none: no daemon leads
    std::uint64_t revision = 0;    ///< of etcd's store then
};
/// The answer to GrantLease.
struct LeaseGranted {
    std::int64_t lease = 0;
    Duration ttl{};
};
/// The answer to ProlongLease. A ttl of zero: etcd has ended that lease.
struct LeaseProlonged {
    Duration ttl{};
};
/// No answer to the last question, which may have reached etcd all the same.
struct EtcdFailed {
    std::string why;
    bool is_refused = false;  ///< etcd understood: asking the same again is of no use
};
/// All records were read since ReadRecords.
struct RecordsRead {};
struct RecordsFailed {
    std::string why;
};
/// The watch works: etcd said something.
struct WatchHeard {};
/// The watched key is gone.
struct KeyDeleted {};
/// Nothing was heard from the watch for WatchKey::silence_max.
struct WatchSilent {};
struct WatchEnded {
    std::string why;  ///< for people; empty: not worth a line
};
/// The journal was told by etcd that the leader's key is not this term's.
struct TermDeposed {};
/// timer() has come.
struct TermTimer {};

using TermInput =
    std::variant<KeySeen, LeaseGranted, LeaseProlonged, EtcdFailed, RecordsRead, RecordsFailed,
                 WatchHeard, KeyDeleted, WatchSilent, WatchEnded, TermDeposed, TermTimer>;

// --------------------------------------------------------------------------------------- effects

struct LookAtKey {};
struct GrantLease {
    std::chrono::seconds ttl{};
};
/// Make the key, bound to `lease`, unless it exists; say who has it then.
struct TakeKey {
    std::int64_t lease = 0;
};
struct ProlongLease {
    std::int64_t lease = 0;
};
/// One question at a time: the next one comes after the answer, or EtcdFailed.
struct AskEtcd {
    std::variant<LookAtKey, GrantLease, TakeKey, ProlongLease> what;
    Milliseconds each{};  ///< for one of several etcds
    Instant until{};      ///< for all of them
};
/// Say when the key is deleted at `revision` or later.
struct WatchKey {
    std::uint64_t revision = 0;
    Milliseconds silence_max{};
};
/// Read the records of all runs, until leads_until(): RecordsRead or RecordsFailed follows.
struct ReadRecords {};
/// The records are needed no more; no answer may come.
struct StopReading {};
/// This daemon decides from now on.
struct BeginLeading {
    std::uint64_t term = 0;
};
/// It decides no more. Messages that it has not acted on are void: agents say them again.
struct EndLeading {
    std::string why;
};
/// Another daemon leads; empty: not known (yet). Told on change.
struct FollowLeader {
    std::string endpoint;
};
/// A line for people.
struct SayLine {
    std::string text;
};

using TermEffect = std::variant<AskEtcd, WatchKey, ReadRecords, StopReading, BeginLeading,
                                EndLeading, FollowLeader, SayLine>;
using TermEffects = std::vector<TermEffect>;

/// One daemon's part in the competition of several for being the one that decides: what to ask
/// etcd, and until when its lease may be believed. Pure: it is given the time, and the answers of
/// etcd as values.
///
/// A lease is believed from the moment at which etcd was *asked* for it, which is before etcd
/// counts from, and for nine tenths of its time, because clocks run at different speeds. Once its
/// believed end has come the term is lost, whatever etcd answers later: what agents said meanwhile
/// was not heard, and they say it again only to a daemon that they join anew.
class LeaderTerm {
public:
    /// `endpoint`: where agents reach this daemon.
    LeaderTerm(std::string endpoint, const Limits& limits);

    /// Once, before the first step.
    void start(Instant now, TermEffects& out);
    /// At `now`, which never goes back. Appends what must be done to `out`, in order.
    void step(Instant now, const TermInput& input, TermEffects& out);

    /// When TermTimer is due; none while only answers can change anything.
    [[nodiscard]] std::optional<Instant> timer() const;

    /// To be asked before every decision.
    [[nodiscard]] bool is_leading(Instant now) const;
    /// The believed end of the lease with the key; Instant::min() without the key.
    [[nodiscard]] Instant leads_until() const;
    /// The lease to give up when this daemon is stopped; none: it has no lease.
    [[nodiscard]] std::optional<std::int64_t> lease() const;

private:
    struct Lease {
        std::int64_t id = 0;
        Instant asked_at{};  ///< for it, or for the last prolongation
        Instant until{};     ///< believed
    };
    // The state. One question is under way in Looking, Granting, Taking, Regaining and Leaving, and
    // in Holding from `asked_at` on.
    struct Looking {};
    struct Granting {
        Instant asked_at{};
    };
    struct Taking {};
    /// Something failed: looks again at `until`.
    struct Pausing {
        Instant until{};
    };
    /// Watches the key of another daemon.
    struct Following {};
    /// The key is ours, and our lease is believed no more: etcd was away for longer than that, and
    /// keeps it all the same. Prolonged first.
    struct Regaining {
        std::uint64_t term = 0;
        Instant asked_at{};
    };
    struct Reading {};
    struct Rereading {
        Instant at{};
    };
    struct Leading {};
    /// The key is ours, and the lease is believed.
    struct Holding {
        std::uint64_t term = 0;
        std::optional<Instant> asked_at;  ///< for a prolongation that was not answered yet
        Instant prolong_at{};             ///< otherwise
        std::variant<Reading, Rereading, Leading> records;
        std::string why_lost;  ///< if the lease should end now
    };
    /// The term was lost while a question was under way, whose answer is awaited.
    struct Leaving {};

    void take(Instant now, const KeySeen& seen, TermEffects& out);
    void take(Instant now, const LeaseGranted& granted, TermEffects& out);
    void take(Instant now, const LeaseProlonged& prolonged, TermEffects& out);
    void take(Instant now, const EtcdFailed& failed, TermEffects& out);
    void take(Instant now, const RecordsRead& read, TermEffects& out);
    void take(Instant now, const RecordsFailed& failed, TermEffects& out);
    void take(Instant now, const WatchHeard& heard, TermEffects& out);
    void take(Instant now, const KeyDeleted& deleted, TermEffects& out);
    void take(Instant now, const WatchSilent& silent, TermEffects& out);
    void take(Instant now, const WatchEnded& ended, TermEffects& out);
    void take(Instant now, const TermDeposed& deposed, TermEffects& out);
    void take(Instant now, const TermTimer& timer, TermEffects& out);

    void look(TermEffects& out);
    void campaign(Instant now, TermEffects& out);
    void take_key(TermEffects& out);
    void hold(Instant now, std::uint64_t term, TermEffects& out);
    void follow(Instant now, const std::string& endpoint, TermEffects& out);
    void prolong(Instant now, Holding& holding, TermEffects& out);
    void lose(std::string why, TermEffects& out);
    void pause(Instant now);
    void believe(std::int64_t lease, Duration ttl, Instant asked_at);
    void ask(std::variant<LookAtKey, GrantLease, TakeKey, ProlongLease> what, Milliseconds each,
             Instant until, TermEffects& out) const;
    [[nodiscard]] Milliseconds next_backoff();
    [[nodiscard]] Milliseconds prolong_every() const;
    void note_trouble(const std::string& why, TermEffects& out);
    void note_success(TermEffects& out);

    const std::string endpoint_;
    const Limits limits_;
    std::variant<Looking, Granting, Taking, Pausing, Following, Regaining, Holding, Leaving> state_;
    std::optional<Lease> lease_;
    std::optional<std::string> followed_;  ///< as told last
    std::string trouble_;                  ///< as said last
    Milliseconds backoff_;
};

}  // namespace ddprun::rdzv
