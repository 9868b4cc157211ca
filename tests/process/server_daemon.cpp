// Goal: the program ddprun-rendezvous: its flags, what it prints, how it ends.

#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>

#include "tests/process/server_fixture.hpp"
#include "tests/support/places.hpp"

extern char** environ;

namespace ddprun::rdzv {
namespace {

/// The program with its output in a pipe; killed if it is still there at the end.
class Program {
public:
    /// Its log goes to `log_fd`, or with the output.
    explicit Program(std::vector<std::string> flags, int inherited_fd = -1, int log_fd = -1) {
        int fds[2];
        REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
        output_.reset(fds[0]);
        UniqueFd write_end(fds[1]);
        flags.insert(flags.begin(), bin_dir() + "/ddprun-rendezvous");
        std::vector<char*> argv;
        for (std::string& flag : flags) {
            argv.push_back(flag.data());
        }
        argv.push_back(nullptr);
        posix_spawn_file_actions_t actions;
        ::posix_spawn_file_actions_init(&actions);
        ::posix_spawn_file_actions_adddup2(&actions, write_end.get(), 1);
        ::posix_spawn_file_actions_adddup2(&actions, log_fd >= 0 ? log_fd : write_end.get(), 2);
        if (inherited_fd >= 0) {
            ::posix_spawn_file_actions_adddup2(&actions, inherited_fd, 9);
        }
        REQUIRE(::posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) == 0);
        ::posix_spawn_file_actions_destroy(&actions);
    }
    ~Program() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            ::waitpid(pid_, nullptr, 0);
        }
    }
    Program(const Program&) = delete;
    Program& operator=(const Program&) = delete;

    /// Reads until the output holds `text` or ends.
    const std::string& read_until(const std::string& text) {
        while (heard_.find(text) == std::string::npos) {
            char chunk[512];
            const ssize_t count = ::read(output_.get(), chunk, sizeof(chunk));
            if (count <= 0) {
                break;
            }
            heard_.append(chunk, static_cast<std::size_t>(count));
        }
        return heard_;
    }
    const std::string& read_all() { return read_until(std::string(1, '\0')); }

    void send(int signal) const { REQUIRE(::kill(pid_, signal) == 0); }

    [[nodiscard]] int exit_code() {
        int status = 0;
        REQUIRE(::waitpid(pid_, &status, 0) == pid_);
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    }

    [[nodiscard]] std::uint16_t port() {
        const std::string& text = read_until("\n");
        INFO(text);
        const std::string prefix = "listening on 127.0.0.1:";
        REQUIRE(text.starts_with(prefix));
        return static_cast<std::uint16_t>(std::atoi(text.c_str() + prefix.size()));
    }

private:
    pid_t pid_ = -1;
    UniqueFd output_;
    std::string heard_;
};

TEST_CASE("the daemon says where it listens, serves, and ends cleanly when asked to") {
    Program program({"--port", "0", "--insecure"});
    boost::asio::io_context io;
    Agent agent(io, {.port = program.port(), .secret = std::nullopt});
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    program.send(SIGTERM);
    REQUIRE(program.exit_code() == 0);
    run_until(io, [&] { return agent.downs.size() == 1; });
}

/// A pipe that takes no more.
struct FullPipe {
    FullPipe() {
        int fds[2];
        REQUIRE(::pipe2(fds, O_CLOEXEC) == 0);
        read_end.reset(fds[0]);
        write_end.reset(fds[1]);
        REQUIRE(::fcntl(write_end.get(), F_SETFL, O_NONBLOCK) == 0);
        const std::string chunk(4096, '.');
        while (::write(write_end.get(), chunk.data(), chunk.size()) > 0) {}
        REQUIRE(::fcntl(write_end.get(), F_SETFL, 0) == 0);
    }
    UniqueFd read_end;
    UniqueFd write_end;
};

TEST_CASE("who has stopped reading the daemon's log stops no job and no end") {
    FullPipe log;
    Program program({"--port", "0", "--insecure"}, -1, log.write_end.get());
    boost::asio::io_context io;
    Agent first(io, {.port = program.port(), .job = "one", .secret = std::nullopt});
    Agent second(io, {.port = program.port(), .job = "two", .secret = std::nullopt});
    run_until(io, [&] { return first.last<Start>() && second.last<Start>(); });
    program.send(SIGTERM);
    REQUIRE(program.exit_code() == 0);
}

