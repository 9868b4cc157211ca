#pragma once

#include <optional>
#include <string>
#include <variant>

#include "base/tagged.hpp"

namespace ddprun::rdzv {

struct Run;

/// Decides whose store is on the daemon's own port: everybody's, or that of the workers of one job,
/// whose nodes have joined with a StoreAddress of port 0. The TCPStore protocol names no job, so a
/// second job has no place there. Pure.
class PortClaim {
public:
    /// `is_everybodys`: one store for all clients that reach the port, and none for any job.
    explicit PortClaim(bool is_everybodys);

    /// Why no node may join `job` with a store here; nothing: it may.
    [[nodiscard]] std::optional<std::string> refusal(const JobId& job) const;

    /// A node has joined `job` with a store here: the port is that job's until its run is over.
    /// Only if there is no refusal().
    void claim(const JobId& job);

    enum class Change {
        None,
        Serve,  ///< a fresh store, for the members of the run's generation
        Close,  ///< the store goes with the run
    };
    /// After each step of `job`, whose run is null if there is none.
    [[nodiscard]] Change follow(const JobId& job, const Run* run);

    /// No job has a store here any more.
    [[nodiscard]] Change release();

    /// Whose workers' store this is, or is to be; null: no job's.
    [[nodiscard]] const JobId* job() const;

private:
    struct Nobodys {};
    struct Everybodys {};
    /// A node has joined; no generation has a store yet.
    struct Claimed {
        JobId job;
    };
    /// A generation of the job has one.
    struct Served {
        JobId job;
        std::string digest;  ///< of the generation
    };

    std::variant<Nobodys, Everybodys, Claimed, Served> state_;
};

}  // namespace ddprun::rdzv
