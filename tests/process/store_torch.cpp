// PyTorch's own clients with our store: beside PyTorch's server, and in what programs do with one.

#include <cstdlib>
#include <string>
#include <vector>

#include "rendezvous/store/net/store_server.hpp"
#include "rendezvous/store/relay/relay.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/torch_python.hpp"

namespace ddprun::rdzv::store_test {

namespace {

/// Runs a script of this folder with the port of a fresh store, or of a relay to one; its exit
/// code.
int run_with_store(const std::string& script, std::vector<std::string> args, bool is_relayed) {
    Result<StoreSocket> socket = listen_for_store("127.0.0.1", 0);
    Result<StoreSocket> relays_socket = listen_for_store("127.0.0.1", 0);
    REQUIRE(socket.has_value());
    REQUIRE(relays_socket.has_value());
    args.insert(args.begin(), std::to_string(is_relayed ? relays_socket->port : socket->port));
    StoreServer server{Limits{}};
    server.serve(std::move(socket->fd), {});
    StoreServer relay{Limits{}};
    relay.serve_with(make_relay(Limits{}, {"127.0.0.1", socket->port}, {}),
                     std::move(relays_socket->fd));
    return test::run_torch_python("process/" + script, std::move(args));
}

/// Set by longer runs (scripts/test.sh --full), or by a user who wants to see a difference again.
std::string variable(const char* name, const char* otherwise) {
    const char* value = std::getenv(name);
    return value == nullptr ? otherwise : value;
}

}  // namespace

TEST_CASE("PyTorch's clients see no difference between PyTorch's server and ours") {
    const bool is_relayed = GENERATE(false, true);
    if (!test::is_torch_python_there()) {
        return;
    }
    CHECK(run_with_store(
              "store_differential.py",
              {variable("DDPRUN_STORE_SEED", "1"), variable("DDPRUN_STORE_OPERATIONS", "3000")},
              is_relayed) == 0);
}

TEST_CASE("process groups, object collectives, FSDP2 and RPC run over our store") {
    const bool is_relayed = GENERATE(false, true);
    if (!test::is_torch_python_there()) {
        return;
    }
    CHECK(run_with_store("store_collectives.py", {}, is_relayed) == 0);
}

}  // namespace ddprun::rdzv::store_test
