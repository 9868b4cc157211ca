#pragma once

#include <sys/socket.h>

#include <cstddef>
#include <optional>
#include <string>
#include <variant>

#include "base/limits.hpp"
#include "base/os/unique_fd.hpp"
#include "base/tagged.hpp"
#include "rendezvous/store/core/admission.hpp"
#include "rendezvous/store/net/store_server.hpp"

namespace ddprun::rdzv {

struct Run;

/// The store on the daemon's own port: for all clients, or for the workers of one job, whose nodes
/// have joined with a StoreAddress of port 0. Its protocol names no job, so a second one has no
/// place. Lives on the daemon's thread; the store itself has its own.
class PortStore {
public:
    /// `say` takes one line and is called on the store's thread.
    PortStore(const Limits& limits, StoreServer::Say say);

    /// One store for all clients that reach the port, until close(); none for any job.
    void serve_everybody();

    /// Why no node may join `job` with a store here; nothing: it may.
    [[nodiscard]] std::optional<std::string> refusal(const JobId& job) const;

    /// A node has joined `job` with a store here: the port is that job's until its run is over.
    /// Only where there is no refusal().
    void claim(const JobId& job);

    /// After each step of `job`, whose run is null when there is none: each generation that wants
    /// it has a fresh store, for its members, and the last one's goes with the run.
    void follow(const JobId& job, const Run* run);

    /// No job has a store here any more.
    void release();

    /// Closes the store, also that of serve_everybody().
    void close();

    [[nodiscard]] bool is_served() const;
    /// Whose workers' store this is, or is to be; null: no job's.
    [[nodiscard]] const JobId* job() const;

    /// How many clients may come at the same moment: the workers of the job that has a store here,
    /// or as many as the store of serve_everybody() admits.
    [[nodiscard]] std::size_t clients_expected() const;
    /// They may come from there.
    [[nodiscard]] bool expects(const sockaddr_storage& address) const;

    /// Hands over a client of which nothing was read. Only if is_served().
    void adopt(UniqueFd client);

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
        std::size_t clients = 0;
        Admission admission;
    };

    const std::size_t clients_max_;
    StoreServer server_;
    std::variant<Nobodys, Everybodys, Claimed, Served> state_;
};

}  // namespace ddprun::rdzv
