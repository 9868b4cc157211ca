// Goal: the store on the daemon's port. Its clients are told from agents by their first byte, have
// no part in what agents are bounded by, and get the store that is theirs, or a line that helps.

#include "tests/process/server_fixture.hpp"
#include "tests/support/store_requests.hpp"

namespace ddprun::rdzv {
namespace {

using namespace store_test;

const std::string kHello = validate() + ping(1);

/// The agents that follow leave their store to the daemon.
Agent::Options with_store_here(const Daemon& daemon, const std::string& job,
                               const std::string& node, int nodes = 1) {
    return {.port = daemon.port,
            .job = job,
            .node = node,
            .nodes = nodes,
            .store = StoreAddress{"127.0.0.1", 0}};
}

void wait_for_bytes(boost::asio::io_context& io, Stranger& client, const std::string& bytes) {
    run_until(io, [&] { return client.heard.size() >= bytes.size() || client.is_closed; });
    REQUIRE(client.heard == bytes);
    client.heard.clear();
}

void wait_for_log(boost::asio::io_context& io, const Daemon& daemon, const std::string& text) {
    run_until(io, [&] { return daemon.has_logged(text); });
}

void fail_worker(Agent& agent) {
    agent.client->send(WorkerFailed{.generation = agent.last<Start>()->generation,
                                    .local_rank = LocalRank(0),
                                    .evidence = {.exit_code = 17}});
}

}  // namespace

TEST_CASE("with --serve-tcpstore agents and clients of a store share the port") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.serves_tcpstore = true});
    Stranger first(io, daemon.port);
    Stranger second(io, daemon.port);
    first.say(kHello + set("k", "1"));
    wait_for_bytes(io, first, nonce(1));
    second.say(kHello + get("k"));
    wait_for_bytes(io, second, nonce(1) + text("1"));
    // Both are no connections of the daemon's any more.
    REQUIRE(daemon.server->connection_count() == 0);
    Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    REQUIRE_FALSE(daemon.has_logged("turned"));
    daemon.server->stop();
    run_until(io, [&] { return first.is_closed && second.is_closed; });
}

TEST_CASE("a store's clients are no half-open connections, whatever they do next") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.limits = {.hello_timeout = Milliseconds(60000), .half_open_max = 2},
                             .serves_tcpstore = true});
    std::vector<std::unique_ptr<Stranger>> clients;
    for (int i = 0; i < 20; ++i) {
        clients.push_back(std::make_unique<Stranger>(io, daemon.port));
        clients.back()->say(kHello.substr(0, 4));
    }
    Agent agent(io, {.port = daemon.port});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    for (const auto& client : clients) {
        client->say(kHello.substr(4));
        wait_for_bytes(io, *client, nonce(1));
    }
}

TEST_CASE("bytes that only begin like a store's cost their sender the connection") {
    boost::asio::io_context io;
    const Daemon daemon(io,
                        {.limits = {.hello_timeout = Milliseconds(50)}, .serves_tcpstore = true});
    Stranger wrong_magic(io, daemon.port);
    Stranger zeros(io, daemon.port);
    Stranger silent(io, daemon.port);
    wrong_magic.say(validate(kStoreMagic + 1));
    zeros.say(std::string(64, '\0'));
    silent.say(std::string("\0\xce\xf7\x85", 4));
    run_until(io, [&] { return wrong_magic.is_closed && zeros.is_closed && silent.is_closed; });
    REQUIRE((wrong_magic.heard + zeros.heard + silent.heard).empty());
    wait_for_log(io, daemon, "store: disconnected a client from 127.0.0.1");
    Stranger good(io, daemon.port);
    good.say(kHello);
    wait_for_bytes(io, good, nonce(1));
}

TEST_CASE("where no store is served its clients are refused with what to do") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Stranger first(io, daemon.port);
    Stranger second(io, daemon.port);
    first.say(kHello);
    second.say(kHello);
    run_until(io, [&] { return first.is_closed && second.is_closed; });
    REQUIRE((first.heard + second.heard).empty());
    // One line a second at most.
    REQUIRE(daemon.log.size() == 1);
    REQUIRE(daemon.has_logged(
        "away: it speaks PyTorch's TCPStore, which is not served here now; for torchrun start the "
        "rendezvous with --serve-tcpstore, for workers of a job its nodes with --store daemon"));
    REQUIRE(daemon.server->connection_count() == 0);
}

