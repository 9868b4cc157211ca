#pragma once

#include <string>
#include <vector>

#include "base/os/unique_fd.hpp"
#include "tests/support/cluster.hpp"

namespace ddprun::test {

/// A network of its own for one test: this process moves into a fresh network namespace, which is
/// the switch, with a bridge; each node is another namespace, joined to the bridge by a pair of
/// virtual Ethernet devices. Namespaces have no names and are held by descriptors alone, so nothing
/// is left of them however the test ends. This process also gets a /var/tmp of its own, where
/// launchers keep their state. Needs `ip` and `nft`, and to be root or to be allowed a
/// user namespace; processes of this test that were started before stay in the old network.
class Network {
public:
    /// Why there can be no such network here; empty if it can. The first call moves this process.
    [[nodiscard]] static std::string why_not();

    /// Only where why_not() is empty; one at a time.
    explicit Network(int nodes);
    ~Network();
    Network(const Network&) = delete;
    Network& operator=(const Network&) = delete;

    /// The address of the switch; programs without start_in() run there.
    [[nodiscard]] static std::string switch_address() { return "10.77.0.1"; }
    [[nodiscard]] static std::string address(int node);

    /// `options` with a command that runs in the namespace of `node`; its pid is the program's.
    [[nodiscard]] StartOptions in(int node, StartOptions options) const;

    /// Pulls the cable of `node` out, and puts it back.
    void cut(int node);
    void heal(int node);

    /// Drops what `node` sends or what is sent to it; the other way stays open. heal() undoes it.
    enum class Way { FromNode, ToNode };
    void cut_one_way(int node, Way way);

    /// Drops what would open a connection to `node`; it may open any. heal() undoes it.
    void close_to_others(int node);

private:
    void add_node(int node);

    UniqueFd own_;
    std::vector<UniqueFd> nodes_;
};

}  // namespace ddprun::test
