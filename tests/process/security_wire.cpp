// Goal: a peer without the secret changes nothing by what it records, repeats, sends back, cuts
// short or dribbles, and keeps no other peer waiting. Method: a real daemon, a real agent, and
// a relay between them that hears every byte.

#include <algorithm>
#include <functional>

#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>

#include "rendezvous/wire/handshake.hpp"
#include "tests/process/security_relay.hpp"
#include "tests/process/server_fixture.hpp"

namespace ddprun::rdzv {
namespace {

constexpr std::size_t kFrameOverhead = 4 + 16;

/// The relay sits in the middle of a session that has beaten `beats` times.
void beat_through(boost::asio::io_context& io, Agent& agent, std::uint64_t beats) {
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    for (std::uint64_t i = 1; i <= beats; ++i) {
        agent.client->send(Beat{.sequence = i});
    }
    run_until(io, [&] {
        return agent.last<Acknowledge>() != nullptr && agent.last<Acknowledge>()->sequence == beats;
    });
}

TEST_CASE("a recorded session opens nothing when it is played to the daemon again") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Relay relay(io, daemon.port);
    Agent agent(io, {.port = relay.port()});
    beat_through(io, agent, 3);
    agent.client->stop([] {});
    run_until(io, [&] { return relay.is_closed && daemon.server->connection_count() == 0; });
    // All at once, and as the daemon answers.
    for (const bool is_patient : {false, true}) {
        Stranger thief(io, daemon.port);
        if (is_patient) {
            thief.say(relay.from_agent.substr(0, kHelloBytes));
            run_until(io, [&] { return thief.heard.size() == kAnswerBytes; });
            REQUIRE(thief.heard != relay.from_daemon.substr(0, kAnswerBytes));
            thief.say(relay.from_agent.substr(kHelloBytes));
        } else {
            thief.say(relay.from_agent);
        }
        run_until(io, [&] { return thief.is_closed; });
        REQUIRE(thief.heard.size() == kAnswerBytes);
        run_until(io, [&] { return daemon.server->connection_count() == 0; });
    }
    REQUIRE(daemon.has_logged("its secret is not ours"));
}

TEST_CASE("a frame that is said twice on a living connection ends it and is no death") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Relay relay(io, daemon.port);
    Agent agent(io, {.port = relay.port()});
    beat_through(io, agent, 2);
    const std::size_t beat_bytes = 9 + kFrameOverhead;
    relay.say_to_daemon(relay.from_agent.substr(relay.from_agent.size() - beat_bytes));
    run_until(io, [&] { return relay.is_closed; });
    REQUIRE(daemon.has_logged("does not carry its MAC"));
    // The node is only suspected: its lease decides, and its run goes on.
    REQUIRE_FALSE(daemon.has_logged("is dead"));
    REQUIRE(daemon.server->job_count() == 1);
}

TEST_CASE("what one side has said is refused when it is sent back to it") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Relay first_relay(io, daemon.port);
    Agent first(io, {.port = first_relay.port()});
    beat_through(io, first, 1);
    first_relay.say_to_daemon(first_relay.from_daemon.substr(first_relay.from_daemon.size() - 29));
    run_until(io, [&] { return first_relay.is_closed && first.downs.size() == 1; });
    first.client->stop([] {});
    Relay relay(io, daemon.port);
    Agent agent(io, {.port = relay.port(), .job = "bert"});
    beat_through(io, agent, 1);
    relay.say_to_agent(relay.from_agent.substr(relay.from_agent.size() - 29));
    run_until(io, [&] { return agent.downs.size() == 1; });
    REQUIRE(agent.downs[0].find("does not carry its MAC") != std::string::npos);
    REQUIRE_FALSE(agent.is_down_for_good);
}

