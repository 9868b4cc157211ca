// Goal: a real job whose control traffic is hidden by TLS: the head starts a daemon with its own
// certificate, nodes check it and show theirs, and a node that is killed is missed at once.

#include <signal.h>

#include "tests/cluster/nodes.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/certificates.hpp"
#include "tests/support/cluster.hpp"
#include "tests/support/places.hpp"

using namespace ddprun::test;

namespace {

struct Pki {
    explicit Pki(const Cluster& cluster) : authority("ours"), folder(cluster.dir().path()) {
        authority.write_cert(folder + "/ca.pem");
        authority.issue(folder + "/cert.pem", folder + "/key.pem", "IP:127.0.0.1");
    }

    [[nodiscard]] std::vector<std::string> flags(bool has_cert = true) const {
        std::vector<std::string> flags = {"--tls-ca", folder + "/ca.pem"};
        if (has_cert) {
            flags.insert(flags.end(),
                         {"--tls-cert", folder + "/cert.pem", "--tls-key", folder + "/key.pem"});
        }
        return flags;
    }

    Authority authority;
    std::string folder;
};

}  // namespace

TEST_CASE("a job runs through TLS with a daemon that its head starts") {
    Cluster cluster;
    const Pki pki(cluster);
    const FreePort port;
    Job job;
    job.nnodes = "1:2";
    job.endpoint = port.endpoint();
    job.flags = pki.flags();
    job.flags.insert(job.flags.end(), {"--rdzv-conf", "last_call_timeout=60,grow_delay=0"});
    job.script = {"--print", "--wait-for-file", cluster.dir() / "end"};
    Process& head = start_node(cluster, job);
    Process& other = start_node(cluster, job);
    head.wait_for_line("^worker .* world=2 .* generation=1 ");
    other.wait_for_line("^worker .* world=2 .* generation=1 ");

    std::vector<std::string> argv = {bin_dir() + "/ddpctl", "status", "--rdzv-endpoint",
                                     job.endpoint};
    Process& open = cluster.start({.argv = argv});
    CHECK(open.wait_exit() == 2);
    CHECK(open.err().find("asks for TLS; give --tls-ca FILE") != std::string::npos);
    const std::vector<std::string> flags = pki.flags();
    argv.insert(argv.end(), flags.begin(), flags.end());
    Process& hidden = cluster.start({.argv = argv});
    CHECK(hidden.wait_exit() == 0);
    CHECK(hidden.out().find("generation 1, 2 ranks") != std::string::npos);

    // No last message, neither ours nor that of TLS: the end of the stream shows the death.
    other.signal(SIGKILL);
    CHECK(other.wait_exit() == -SIGKILL);
    head.wait_for_line("^worker .* world=1 .* generation=2 ");
    touch(cluster.dir() / "end");
    CHECK(head.wait_exit() == 0);
    cluster.wait_all_gone();
}

TEST_CASE("nodes that do not fit to a daemon's TLS end with a line that says what to give") {
    Cluster cluster;
    const Pki pki(cluster);
    const Cluster::Daemon daemon = cluster.start_daemon(pki.flags());
    Job job;
    job.endpoint = daemon.endpoint;
    Process& open = start_node(cluster, job);
    CHECK(open.wait_exit() == 2);
    CHECK(open.text().find("asks for TLS; give --tls-ca FILE with the authority that signed its "
                           "certificate") != std::string::npos);
    Process& unnamed = start_node(cluster, job, pki.flags(false));
    CHECK(unnamed.wait_exit() == 2);
    CHECK(unnamed.text().find("give --tls-cert and --tls-key") != std::string::npos);
    daemon.process.signal(SIGTERM);
    CHECK(daemon.process.wait_exit() == 0);
    cluster.wait_all_gone();
}
