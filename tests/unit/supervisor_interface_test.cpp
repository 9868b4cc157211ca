// --ifname: which network interface the workers of a node are told to use.

#include <string>

#include "tests/support/catch.hpp"
#include "tests/unit/supervisor_fixture.hpp"

using namespace ddprun;
using namespace ddprun::agent;

TEST_CASE("workers are told the interface of the way to the rendezvous") {
    SupervisorOptions options = two_slot_options();
    const bool is_automatic = GENERATE(true, false);
    options.interface =
        InterfaceChoice{.name = is_automatic ? "" : "eth9", .follows_link = is_automatic};
    options.interface->sets_gloo = false;
    Rig rig(options);
    rig.give(LinkUp{.local_address = "10.0.0.1", .interface = "ib0"});
    CHECK(rig.said() == (is_automatic ? "--ifname auto: workers use ib0, which has 10.0.0.1" : ""));
    rig.give(StoreOpened{{"10.0.0.1", 4001}});
    rig.hear(rdzv::Accepted{.run_token = "t1"});
    rig.hear(Rig::row(1, 1));
    REQUIRE(rig.does<StartWorkers>());
    const StartWorkers start = *rig.effect<StartWorkers>();
    const auto& environment = start.workers[1].environment;
    const auto value_of = [&](const std::string& key) {
        std::string value = "unset";
        for (const auto& [one, its_value] : environment) {
            value = one == key ? its_value : value;
        }
        return value;
    };
    CHECK(value_of("NCCL_SOCKET_IFNAME") == (is_automatic ? "=ib0" : "=eth9"));
    CHECK(value_of("GLOO_SOCKET_IFNAME") == "unset");
}

TEST_CASE("where no interface has the address, workers choose by themselves, and it is said once") {
    SupervisorOptions options = two_slot_options();
    options.interface = InterfaceChoice{.follows_link = true};
    Rig rig(options);
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(
        rig.said().starts_with("warning: --ifname auto: no interface of this machine has "
                               "10.0.0.1"));
    rig.give(LinkDown{"reset"});
    rig.give(LinkUp{"10.0.0.1"});
    CHECK(rig.said().empty());
}
