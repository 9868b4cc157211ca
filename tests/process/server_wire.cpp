// Goal: the daemon and its clients over real sockets: who gets in, who does not and is told why,
// and what both sides make of a connection that ends.

#include <fcntl.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>

#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/write.hpp>

#include "rendezvous/transport/connection.hpp"
#include "rendezvous/wire/handshake.hpp"
#include "tests/process/server_fixture.hpp"
#include "worker_runtime/contract/exit_codes.hpp"

namespace ddprun::rdzv {
namespace {

TEST_CASE("two agents join and are started with their ranks") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent first(io, {.port = daemon.port, .node = "a", .nodes = 2});
    Agent second(io, {.port = daemon.port, .node = "b", .nodes = 2});
    run_until(io, [&] { return first.last<Start>() && second.last<Start>(); });
    REQUIRE(first.last<Accepted>()->lease == Limits().lease);
    REQUIRE(first.local_address == "127.0.0.1");
    REQUIRE(first.last<Start>()->world_size == 4);
    REQUIRE(first.last<Start>()->base_rank + second.last<Start>()->base_rank == 2);
    REQUIRE(first.last<Start>()->digest == second.last<Start>()->digest);
    REQUIRE(first.downs.empty());
}

TEST_CASE("a hundred agents that start at the same moment all get in") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    std::vector<std::unique_ptr<Agent>> agents;
    for (int i = 0; i < 100; ++i) {
        Agent::Options options{.port = daemon.port, .node = "n" + std::to_string(i), .nodes = 100};
        agents.push_back(std::make_unique<Agent>(io, options));
    }
    for (const auto& agent : agents) {
        run_until(io, [&] { return agent->last<Start>() != nullptr; });
        REQUIRE(agent->last<Start>()->world_size == 200);
        REQUIRE(agent->downs.empty());
    }
}

TEST_CASE("one daemon serves two jobs that know nothing of each other") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent llama(io, {.port = daemon.port, .job = "llama"});
    Agent bert(io, {.port = daemon.port, .job = "bert"});
    run_until(io, [&] { return llama.last<Start>() && bert.last<Start>(); });
    REQUIRE(daemon.server->job_count() == 2);
    llama.client->send(WorkerFailed{
        .generation = Generation(1), .local_rank = LocalRank(0), .evidence = {.exit_code = 17}});
    run_until(io, [&] { return llama.last<Stop>() != nullptr; });
    REQUIRE(bert.last<Stop>() == nullptr);
}

TEST_CASE("beats are acknowledged") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Accepted>() != nullptr; });
    agent.client->send(Beat{.sequence = 41});
    agent.client->send(Beat{.sequence = 42});
    run_until(
        io, [&] { return agent.last<Acknowledge>() && agent.last<Acknowledge>()->sequence == 42; });
}

TEST_CASE("an agent with another secret is told what to copy and does not try again") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent agent(io, {.port = daemon.port, .secret = secret_of(2)});
    run_until(io, [&] { return !agent.downs.empty(); });
    REQUIRE(agent.is_down_for_good);
    REQUIRE(agent.downs ==
            std::vector<std::string>{
                "the secret of this node is not that of the rendezvous at 127.0.0.1:" +
                std::to_string(daemon.port) +
                "; copy /home/me/secret from the node that started it, or pass "
                "--secret-file"});
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
    REQUIRE(agent.ups == 0);
    REQUIRE(agent.attempts == 1);
    REQUIRE(daemon.server->job_count() == 0);
    REQUIRE(daemon.has_logged("its secret is not ours"));
}

