// A failure is reported when it is known, whatever the disk does; what the worker left behind
// follows. A verdict counts, whatever the link does after it. Method: an agent with real processes,
// and a rendezvous that is this test. The log of the worker's stderr is a FIFO without a reader:
// the output thread stands still in a write to it.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <filesystem>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "tests/process/agent_fixture.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

// More than a FIFO holds, less than the FIFO, one read of the output thread and the worker's pipe.
constexpr const char* kScript =
    R"(head -c 100000 /dev/zero | tr '\0' x >&2; echo done >&2; exit 3)";

/// A FIFO in the place of a log; takes nothing until read_all().
class StuckLog {
public:
    StuckLog(boost::asio::io_context& io, const std::string& path) : reader_(io) {
        REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
        reader_.assign(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
    }
    void read_all() {
        reader_.async_read_some(boost::asio::buffer(bytes_),
                                [this](boost::system::error_code error, std::size_t) {
                                    if (!error) {
                                        read_all();
                                    }
                                });
    }

private:
    boost::asio::posix::stream_descriptor reader_;
    std::array<char, 65536> bytes_{};
};

}  // namespace

TEST_CASE("a failure is reported while the disk holds up the last words, which follow") {
    const test::TempDir dir;
    const UniqueFd console(::open((dir / "console").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(console.is_open());
    std::filesystem::create_directories(dir / "logs/attempt_0/0");
    int exit_code = -1;
    std::vector<rdzv::WorkerFailed> reports;
    std::size_t reports_before_stopped = 0;
    {
        boost::asio::io_context io(1);
        StuckLog log(io, dir / "logs/attempt_0/0/stderr.log");
        TestLink* link = nullptr;
        const auto on_message = [&](const rdzv::AgentMessage& message) {
            if (std::holds_alternative<rdzv::Join>(message)) {
                link->tell(rdzv::Accepted{.run_token = "run"});
                rdzv::Start start{.generation = Generation(1), .digest = "d"};
                start.store = {"127.0.0.1", 0};
                link->tell(start);
            } else if (const auto* failed = std::get_if<rdzv::WorkerFailed>(&message)) {
                reports.push_back(*failed);
                log.read_all();
                link->tell(rdzv::Stop{.generation = Generation(1)});
            } else if (std::holds_alternative<rdzv::Stopped>(message)) {
                reports_before_stopped = reports.size();
                link->tell(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 3});
            }
        };
        auto owned = std::make_unique<TestLink>(io, on_message);
        link = owned.get();
        Agent agent(io, options_for(dir, kScript, console.get()), keeper_for_tests(),
                    std::move(owned));
        REQUIRE(agent
                    .start([&](int code) {
                        exit_code = code;
                        io.stop();
                    })
                    .has_value());
        io.run();
    }
    INFO(test::read_file(dir / "console").substr(0, 2000));
    CHECK(exit_code == 3);
    REQUIRE(reports_before_stopped == 2);
    CHECK(reports[0].evidence.exit_code == 3);
    CHECK(reports[0].evidence.stderr_tail.empty());
    CHECK(reports[1].evidence.exit_code == 3);
    CHECK(reports[1].evidence.stderr_tail.ends_with("xdone\n"));
}

TEST_CASE("a verdict that waits for readers of the logs counts though the link goes meanwhile") {
    const test::TempDir dir;
    const UniqueFd console(::open((dir / "console").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(console.is_open());
    AgentOptions options = options_for(dir, "echo words; exit 3", console.get());
    options.supervisor.rendezvous_lost_timeout = Milliseconds(50);
    options.supervisor.limits.read_end_timeout = Milliseconds(3600000);
    int exit_code = -1;
    std::string read;
    boost::asio::io_context io(1);
    TestLink* link = nullptr;
    const auto on_message = [&](const rdzv::AgentMessage& message) {
        if (std::holds_alternative<rdzv::Join>(message)) {
            link->tell(rdzv::Accepted{.run_token = "run"});
            rdzv::Start start{.generation = Generation(1), .digest = "d"};
            start.store = {"127.0.0.1", 0};
            link->tell(start);
        } else if (std::holds_alternative<rdzv::WorkerFailed>(message)) {
            link->tell(rdzv::ReadWorkers{.reader = 1, .follows = true});
        } else if (const auto* piece = std::get_if<rdzv::WorkersRead>(&message)) {
            read += piece->bytes + piece->error;
            link->tell(rdzv::Stop{.generation = Generation(1)});
        } else if (std::holds_alternative<rdzv::Stopped>(message)) {
            link->tell(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 3});
            link->go_down("reset");  // the reader may send its last piece no more
        }
    };
    auto owned = std::make_unique<TestLink>(io, on_message);
    link = owned.get();
    Agent agent(io, std::move(options), keeper_for_tests(), std::move(owned));
    REQUIRE(agent
                .start([&](int code) {
                    exit_code = code;
                    io.stop();
                })
                .has_value());
    io.run_for(std::chrono::seconds(30));
    INFO(test::read_file(dir / "console"));
    CHECK(read.find("words") != std::string::npos);
    CHECK(exit_code == 3);
}
