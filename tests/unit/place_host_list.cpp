#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include "base/limits.hpp"
#include "launcher/place/host_list.hpp"
#include "tests/support/catch.hpp"

using namespace ddprun;
using namespace ddprun::launcher;

namespace {

std::string expanded(const std::string& list) {
    const Result<std::vector<std::string>> hosts = expand_host_list(list);
    return hosts ? fmt::format("{}", fmt::join(*hosts, " ")) : "refused: " + hosts.error().what;
}

std::string counted(const std::string& list) {
    const Result<std::vector<int>> counts = expand_counts(list);
    return counts ? fmt::format("{}", fmt::join(*counts, " ")) : "refused: " + counts.error().what;
}

class Dice {
public:
    explicit Dice(unsigned seed) : engine_(seed) {}
    int from(int least, int most) {
        return std::uniform_int_distribution<int>(least, most)(engine_);
    }

private:
    std::mt19937 engine_;
};

std::string random_bracket(Dice& dice) {
    std::string text = "[";
    for (int left = dice.from(1, 3); left > 0; --left) {
        const int first = dice.from(0, 120);
        const int digits = dice.from(1, 4);
        text += fmt::format("{:0{}}", first, digits);
        if (dice.from(0, 1) == 1) {
            text += fmt::format("-{:0{}}", first + dice.from(0, 12), digits);
        }
        text += left == 1 ? "]" : ",";
    }
    return text;
}

/// As Slurm writes lists: at most two brackets in a name, and nothing behind the last one.
std::string random_list(Dice& dice) {
    const std::vector<std::string> words = {"gpu", "n", "rack-1-", "c.", "A100_", "node0"};
    std::string list;
    for (int left = dice.from(1, 4); left > 0; --left) {
        list += words[static_cast<std::size_t>(dice.from(0, 5))];
        if (dice.from(0, 2) > 0) {
            list += random_bracket(dice);
            if (dice.from(0, 2) == 0) {
                list += words[static_cast<std::size_t>(dice.from(0, 5))] + random_bracket(dice);
            }
        }
        list += left == 1 ? "" : ",";
    }
    return list;
}

}  // namespace

TEST_CASE("a node list of Slurm is expanded in its order") {
    CHECK(expanded("gpu[01-03,7],login-[1-2]x[0-1]") ==
          "gpu01 gpu02 gpu03 gpu7 login-1x0 login-1x1 login-2x0 login-2x1");
    CHECK(expanded("head") == "head");
    CHECK(expanded("b2,b1") == "b2 b1");
    CHECK(expanded("n[9-11]") == "n9 n10 n11");
    CHECK(expanded("n[09-11]") == "n09 n10 n11");
    CHECK(expanded("n[098-102]") == "n098 n099 n100 n101 n102");
    CHECK(expanded("[1-2]") == "1 2");
    CHECK(expanded("a[1-2],,b, c") == "a1 a2 b c");
    CHECK(expanded("gpu-[1-2].site.org") == "gpu-1.site.org gpu-2.site.org");
    CHECK(expanded("127.0.0.[1-2]") == "127.0.0.1 127.0.0.2");
}

TEST_CASE("a wrong node list is refused") {
    CHECK(expanded("") == "refused: no node is named");
    CHECK(expanded(",") == "refused: no node is named");
    CHECK(expanded("a[1-2") == "refused: a bracket is not closed");
    CHECK(expanded("a[]") == "refused: [] is no number and no range of numbers");
    CHECK(expanded("a[3-1]") == "refused: [3-1] is no number and no range of numbers");
    CHECK(expanded("a[1-2-3]") == "refused: [1-2-3] is no number and no range of numbers");
    CHECK(expanded("a[x]") == "refused: [x] is no number and no range of numbers");
    CHECK(expanded("a]") == "refused: a name has letters, digits, '-', '_' and '.' only");
    CHECK(expanded("a/b") == "refused: a name has letters, digits, '-', '_' and '.' only");
    CHECK(expanded("a[0-16384]") == "refused: at most 16384 nodes are possible");
    CHECK(expanded("a[0-999][0-999]") == "refused: at most 16384 nodes are possible");
    CHECK(expanded("a[0-9999],b[0-9999]") == "refused: at most 16384 nodes are possible");
    CHECK(expanded("a[0-99999999999999999]") == "refused: at most 16384 nodes are possible");
    CHECK(expanded("a[0-9999999999999999999]") ==
          "refused: [0-9999999999999999999] is no number and no range of numbers");
    CHECK(expanded(std::string(256, 'a')) == "refused: a name has more than 255 bytes");
    CHECK(expand_host_list("a[0-16383]")->size() == 16384);
}