TEST_CASE("the nodes of a job hear who was turned away from it, and nodes of others do not") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent waits(io, {.port = daemon.port, .nodes = 2});
    Agent elsewhere(io, {.port = daemon.port, .job = "other", .nodes = 2});
    run_until(io, [&] { return waits.last<Accepted>() && elsewhere.last<Accepted>(); });
    const auto is_told = [](const Agent& agent, const std::string& text) {
        const Waiting* const waiting = agent.last<Waiting>();
        return waiting != nullptr && waiting->text.find(text) != std::string::npos;
    };
    Agent other(io, {.port = daemon.port, .secret = secret_of(2)});
    run_until(io, [&] {
        return is_told(waits,
                       "turned away: 127.0.0.1: its secret is not ours; copy /home/me/secret");
    });
    CHECK_FALSE(is_told(elsewhere, "turned away"));
}

TEST_CASE("a proof where none is asked for is refused, and ends no rendezvous") {
    boost::asio::io_context io;
    const Daemon open(io, {.secret = std::nullopt});
    Agent agent(io, {.port = open.port, .nodes = 2, .secret = std::nullopt});
    run_until(io, [&] { return agent.last<Accepted>() != nullptr; });
    boost::asio::ip::tcp::socket stranger(io);
    stranger.connect({boost::asio::ip::make_address("127.0.0.1"), open.port});
    const AgentHandshake handshake(std::nullopt, JobId("llama"), random_nonce());
    boost::asio::write(stranger, boost::asio::buffer(handshake.hello()));
    boost::asio::write(stranger, boost::asio::buffer(std::string(kProofBytes, '\1')));
    run_until(io, [&] {
        const Waiting* const waiting = agent.last<Waiting>();
        return waiting != nullptr &&
               waiting->text.find("turned away: 127.0.0.1: its secret is not ours") !=
                   std::string::npos;
    });
}

TEST_CASE("without secrets both sides must say so") {
    boost::asio::io_context io;
    const Daemon open(io, {.secret = std::nullopt});
    const Daemon closed(io);
    Agent both(io, {.port = open.port, .secret = std::nullopt});
    Agent only_daemon(io, {.port = open.port});
    Agent only_agent(io, {.port = closed.port, .secret = std::nullopt});
    run_until(io, [&] {
        return both.last<Start>() && !only_daemon.downs.empty() && !only_agent.downs.empty();
    });
    REQUIRE(only_daemon.is_down_for_good);
    REQUIRE(only_daemon.downs[0].find("was started with --insecure, this node was not") !=
            std::string::npos);
    REQUIRE(only_agent.is_down_for_good);
    REQUIRE(only_agent.downs[0].find("asks for a secret, but this node was started with "
                                     "--insecure") != std::string::npos);
}

TEST_CASE("an agent says once why it does not reach its rendezvous and gets in when there is one") {
    boost::asio::io_context io;
    Daemon gone(io);
    const std::uint16_t port = gone.port;
    gone.end(io);
    Agent agent(io, {.port = port});
    run_until(io, [&] { return agent.attempts >= 4; });
    REQUIRE(agent.downs ==
            std::vector<std::string>{"cannot connect to the rendezvous at 127.0.0.1:" +
                                     std::to_string(port) + ": Connection refused"});
    REQUIRE_FALSE(agent.is_down_for_good);
    const Daemon daemon(io, {.port = port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
}

TEST_CASE("an agent finds the next daemon on the same port") {
    boost::asio::io_context io;
    Daemon first(io);
    const std::uint16_t port = first.port;
    Agent agent(io, {.port = port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    first.end(io);
    run_until(io, [&] { return agent.downs.size() == 1; });
    REQUIRE(agent.downs[0] == "lost the rendezvous at 127.0.0.1:" + std::to_string(port) +
                                  ": it closed the connection");
    const Daemon next(io, {.port = port});
    run_until(io, [&] { return agent.ups == 2 && next.server->job_count() == 1; });
    REQUIRE_FALSE(agent.is_down_for_good);
}

TEST_CASE("who talks to something else is told so at once") {
    boost::asio::io_context io;
    boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
    boost::asio::ip::tcp::socket served(io);
    acceptor.async_accept(served, [&](boost::system::error_code) {
        boost::asio::write(served, boost::asio::buffer(std::string("SSH-2.0-OpenSSH\r\n")));
    });
    Agent agent(io, {.port = acceptor.local_endpoint().port()});
    run_until(io, [&] { return !agent.downs.empty(); });
    REQUIRE(agent.is_down_for_good);
    REQUIRE(agent.downs[0].find("is not a ddprun rendezvous") != std::string::npos);
}

TEST_CASE("strangers are turned away and change nothing") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(50)}});
    Stranger web(io, daemon.port);
    Stranger silent(io, daemon.port);
    Stranger slow(io, daemon.port);
    Stranger parrot(io, daemon.port);
    web.say("GET / HTTP/1.1\r\n\r\n");
    slow.say("DDPR\x01");
    parrot.say(std::string("DDPR\x01\x01"
                           "a\0",
                           8) +
               std::string(64, 'x') + std::string(32, 'y'));
    run_until(io, [&] {
        return web.is_closed && silent.is_closed && slow.is_closed && parrot.is_closed;
    });
    REQUIRE(web.heard.starts_with("HTTP/1.1 403 "));  // it did not say whom it means
    REQUIRE(parrot.heard.size() == kAnswerBytes);
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
    REQUIRE(daemon.server->job_count() == 0);
    // One line a second at most.
    REQUIRE(daemon.log.size() == 1);
}

