// Goal: a client that reads workers' output through the daemon costs it little, holds up no other
// client, and is not kept waiting by nodes that do not answer or are gone.

#include <algorithm>
#include <charconv>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include <boost/asio/write.hpp>
#include <fmt/format.h>

#include "tests/process/server_fixture.hpp"

namespace ddprun::rdzv {
namespace {

namespace asio = boost::asio;

constexpr int kNoEnd = std::numeric_limits<int>::max();
/// Longer than any test: what is bounded by it is not what ends the wait.
constexpr Milliseconds kLong{3600000};

/// No node beats here, and no node shall be lost for it.
Limits limits_for_reading() {
    Limits limits;
    limits.lease = kLong;
    limits.http_timeout = kLong;
    limits.read_answer_timeout = kLong;
    return limits;
}

std::string line_of(const std::string& node, int number) {
    return fmt::format("{} {:09} {}\n", node, number, std::string(80, '.'));
}

std::string lines_of(const std::string& node, int count) {
    std::string all;
    for (int i = 0; i < count; ++i) {
        all += line_of(node, i);
    }
    return all;
}

/// A node whose workers have written so many lines: answers who reads, a full piece each time.
struct ShownNode {
    ShownNode(asio::io_context& io, std::uint16_t port, const std::string& node, int nodes,
              int lines_there)
        : lines(lines_there),
          agent(io, {.port = port, .node = node, .nodes = nodes, .shows_workers = true}) {
        agent.hears = [this](const RendezvousMessage& message) { hear(message); };
    }

    void hear(const RendezvousMessage& message) {
        if (const auto* question = std::get_if<ReadWorkers>(&message)) {
            asked.push_back(*question);
            told[question->reader] = {};
            tell(*question);
        } else if (const auto* on = std::get_if<ReadOn>(&message)) {
            const auto found = std::find_if(asked.rbegin(), asked.rend(), [on](const auto& one) {
                return one.reader == on->reader;
            });
            REQUIRE(found != asked.rend());
            if (on->stops) {
                stopped.push_back(on->reader);
            } else {
                tell(*found);
            }
        }
    }

    void tell(const ReadWorkers& question) {
        if (pieces_left == 0) {
            return;
        }
        --pieces_left;
        WorkersRead piece{.reader = question.reader};
        Told& so_far = told[question.reader];
        const int end = question.last_lines.value_or(lines);
        const auto room = static_cast<std::size_t>(question.piece_bytes);
        while (so_far.lines < end) {
            const std::string line = line_of(agent.options.node, so_far.lines);
            if (piece.bytes.size() + line.size() > room) {
                break;
            }
            piece.bytes += line;
            ++so_far.lines;
        }
        so_far.bytes += piece.bytes.size();
        piece.is_last = so_far.lines >= end;
        agent.client->send(piece);
    }

    [[nodiscard]] bool is_started() const { return agent.last<Start>() != nullptr; }
    [[nodiscard]] bool has_joined_again() const { return agent.count<Accepted>() == 2; }

    struct Told {
        int lines = 0;
        std::size_t bytes = 0;
    };

    int lines;
    int pieces_left = kNoEnd;  ///< after so many more it does not answer
    std::vector<ReadWorkers> asked;
    std::vector<std::uint64_t> stopped;  ///< by ReadOn
    std::map<std::uint64_t, Told> told;  ///< to each reader
    Agent agent;
};

/// Asks for /logs, and takes what comes, or lets it lie.
class LogReader {
public:
    enum class Takes { AtOnce, Later };

    LogReader(asio::io_context& io, std::uint16_t port, const std::string& target = "/logs",
              Takes when = Takes::AtOnce)
        : socket_(io) {
        socket_.open(asio::ip::tcp::v4());
        if (when == Takes::Later) {
            socket_.set_option(asio::socket_base::receive_buffer_size(4096));
        }
        socket_.connect({asio::ip::address_v4::loopback(), port});
        asio::write(socket_, asio::buffer("GET " + target + " HTTP/1.1\r\nHost: localhost\r\n" +
                                          "Connection: close\r\n\r\n"));
        if (when == Takes::AtOnce) {
            take();
        }
    }
    LogReader(const LogReader&) = delete;
    LogReader& operator=(const LogReader&) = delete;

    void take() {
        socket_.async_read_some(asio::buffer(piece_),
                                [this](boost::system::error_code end, std::size_t count) {
                                    if (end == asio::error::operation_aborted) {
                                        return;
                                    }
                                    answer_.append(piece_.data(), count);
                                    is_done_ = static_cast<bool>(end);
                                    if (!end) {
                                        take();
                                    }
                                });
    }

    void leave() { socket_.close(); }