TEST_CASE("a list of counts is expanded") {
    CHECK(counted("4") == "4");
    CHECK(counted("4(x2),3") == "4 4 3");
    CHECK(counted("") == "refused: '' is no number of the form 4 or 4(x2)");
    CHECK(counted("4,") == "refused: '' is no number of the form 4 or 4(x2)");
    CHECK(counted("4(x2") == "refused: '4(x2' is no number of the form 4 or 4(x2)");
    CHECK(counted("-1") == "refused: '-1' is no number of the form 4 or 4(x2)");
    CHECK(counted("1(x16385)") == "refused: at most 16384 nodes are possible");
}

TEST_CASE("whatever bytes are there, a node list stays within its bounds") {
    const std::string letters = "ab0129[],--.()x \n\xff";
    Dice dice(7);
    for (int round = 0; round < 20'000; ++round) {
        std::string list;
        for (int left = dice.from(0, 24); left > 0; --left) {
            list += letters[static_cast<std::size_t>(
                dice.from(0, static_cast<int>(letters.size()) - 1))];
        }
        CAPTURE(list);
        if (const Result<std::vector<std::string>> hosts = expand_host_list(list)) {
            REQUIRE(!hosts->empty());
            REQUIRE(hosts->size() <= Limits{}.nodes_max);
            for (const std::string& host : *hosts) {
                REQUIRE(!host.empty());
                REQUIRE(host.find_first_of("[], \n\xff") == std::string::npos);
            }
        }
        if (const Result<std::vector<int>> counts = expand_counts(list)) {
            REQUIRE(counts->size() <= Limits{}.nodes_max);
        }
    }
}

TEST_CASE("random node lists mean what scontrol shows") {
    if (::access("/usr/bin/scontrol", X_OK) != 0) {
        WARN("LEFT OUT: there is no scontrol here (scripts/setup.sh --peers)");
        return;
    }
    // Without a configuration it does nothing at all.
    char folder[] = "/tmp/ddprun-hosts-XXXXXX";
    REQUIRE(::mkdtemp(folder) != nullptr);
    const std::string conf = std::string(folder) + "/slurm.conf";
    const std::string shown = std::string(folder) + "/shown";
    std::ofstream(conf) << "ClusterName=none\nSlurmctldHost=localhost\nAuthType=auth/none\n"
                           "NodeName=a\nPartitionName=p Nodes=a\n";
    Dice dice(18);
    for (int round = 0; round < 100; ++round) {
        const std::string list = random_list(dice);
        CAPTURE(list);
        const pid_t child = ::fork();
        REQUIRE(child >= 0);
        if (child == 0) {
            ::setenv("SLURM_CONF", conf.c_str(), 1);
            if (std::freopen(shown.c_str(), "w", stdout) != nullptr) {
                ::execl("/usr/bin/scontrol", "scontrol", "show", "hostnames", list.c_str(),
                        static_cast<char*>(nullptr));
            }
            ::_exit(127);
        }
        int status = 0;
        REQUIRE(::waitpid(child, &status, 0) == child);
        REQUIRE(status == 0);
        std::vector<std::string> hosts;
        std::ifstream lines(shown);
        for (std::string line; std::getline(lines, line);) {
            hosts.push_back(line);
        }
        CHECK(expanded(list) == fmt::format("{}", fmt::join(hosts, " ")));
    }
    ::unlink(shown.c_str());
    ::unlink(conf.c_str());
    ::rmdir(folder);
}
