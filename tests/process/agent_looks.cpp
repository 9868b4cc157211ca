// Looking for signs of life never holds up the loop, which has beats to send. Method: an agent with
// a real worker and no cgroup, whose /proc is a folder of this test's. The keeper's file in there
// is a FIFO without a writer: a thread that opens it to read stands still.

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <filesystem>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <variant>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>
#include <boost/asio/post.hpp>

#include "tests/process/agent_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

constexpr std::chrono::seconds kPatience{30};  ///< for a test that fails
constexpr int kBeats = 3;

/// Tells its parent's number, the keeper's, and stays.
constexpr const char* kScript = R"(echo "$PPID" > "$KEEPER"; exec sleep 1000)";

UniqueFd make_fifo(const std::string& path) {
    REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
    UniqueFd fifo(::open(path.c_str(), O_RDWR | O_NONBLOCK | O_CLOEXEC));
    REQUIRE(fifo.is_open());
    return fifo;
}

}  // namespace

TEST_CASE("beats go on while the kernel holds up the sweep of /proc") {
    const test::TempDir dir;
    const UniqueFd console(::open((dir / "console").c_str(), O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
    REQUIRE(console.is_open());
    const UniqueFd keeper = make_fifo(dir / "keeper");
    REQUIRE(::setenv("KEEPER", (dir / "keeper").c_str(), 1) == 0);
    AgentOptions options = options_for(dir, kScript, console.get());
    KeeperOptions watched = keeper_for_tests();
    watched.containment = ContainmentLevel::Keeper;
    watched.proc = dir / "proc";
    options.supervisor.identity.settings.hang_timeout = Milliseconds(200);

    int exit_code = -1;
    int beats_after = 0;
    bool is_held_up = false;
    std::promise<void> has_gone_on;
    std::future_status status = std::future_status::deferred;
    std::thread holder;
    {
        boost::asio::io_context io(1);
        boost::asio::posix::stream_descriptor told(io, ::dup(keeper.get()));
        std::array<char, 64> text{};
        TestLink* link = nullptr;
        const auto on_message = [&](const rdzv::AgentMessage& message) {
            if (std::holds_alternative<rdzv::Join>(message)) {
                link->tell(rdzv::Accepted{.run_token = "run", .beat_interval = Milliseconds(5)});
                rdzv::Start start{.generation = Generation(1), .digest = "d"};
                start.store = {"127.0.0.1", 0};
                link->tell(start);
            } else if (std::holds_alternative<rdzv::Beat>(message) && is_held_up &&
                       ++beats_after == kBeats) {
                has_gone_on.set_value();
                link->tell(rdzv::Stop{.generation = Generation(1)});
            } else if (std::holds_alternative<rdzv::Stopped>(message)) {
                link->tell(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = 3});
            }
        };
        auto owned = std::make_unique<TestLink>(io, on_message);
        link = owned.get();
        Agent agent(io, std::move(options), std::move(watched), std::move(owned));
        // Opening a FIFO for writing waits until a reader opens it.
        const auto hold_up = [&](const std::string& path) {
            const UniqueFd fifo(::open(path.c_str(), O_WRONLY | O_CLOEXEC));
            boost::asio::post(io, [&] { is_held_up = true; });
            status = has_gone_on.get_future().wait_for(kPatience);
            std::filesystem::remove(path);  // the next sweep finds none
        };
        const auto take_keeper = [&](const boost::system::error_code& failure, std::size_t size) {
            REQUIRE_FALSE(failure);
            const std::string folder =
                dir / ("proc/" + std::to_string(std::stoi(std::string(text.data(), size))));
            std::filesystem::create_directories(folder);
            REQUIRE(::mkfifo((folder + "/stat").c_str(), 0600) == 0);
            holder = std::thread(hold_up, folder + "/stat");
        };
        told.async_read_some(boost::asio::buffer(text), take_keeper);
        REQUIRE(agent
                    .start([&](int code) {
                        exit_code = code;
                        io.stop();
                    })
                    .has_value());
        io.run();
        holder.join();
    }
    INFO(test::read_file(dir / "console").substr(0, 2000));
    CHECK(status == std::future_status::ready);
    CHECK(beats_after >= kBeats);
    CHECK(exit_code == 3);
}