TEST_CASE("only so many strangers are listened to at once and agents get in after them") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(50), .half_open_max = 2}});
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 5; ++i) {
        strangers.push_back(std::make_unique<Stranger>(io, daemon.port));
    }
    Agent agent(io, {.port = daemon.port});
    std::size_t most = 0;
    run_until(io, [&] {
        most = std::max(most, daemon.server->connection_count());
        return agent.last<Start>() != nullptr;
    });
    REQUIRE(most == 2);
}

/// Silent connections from one address that the daemon has no room for.
std::vector<std::unique_ptr<Stranger>> flood(boost::asio::io_context& io, const Daemon& daemon,
                                             const char* from) {
    std::vector<std::unique_ptr<Stranger>> strangers;
    for (int i = 0; i < 30; ++i) {
        strangers.push_back(std::make_unique<Stranger>(io, daemon.port, from));
    }
    return strangers;
}

TEST_CASE("silent strangers keep out nobody from another address, and close only each other") {
    boost::asio::io_context io;
    // They may be silent for ever, and are too young to make room for each other, or old enough.
    const auto grace = GENERATE(Milliseconds(60000), Milliseconds(0));
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(60000),
                                        .half_open_max = 8,
                                        .half_open_per_source_max = 4,
                                        .half_open_grace = grace}});
    Stranger neighbour(io, daemon.port);
    const auto strangers = flood(io, daemon, "127.0.0.2");
    Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    REQUIRE(agent.attempts == 1);
    REQUIRE_FALSE(neighbour.is_closed);
    const auto closed = [&] {
        return std::count_if(strangers.begin(), strangers.end(),
                             [](const auto& stranger) { return stranger->is_closed; });
    };
    run_until(io, [&] { return closed() == 26; });
    REQUIRE(strangers.front()->is_closed == (grace == Milliseconds(0)));
    REQUIRE(daemon.has_logged("turned 127.0.0.2 port "));
}

TEST_CASE("who speaks at once gets in beside silent strangers of his own address") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(60000),
                                        .half_open_per_source_max = 4,
                                        .half_open_grace = Milliseconds(0)}});
    const auto strangers = flood(io, daemon, "127.0.0.1");
    Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    REQUIRE(agent.attempts == 1);
}

