// Goal: real jobs listen nowhere but where they were told to, and the job secret is in no argument
// list, environment, log, console line or state file. Method: the kernel's tables of every process
// that the test has started, and all files that they have written.

#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdio>

#include "base/os/unique_fd.hpp"
#include "tests/cluster/nodes.hpp"
#include "tests/cluster/proc.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

void check_no_wildcard(std::size_t least) {
    const std::vector<ListeningSocket> sockets = listening_sockets(descendants());
    CHECK(sockets.size() >= least);
    for (const ListeningSocket& socket : sockets) {
        INFO("process " << socket.pid << ": "
                        << read_file("/proc/" + std::to_string(socket.pid) + "/cmdline"));
        CHECK_FALSE(socket.is_wildcard);
    }
}

constexpr std::array<unsigned char, 32> kSecret = {
    0x9c, 0x41, 0xfe, 0x07, 0x7b, 0xd2, 0x58, 0xa3, 0x10, 0xe6, 0x35, 0xcf, 0x8a, 0x64, 0xb9, 0x2d,
    0x71, 0xf0, 0x0e, 0x93, 0xc5, 0x48, 0xda, 0x26, 0x5f, 0xb1, 0x87, 0x3a, 0xed, 0x19, 0x62, 0xf4};

std::string secret_bytes() {
    return {kSecret.begin(), kSecret.end()};
}

std::string secret_hex() {
    std::string hex;
    for (const unsigned char byte : kSecret) {
        std::array<char, 3> digits{};
        std::snprintf(digits.data(), digits.size(), "%02x", byte);
        hex += digits.data();
    }
    return hex;
}

// The 32 bytes above in base64.
constexpr const char* kSecretBase64 = "nEH+B3vSWKMQ5jXPimS5LXHwDpPFSNomX7GHOu0ZYvQ";