TEST_CASE("each generation of a job that wants it has a fresh store on the daemon's port") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent agent(io, with_store_here(daemon, "llama", "a"));
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    REQUIRE(agent.last<Start>()->store == StoreAddress{"127.0.0.1", 0});
    Stranger old(io, daemon.port);
    old.say(kHello + set("k", "1"));
    wait_for_bytes(io, old, nonce(1));
    // The budget is none: the verdict, with which the store goes.
    fail_worker(agent);
    run_until(io, [&] { return agent.last<Stop>() != nullptr; });
    agent.client->send(Stopped{.generation = Generation(1), .store = {"127.0.0.1", 0}});
    run_until(io, [&] { return agent.last<Verdict>() != nullptr && old.is_closed; });
    Stranger late(io, daemon.port);
    late.say(kHello);
    run_until(io, [&] { return late.is_closed; });
    REQUIRE(daemon.has_logged("which is not served here now"));
}

TEST_CASE("the workers of a job may all connect before one of them speaks") {
    constexpr std::size_t kAnybody = 2;
    constexpr std::size_t kWorkers = 2;
    boost::asio::io_context io;
    const Daemon daemon(
        io, {.limits = {.hello_timeout = Milliseconds(60000), .half_open_max = kAnybody}});
    const auto wait_for_half_open = [&](std::size_t count) {
        run_until(io, [&] { return daemon.server->connection_count() == 1 + count; });
        for (int turn = 0; turn < 10; ++turn) {
            io.poll();
        }
        REQUIRE(daemon.server->connection_count() == 1 + count);
    };
    Agent::Options options = with_store_here(daemon, "train", "a");
    options.joins = false;
    Agent agent(io, options);
    run_until(io, [&] { return agent.ups == 1; });
    std::vector<std::unique_ptr<Stranger>> clients;
    for (std::size_t i = 0; i < kAnybody + kWorkers; ++i) {
        clients.push_back(std::make_unique<Stranger>(io, daemon.port));
    }
    Stranger beyond(io, daemon.port);
    beyond.say(kHello);
    wait_for_half_open(kAnybody);
    agent.client->send(agent.join());
    wait_for_half_open(kAnybody + kWorkers);
    clients.back()->say(kHello);
    wait_for_bytes(io, *clients.back(), nonce(1));
    wait_for_bytes(io, beyond, nonce(1));
}

TEST_CASE("a new generation's store knows nothing of the last one and disconnects its clients") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent first(io, with_store_here(daemon, "llama", "a", 2));
    Agent left(io, with_store_here(daemon, "llama", "b", 2));
    run_until(io, [&] { return first.last<Start>() && left.last<Start>(); });
    Stranger old(io, daemon.port);
    old.say(kHello + set("k", "1"));
    wait_for_bytes(io, old, nonce(1));
    // Node b leaves for another one of the same name.
    left.client->stop([] {});
    const Agent second(io, with_store_here(daemon, "llama", "b", 2));
    run_until(io, [&] { return first.last<Stop>() != nullptr; });
    first.client->send(Stopped{.generation = Generation(1), .store = {"127.0.0.1", 0}});
    run_until(io, [&] {
        return first.last<Start>()->generation == Generation(2) && second.last<Start>();
    });
    run_until(io, [&] { return old.is_closed; });
    Stranger fresh(io, daemon.port);
    fresh.say(kHello + opcode(StoreOpcode::GetNumKeys));
    wait_for_bytes(io, fresh, nonce(1) + number(0));
}

TEST_CASE("who is no member of the generation is refused, on the console of the first node") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent::Options options = with_store_here(daemon, "llama", "a");
    options.store_admits_any = GENERATE(false, true);
    Agent agent(io, options);
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    Stranger elsewhere(io, daemon.port, "127.0.0.2");
    elsewhere.say(kHello);
    if (options.store_admits_any) {
        wait_for_bytes(io, elsewhere, nonce(1));
        REQUIRE(agent.last<Notice>() == nullptr);
        return;
    }
    run_until(io, [&] { return elsewhere.is_closed && agent.last<Notice>() != nullptr; });
    REQUIRE(elsewhere.heard.empty());
    REQUIRE(agent.last<Notice>()->text ==
            "store: refused a client from 127.0.0.2: it is not the address of a node of this "
            "generation; if it belongs to the job (NAT, a sidecar), start with --store-admit any");
    REQUIRE(daemon.has_logged("refused a client from 127.0.0.2"));
    Stranger here(io, daemon.port);
    here.say(kHello);
    wait_for_bytes(io, here, nonce(1));
}

