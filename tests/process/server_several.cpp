// Goal: where an agent goes that has several daemons, over real sockets.

#include <boost/asio/post.hpp>

#include "tests/process/server_fixture.hpp"

namespace ddprun::rdzv {
namespace {

/// No node beats here, and no node shall be lost for it.
constexpr Milliseconds kHour{3600000};

/// Takes nothing until it is well.
class SickJournal final : public Journal {
public:
    explicit SickJournal(boost::asio::io_context& io) : io_(io) {}

    void write(const JobId& /*job*/, std::string /*record*/, Written written) override {
        ++writes;
        boost::asio::post(io_, [this, written = std::move(written)] {
            written(is_well ? Result<void>() : Error{ErrorCode::TimedOut, "etcd is away"});
        });
    }
    void erase(const JobId& /*job*/) override {}

    bool is_well = false;
    int writes = 0;

private:
    boost::asio::io_context& io_;
};

TEST_CASE("of several daemons the one that fell silent is asked again before the others") {
    boost::asio::io_context io;
    const Limits patient{.lease = kHour};
    const Daemon leader(io, {.limits = patient});
    const Daemon follower(io, {.limits = patient, .is_one_of_several = true});
    follower.server->follow(leader.endpoint());
    Agent agent(io, {.port = leader.port, .other_port = follower.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    agent.client->drop("not answered");
    run_until(io, [&] { return agent.count<Accepted>() == 2; });
    REQUIRE(agent.ups == 2);  // the follower would have kept it waiting
    REQUIRE(follower.log.empty());
    REQUIRE(agent.last<Stop>() == nullptr);
}

TEST_CASE("who cannot reach the silent daemon again waits at a follower for the next leader") {
    boost::asio::io_context io;
    Daemon leader(io);
    const Limits hasty{.leader_lease = Milliseconds(200)};
    const Daemon follower(io, {.is_one_of_several = true});
    const Daemon next_leader(io);
    follower.server->follow(leader.endpoint());
    Agent agent(io, {.port = leader.port, .other_port = follower.port, .limits = hasty});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    agent.client->drop("not answered");
    leader.end(io);
    run_until(io, [&] { return agent.has_lost("nobody leads"); });
    REQUIRE(!agent.has_lost(leader.endpoint() + " leads"));
    follower.server->follow(next_leader.endpoint());
    run_until(io, [&] { return agent.count<Accepted>() == 2; });
    REQUIRE(agent.has_lost(next_leader.endpoint() + " leads"));
}

TEST_CASE("who joins while etcd takes nothing is not lost for the answer that waits for it") {
    boost::asio::io_context io;
    const Limits limits{.reconnect_backoff_min = Milliseconds(20),
                        .reconnect_backoff_max = Milliseconds(20),
                        .lease = Milliseconds(100),
                        .etcd_record_patience = kHour};
    const Daemon daemon(io, {.limits = limits, .is_one_of_several = true});
    SickJournal journal(io);
    daemon.server->lead(journal, {}, [](Instant) { return true; });
    const Agent member(io, {.port = daemon.port, .node = "a"});
    run_until(io, [&] { return member.last<Accepted>() && journal.writes > 0; });
    const Agent spare(io, {.port = daemon.port, .node = "b"});
    // Several leases pass; the other node's beats say that it is not the daemon that is cut off.
    int seen = journal.writes;
    const int enough = seen + 20;
    run_until(io, [&] {
        if (journal.writes > seen) {
            seen = journal.writes;
            member.client->send(Beat{.sequence = static_cast<std::uint64_t>(seen)});
        }
        return seen > enough;
    });
    REQUIRE(spare.last<Accepted>() == nullptr);
    journal.is_well = true;
    run_until(io, [&] { return spare.last<Accepted>() != nullptr; });
    spare.client->send(Beat{.sequence = 1});
    run_until(io, [&] { return spare.last<Acknowledge>() != nullptr; });
    REQUIRE(member.last<Stop>() == nullptr);
}

}  // namespace
}  // namespace ddprun::rdzv
