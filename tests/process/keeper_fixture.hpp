#pragma once

#include <sys/resource.h>

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/posix/stream_descriptor.hpp>

#include "agent/daemon/keeper_handle.hpp"
#include "base/os/unique_fd.hpp"
#include "tests/process/wanted_containment.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/places.hpp"

namespace ddprun::agent {

inline const std::string kKeeperProgram = bin_dir() + "/ddprun-keeper";
inline const std::string kWorkerProgram = bin_dir() + "/../tests/keeper_test_worker";
inline const std::string kAgentProgram = bin_dir() + "/../tests/keeper_test_agent";

/// While it lives this process may open no further file.
class NoMoreFiles {
public:
    NoMoreFiles() {
        REQUIRE(getrlimit(RLIMIT_NOFILE, &before_) == 0);
        rlimit none = before_;
        none.rlim_cur = 0;
        REQUIRE(setrlimit(RLIMIT_NOFILE, &none) == 0);
    }
    ~NoMoreFiles() { (void)setrlimit(RLIMIT_NOFILE, &before_); }
    NoMoreFiles(const NoMoreFiles&) = delete;
    NoMoreFiles& operator=(const NoMoreFiles&) = delete;

private:
    rlimit before_{};
};

struct TestPipe {
    TestPipe();

    /// A second descriptor of the end that is written to.
    [[nodiscard]] UniqueFd writer() const;

    UniqueFd read_end;
    UniqueFd write_end;
};

/// Blocks until `count` bytes came or the end of file. Fails the test after 30 s: not a timing
/// assertion, but a bound for a test that hangs.
std::string read_exactly(const UniqueFd& from, std::size_t count);
/// As above, all bytes until the end of file.
std::string read_to_end(const UniqueFd& from);

/// Processes of one worker that is told "family".
inline constexpr std::size_t kFamily = 3;

/// How often agents and keepers are killed; $DDPRUN_KILLS.
int cycles();

/// An agent of its own with `workers` workers, a keeper, and the processes that are left of them.
class TestAgent {
public:
    explicit TestAgent(std::size_t workers, const std::string& mode = "family",
                       const std::string& what = "families");
    /// As the next agent would, removes the cgroups of those that died with their keepers.
    ~TestAgent();
    TestAgent(const TestAgent&) = delete;
    TestAgent& operator=(const TestAgent&) = delete;

    /// Blocks until it has asked for its workers.
    void read_keeper();

    /// Both in the same instant: neither sees the other die.
    void kill_with_keeper() const;

    /// SIGKILL, and it is reaped.
    void kill_alone() const;

    [[nodiscard]] int keeper_pid() const { return keeper_pid_; }

    TestPipe pipe;  ///< its write end is held by every process below the agent

private:
    TestPipe told_;
    int pid_ = 0;
    int keeper_pid_ = 0;
};

/// An agent's side of one keeper, with everything it has been told.
class KeeperFixture {
public:
    explicit KeeperFixture(SavedProcessState saved = SavedProcessState::capture(),
                           Milliseconds unkillable_after = Milliseconds(10000),
                           const std::string& program = kKeeperProgram);
    ~KeeperFixture();
    KeeperFixture(const KeeperFixture&) = delete;
    KeeperFixture& operator=(const KeeperFixture&) = delete;

    /// Runs the loop until `is_true`; fails the test after 30 s.
    template <typename Predicate>
    void run_until(Predicate is_true) {
        while (!is_true()) {
            turn();
        }
    }

    void start(int local_rank, std::vector<std::string> arguments,
               std::vector<std::pair<std::string, std::string>> environment = {},
               Generation generation = Generation(1));
    /// Starts one worker and waits for its end.
    WorkerEnd run(std::vector<std::string> arguments,
                  std::vector<std::pair<std::string, std::string>> environment = {});
    /// The same, for what it printed.
    std::string output_of(std::vector<std::string> arguments,
                          std::vector<std::pair<std::string, std::string>> environment = {});
    /// Lets what was asked leave, and blocks until the workers have said `count` bytes.
    std::string said(std::size_t count);
    /// Empties generation 1 and waits for the proof.
    void empty();

    boost::asio::io_context io{1};
    std::unique_ptr<KeeperHandle> keeper;
    TestPipe pipe;               ///< stdout and stderr of all workers
    std::map<int, int> started;  ///< local rank, pid
    std::map<int, WorkerEnd> ended;
    std::map<int, std::string> adopted;  ///< local rank, path of the page
    std::vector<std::uint64_t> emptied;
    std::vector<std::string> not_emptied;
    std::vector<std::string> order;  ///< what came, in order
    int lost = 0;

private:
    void turn();
};

}  // namespace ddprun::agent
