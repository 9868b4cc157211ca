#pragma once

#include <string>

#include "base/tagged.hpp"
#include "rendezvous/core/coordinator.hpp"
#include "rendezvous/wire/messages.hpp"

/// Membership: nodes that leave and nodes that are lost. The same in every phase; Running and
/// Stopping decide how the loss of a member affects its generation.
namespace ddprun::rdzv {

class Node;
struct Run;
struct Step;

/// The member that speaks on `connection`, if it speaks of the current generation; fencing (S4)
/// is that everything else changes nothing.
[[nodiscard]] Node* current_member(Run& run, ConnectionId connection, Generation generation);

void beat(Step& step, ConnectionId connection, const Beat& message);
void goodbye(Step& step, ConnectionId connection, const Goodbye& message);
void connection_ended(Step& step, const ConnectionEnded& input);
/// The node was told to leave: it is taken into no generation any more.
void told_to_leave(Step& step, Node& node, const Leave& message);
/// A fenced node has ended its workers: it may be taken again.
void fenced_node_emptied(Step& step, Node& node, const Stopped& message);
void unkillable(Step& step, ConnectionId connection, const Unkillable& message);

/// From now on the connection may end by itself within the time that stopping takes.
void depart(Step& step, ConnectionId connection, const NodeId& id);
void judge_departures(Step& step);

/// The node's connection, if any, is no longer its voice and is closed.
void drop_connection(Step& step, const Node& node, const std::string& why);
/// The node goes for good; `unfit` as in Goodbye.
void gone_for_good(Step& step, const NodeId& id, const std::string& unfit);
/// Removes a node that is dead or superseded; a member's loss stops the generation.
void lose_node(Step& step, const NodeId& id, const std::string& how);
/// The same for a silent one, which died when it was last heard.
void lose_silent_node(Step& step, const NodeId& id, const std::string& how);
/// Sends Released and forgets the node.
void release(Step& step, const NodeId& id);

}  // namespace ddprun::rdzv