TEST_CASE("who speaks before it joined, or joins another job than it greeted for, is reset") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent rash(io, {.port = daemon.port, .joins = false});
    run_until(io, [&] { return rash.ups == 1; });
    rash.client->send(Beat{.sequence = 1});
    run_until(io, [&] { return rash.downs.size() == 1; });
    REQUIRE(rash.downs[0].find("Connection reset") != std::string::npos);
    Agent liar(io, {.port = daemon.port, .joins = false});
    run_until(io, [&] { return liar.ups == 1; });
    Join other = liar.join();
    other.job = JobId("bert");
    liar.client->send(other);
    run_until(io, [&] { return liar.downs.size() == 1; });
    REQUIRE(daemon.server->job_count() == 0);
    REQUIRE(daemon.has_logged("it joins another job than it greeted for"));
}

TEST_CASE("a daemon refuses a job too many") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.jobs_max = 1}});
    Agent first(io, {.port = daemon.port, .job = "llama"});
    run_until(io, [&] { return first.last<Start>() != nullptr; });
    Agent second(io, {.port = daemon.port, .job = "bert"});
    run_until(io, [&] { return second.last<Refused>() != nullptr; });
    REQUIRE(second.last<Refused>()->text ==
            "the rendezvous serves 1 jobs already, its limit; use another one");
    run_until(io, [&] { return !second.downs.empty(); });
}

TEST_CASE("a node that is not fit is answered, named to those who join, and opens no run") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const auto unfit_of = [](const Agent& agent) {
        return Unfit{.job = JobId(agent.options.job),
                     .node = NodeId(agent.options.node),
                     .hostname = agent.options.node,
                     .why = "its fan"};
    };
    const Agent early(io, {.port = daemon.port, .node = "early", .joins = false});
    run_until(io, [&] { return early.ups == 1; });
    early.client->send(unfit_of(early));
    run_until(io, [&] { return !early.downs.empty(); });
    REQUIRE(early.last<Refused>() != nullptr);
    REQUIRE(early.last<Refused>()->exit_code == kExitUnfit);
    const Agent agent(io, {.port = daemon.port, .nodes = 2});
    run_until(io, [&] { return agent.last<Waiting>() != nullptr; });
    REQUIRE(agent.last<Waiting>()->text.ends_with("; early is not fit (its fan)"));
    // It is no member, though its Join would have made the run complete.
    REQUIRE(agent.last<Start>() == nullptr);

    const Agent liar(io, {.port = daemon.port, .node = "liar", .joins = false});
    run_until(io, [&] { return liar.ups == 1; });
    Unfit other = unfit_of(liar);
    other.job = JobId("bert");
    liar.client->send(other);
    run_until(io, [&] { return !liar.downs.empty(); });
    REQUIRE(liar.messages.empty());
    REQUIRE(daemon.server->job_count() == 1);
}

TEST_CASE("who is not fit for a job that nobody joins keeps neither a daemon nor another job out") {
    boost::asio::io_context io;
    Limits limits;
    limits.jobs_max = 1;
    const Daemon daemon(io, {.limits = limits, .exits_when_idle = true});
    // Connected all the time, or the daemon would be idle.
    const Agent agent(io, {.port = daemon.port, .joins = false});
    run_until(io, [&] { return agent.ups == 1; });
    std::vector<std::unique_ptr<Agent>> gone;
    for (const char* const job : {"bert", "mistral"}) {
        gone.push_back(std::make_unique<Agent>(
            io, Agent::Options{.port = daemon.port, .job = job, .joins = false}));
        const Agent& unfit = *gone.back();
        run_until(io, [&] { return unfit.ups == 1; });
        unfit.client->send(Unfit{.job = JobId(job), .node = NodeId("n"), .why = "its fan"});
        run_until(io, [&] { return unfit.last<Refused>() != nullptr; });
        REQUIRE(unfit.last<Refused>()->exit_code == kExitUnfit);
        REQUIRE(daemon.server->job_count() == 1);
        unfit.client->stop([] {});
    }
    agent.client->send(agent.join());
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    agent.client->send(Goodbye{});
    agent.client->stop([] {});
    run_until(io, [&] { return daemon.has_ended; });
}

