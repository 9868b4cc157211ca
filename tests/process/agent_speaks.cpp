// An agent reports about its workers without being asked: that the node's memory gets short, that
// GPUs are idle. Method: an agent with a real worker, whose looks come soon; the driver is
// tests/unit/plan_fake_nvml.cpp, and any use of memory is much.

#include <unistd.h>

#include <array>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <variant>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "base/os/unique_fd.hpp"
#include "tests/process/agent_fixture.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::agent;

namespace {

constexpr int kExitCode = 3;

/// Runs one worker until the console has `words`, then for some looks longer. Returns its text.
std::string said(AgentOptions options, const std::string& words, UniqueFd console) {
    boost::asio::io_context io(1);
    boost::asio::posix::stream_descriptor told(io, console.release());
    std::string text;
    std::array<char, 4096> piece{};
    TestLink* link = nullptr;
    const auto on_message = [&](const rdzv::AgentMessage& message) {
        if (std::holds_alternative<rdzv::Join>(message)) {
            link->tell(rdzv::Accepted{.run_token = "run", .beat_interval = Milliseconds(5)});
            rdzv::Start start{.generation = Generation(1), .digest = "d"};
            start.store = {"127.0.0.1", 0};
            link->tell(start);
        } else if (std::holds_alternative<rdzv::Stopped>(message)) {
            link->tell(rdzv::Verdict{.kind = rdzv::VerdictKind::Failed, .exit_code = kExitCode});
        }
    };
    auto owned = std::make_unique<TestLink>(io, on_message);
    link = owned.get();
    Agent agent(io, std::move(options), keeper_for_tests(), std::move(owned));
    const std::function<void()> read = [&] {
        told.async_read_some(boost::asio::buffer(piece),
                             [&](const boost::system::error_code& end, std::size_t count) {
                                 if (end) {
                                     return;
                                 }
                                 const bool had_words = text.find(words) != std::string::npos;
                                 text.append(piece.data(), count);
                                 if (!had_words && text.find(words) != std::string::npos) {
                                     link->tell(rdzv::Stop{.generation = Generation(1)});
                                 }
                                 read();
                             });
    };
    read();
    REQUIRE(agent
                .start([&](int code) {
                    CHECK(code == kExitCode);
                    io.stop();
                })
                .has_value());
    io.run();
    return text;
}

struct Console {
    Console() {
        std::array<int, 2> ends{};
        REQUIRE(::pipe2(ends.data(), O_CLOEXEC) == 0);
        out.reset(ends[0]);
        in.reset(ends[1]);
    }
    UniqueFd out;
    UniqueFd in;
};

}  // namespace

TEST_CASE("that the node's memory gets short is a line, with the worker that has most of it") {
    const test::TempDir dir;
    Console console;
    AgentOptions options = options_for(dir, "exec sleep 1000", console.in.get());
    options.watch_limits.host_memory_look = Milliseconds(20);
    options.watch_limits.host_memory_high_permille = 1;
    const std::string text = said(std::move(options), "of the workers, rank 0 has most of it: 0.0",
                                  std::move(console.out));
    CAPTURE(text);
    CHECK(text.find("ddprun: warning: ") != std::string::npos);
    CHECK(text.find("% of the memory of node is in use: ") != std::string::npos);
}

TEST_CASE("which GPUs are idle in the first minute is a line") {
    const test::TempDir dir;
    Console console;
    test::write_file(dir / "gpus", "work 0 97 400000\nwork 1 2 60000\n");
    REQUIRE(::setenv("LD_LIBRARY_PATH", DDPRUN_FAKE_NVML, 1) == 0);
    REQUIRE(::setenv("DDPRUN_FAKE_GPU_USE", (dir / "gpus").c_str(), 1) == 0);
    REQUIRE(::setenv("CUDA_VISIBLE_DEVICES", "0,1", 1) == 0);
    AgentOptions options = options_for(dir, "exec sleep 1000", console.in.get());
    options.supervisor.awaits_gpu_memory = true;
    options.watch_limits.gpu_busy_after = Milliseconds(200);
    options.watch_limits.gpu_busy_looks = 2;
    const std::string text =
        said(std::move(options), "GPU 1 (no rank's) is idle: 2 %", std::move(console.out));
    CHECK(text.find("1 of 2 GPUs of node") != std::string::npos);
    CHECK(text.find("GPU 0 (") == std::string::npos);
}
