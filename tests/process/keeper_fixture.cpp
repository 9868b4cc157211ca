#include "tests/process/keeper_fixture.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <csignal>
#include <cstdlib>

#include <fmt/format.h>

#include "agent/process/cgroup.hpp"
#include "base/os/start_program.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::agent {

namespace {

constexpr std::chrono::seconds kPatience{30};
constexpr int kPatienceMs = 30000;

/// Asks unshare(1), a program that is not ours, whether this machine allows C2.
bool can_make_namespaces() {
    ProgramSpec spec;
    spec.command = {"/usr/bin/unshare", "--map-root-user", "--pid",
                    "--fork",           "--mount-proc",    "/bin/true"};
    const Result<StartedProgram> trial = start_program(spec);
    int status = 1;
    return trial.has_value() && waitpid(trial->pid, &status, 0) == trial->pid && status == 0;
}

}  // namespace

TestPipe::TestPipe() {
    std::array<int, 2> fds{};
    REQUIRE(pipe2(fds.data(), O_CLOEXEC) == 0);
    read_end.reset(fds[0]);
    write_end.reset(fds[1]);
}

UniqueFd TestPipe::writer() const {
    return UniqueFd(fcntl(write_end.get(), F_DUPFD_CLOEXEC, 3));
}

std::string read_exactly(const UniqueFd& from, std::size_t count) {
    std::string text;
    while (text.size() < count) {
        pollfd waited{from.get(), POLLIN, 0};
        REQUIRE(poll(&waited, 1, kPatienceMs) == 1);
        std::array<char, 4096> buffer;
        const ssize_t got =
            read(from.get(), buffer.data(), std::min(buffer.size(), count - text.size()));
        REQUIRE(got >= 0);
        if (got == 0) {
            break;
        }
        text.append(buffer.data(), static_cast<std::size_t>(got));
    }
    return text;
}

std::string read_to_end(const UniqueFd& from) {
    return read_exactly(from, std::string::npos);
}

int cycles() {
    const char* wanted = std::getenv("DDPRUN_KILLS");
    return wanted == nullptr ? 200 : std::atoi(wanted);
}

TestAgent::TestAgent(std::size_t workers, const std::string& mode, const std::string& what) {
    ProgramSpec spec;
    spec.command = {kAgentProgram, kKeeperProgram,          kWorkerProgram,
                    what,          std::to_string(workers), mode};
    spec.fds = {FdMapping{.from = pipe.write_end.get(), .to = STDOUT_FILENO},
                FdMapping{.from = told_.write_end.get(), .to = STDERR_FILENO}};
    const Result<StartedProgram> started = start_program(spec);
    REQUIRE(!started.has_error());
    pid_ = started->pid;
    pipe.write_end.reset();
    told_.write_end.reset();
}

TestAgent::~TestAgent() {
    if (allows_cgroup(wanted_containment())) {
        (void)clear_stale_cgroups(kPatience);
    }
}

void TestAgent::read_keeper() {
    std::string line;
    while (line.empty() || line.back() != '\n') {
        const std::string next = read_exactly(told_.read_end, 1);
        INFO(line);
        REQUIRE(next.size() == 1);
        line += next;
    }
    keeper_pid_ = std::atoi(line.c_str());
    REQUIRE(keeper_pid_ > 1);
}

void TestAgent::kill_with_keeper() const {
    // The keeper is no child that we could wait for, and holds what the agent holds until it ends.
    const UniqueFd keeper = open_pidfd(keeper_pid_);
    REQUIRE(keeper.is_open());
    // Stopped first.
    REQUIRE(kill(keeper_pid_, SIGSTOP) == 0);
    REQUIRE(kill(pid_, SIGSTOP) == 0);
    REQUIRE(kill(keeper_pid_, SIGKILL) == 0);
    kill_alone();
    pollfd ended{keeper.get(), POLLIN, 0};
    REQUIRE(poll(&ended, 1, kPatienceMs) == 1);
}

