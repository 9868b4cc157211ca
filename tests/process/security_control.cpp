// Goal: who asks about jobs gets an answer and nothing else; agents ask nothing; what a connection
// is for is settled by its hello. Method: a real daemon and real connections on one loop.

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/post.hpp>

#include "rendezvous/transport/dial.hpp"
#include "rendezvous/wire/codec.hpp"
#include "rendezvous/wire/control.hpp"
#include "tests/process/server_fixture.hpp"

namespace ddprun::rdzv {
namespace {

/// A connection of any role that says one body and hears what comes back.
struct Speaker {
    struct Options {
        std::uint16_t port = 0;
        std::string job;
        PeerRole role = PeerRole::Control;
        std::string body;  ///< empty: says nothing
        unsigned char secret = 1;
    };

    Speaker(boost::asio::io_context& io, Options chosen)
        : options(std::move(chosen)),
          dialer(io, DialOptions{.secret = secret_of(options.secret),
                                 .job = JobId(options.job),
                                 .role = options.role}) {
        boost::asio::co_spawn(io, speak(*this), boost::asio::detached);
    }
    Speaker(const Speaker&) = delete;
    Speaker& operator=(const Speaker&) = delete;

    static boost::asio::awaitable<void> speak(Speaker& self) {
        const Limits limits;
        const DialTarget target{.endpoint = {"127.0.0.1", self.options.port},
                                .connect_timeout = limits.connect_timeout,
                                .hello_timeout = limits.hello_timeout};
        const Result<std::unique_ptr<Connection>> dialled = co_await self.dialer.dial(target);
        if (!dialled) {
            self.refused = dialled.error().what;
            // The handlers that this has cancelled have their turn first: they use the dialer,
            // which goes once the end is told.
            co_await boost::asio::post(boost::asio::use_awaitable);
            self.end = ConnectionEnd::Lost;
            co_return;
        }
        Connection& connection = **dialled;
        if (!self.options.body.empty()) {
            connection.send(self.options.body);
        }
        std::function<void(std::string_view)> on_body = [&self](std::string_view body) {
            self.heard.emplace_back(body);
        };
        const ConnectionEnd how = co_await connection.carry(std::move(on_body));
        co_await boost::asio::post(boost::asio::use_awaitable);
        self.end = how;
    }

    Options options;
    Dialer dialer;
    std::vector<std::string> heard;
    std::string refused;  ///< by the handshake
    std::optional<ConnectionEnd> end;
};

const OperatorOrder kRestart{
    .job = JobId("llama"), .action = OperatorAction::Restart, .by = "alice@head"};

/// The daemon's reply to that order from an operator with secret 9.
OperatorReply give(boost::asio::io_context& io, const Daemon& daemon, const OperatorOrder& order) {
    const Speaker speaker(io, {.port = daemon.port,
                               .job = order.job.value(),
                               .role = PeerRole::Operator,
                               .body = encode(order),
                               .secret = 9});
    run_until(io, [&] { return speaker.end.has_value(); });
    REQUIRE(speaker.heard.size() == 1);
    const Result<OperatorReply> reply = decode<OperatorReply>(speaker.heard[0], Limits());
    REQUIRE(reply);
    return *reply;
}

StatusReply reply_in(const Speaker& speaker) {
    REQUIRE(speaker.heard.size() == 1);
    const Result<StatusReply> reply = decode<StatusReply>(speaker.heard[0], Limits());
    REQUIRE(reply);
    return *reply;
}

TEST_CASE("who asks is told about one job or about all, and the connection ends") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const Agent llama(io, {.port = daemon.port, .job = "llama", .nodes = 2});
    // It does not beat: no news of its ranks are waited for, else it would be given up meanwhile.
    const Agent bert(io, {.port = daemon.port, .job = "bert", .tells_progress = false});
    run_until(io, [&] { return llama.last<Accepted>() && bert.last<Start>(); });
    const Speaker one(
        io, {.port = daemon.port, .job = "llama", .body = encode(AskStatus{JobId("llama")})});
    const Speaker all(io, {.port = daemon.port, .job = "", .body = encode(AskStatus())});
    const Speaker none(
        io, {.port = daemon.port, .job = "gpt", .body = encode(AskStatus{JobId("gpt")})});
    run_until(io, [&] { return one.end && all.end && none.end; });
    REQUIRE(one.end == ConnectionEnd::EndOfStream);
    const StatusReply about_one = reply_in(one);
    REQUIRE(about_one.jobs.size() == 1);
    REQUIRE(about_one.jobs[0].phase == JobPhase::Forming);
    REQUIRE(about_one.jobs[0].waits_for.find("waiting for 1 node more: 1 of 2 here") == 0);
    REQUIRE(about_one.jobs[0].nodes.size() == 1);
    REQUIRE(about_one.jobs[0].nodes[0].is_connected);
    const StatusReply about_all = reply_in(all);
    REQUIRE(about_all.jobs.size() == 2);
    REQUIRE(about_all.jobs[0].job == JobId("bert"));
    REQUIRE(about_all.jobs[0].phase == JobPhase::Running);
    REQUIRE(about_all.jobs[0].nodes[0].group_rank == 0);
    REQUIRE(reply_in(none).jobs.empty());
    // Asking leaves nothing behind: no job, no connection.
    run_until(io, [&] { return daemon.server->connection_count() == 2; });
    REQUIRE(daemon.server->job_count() == 2);
    REQUIRE(llama.downs.empty());
}

TEST_CASE("the token of a run is in no answer") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    const std::string token = agent.last<Accepted>()->run_token;
    REQUIRE(token.size() >= 16);
    const Speaker all(io, {.port = daemon.port, .job = "", .body = encode(AskStatus())});
    run_until(io, [&] { return all.end.has_value(); });
    REQUIRE(all.heard.at(0).find(token) == std::string::npos);
}