/// Any form of the secret, or of one half of it.
bool has_secret(const std::string& text) {
    std::string lower = text;
    std::transform(lower.begin(), lower.end(), lower.begin(),
                   [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    const std::string hex = secret_hex();
    return lower.find(hex.substr(0, 32)) != std::string::npos ||
           lower.find(hex.substr(32)) != std::string::npos ||
           text.find(secret_bytes().substr(0, 16)) != std::string::npos ||
           text.find(secret_bytes().substr(16)) != std::string::npos ||
           text.find(std::string(kSecretBase64).substr(0, 21)) != std::string::npos ||
           text.find(std::string(kSecretBase64).substr(22)) != std::string::npos;
}

/// Files below `folder` that hold the secret.
std::vector<std::string> files_with_secret(const std::string& folder) {
    std::vector<std::string> found;
    std::error_code gone;
    for (std::filesystem::recursive_directory_iterator at(folder, gone), end; !gone && at != end;
         at.increment(gone)) {
        std::error_code unknown;
        if (at->is_regular_file(unknown) && has_secret(read_file(at->path()))) {
            found.push_back(at->path());
        }
    }
    return found;
}

}  // namespace

TEST_CASE("the search for listening sockets finds one that listens everywhere") {
    const ddprun::UniqueFd socket(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    sockaddr_in anywhere{};
    anywhere.sin_family = AF_INET;
    REQUIRE(::bind(socket.get(), reinterpret_cast<sockaddr*>(&anywhere), sizeof(anywhere)) == 0);
    REQUIRE(::listen(socket.get(), 1) == 0);
    const std::vector<ListeningSocket> found = listening_sockets({::getpid()});
    REQUIRE(found.size() == 1);
    CHECK(found[0].is_wildcard);
}

TEST_CASE("no process of a job listens on all interfaces") {
    Cluster cluster;
    const std::string end = cluster.dir() / "end";
    SECTION("two nodes, one of which serves the endpoint") {
        const FreePort port;
        Job job;
        job.endpoint = port.endpoint();
        job.script = {"--print", "--wait-for-file", end};
        job.flags = {"--memory-checkpoints", "1M", "--memory-replicas", "1"};
        Process& a = start_node(cluster, job);
        Process& b = start_node(cluster, job);
        a.wait_for_line(place_in(1));
        b.wait_for_line(place_in(1));
        check_no_wildcard(5);  // the rendezvous, two stores and two ddprun-memory
        touch(end);
        CHECK(a.wait_exit() == 0);
        CHECK(b.wait_exit() == 0);
    }
    SECTION("a single node") {
        Process& node =
            cluster.start_ddprun({Cluster::worker(), "--print", "--wait-for-file", end});
        node.wait_for_line(place_in(1));
        check_no_wildcard(1);  // the store
        touch(end);
        CHECK(node.wait_exit() == 0);
    }
    cluster.wait_all_gone();
}

TEST_CASE("the search for the secret finds each of its forms") {
    CHECK(has_secret("key=" + secret_hex()));
    std::string upper = secret_hex();
    std::transform(upper.begin(), upper.end(), upper.begin(),
                   [](unsigned char c) { return static_cast<char>(std::toupper(c)); });
    CHECK(has_secret(upper));
    CHECK(has_secret("x" + secret_bytes() + "y"));
    CHECK(has_secret(kSecretBase64));
    CHECK_FALSE(has_secret(secret_hex().substr(0, 31)));
}

TEST_CASE("the secret is nowhere but in its file") {
    Cluster cluster;
    const std::string secret_file = cluster.dir() / "the-secret";
    write_file(secret_file, secret_hex() + "\n");
    std::filesystem::permissions(secret_file, std::filesystem::perms::owner_read);
    const FreePort port;
    Job job;
    job.endpoint = port.endpoint();
    // By flag, and by variable.
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end", "--exit-code", "3"};
    job.flags = {"--memory-checkpoints", "1M", "--memory-replicas", "1"};
    std::vector<Process*> programs;
    programs.push_back(&start_node(cluster, job, {"--secret-file", secret_file}));
    programs.push_back(
        &cluster.start_ddprun(node_args(job), {{"DDPRUN_SECRET_FILE", secret_file}}));
    for (Process* node : programs) {
        node->wait_for_line(place_in(1));
    }
    // A stranger with another secret makes both sides complain.
    write_file(cluster.dir() / "other", std::string(64, 'a') + "\n");
    std::filesystem::permissions(cluster.dir() / "other", std::filesystem::perms::owner_read);
    Process& stranger = start_node(cluster, job, {"--secret-file", cluster.dir() / "other"});
    CHECK(stranger.wait_exit() == 2);
    programs.push_back(&stranger);
    Process& asking =
        cluster.start({.argv = {bin_dir() + "/ddpctl", "status", "--rdzv-endpoint", job.endpoint,
                                "--json", "--secret-file", secret_file}});
    CHECK(asking.wait_exit() == 0);
    programs.push_back(&asking);

    const std::vector<pid_t> living = descendants();
    CHECK(living.size() >= 9);  // two ddprun, keepers, workers and ddprun-memory; the daemon
    for (const pid_t pid : living) {
        const std::string folder = "/proc/" + std::to_string(pid);
        INFO("process " << pid << ": " << read_file(folder + "/cmdline"));
        CHECK_FALSE(has_secret(read_file(folder + "/cmdline")));
        CHECK_FALSE(has_secret(read_file(folder + "/environ")));
        CHECK_FALSE(read_file(folder + "/environ").empty());
    }
    touch(cluster.dir() / "end");
    CHECK(programs[0]->wait_exit() == 3);
    CHECK(programs[1]->wait_exit() == 3);
    for (const Process* program : programs) {
        CHECK_FALSE(has_secret(program->out()));
        CHECK_FALSE(has_secret(program->err()));
    }
    CHECK(files_with_secret(cluster.dir().path()) == std::vector<std::string>{secret_file});
    CHECK(files_with_secret("/var/tmp/ddprun-" + std::to_string(::geteuid())).empty());
    cluster.wait_all_gone();
}