void TestAgent::kill_alone() const {
    REQUIRE(kill(pid_, SIGKILL) == 0);
    int status = 0;
    REQUIRE(waitpid(pid_, &status, 0) == pid_);
    CHECK(status == SIGKILL);
}

KeeperFixture::KeeperFixture(SavedProcessState saved, Milliseconds unkillable_after,
                             const std::string& program) {
    KeeperHandle::Events events;
    events.on_started = [this](Generation, LocalRank rank, int pid) {
        started[rank.value()] = pid;
        order.push_back(fmt::format("started {}", rank.value()));
    };
    events.on_exited = [this](const KeeperHandle&, Generation, LocalRank rank,
                              const WorkerEnd& end) {
        ended[rank.value()] = end;
        order.push_back(fmt::format("exited {}", rank.value()));
    };
    events.on_adopted = [this](Generation, LocalRank rank, int pid, std::string page) {
        CHECK(started[rank.value()] == pid);
        adopted[rank.value()] = std::move(page);
        order.push_back(fmt::format("adopted {}", rank.value()));
    };
    events.on_emptied = [this](Generation generation) {
        emptied.push_back(generation.value());
        order.emplace_back("emptied");
    };
    events.on_not_emptied = [this](const KeeperHandle&, Generation, std::string what) {
        not_emptied.push_back(std::move(what));
        order.emplace_back("not emptied");
    };
    events.on_lost = [this](const KeeperHandle&) {
        ++lost;
        order.emplace_back("lost");
    };
    Limits limits;
    limits.unkillable_after = unkillable_after;
    auto handle = KeeperHandle::start(io,
                                      {.program = {.path = program},
                                       .containment = wanted_containment(),
                                       .limits = limits,
                                       .saved_state = std::move(saved)},
                                      std::move(events));
    if (handle.has_error() && wanted_containment() == ContainmentLevel::PidNamespace &&
        !can_make_namespaces()) {
        WARN("LEFT OUT: no PID namespace here: " << handle.error().what);
    }
    REQUIRE(!handle.has_error());
    keeper = std::move(*handle);
}

KeeperFixture::~KeeperFixture() {
    bool is_stopped = false;
    keeper->stop([&is_stopped] { is_stopped = true; });
    io.restart();
    while (!is_stopped && io.run_one_for(kPatience) != 0) {}
    CHECK(is_stopped);
}

void KeeperFixture::turn() {
    io.restart();
    INFO("nothing happened for 30 s");
    REQUIRE(io.run_one_for(kPatience) == 1);
}

void KeeperFixture::start(int local_rank, std::vector<std::string> arguments,
                          std::vector<std::pair<std::string, std::string>> environment,
                          Generation generation) {
    arguments.insert(arguments.begin(), kWorkerProgram);
    keeper->start_worker(generation, LocalRank(local_rank), arguments, environment, pipe.writer(),
                         pipe.writer());
}

WorkerEnd KeeperFixture::run(std::vector<std::string> arguments,
                             std::vector<std::pair<std::string, std::string>> environment) {
    ended.erase(0);
    start(0, std::move(arguments), std::move(environment));
    run_until([this] { return ended.contains(0); });
    return ended[0];
}

std::string KeeperFixture::output_of(std::vector<std::string> arguments,
                                     std::vector<std::pair<std::string, std::string>> environment) {
    pipe = TestPipe();
    const WorkerEnd end = run(std::move(arguments), std::move(environment));
    CHECK(end.exit_code == 0);
    pipe.write_end.reset();
    std::string text = read_to_end(pipe.read_end);
    pipe = TestPipe();
    return text;
}

std::string KeeperFixture::said(std::size_t count) {
    io.restart();
    io.poll();
    return read_exactly(pipe.read_end, count);
}

void KeeperFixture::empty() {
    const std::size_t before = emptied.size();
    keeper->empty_generation(Generation(1));
    run_until([this, before] { return emptied.size() > before; });
}

}  // namespace ddprun::agent