TEST_CASE("a client from a node of an earlier generation is named as that") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent::Options options = with_store_here(daemon, "llama", "a", 2);
    options.min_nodes = 1;
    Agent first(io, options);
    options.node = "b";
    options.store.host = "127.0.0.2";
    Agent second(io, options);
    run_until(io, [&] { return first.last<Start>() && second.last<Start>(); });
    Stranger there(io, daemon.port, "127.0.0.2");
    there.say(kHello);
    wait_for_bytes(io, there, nonce(1));
    second.client->send(Goodbye{});
    run_until(io, [&] { return first.last<Stop>() != nullptr; });
    first.client->send(Stopped{.generation = Generation(1), .store = {"127.0.0.1", 0}});
    run_until(io, [&] { return first.last<Start>()->generation == Generation(2); });
    run_until(io, [&] { return there.is_closed; });
    Stranger again(io, daemon.port, "127.0.0.2");
    again.say(kHello);
    run_until(io, [&] { return again.is_closed && first.last<Notice>() != nullptr; });
    REQUIRE(first.last<Notice>()->text ==
            "store: refused a client from 127.0.0.2: it is the address of a node of an earlier "
            "generation, not of this one; end what still runs there, or start ddprun there again");
}

TEST_CASE("the port has room for one job's store, until that job is over") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent first(io, with_store_here(daemon, "llama", "a"));
    run_until(io, [&] { return first.last<Start>() != nullptr; });
    Agent second(io, with_store_here(daemon, "bert", "b"));
    run_until(io, [&] { return second.last<Refused>() != nullptr; });
    REQUIRE(
        second.last<Refused>()->text ==
        "join refused: job bert wants its workers' store on the rendezvous port, which has room "
        "for one and serves that of job llama; start its nodes with --store agent, or at "
        "another rendezvous");
    REQUIRE(second.last<Refused>()->exit_code == 2);
    REQUIRE(daemon.server->job_count() == 1);
    second.client->stop([] {});  // else it joins again, once the port is free
    Agent elsewhere(io, {.port = daemon.port, .job = "bert", .node = "c"});
    run_until(io, [&] { return elsewhere.last<Start>() != nullptr; });
    for (int i = 0; i < 2; ++i) {
        first.client->send(WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(i)});
    }
    run_until(io, [&] { return first.last<Verdict>() != nullptr; });
    Agent third(io, with_store_here(daemon, "gpt", "d"));
    run_until(io, [&] { return third.last<Start>() != nullptr; });
}

TEST_CASE("a join that is refused leaves the port to others") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    Agent::Options options = with_store_here(daemon, "llama", "a");
    options.nodes = 20000;
    Agent refused(io, options);
    run_until(io, [&] { return refused.last<Refused>() != nullptr || !refused.downs.empty(); });
    Agent agent(io, with_store_here(daemon, "bert", "b"));
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
}

TEST_CASE("a join that an open job refuses claims nothing for that job") {
    boost::asio::io_context io;
    const Daemon daemon(io);
    const Agent waiting(io, {.port = daemon.port, .job = "llama", .node = "a", .nodes = 2});
    run_until(io, [&] { return daemon.server->job_count() == 1; });
    const Agent refused(io, with_store_here(daemon, "llama", "b", 3));
    run_until(io, [&] { return refused.last<Refused>() != nullptr; });
    const Agent agent(io, with_store_here(daemon, "bert", "c"));
    run_until(io, [&] { return agent.last<Start>() || agent.last<Refused>(); });
    REQUIRE(agent.last<Refused>() == nullptr);
}

TEST_CASE("torchrun's store leaves no room for that of a job") {
    boost::asio::io_context io;
    const Daemon daemon(io, {.serves_tcpstore = true});
    Agent agent(io, with_store_here(daemon, "llama", "a"));
    run_until(io, [&] { return agent.last<Refused>() != nullptr; });
    REQUIRE(agent.last<Refused>()->text.find("--serve-tcpstore") != std::string::npos);
    Stranger client(io, daemon.port, "127.0.0.2");
    client.say(kHello);
    wait_for_bytes(io, client, nonce(1));
}

}  // namespace ddprun::rdzv