    [[nodiscard]] bool is_done() const { return is_done_; }
    [[nodiscard]] bool is_whole() const { return answer_.ends_with("\r\n0\r\n\r\n"); }
    [[nodiscard]] bool has_head() const { return answer_.find("\r\n\r\n") != std::string::npos; }
    [[nodiscard]] const std::string& answer() const { return answer_; }

    /// The part of the body that has come; its last chunk may be cut off.
    [[nodiscard]] std::string text() const {
        std::string all;
        std::string_view left = answer_;
        left.remove_prefix(std::min(left.find("\r\n\r\n") + 4, left.size()));
        while (!left.empty()) {
            const std::size_t end = left.find("\r\n");
            std::size_t size = 0;
            if (end == std::string_view::npos ||
                std::from_chars(left.data(), left.data() + end, size, 16).ec != std::errc()) {
                break;
            }
            left.remove_prefix(end + 2);
            all += left.substr(0, size);
            left.remove_prefix(std::min(size + 2, left.size()));
        }
        return all;
    }

    [[nodiscard]] bool has(const std::string& words) const {
        return text().find(words) != std::string::npos;
    }

private:
    asio::ip::tcp::socket socket_;
    std::array<char, 16384> piece_{};
    std::string answer_;
    bool is_done_ = false;
};

std::string read_all(asio::io_context& io, std::uint16_t port, const std::string& target) {
    const LogReader reader(io, port, target);
    run_until(io, [&] { return reader.is_done(); });
    return reader.text();
}

TEST_CASE("a reader who takes nothing holds up nobody, and later has every byte in order") {
    asio::io_context io;
    const Daemon daemon(io, {.limits = limits_for_reading()});
    ShownNode node(io, daemon.port, "a", 1, kNoEnd);
    run_until(io, [&] { return node.is_started(); });
    LogReader slow(io, daemon.port, "/logs", LogReader::Takes::Later);
    run_until(io, [&] { return !node.asked.empty(); });
    const std::uint64_t number = node.asked.front().reader;

    // Until the kernel takes no more for it. Any other reader gets all lines.
    std::size_t before = 0;
    do {
        before = node.told[number].bytes;
        CHECK(read_all(io, daemon.port, "/logs?lines=500") == lines_of("a", 500));
        const LogReader status(io, daemon.port, "/status");
        run_until(io, [&] { return status.is_done(); });
        CHECK(status.answer().find(R"("phase":"running")") != std::string::npos);
    } while (node.told[number].bytes != before);
    CHECK_FALSE(slow.is_done());

    node.lines = node.told[number].lines + 1000;
    slow.take();
    run_until(io, [&] { return slow.is_done(); });
    CHECK(slow.is_whole());
    CHECK(node.told[number].lines == node.lines);
    CHECK((slow.text() == lines_of("a", node.lines)));
}

TEST_CASE("of a reader who takes nothing little is kept, and it is dropped for the next one") {
    asio::io_context io;
    Limits limits = limits_for_reading();
    limits.http_timeout = Milliseconds(1000);
    limits.readers_max = 1;
    limits.read_waiting_bytes_max = 3 * std::size_t{4096};
    const Daemon daemon(io, {.limits = limits});
    ShownNode a(io, daemon.port, "a", 3, kNoEnd);
    ShownNode b(io, daemon.port, "b", 3, kNoEnd);
    ShownNode c(io, daemon.port, "c", 3, kNoEnd);
    const std::vector<ShownNode*> nodes{&a, &b, &c};
    const auto all = [&nodes](const auto& is_so) {
        return std::all_of(nodes.begin(), nodes.end(), is_so);
    };
    run_until(io, [&] { return all([](const ShownNode* node) { return node->is_started(); }); });

    LogReader slow(io, daemon.port, "/logs?follow=1", LogReader::Takes::Later);
    run_until(io,
              [&] { return all([](const ShownNode* node) { return !node->stopped.empty(); }); });
    // It can still read what the kernel has taken for it; the daemon had the rest.
    slow.take();
    run_until(io, [&] { return slow.is_done(); });
    CHECK_FALSE(slow.is_whole());
    std::size_t told = 0;
    for (const ShownNode* node : nodes) {
        CHECK(node->asked.front().piece_bytes == 4096);
        told += node->told.at(node->asked.front().reader).bytes;
    }
    CHECK(told > limits.read_waiting_bytes_max);
    // As much as may wait is being written, and as much has come since.
    CHECK(told - slow.text().size() <= 2 * limits.read_waiting_bytes_max);

    for (ShownNode* node : nodes) {
        node->lines = 2000;
    }
    CHECK((read_all(io, daemon.port, "/logs") ==
           lines_of("a", 2000) + lines_of("b", 2000) + lines_of("c", 2000)));
}

TEST_CASE("one reader too many is told so, and there is room as soon as one has left or has all") {
    asio::io_context io;
    Limits limits = limits_for_reading();
    limits.readers_max = 2;
    const Daemon daemon(io, {.limits = limits});
    ShownNode node(io, daemon.port, "a", 1, 3);
    node.pieces_left = 0;
    run_until(io, [&] { return node.is_started(); });
    LogReader first(io, daemon.port);
    const LogReader second(io, daemon.port);
    run_until(io, [&] { return node.asked.size() == 2; });
    const auto is_refused = [&] {
        const LogReader third(io, daemon.port);
        run_until(io, [&] { return third.is_done() || node.asked.size() > 2; });
        return third.answer().starts_with("HTTP/1.1 503 ") &&
               third.answer().find(R"({"error":"2 read logs here already, the limit"})") !=
                   std::string::npos;
    };
    CHECK(is_refused());
    CHECK(is_refused());  // being refused takes no place

    first.leave();
    run_until(io, [&] { return !node.stopped.empty(); });
    node.pieces_left = kNoEnd;
    CHECK(read_all(io, daemon.port, "/logs") == lines_of("a", 3));
    CHECK(read_all(io, daemon.port, "/logs") == lines_of("a", 3));  // that one has all, and is gone
    CHECK(node.asked.size() == 4);
    CHECK_FALSE(second.is_done());
}

TEST_CASE("a node that says why it does not show its workers is quoted") {
    asio::io_context io;
    const Daemon daemon(io, {.limits = limits_for_reading()});
    ShownNode node(io, daemon.port, "a", 1, 3);
    node.pieces_left = 0;
    run_until(io, [&] { return node.is_started(); });
    const LogReader reader(io, daemon.port);
    run_until(io, [&] { return !node.asked.empty(); });
    node.agent.client->send(WorkersRead{.reader = node.asked.front().reader,
                                        .bytes = "half a line",
                                        .is_last = true,
                                        .error = "16 read here already, the limit"});
    run_until(io, [&] { return reader.is_done(); });
    CHECK(reader.text() == "half a line\n[a] ddprun: 16 read here already, the limit\n");
}

TEST_CASE("a node that falls silent is passed over with a line, and not heard any more") {
    const int pieces = GENERATE(0, 1);  // before it does
    asio::io_context io;
    Limits limits = limits_for_reading();
    limits.read_answer_timeout = Milliseconds(1000);
    const Daemon daemon(io, {.limits = limits});
    ShownNode a(io, daemon.port, "a", 2, 500);
    ShownNode b(io, daemon.port, "b", 2, kNoEnd);
    run_until(io, [&] { return a.is_started() && b.is_started(); });
    REQUIRE(a.agent.last<Start>()->base_rank < b.agent.last<Start>()->base_rank);
    a.pieces_left = pieces;
    const LogReader reader(io, daemon.port);
    run_until(io, [&] { return !a.stopped.empty() && !b.asked.empty(); });
    const std::uint64_t number = a.asked.front().reader;
    CHECK(a.stopped == std::vector<std::uint64_t>{number});

    // It speaks after all: what it answers to another reader comes later.
    a.agent.client->send(WorkersRead{.reader = number, .bytes = "late\n", .is_last = true});
    a.pieces_left = 1;
    CHECK(read_all(io, daemon.port, "/logs?rank=0&lines=1") == lines_of("a", 1));
    CHECK_FALSE(reader.is_done());
    b.lines = b.told[number].lines + 1;
    run_until(io, [&] { return reader.is_done(); });
    CHECK(reader.is_whole());
    CHECK((reader.text() == lines_of("a", a.told[number].lines) +
                                "[a] ddprun: it does not answer within 1 s\n" +
                                lines_of("b", b.lines)));
}

TEST_CASE("a node that is silent is passed over no later because others are heard") {
    asio::io_context io;
    Limits limits = limits_for_reading();
    limits.read_answer_timeout = Milliseconds(1000);
    limits.read_piece_bytes_max = 1024;
    const Daemon daemon(io, {.limits = limits});
    ShownNode a(io, daemon.port, "a", 2, 500);
    ShownNode b(io, daemon.port, "b", 2, kNoEnd);
    run_until(io, [&] { return a.is_started() && b.is_started(); });
    REQUIRE(b.agent.last<Start>()->base_rank == 2);
    a.pieces_left = 0;
    const LogReader busy(io, daemon.port, "/logs?rank=2");
    const LogReader reader(io, daemon.port, "/logs?rank=0");
    run_until(io, [&] { return reader.is_done(); });
    CHECK(reader.text() == "[a] ddprun: it does not answer within 1 s\n");
    CHECK_FALSE(busy.is_done());
}

TEST_CASE("a node that is gone before or while it is read is named; joined again it is read anew") {
    asio::io_context io;
    const Daemon daemon(io, {.limits = limits_for_reading()});
    ShownNode a(io, daemon.port, "a", 3, 500);
    ShownNode b(io, daemon.port, "b", 3, 500);
    ShownNode c(io, daemon.port, "c", 3, 500);
    run_until(io, [&] { return a.is_started() && b.is_started() && c.is_started(); });
    REQUIRE(a.agent.last<Start>()->base_rank == 0);
    a.pieces_left = 1;
    const LogReader reader(io, daemon.port);
    run_until(io, [&] { return reader.has(line_of("a", 0)); });
    const std::string begun = reader.text();

    const std::string gone = "ddprun: it is gone before all was read\n";
    c.agent.client->drop("not answered");
    run_until(io, [&] { return reader.has("[c] " + gone); });
    run_until(io, [&] { return c.has_joined_again(); });
    a.agent.client->drop("not answered");
    run_until(io, [&] { return reader.is_done(); });
    CHECK(reader.is_whole());
    CHECK((reader.text() == begun + "[c] " + gone + "[a] " + gone + lines_of("b", 500)));
    run_until(io, [&] { return a.has_joined_again(); });

    a.pieces_left = kNoEnd;
    const std::string anew = read_all(io, daemon.port, "/logs");
    for (const ShownNode* node : {&a, &b, &c}) {
        CHECK(anew.find(lines_of(node->agent.options.node, 500)) != std::string::npos);
        CHECK(node->asked.size() == (node == &c ? 1 : 2));
    }
}

TEST_CASE("a node whose connection the daemon ends is named to who reads it") {
    asio::io_context io;
    const Daemon daemon(io, {.limits = limits_for_reading()});
    ShownNode old(io, daemon.port, "a", 1, 500);
    run_until(io, [&] { return old.is_started(); });
    old.pieces_left = 1;
    old.agent.options.joins = false;  // again
    const LogReader reader(io, daemon.port);
    run_until(io, [&] { return reader.has(line_of("a", 0)); });
    const std::string begun = reader.text();
    const ShownNode same(io, daemon.port, "a", 1, 500);
    run_until(io, [&] { return reader.is_done(); });
    CHECK(reader.text() == begun + "[a] ddprun: it is gone before all was read\n");
    CHECK(same.asked.empty());
}

TEST_CASE("who follows hears of others while a node is away, and of that again when it is back") {
    asio::io_context io;
    const Daemon daemon(io, {.limits = limits_for_reading()});
    ShownNode a(io, daemon.port, "a", 2, kNoEnd);
    ShownNode b(io, daemon.port, "b", 2, kNoEnd);
    run_until(io, [&] { return a.is_started() && b.is_started(); });
    a.pieces_left = 1;
    b.pieces_left = 1;
    const LogReader follower(io, daemon.port, "/logs?follow=1");
    run_until(io, [&] { return follower.has(line_of("a", 0)) && follower.has(line_of("b", 0)); });
    a.agent.options.joins = false;
    a.agent.client->drop("not answered");
    run_until(io, [&] { return a.agent.ups == 2; });
    const std::uint64_t number = b.asked.front().reader;
    b.pieces_left = 1;
    b.tell(b.asked.front());
    const std::string newest = line_of("b", b.told[number].lines - 1);
    run_until(io, [&] { return follower.has(newest); });

    a.pieces_left = 1;
    a.agent.client->send(a.agent.join());
    run_until(io, [&] {
        const std::string text = follower.text();
        const std::string first = line_of("a", 0);
        return text.find(first) != text.rfind(first);
    });
    CHECK(a.asked.size() == 2);
    CHECK(b.asked.size() == 1);
    CHECK_FALSE(follower.is_done());
}

TEST_CASE("a node that is silent and stays when the run is over keeps no follower") {
    asio::io_context io;
    Limits limits = limits_for_reading();
    limits.readers_max = 1;
    limits.unkillable_after = Milliseconds(1);
    limits.stop_slack = Milliseconds(1);
    const Daemon daemon(io, {.limits = limits});
    ShownNode node(io, daemon.port, "a", 1, 500);
    node.agent.options.joins = false;
    node.pieces_left = 1;
    run_until(io, [&] { return node.agent.ups == 1; });
    Join join = node.agent.join();
    join.settings.shutdown_timeout = Milliseconds(1);
    join.settings.failure_grace = Milliseconds(1);
    node.agent.client->send(join);
    run_until(io, [&] { return node.is_started(); });
    const LogReader follower(io, daemon.port, "/logs?follow=1");
    run_until(io, [&] { return follower.has(line_of("a", 0)); });
    for (const int rank : {0, 1}) {
        node.agent.client->send(
            WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(rank)});
    }
    run_until(io, [&] { return follower.is_done(); });
    CHECK(follower.is_whole());
    CHECK(node.agent.last<Verdict>() != nullptr);
}

}  // namespace
}  // namespace ddprun::rdzv
