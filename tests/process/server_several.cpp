// Goal: where an agent goes that has several daemons, over real sockets.

#include "tests/process/server_fixture.hpp"

namespace ddprun::rdzv {
namespace {

/// Nobody beats here, and nobody shall be lost for it.
constexpr Milliseconds kHour{3600000};

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
    leader.server.reset();
    run_until(io, [&] { return agent.has_lost("nobody leads"); });
    REQUIRE(!agent.has_lost(leader.endpoint() + " leads"));
    follower.server->follow(next_leader.endpoint());
    run_until(io, [&] { return agent.count<Accepted>() == 2; });
    REQUIRE(agent.has_lost(next_leader.endpoint() + " leads"));
}

}  // namespace
}  // namespace ddprun::rdzv
