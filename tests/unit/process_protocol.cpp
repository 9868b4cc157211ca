#include <random>
#include <string>
#include <vector>

#include "agent/process/keeper_protocol.hpp"
#include "base/limits.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {
namespace {

std::string body_of(const Result<std::string>& frame) {
    REQUIRE(!frame.has_error());
    return frame->substr(4);
}

std::vector<KeeperRequest> some_requests() {
    const std::string bytes("\0\xff\n=", 4);
    return {
        KeeperSpawn{
            Generation(7), LocalRank(3), {"prog", "", bytes}, {{"K", bytes}, {"", ""}}, {}, "PAGE"},
        KeeperSpawn{Generation(1), LocalRank(0), {"prog"}, {}, {}, {}},
        KeeperSpawn{Generation(1), LocalRank(1), {"prog"}, {}, {0, 3, Limits{}.cpus_max - 1}, {}},
        KeeperSignal{Generation(~std::uint64_t{0}), {LocalRank(0), LocalRank(7)}, 15},
        KeeperSignal{Generation(1), {}, 9},
        KeeperForward{Generation(3), 10},
        KeeperSpawn{Generation(1), LocalRank(1), {"prog"}, {}, {}, {}, WorkerStdin::Terminal},
        KeeperSpawn{kStandbyGeneration, LocalRank(1), {"prog"}, {}, {}, {}, {}, "STANDBY"},
        KeeperSpawn{Generation(1), LocalRank(0), {"prog"}, {}, {}, "PAGE", {}, {}, "IMPORTS"},
        KeeperAdopt{Generation(4), LocalRank(1), true},
        KeeperTerminal{bytes, "raw"},
        KeeperEmpty{Generation(2)}};
}

std::vector<KeeperEvent> some_events() {
    WorkerEnd exited;
    exited.pid = 12;
    exited.exit_code = 0;
    WorkerEnd signalled;
    signalled.pid = 13;
    signalled.signal = 11;
    signalled.core_dumped = true;
    WorkerEnd failed;
    failed.exec_errno = 2;
    return {KeeperStarted{Generation(1), LocalRank(2), 4711},
            KeeperExited{Generation(1), LocalRank(2), exited},
            KeeperExited{Generation(1), LocalRank(2), signalled},
            KeeperExited{Generation(1), LocalRank(2), failed},
            KeeperEmptied{Generation(3)},
            KeeperNotEmptied{Generation(3), "process 1 (x, state D)"},
            KeeperAdopted{Generation(4), LocalRank(1), 4711, "/proc/1/fd/9"}};
}

}  // namespace

TEST_CASE("every message between agent and keeper is decoded as it was encoded") {
    for (const KeeperRequest& request : some_requests()) {
        const auto decoded = decode_request(body_of(encode_frame(request)));
        REQUIRE(!decoded.has_error());
        CHECK((*decoded == request));
    }
    for (const KeeperEvent& event : some_events()) {
        const auto decoded = decode_event(body_of(encode_frame(event)));
        REQUIRE(!decoded.has_error());
        CHECK((*decoded == event));
    }
}

TEST_CASE("a message between agent and keeper that is cut or has bytes left over is refused") {
    for (const KeeperRequest& request : some_requests()) {
        const std::string body = body_of(encode_frame(request));
        for (std::size_t size = 0; size < body.size(); ++size) {
            CHECK(decode_request(body.substr(0, size)).has_error());
        }
        CHECK(decode_request(body + "x").error().code == ErrorCode::BadMessage);
        CHECK(decode_event(body).has_error());
    }
    for (const KeeperEvent& event : some_events()) {
        const std::string body = body_of(encode_frame(event));
        for (std::size_t size = 0; size < body.size(); ++size) {
            CHECK(decode_event(body.substr(0, size)).has_error());
        }
        CHECK(decode_request(body).has_error());
    }
}

TEST_CASE("changed bytes between agent and keeper never make more than was sent") {
    std::mt19937_64 random(1);
    for (int i = 0; i < 20000; ++i) {
        const std::vector<KeeperRequest> requests = some_requests();
        std::string body = body_of(encode_frame(requests[random() % requests.size()]));
        body[random() % body.size()] = static_cast<char>(random());
        const auto decoded = decode_request(body);
        if (!decoded.has_error()) {
            CHECK(encode_frame(*decoded)->size() == body.size() + 4);
        }
    }
}

TEST_CASE("a worker with more arguments than a frame holds is refused when encoding") {
    const KeeperSpawn spawn{
        Generation(1), LocalRank(0), {std::string(kKeeperFrameBytesMax, 'x')}, {}, {}, {}};
    CHECK(encode_frame(KeeperRequest(spawn)).error().code == ErrorCode::LimitExceeded);
}

}  // namespace ddprun::agent