TEST_CASE("connections get their options from the listener, also from one that was inherited") {
    // As the parent of a daemon makes it: bound and listening, nothing else.
    UniqueFd plain(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    REQUIRE(::bind(plain.get(), static_cast<sockaddr*>(static_cast<void*>(&address)),
                   sizeof address) == 0);
    REQUIRE(::listen(plain.get(), 1) == 0);
    Result<Listener> listener =
        GENERATE(true, false) ? listen_on("127.0.0.1", 0) : adopt_listener(std::move(plain));
    REQUIRE(listener);
    boost::asio::io_context io;
    boost::asio::ip::tcp::socket client(io);
    client.connect({boost::asio::ip::address_v4::loopback(), listener->port});
    const UniqueFd accepted(::accept4(listener->fd.get(), nullptr, nullptr, SOCK_CLOEXEC));
    REQUIRE(accepted.is_open());
    int is_undelayed = 0;
    socklen_t size = sizeof is_undelayed;
    REQUIRE(::getsockopt(accepted.get(), IPPROTO_TCP, TCP_NODELAY, &is_undelayed, &size) == 0);
    CHECK(is_undelayed == 1);
    char control[16] = "";
    size = sizeof control;
    REQUIRE(::getsockopt(accepted.get(), IPPROTO_TCP, TCP_CONGESTION, control, &size) == 0);
    CHECK(std::string(control) == "reno");
}

TEST_CASE("the daemon serves a socket that it was given and goes with its last run") {
    Result<Listener> listener = listen_on("127.0.0.1", 0);
    REQUIRE(listener);
    boost::asio::io_context io;
    // It waits in the socket's queue until the daemon runs.
    Agent agent(io, {.port = listener->port, .secret = std::nullopt});
    run_until(io, [&] { return agent.attempts == 1; });
    Program program({"--listen-fd", "9", "--exit-when-idle", "--insecure"}, listener->fd.get());
    REQUIRE(program.port() == listener->port);
    listener->fd.reset();
    run_until(io, [&] { return agent.last<Start>() != nullptr; });
    for (int i = 0; i < 2; ++i) {
        agent.client->send(WorkerFinished{.generation = Generation(1), .local_rank = LocalRank(i)});
    }
    run_until(io, [&] { return agent.last<Verdict>() != nullptr; });
    bool is_stopped = false;
    agent.client->send(Goodbye{});
    agent.client->stop([&] { is_stopped = true; });
    run_until(io, [&] { return is_stopped; });
    REQUIRE(program.exit_code() == 0);
    REQUIRE(program.read_all().find("all runs are closed: done") != std::string::npos);
}

TEST_CASE("a daemon that cannot start says why in one line") {
    const auto complaint = [](const std::vector<std::string>& flags, int expected_code) {
        Program program(flags);
        std::string text = program.read_all();
        REQUIRE(program.exit_code() == expected_code);
        return text;
    };
    REQUIRE(complaint({"--insecure"}, 2) ==
            "ddprun-rendezvous: where shall it listen? Give --port N or --listen HOST:PORT (see "
            "--help)\n");
    REQUIRE(complaint({"--listen", "nowhere", "--insecure"}, 2) ==
            "ddprun-rendezvous: --listen: endpoint 'nowhere': it has no port; write HOST:PORT\n");
    REQUIRE(complaint({"--listen-fd", "77", "--insecure"}, 2) ==
            "ddprun-rendezvous: descriptor 77 is no listening socket\n");
    REQUIRE(complaint({"--port", "0", "--secret-file", "/nonexistent/secret"}, 2) ==
            "ddprun-rendezvous: secret file /nonexistent/secret cannot be opened: No such file or "
            "directory\n");
    const Result<Listener> taken = listen_on("127.0.0.1", 0);
    REQUIRE(taken);
    REQUIRE(complaint({"--port", std::to_string(taken->port), "--insecure"}, 1) ==
            "ddprun-rendezvous: cannot listen on 127.0.0.1:" + std::to_string(taken->port) +
                ": Address already in use\n");
    const std::string unknown = complaint({"--prot", "0"}, 2);
    REQUIRE(unknown.starts_with("ddprun-rendezvous: "));
    REQUIRE(unknown.find("--prot") != std::string::npos);
}

TEST_CASE(
    "a store for torchrun that others can reach is said aloud, and lives as long as the daemon") {
    Program open({"--listen", "0.0.0.0:0", "--serve-tcpstore"});
    open.read_until("keeps here");
    open.send(SIGTERM);
    REQUIRE(open.read_all().find("--serve-tcpstore: everybody who reaches 0.0.0.0:") !=
            std::string::npos);
    Program loopback({"--port", "0", "--serve-tcpstore"});
    REQUIRE(loopback.port() > 0);
    loopback.send(SIGTERM);
    REQUIRE(loopback.read_all().find("everybody") == std::string::npos);
    for (const std::vector<std::string>& other :
         {std::vector<std::string>{"--exit-when-idle"}, {"--ha", "etcd://127.0.0.1:1"}}) {
        std::vector<std::string> flags = {"--port", "0", "--serve-tcpstore"};
        flags.insert(flags.end(), other.begin(), other.end());
        REQUIRE(Program(flags).exit_code() == 2);
    }
}

TEST_CASE("help names every flag") {
    Program program({"--help"});
    const std::string& text = program.read_all();
    for (const char* flag : {"--port", "--listen", "--listen-fd", "--exit-when-idle",
                             "--secret-file", "--insecure", "--serve-tcpstore"}) {
        REQUIRE(text.find(flag) != std::string::npos);
    }
    REQUIRE(program.exit_code() == 0);
}

}  // namespace
}  // namespace ddprun::rdzv