TEST_CASE("an agent does not take its own hello, nor an answer to another agent, for an answer") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Relay relay(io, daemon.port);
    Agent honest(io, {.port = relay.port()});
    run_until(io, [&] { return honest.last<Start>() != nullptr; });
    const std::string recorded = relay.from_daemon.substr(0, kAnswerBytes);
    const bool is_mirror = GENERATE(true, false);
    boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
    boost::asio::ip::tcp::socket served(io);
    std::array<char, kHelloBytes> hello{};
    acceptor.async_accept(served, [&](boost::system::error_code) {
        boost::asio::read(served, boost::asio::buffer(hello));
        const std::string mirrored(hello.begin(), hello.end());
        boost::asio::write(served, boost::asio::buffer(is_mirror ? mirrored : recorded));
    });
    Agent agent(io, {.port = acceptor.local_endpoint().port(), .node = "b"});
    run_until(io, [&] { return !agent.downs.empty(); });
    REQUIRE(agent.ups == 0);
    REQUIRE(agent.is_down_for_good);
    REQUIRE(agent.downs[0].find(is_mirror ? "is not a ddprun rendezvous"
                                          : "is not that of the rendezvous") != std::string::npos);
}

TEST_CASE("a handshake that is cut short anywhere changes nothing") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const std::string hello = AgentHandshake(secret_of(1), JobId("llama"), random_nonce()).hello();
    const std::string all = hello + std::string(kProofBytes, 'x');
    for (std::size_t length = 0; length <= all.size(); ++length) {
        INFO("after " << length << " bytes");
        Stranger stranger(io, daemon.port);
        stranger.say(all.substr(0, length));
        stranger.socket.shutdown(boost::asio::ip::tcp::socket::shutdown_send);
        run_until(io, [&] { return stranger.is_closed; });
        REQUIRE(stranger.heard.size() == (length < kHelloBytes ? 0 : kAnswerBytes));
    }
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
    REQUIRE(daemon.server->job_count() == 0);
}

TEST_CASE("as many silent strangers as are listened to keep no member waiting, and leave in time") {
    boost::asio::io_context io;
    const Limits limits{
        .hello_timeout = Milliseconds(400), .half_open_max = 64, .lease = Milliseconds(60000)};
    const Daemon daemon(io, {.limits = limits});
    Agent member(io, {.port = daemon.port});
    run_until(io, [&] { return member.last<Start>() != nullptr; });
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 200; ++i) {
        strangers.push_back(std::make_unique<Stranger>(io, daemon.port));
    }
    run_until(io, [&] { return daemon.server->connection_count() == 65; });
    // All doors are taken. A member that is in already notices nothing.
    member.client->send(Beat{.sequence = 1});
    run_until(io, [&] { return member.last<Acknowledge>() != nullptr; });
    REQUIRE(daemon.server->connection_count() == 65);
    std::size_t most = 0;
    const Agent newcomer(io, {.port = daemon.port, .job = "bert"});
    run_until(io, [&] {
        most = std::max(most, daemon.server->connection_count());
        return newcomer.last<Start>() != nullptr;
    });
    REQUIRE(most == 65);
    run_until(io, [&] {
        return std::all_of(strangers.begin(), strangers.end(),
                           [](const auto& stranger) { return stranger->is_closed; });
    });
    REQUIRE(member.downs.empty());
}

TEST_CASE("who dribbles a hello is closed when its time is over, whatever it still says") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(100)}});
    Stranger slow(io, daemon.port);
    const std::string hello = AgentHandshake(secret_of(1), JobId("llama"), random_nonce()).hello();
    std::size_t said = 0;
    boost::asio::steady_timer timer(io);
    std::function<void(boost::system::error_code)> drip = [&](boost::system::error_code failure) {
        if (failure || slow.is_closed || said + 1 >= hello.size()) {
            return;
        }
        boost::system::error_code ignored;
        slow.socket.write_some(boost::asio::buffer(&hello[said++], 1), ignored);
        timer.expires_after(Milliseconds(10));
        timer.async_wait(drip);
    };
    drip({});
    run_until(io, [&] { return slow.is_closed; });
    REQUIRE(slow.heard.empty());
    REQUIRE(said < hello.size());
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
}

}  // namespace
}  // namespace ddprun::rdzv
