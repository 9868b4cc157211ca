#include "tests/process/journal_etcds.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdlib>
#include <utility>

#include <fmt/format.h>

#include "base/os/unique_fd.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv::test {

namespace {

/// Ports that were free together a moment ago.
std::vector<std::uint16_t> free_ports(std::size_t count) {
    std::vector<UniqueFd> sockets;
    std::vector<std::uint16_t> ports;
    while (ports.size() < count) {
        sockets.emplace_back(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
        sockaddr_in address{};
        address.sin_family = AF_INET;
        address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
        socklen_t length = sizeof(address);
        const int fd = sockets.back().get();
        REQUIRE(::bind(fd, reinterpret_cast<const sockaddr*>(&address), length) == 0);
        REQUIRE(::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length) == 0);
        ports.push_back(ntohs(address.sin_port));
    }
    return ports;
}

/// Starts `words`, which dies with us; its output goes to `out`.
int spawn_program(std::vector<std::string> words, int out) {
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    const pid_t parent = ::getpid();
    const pid_t pid = ::fork();
    REQUIRE(pid >= 0);
    if (pid == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(out, STDOUT_FILENO);
        ::dup2(out, STDERR_FILENO);
        if (::getppid() == parent) {
            ::execvp(arguments[0], arguments.data());
        }
        ::_exit(127);
    }
    return pid;
}

std::string url(const Endpoint& endpoint) {
    return "http://" + to_string(endpoint);
}

/// The output of `words`, and its exit status.
std::pair<std::string, int> run_program(std::vector<std::string> words) {
    int ends[2] = {-1, -1};
    REQUIRE(::pipe2(ends, O_CLOEXEC) == 0);
    const UniqueFd read_end(ends[0]);
    UniqueFd write_end(ends[1]);
    const int pid = spawn_program(std::move(words), write_end.get());
    write_end.reset();
    std::string said;
    char bytes[4096];
    for (ssize_t count = 0; (count = ::read(read_end.get(), bytes, sizeof(bytes))) > 0;) {
        said.append(bytes, static_cast<std::size_t>(count));
    }
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return {said, status};
}

}  // namespace

bool has_etcd() {
    if (run_program({"sh", "-c", "command -v etcd && command -v etcdctl"}).second == 0) {
        return true;
    }
    WARN("SKIPPED: no etcd and etcdctl were found, run scripts/setup.sh; no etcd is tested");
    return false;
}

Etcds::Etcds(std::size_t count, std::vector<std::string> flags) : flags_(std::move(flags)) {
    const std::vector<std::uint16_t> ports = free_ports(2 * count);
    for (std::size_t index = 0; index < count; ++index) {
        members_.push_back(Member{.client = {"127.0.0.1", ports[2 * index]},
                                  .peer = {"127.0.0.1", ports[2 * index + 1]}});
    }
    for (std::size_t index = 0; index < count; ++index) {
        spawn(index);
    }
    wait_until_healthy();
}

Etcds::~Etcds() {
    for (std::size_t index = 0; index < members_.size(); ++index) {
        kill(index);
    }
}

void Etcds::spawn(std::size_t index) {
    std::string cluster;
    for (std::size_t other = 0; other < members_.size(); ++other) {
        cluster += fmt::format("{}m{}={}", other == 0 ? "" : ",", other, url(members_[other].peer));
    }
    Member& member = members_[index];
    const std::string log = folder_ / fmt::format("m{}.log", index);
    const UniqueFd out(::open(log.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    std::vector<std::string> words = {"etcd",
                                      "--name",
                                      fmt::format("m{}", index),
                                      "--data-dir",
                                      folder_ / fmt::format("m{}", index),
                                      "--listen-client-urls",
                                      url(member.client),
                                      "--advertise-client-urls",
                                      url(member.client),
                                      "--listen-peer-urls",
                                      url(member.peer),
                                      "--initial-advertise-peer-urls",
                                      url(member.peer),
                                      "--initial-cluster",
                                      cluster};
    words.insert(words.end(), flags_.begin(), flags_.end());
    member.pid = spawn_program(std::move(words), out.get());
}

void Etcds::wait_until_healthy() const {
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
    while (std::chrono::steady_clock::now() < deadline) {
        if (control({"endpoint", "health"}).find("unhealthy") == std::string::npos) {
            return;
        }
    }
    FAIL("etcd did not come up: " << control({"endpoint", "health"}));
}

std::vector<Endpoint> Etcds::endpoints() const {
    std::vector<Endpoint> endpoints;
    for (const Member& member : members_) {
        endpoints.push_back(member.client);
    }
    return endpoints;
}

std::size_t Etcds::leader() const {
    // A line per etcd: endpoint, id, version, size, whether it leads, ...
    const std::string status = control({"endpoint", "status"});
    for (std::size_t index = 0; index < members_.size(); ++index) {
        const std::size_t at = status.find(to_string(members_[index].client));
        const std::string line = status.substr(at, status.find('\n', at) - at);
        if (at != std::string::npos && line.find(", true, false") != std::string::npos) {
            return index;
        }
    }
    FAIL("no etcd leads: " << status);
    return 0;
}

void Etcds::kill(std::size_t index) {
    if (const int pid = std::exchange(members_[index].pid, -1); pid > 0) {
        ::kill(pid, SIGKILL);
        int status = 0;
        ::waitpid(pid, &status, 0);
    }
}

void Etcds::pause(std::size_t index) {
    ::kill(members_[index].pid, SIGSTOP);
}

void Etcds::resume(std::size_t index) {
    ::kill(members_[index].pid, SIGCONT);
}

void Etcds::restart(std::size_t index) {
    spawn(index);
    wait_until_healthy();
}

std::string Etcds::control(const std::vector<std::string>& arguments) const {
    std::string endpoints;
    for (const Member& member : members_) {
        if (member.pid > 0) {
            endpoints += (endpoints.empty() ? "" : ",") + to_string(member.client);
        }
    }
    std::vector<std::string> words{"env", "ETCDCTL_API=3", "etcdctl", "--endpoints", endpoints};
    words.insert(words.end(), arguments.begin(), arguments.end());
    return run_program(std::move(words)).first;
}

void Etcds::fill(const std::function<void()>& meanwhile) const {
    const std::string value(std::size_t{64} << 10, 'x');
    std::string said;
    for (int number = 0; number < 1000; ++number) {
        said = control({"put", fmt::format("/filling/{}", number), value});
        if (said.find("space exceeded") != std::string::npos) {
            return;
        }
        meanwhile();
    }
    FAIL("etcd is not full: " << said);
}

void Etcds::make_room() const {
    // {"header":{…,"revision":7,…},…}
    const std::string deleted = control({"--write-out=json", "del", "--prefix", "/filling/"});
    const std::string name = "\"revision\":";
    const std::size_t at = deleted.find(name);
    REQUIRE(at != std::string::npos);
    const std::string revision = deleted.substr(at + name.size(), deleted.find(',', at) - at);
    static_cast<void>(control({"compact", "--physical", std::to_string(std::stoull(revision))}));
    static_cast<void>(control({"defrag"}));
    const std::string disarmed = control({"alarm", "disarm"});
    REQUIRE(control({"alarm", "list"}).empty());
}

}  // namespace ddprun::rdzv::test