TEST_CASE("a connection that was made for asking can neither join nor speak for a node") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const Agent agent(io, {.port = daemon.port, .tells_progress = false});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    const Agent other(io, {.port = daemon.port, .node = "b", .joins = false});
    const Join join = other.join();
    const std::vector<AgentMessage> messages = {join, Beat{.sequence = 1}, Leave{.signal = 15},
                                                Goodbye{}, Unkillable{Generation(1)}};
    for (const AgentMessage& message : messages) {
        const Speaker asker(io, {.port = daemon.port, .job = "llama", .body = encode(message)});
        run_until(io, [&] { return asker.end.has_value(); });
        REQUIRE(asker.end == ConnectionEnd::Lost);  // reset
        REQUIRE(asker.heard.empty());
    }
    REQUIRE(daemon.server->job_count() == 1);
    const Speaker after(
        io, {.port = daemon.port, .job = "llama", .body = encode(AskStatus{JobId("llama")})});
    run_until(io, [&] { return after.end.has_value(); });
    REQUIRE(reply_in(after).jobs.at(0).phase == JobPhase::Running);
    REQUIRE(reply_in(after).jobs.at(0).nodes.size() == 1);
    REQUIRE(agent.last<Stop>() == nullptr);
    REQUIRE(agent.downs.empty());
}

TEST_CASE("an agent's connection asks nothing") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const Speaker agent(io, {.port = daemon.port,
                             .job = "llama",
                             .role = PeerRole::Agent,
                             .body = encode(AskStatus{JobId("llama")})});
    run_until(io, [&] { return agent.end.has_value(); });
    REQUIRE(agent.end == ConnectionEnd::Lost);
    REQUIRE(agent.heard.empty());
}

TEST_CASE("who asks about another job than it greeted for is reset") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const Agent agent(io, {.port = daemon.port, .job = "llama"});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    for (const std::string asked : {"llama", ""}) {
        const Speaker asker(
            io, {.port = daemon.port, .job = "bert", .body = encode(AskStatus{JobId(asked)})});
        run_until(io, [&] { return asker.end.has_value(); });
        REQUIRE(asker.end == ConnectionEnd::Lost);
        REQUIRE(asker.heard.empty());
    }
}

TEST_CASE("who has come to ask and says nothing is closed") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(50)}});
    const Speaker silent(io, {.port = daemon.port, .job = ""});
    run_until(io, [&] { return silent.end.has_value(); });
    REQUIRE(silent.heard.empty());
    run_until(io, [&] { return daemon.server->connection_count() == 0; });
}