TEST_CASE("one of several daemons sends a node that is not fit to the one that leads") {
    boost::asio::io_context io;
    const Daemon leader(io);
    const Daemon follower(io, {.is_one_of_several = true});
    follower.server->follow("127.0.0.1:" + std::to_string(leader.port));
    const Agent unfit(io, {.port = follower.port, .joins = false});
    const Unfit message{.job = JobId("llama"), .node = NodeId("n"), .why = "its fan"};
    run_until(io, [&] { return unfit.ups == 1; });
    unfit.client->send(message);
    run_until(io, [&] { return unfit.ups == 2; });
    unfit.client->send(message);
    run_until(io, [&] { return unfit.last<Refused>() != nullptr; });
    REQUIRE(unfit.last<Refused>()->exit_code == kExitUnfit);
    REQUIRE(leader.server->job_count() == 1);
    REQUIRE(follower.server->job_count() == 0);
}

TEST_CASE("a daemon ends with its last run, whoever was not fit for another job") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.exits_when_idle = true});
    const Agent unfit(io, {.port = daemon.port, .job = "bert", .joins = false});
    run_until(io, [&] { return unfit.ups == 1; });
    unfit.client->send(Unfit{.job = JobId("bert"), .node = NodeId("n"), .why = "its fan"});
    run_until(io, [&] { return unfit.last<Refused>() != nullptr; });
    const Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    REQUIRE(daemon.server->job_count() == 2);
    unfit.client->stop([] {});
    agent.client->send(Goodbye{});
    agent.client->stop([] {});
    run_until(io, [&] { return daemon.has_ended; });
}

TEST_CASE("a daemon to which only nodes come that are not fit waits for others as for the first") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.exits_when_idle = true, .idle_start_timeout = Milliseconds(1000)});
    const Agent unfit(io, {.port = daemon.port, .joins = false});
    run_until(io, [&] { return unfit.ups == 1; });
    unfit.client->send(Unfit{.job = JobId("llama"), .node = NodeId("n"), .why = "its fan"});
    run_until(io, [&] { return unfit.last<Refused>() != nullptr; });
    unfit.client->stop([] {});
    run_until(io, [&] { return daemon.has_ended; });
    REQUIRE(daemon.has_logged("nobody came"));
}

TEST_CASE("an agent that stops has said all it was told to say") {
    boost::asio::io_context io;
    Daemon daemon(io, {.exits_when_idle = true});
    Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    for (int i = 0; i < 2; ++i) {
        agent.client->send(WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(i)});
    }
    run_until(io, [&] { return agent.last<Verdict>() != nullptr; });
    REQUIRE(agent.last<Verdict>()->kind == VerdictKind::Succeeded);
    bool is_stopped = false;
    agent.client->send(Goodbye{});
    agent.client->stop([&] { is_stopped = true; });
    REQUIRE_FALSE(is_stopped);
    run_until(io, [&] { return is_stopped && daemon.has_ended; });
    REQUIRE(agent.downs.empty());
    // Nothing is left to do: no timer, no socket.
    io.restart();
    io.run();
}

TEST_CASE("a client can be stopped at any moment") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(60000)}});
    for (int steps = 0; steps < 40; ++steps) {
        Agent agent(io, {.port = daemon.port});
        io.restart();
        for (int i = 0; i < steps; ++i) {
            io.poll_one();
        }
        bool is_stopped = false;
        const int ups = agent.ups;
        agent.client->stop([&] { is_stopped = true; });
        run_until(io, [&] { return is_stopped; });
        REQUIRE(agent.ups == ups);
        REQUIRE(agent.downs.empty());
    }
    Agent gone(io, {.port = daemon.port});
    run_until(io, [&] { return gone.ups == 1; });
    gone.client->stop([] {});
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
    REQUIRE(gone.downs.empty());
}

