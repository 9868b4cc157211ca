#pragma once

#include <cstddef>
#include <map>
#include <string>

/// Peers that asked for a job and did not prove that they may join: with another secret, another
/// version, or --insecure beside nodes without. A stranger is no node, and no decision depends on
/// it. People are told, as they may be waiting for that node.
namespace ddprun::rdzv {

struct Run;
struct Step;
struct StrangerRefused;

class Strangers {
public:
    /// True: the first from that address. Beyond `addresses_max` others are not kept.
    bool add(const StrangerRefused& refused, std::size_t addresses_max);

    /// "10.0.0.7 (3 times), 10.0.0.8: its secret …", with the reason of the last one; empty: no
    /// stranger was turned away.
    [[nodiscard]] std::string text() const;

    void clear() { times_.clear(); }

private:
    std::map<std::string, std::size_t> times_;  ///< by address
    std::string why_;
};

/// A new address is told at once: while a generation forms to the nodes that wait, while one runs
/// or stops to group rank 0's node. How often it came is told with the next explanation. At most
/// Limits::strangers_named_max addresses are told until the next generation begins or ends.
void hear_of_stranger(Step& step, const StrangerRefused& refused);

}  // namespace ddprun::rdzv
