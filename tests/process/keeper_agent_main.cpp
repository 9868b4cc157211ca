// An agent with nothing but its keepers. Its stdout, a pipe, is the stdout of everything below it:
// end of file means that none of them is left.
//   keeper_test_agent KEEPER WORKER families N MODE   starts N workers that are told MODE, and
//                                                waits to be killed
//   keeper_test_agent KEEPER WORKER standbys N MODE   the same beside N standbys that are told
//                                                MODE, too, and have a keeper of their own
//   keeper_test_agent KEEPER WORKER no-pidfd     a worker's exit, a keeper's death and the end of
//                                                both on a kernel that has no pidfd

#include <fcntl.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <string_view>

#include <boost/asio/io_context.hpp>

#include "agent/daemon/keeper_handle.hpp"
#include "tests/process/wanted_containment.hpp"
#include "tests/support/old_kernel.hpp"

namespace {

using namespace ddprun;

UniqueFd another_stdout() {
    return UniqueFd(fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 3));
}

class TestAgent {
public:
    TestAgent(const char* keeper, const char* worker) : worker_(worker) {
        agent::KeeperHandle::Events events;
        events.on_started = [this](Generation, LocalRank, int) { ++started_; };
        events.on_exited = [this](const agent::KeeperHandle&, Generation, LocalRank,
                                  const agent::WorkerEnd& end) {
            code_ = end.exit_code.value_or(-1);
        };
        events.on_emptied = [](Generation) {};
        events.on_not_emptied = [](const agent::KeeperHandle&, Generation, const std::string&) {};
        events.on_lost = [this](const agent::KeeperHandle&) { ++lost_; };
        keeper_ = start_keeper(keeper, std::move(events));
    }

    void start_standbys(const char* keeper, int count, const char* mode) {
        agent::KeeperHandle::Events events;
        events.on_started = [](Generation, LocalRank, int) {};
        events.on_exited = [](const agent::KeeperHandle&, Generation, LocalRank,
                              const agent::WorkerEnd&) {};
        events.on_emptied = [](Generation) {};
        events.on_not_emptied = [](const agent::KeeperHandle&, Generation, const std::string&) {};
        events.on_lost = [](const agent::KeeperHandle&) {};
        standbys_ = start_keeper(keeper, std::move(events));
        keeper_->exclude(standbys_->keeper_pid());
        standbys_->exclude(keeper_->keeper_pid());
        for (int i = 0; i < count; ++i) {
            // It never reads from its socket, here its stdout's pipe.
            standbys_->start_standby(LocalRank(i), {worker_, mode}, {}, another_stdout(),
                                     another_stdout(), {}, agent::WorkerStdin::Nothing,
                                     another_stdout());
        }
    }

    void start(int local_rank, std::vector<std::string> arguments) {
        arguments.insert(arguments.begin(), worker_);
        keeper_->start_worker(Generation(1), LocalRank(local_rank), arguments, {}, another_stdout(),
                              another_stdout());
    }

    void start_families(int count, const char* mode) {
        for (int i = 0; i < count; ++i) {
            start(i, {mode});
        }
        // A test that kills both at once needs the pid.
        const std::string pid = std::to_string(keeper_->keeper_pid()) + "\n";
        const ssize_t written = write(STDERR_FILENO, pid.data(), pid.size());
        static_cast<void>(written);
        io_.run();
    }

    /// Returns the exit code: 0 when all went as with a pidfd.
    int live_without_pidfd() {
        start(0, {"exit", "7"});
        while (code_ != 7) {
            io_.run_one();
        }
        start(0, {"family"});
        while (started_ < 2) {
            io_.run_one();
        }
        kill(keeper_->keeper_pid(), SIGKILL);
        while (lost_ == 0) {
            io_.run_one();
        }
        start(0, {"exit", "9"});
        while (code_ != 9) {
            io_.run_one();
        }
        bool is_stopped = false;
        keeper_->stop([&is_stopped] { is_stopped = true; });
        while (!is_stopped) {
            io_.run_one();
        }
        return 0;
    }

private:
    std::unique_ptr<agent::KeeperHandle> start_keeper(const char* program,
                                                      agent::KeeperHandle::Events events) {
        auto handle =
            agent::KeeperHandle::start(io_,
                                       {.program = {.path = program},
                                        .containment = agent::wanted_containment(),
                                        .limits = {},
                                        .saved_state = agent::SavedProcessState::capture()},
                                       std::move(events));
        if (handle.has_error()) {
            const std::string& what = handle.error().what;
            (void)!write(STDERR_FILENO, what.data(), what.size());
            std::exit(1);
        }
        return std::move(*handle);
    }

    boost::asio::io_context io_{1};
    std::string worker_;
    std::unique_ptr<agent::KeeperHandle> keeper_;
    std::unique_ptr<agent::KeeperHandle> standbys_;
    int started_ = 0;
    int lost_ = 0;
    int code_ = -1;
};

}  // namespace

int main(int argc, char** argv) {
    if (argc < 4) {
        return 2;
    }
    const std::string_view what = argv[3];
    if (what == "no-pidfd") {
        return test::make_kernel_old() ? TestAgent(argv[1], argv[2]).live_without_pidfd()
                                       : test::kNoFilter;
    }
    if (argc < 6) {
        return 2;
    }
    TestAgent agent(argv[1], argv[2]);
    if (what == "standbys") {
        agent.start_standbys(argv[1], std::atoi(argv[4]), argv[5]);
    }
    agent.start_families(std::atoi(argv[4]), argv[5]);
    return 0;
}