TEST_CASE("an idle daemon ends when nobody joined in time") {
    boost::asio::io_context io;
    Daemon daemon(io, {.exits_when_idle = true, .idle_start_timeout = Milliseconds(10)});
    run_until(io, [&] { return daemon.has_ended; });
    Daemon visited(io, {.limits = {.hello_timeout = Milliseconds(50)},
                        .exits_when_idle = true,
                        .idle_start_timeout = Milliseconds(10)});
    Stranger stranger(io, visited.port);
    run_until(io, [&] { return visited.has_ended; });
    REQUIRE(visited.has_logged("nobody came"));
}

TEST_CASE("an agent that proves itself and joins nothing is reset, and a daemon ends without it") {
    boost::asio::io_context io;
    Daemon daemon(io, {.limits = {.join_deadline = Milliseconds(50)},
                       .exits_when_idle = true,
                       .idle_start_timeout = Milliseconds(10)});
    Agent silent(io, {.port = daemon.port, .joins = false});
    run_until(io, [&] { return silent.downs.size() == 1; });
    REQUIRE(silent.ups == 1);
    REQUIRE(daemon.has_logged("it joined no job within"));
    silent.client->stop([] {});
    run_until(io, [&] { return daemon.has_ended; });
}

TEST_CASE("a daemon waits for an agent that it has reset for not having joined") {
    boost::asio::io_context io;
    Daemon daemon(io, {.limits = {.join_deadline = Milliseconds(1100)},
                       .exits_when_idle = true,
                       .idle_start_timeout = Milliseconds(1000)});
    // Its machine is still being checked.
    Agent agent(io, {.port = daemon.port, .joins = false});
    run_until(io, [&] { return agent.ups == 2; });
    REQUIRE(daemon.has_logged("it joined no job within"));
    agent.client->send(agent.join());
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    agent.client->send(Goodbye{});
    agent.client->stop([] {});
    run_until(io, [&] { return daemon.has_ended; });
    REQUIRE(daemon.has_logged("all runs are closed"));
}

TEST_CASE("who has joined, or waits for a leader to join, is not reset for not having joined") {
    boost::asio::io_context io;
    const Limits hasty{.join_deadline = Milliseconds(50), .lease = Milliseconds(3600000)};
    const bool waits = GENERATE(false, true);
    const Daemon daemon(io, {.limits = hasty, .is_one_of_several = waits});
    const Agent agent(io, {.port = daemon.port, .nodes = 2, .limits = hasty});
    run_until(io, [&] { return agent.ups == 1; });
    // Its time begins later, and so ends later.
    const Agent silent(io, {.port = daemon.port, .node = "silent", .joins = false});
    run_until(io, [&] { return !silent.downs.empty(); });
    REQUIRE(daemon.has_logged("it joined no job within"));
    REQUIRE(agent.downs.empty());
}

TEST_CASE("a connection asks for its peer when that says nothing for long") {
    boost::asio::io_context io;
    boost::asio::ip::tcp::acceptor acceptor(io, {boost::asio::ip::address_v4::loopback(), 0});
    boost::asio::ip::tcp::socket socket(io);
    socket.connect(acceptor.local_endpoint());
    Connection connection(std::move(socket), Limits{.keepalive_after = Milliseconds(7000)});
    connection.tune();
    int value = 0;
    socklen_t size = sizeof(value);
    const int fd = connection.socket().native_handle();
    REQUIRE(::getsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &value, &size) == 0);
    REQUIRE(value == 1);
    REQUIRE(::getsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &value, &size) == 0);
    REQUIRE(value == 7);
}

namespace {

/// How many sockets of this process end when bytes stay unanswered for that long.
int sockets_with_timeout(Milliseconds timeout) {
    int count = 0;
    for (int fd = 3; fd < 1024; ++fd) {
        unsigned int value = 0;
        socklen_t size = sizeof(value);
        if (::getsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &value, &size) == 0 &&
            value == timeout.count()) {
            ++count;
        }
    }
    return count;
}

}  // namespace

