#include "tests/support/network_namespaces.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <stdexcept>
#include <system_error>
#include <utility>

namespace ddprun::test {

namespace {

constexpr const char* kBridge = "ddprun-switch";

/// Runs a program in the namespace `network` (closed: the own one) and waits; its exit code, 127 if
/// there is none such.
int run(const UniqueFd& network, std::vector<std::string> command) {
    std::vector<char*> argv;
    for (std::string& word : command) {
        argv.push_back(word.data());
    }
    argv.push_back(nullptr);
    const pid_t pid = ::fork();
    if (pid == 0) {
        if (!network.is_open() || ::setns(network.get(), CLONE_NEWNET) == 0) {
            ::execvp(argv[0], argv.data());
        }
        ::_exit(127);
    }
    int status = 0;
    while (::waitpid(pid, &status, 0) < 0 && errno == EINTR) {}
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128;
}

void must_run(const UniqueFd& network, const std::vector<std::string>& command) {
    if (run(network, command) != 0) {
        std::string text = "failed:";
        for (const std::string& word : command) {
            text += " " + word;
        }
        throw std::runtime_error(text);
    }
}

UniqueFd open_namespace() {
    return UniqueFd(::open("/proc/self/ns/net", O_RDONLY | O_CLOEXEC));
}

bool write_text(const char* path, const std::string& text) {
    const UniqueFd fd(::open(path, O_WRONLY | O_CLOEXEC));
    return fd.is_open() &&
           ::write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

/// As root of a user namespace of our own, if we are not root. There, the state folder that the
/// real root may have is not ours to use. So this process gets an empty /var/tmp in every case.
bool move_into_namespaces() {
    constexpr int kWanted = CLONE_NEWNET | CLONE_NEWNS;
    const std::string uid = std::to_string(::getuid());
    const std::string gid = std::to_string(::getgid());
    const bool is_moved =
        ::unshare(kWanted) == 0 ||
        (::unshare(CLONE_NEWUSER | kWanted) == 0 && write_text("/proc/self/setgroups", "deny") &&
         write_text("/proc/self/uid_map", "0 " + uid + " 1") &&
         write_text("/proc/self/gid_map", "0 " + gid + " 1"));
    return is_moved && ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
           ::mount("none", "/var/tmp", "tmpfs", 0, "mode=1777") == 0;
}

std::string move_and_probe() {
    if (!move_into_namespaces()) {
        return std::string("no network namespace of our own is allowed here: ") +
               std::generic_category().message(errno);
    }
    const UniqueFd own;
    if (run(own, {"ip", "link", "set", "lo", "up"}) != 0 ||
        run(own, {"ip", "link", "add", kBridge, "type", "bridge"}) != 0) {
        return "`ip` of iproute2 cannot make a bridge here";
    }
    if (run(own, {"nft", "add", "table", "inet", "ddprun_probe"}) != 0 ||
        run(own, {"nft", "delete", "table", "inet", "ddprun_probe"}) != 0) {
        return "`nft` of nftables does not work here";
    }
    must_run(own, {"ip", "address", "add", Network::switch_address() + "/24", "dev", kBridge});
    must_run(own, {"ip", "link", "set", kBridge, "up"});
    return "";
}

std::string port_of(int node) {
    return "port" + std::to_string(node);
}

}  // namespace

std::string Network::why_not() {
    static const std::string reason = move_and_probe();
    return reason;
}

Network::Network(int nodes) : own_(open_namespace()) {
    for (int node = 0; node < nodes; ++node) {
        add_node(node);
    }
}

Network::~Network() {
    // The other ends go with their namespaces; removing the ports frees their names at once.
    for (int node = 0; node < static_cast<int>(nodes_.size()); ++node) {
        run(UniqueFd(), {"ip", "link", "delete", port_of(node)});
    }
}

std::string Network::address(int node) {
    return "10.77.0." + std::to_string(node + 2);
}

void Network::add_node(int node) {
    if (::unshare(CLONE_NEWNET) != 0) {
        throw std::system_error(errno, std::generic_category(), "a node's namespace");
    }
    UniqueFd fresh = open_namespace();
    if (::setns(own_.get(), CLONE_NEWNET) != 0) {
        throw std::system_error(errno, std::generic_category(), "back to the switch");
    }
    const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/";
    const UniqueFd here;
    must_run(here, {"ip", "link", "add", port_of(node), "type", "veth", "peer", "name", "eth0",
                    "netns", path + std::to_string(fresh.get())});
    must_run(here, {"ip", "link", "set", port_of(node), "master", kBridge, "up"});
    must_run(fresh, {"ip", "link", "set", "lo", "up"});
    must_run(fresh, {"ip", "address", "add", address(node) + "/24", "dev", "eth0"});
    must_run(fresh, {"ip", "link", "set", "eth0", "up"});
    must_run(fresh, {"nft", "add", "table", "inet", "cut"});
    nodes_.push_back(std::move(fresh));
}

StartOptions Network::in(int node, StartOptions options) const {
    const std::string fd = std::to_string(nodes_.at(static_cast<std::size_t>(node)).get());
    const std::string path = "/proc/" + std::to_string(::getpid()) + "/fd/" + fd;
    if (options.name.empty()) {
        options.name = options.argv.at(0).substr(options.argv.at(0).rfind('/') + 1);
    }
    options.argv.insert(options.argv.begin(), {"/usr/bin/nsenter", "--net=" + path, "--"});
    return options;
}

void Network::cut(int node) {
    must_run(UniqueFd(), {"ip", "link", "set", port_of(node), "down"});
}

void Network::heal(int node) {
    must_run(UniqueFd(), {"ip", "link", "set", port_of(node), "up"});
    must_run(nodes_.at(static_cast<std::size_t>(node)), {"nft", "flush", "table", "inet", "cut"});
}

void Network::cut_one_way(int node, Way way) {
    const UniqueFd& there = nodes_.at(static_cast<std::size_t>(node));
    const std::string hook = way == Way::FromNode ? "output" : "input";
    const std::string device = way == Way::FromNode ? "oifname" : "iifname";
    must_run(there, {"nft", "add chain inet cut " + hook + " { type filter hook " + hook +
                                " priority 0; }"});
    must_run(there, {"nft", "add rule inet cut " + hook + " " + device + " eth0 drop"});
}

void Network::close_to_others(int node) {
    const UniqueFd& there = nodes_.at(static_cast<std::size_t>(node));
    must_run(there, {"nft", "add chain inet cut input { type filter hook input priority 0; }"});
    must_run(there,
             {"nft", "add rule inet cut input iifname eth0 tcp flags & (syn | ack) == syn drop"});
}

}  // namespace ddprun::test