TEST_CASE("an answer fits into a frame however much there is to tell") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.frame_bytes_max = 2048}});
    std::vector<std::unique_ptr<Agent>> agents;
    for (int i = 0; i < 40; ++i) {
        agents.push_back(std::make_unique<Agent>(
            io, Agent::Options{.port = daemon.port, .node = "n" + std::to_string(i), .nodes = 41}));
    }
    for (const auto& agent : agents) {
        run_until(io, [&] { return agent->last<Accepted>() != nullptr; });
    }
    const Speaker asker(
        io, {.port = daemon.port, .job = "llama", .body = encode(AskStatus{JobId("llama")})});
    run_until(io, [&] { return asker.end.has_value(); });
    REQUIRE(asker.heard.at(0).size() <= 2048);
    const JobStatus job = reply_in(asker).jobs.at(0);
    REQUIRE(job.nodes_left_out > 0);
    REQUIRE(job.nodes.size() + static_cast<std::size_t>(job.nodes_left_out) == 40);
}

TEST_CASE("an operator's order is carried out, and answered with the number of its event") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.operator_secret = secret_of(9)});
    const Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    const OperatorReply reply = give(io, daemon, kRestart);
    CHECK(reply.fault == OrderFault::None);
    CHECK(reply.event > 0);
    run_until(io, [&] { return agent.last<Stop>() != nullptr; });
    CHECK(agent.last<Stop>()->why == "restarted by alice@head");
    OperatorOrder unknown = kRestart;
    unknown.job = JobId("bert");
    CHECK(give(io, daemon, unknown).text.find("there is no job bert here; there are llama") == 0);
    CHECK(give(io, daemon, unknown).fault == OrderFault::Unknown);
}

TEST_CASE("nobody gives orders without the operators' secret, nor as another role") {
    boost::asio::io_context io;
    const Daemon with(io, {.operator_secret = secret_of(9)});
    const Daemon without(io);
    const Agent one(io, {.port = with.port});
    const Agent other(io, {.port = without.port});
    run_until(io, [&] { return one.last<Start>() && other.last<Start>(); });
    const auto refused = [&](std::uint16_t port, PeerRole role, unsigned char secret) {
        const Speaker speaker(io, {.port = port,
                                   .job = "llama",
                                   .role = role,
                                   .body = encode(kRestart),
                                   .secret = secret});
        run_until(io, [&] { return speaker.end.has_value(); });
        REQUIRE(speaker.end == ConnectionEnd::Lost);
        REQUIRE(speaker.heard.empty());
        return speaker.refused;
    };
    CHECK(refused(with.port, PeerRole::Operator, 1).find("the operator's secret") == 0);
    CHECK(refused(without.port, PeerRole::Operator, 1).find("takes no orders") !=
          std::string::npos);
    CHECK(refused(without.port, PeerRole::Operator, 9).find("takes no orders") !=
          std::string::npos);
    CHECK(refused(with.port, PeerRole::Control, 1).empty());
    CHECK(refused(with.port, PeerRole::Agent, 1).empty());
    CHECK_FALSE(refused(with.port, PeerRole::Control, 9).empty());
    CHECK(one.last<Stop>() == nullptr);
    CHECK(other.last<Stop>() == nullptr);
}

TEST_CASE("an operator asks about the job of its hello, once, and nothing else") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.operator_secret = secret_of(9)});
    const Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    for (const std::string& body : {encode(AskStatus{JobId("bert")}), encode(kRestart),
                                    encode(AgentMessage(Beat{.sequence = 1}))}) {
        const Speaker speaker(io, {.port = daemon.port,
                                   .job = "bert",
                                   .role = PeerRole::Operator,
                                   .body = body,
                                   .secret = 9});
        run_until(io, [&] { return speaker.end.has_value(); });
        CHECK(speaker.end == ConnectionEnd::Lost);
        CHECK(speaker.heard.empty());
    }
    CHECK(agent.last<Stop>() == nullptr);
}

}  // namespace
}  // namespace ddprun::rdzv