// Linux ends an idle connection at the second question if that time is over by then.
TEST_CASE("TCP ends a connection after three leases once there are beats, and not before") {
    boost::asio::io_context io;
    const Limits limits{.keepalive_after = Milliseconds(7000),
                        .keepalive_interval = Milliseconds(2000),
                        .lease = Milliseconds(4321)};
    const Daemon daemon(io, {.limits = limits});
    const Agent agent(io, {.port = daemon.port, .joins = false, .limits = limits});
    run_until(io, [&] { return agent.ups == 1; });
    CHECK(sockets_with_timeout(Milliseconds(13000)) == 2);
    CHECK(sockets_with_timeout(3 * limits.lease) == 0);
    agent.client->send(agent.join());
    run_until(io, [&] { return agent.last<Accepted>() != nullptr; });
    CHECK(sockets_with_timeout(Milliseconds(13000)) == 0);
    CHECK(sockets_with_timeout(3 * limits.lease) == 2);
}

TEST_CASE("the death of an agent's process is noticed long before its lease ends") {
    boost::asio::io_context io;
    const Limits patient{.lease = Milliseconds(3600000)};
    const Daemon daemon(io, {.limits = patient});
    int has_read[2];
    REQUIRE(::pipe2(has_read, O_CLOEXEC) == 0);
    const pid_t child = ::fork();
    REQUIRE(child >= 0);
    if (child == 0) {
        boost::asio::io_context own;
        const Agent agent(own, {.port = daemon.port, .node = "b", .nodes = 2});
        while (agent.last<Start>() == nullptr) {
            own.run_one();
        }
        ::_exit(::write(has_read[1], "", 1) == 1 && ::pause() == 0 ? 0 : 1);
    }
    Agent agent(io, {.port = daemon.port, .node = "a", .nodes = 2});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    // Were something unread when it dies, the kernel would reset its connection: only a suspicion.
    // The daemon lives on this loop and may still have to send it.
    boost::asio::posix::stream_descriptor reading(io, has_read[0]);
    bool is_readable = false;
    reading.async_wait(boost::asio::posix::stream_descriptor::wait_read,
                       [&](boost::system::error_code failure) { is_readable = !failure; });
    run_until(io, [&] { return is_readable; });
    ::close(has_read[1]);
    REQUIRE(::kill(child, SIGKILL) == 0);
    run_until(io, [&] { return agent.last<Stop>() != nullptr; });
    REQUIRE(::waitpid(child, nullptr, 0) == child);
}

TEST_CASE("a daemon that was held up does not blame its agents") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.lease = Milliseconds(300)}});
    Agent first(io, {.port = daemon.port, .node = "a", .nodes = 2});
    Agent second(io, {.port = daemon.port, .node = "b", .nodes = 2});
    run_until(io, [&] { return first.last<Start>() && second.last<Start>(); });
    // This thread, and with it the daemon, gets no time for twice the lease.
    ::poll(nullptr, 0, 600);
    first.client->send(Beat{.sequence = 1});
    second.client->send(Beat{.sequence = 1});
    run_until(io, [&] { return first.last<Acknowledge>() && second.last<Acknowledge>(); });
    REQUIRE(daemon.has_logged("this process was held up for"));
    REQUIRE(first.last<Stop>() == nullptr);
    REQUIRE(second.last<Stop>() == nullptr);
}

TEST_CASE("an agent whose lease ends is declared lost") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.lease = Milliseconds(100)}});
    Agent silent(io, {.port = daemon.port, .node = "a", .nodes = 1});
    run_until(io, [&] { return silent.last<Start>() != nullptr; });
    run_until(io, [&] { return silent.downs.size() == 1; });
    REQUIRE(daemon.has_logged("node a was silent for "));  // 100 ms, or more on a busy machine
}

}  // namespace
}  // namespace ddprun::rdzv
