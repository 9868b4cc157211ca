// PyTorch's own clients with our store: beside PyTorch's server, and in what programs do with one.

#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>
#include <vector>

#include "rendezvous/store/store_server.hpp"
#include "tests/support/catch.hpp"

namespace ddprun::rdzv::store_test {

namespace {

/// Runs a script of this folder with the project's Python and the port of a fresh store; its exit
/// code.
int run_python(const std::string& script, const std::vector<std::string>& more) {
    Result<StoreSocket> socket = listen_for_store("127.0.0.1", 0);
    REQUIRE(socket.has_value());
    std::vector<std::string> args{DDPRUN_TORCH_PYTHON, DDPRUN_SOURCE_DIR "/tests/process/" + script,
                                  std::to_string(socket->port)};
    args.insert(args.end(), more.begin(), more.end());
    StoreServer server{Limits{}};
    server.serve(std::move(socket->fd), {});
    std::vector<char*> argv;
    for (std::string& arg : args) {
        argv.push_back(arg.data());
    }
    argv.push_back(nullptr);
    pid_t pid = -1;
    REQUIRE(::posix_spawn(&pid, argv[0], nullptr, nullptr, argv.data(), environ) == 0);
    int status = 0;
    REQUIRE(::waitpid(pid, &status, 0) == pid);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

bool is_python_there() {
    if (std::string(DDPRUN_TORCH_PYTHON).empty()) {
        WARN("SKIPPED: no Python with torch was found, run scripts/setup.sh");
        return false;
    }
    return true;
}

/// Set by whoever has more time (scripts/test.sh --full) or wants to see a difference again.
std::string variable(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}

}  // namespace

TEST_CASE("PyTorch's clients see no difference between PyTorch's server and ours") {
    if (!is_python_there()) {
        return;
    }
    CHECK(run_python("store_differential.py", {variable("DDPRUN_STORE_SEED", "1"),
                                               variable("DDPRUN_STORE_OPERATIONS", "3000")}) == 0);
}

TEST_CASE("process groups, object collectives, FSDP2 and RPC run over our store") {
    if (!is_python_there()) {
        return;
    }
    CHECK(run_python("store_collectives.py", {}) == 0);
}

}  // namespace ddprun::rdzv::store_test
