#include "rendezvous/core/nodes.hpp"

#include "base/check.hpp"

namespace ddprun::rdzv {

namespace {

void put(std::set<NodeId>& ids, const NodeId& id, bool is_in) {
    if (is_in) {
        ids.insert(id);
    } else {
        ids.erase(id);
    }
}

}  // namespace

Node* Nodes::get(const NodeId& id) {
    const auto found = nodes_.find(id);
    return found == nodes_.end() ? nullptr : &found->second;
}

Node* Nodes::speaking_on(ConnectionId connection) {
    const auto found = by_connection_.find(connection);
    return found == by_connection_.end() ? nullptr : &nodes_.at(found->second);
}

const Node* Nodes::with_node_rank(int node_rank) const {
    const auto taken = node_ranks_.find(node_rank);
    const auto node = taken == node_ranks_.end() ? nodes_.end() : nodes_.find(taken->second);
    return node != nodes_.end() && node->second.info.node_rank == node_rank ? &node->second
                                                                            : nullptr;
}

Node& Nodes::add(const NodeId& id) {
    Node& node = nodes_[id];
    index(id, node);
    return node;
}

void Nodes::connect(const NodeId& id, ConnectionId connection) {
    Node& node = nodes_.at(id);
    DDP_CHECK(!node.connection_, id.value());
    node.connection_ = connection;
    by_connection_[connection] = id;
    ++connects_;
    if (node.info.node_rank) {
        node_ranks_[*node.info.node_rank] = id;
    }
    index(id, node);
}

void Nodes::cut_off(const NodeId& id) {
    Node& node = nodes_.at(id);
    if (node.connection_) {
        by_connection_.erase(*node.connection_);
        node.connection_.reset();
    }
    index(id, node);
}

void Nodes::set_standing(const NodeId& id, Standing standing) {
    Node& node = nodes_.at(id);
    node.standing_ = standing;
    index(id, node);
}

void Nodes::set_leaving(const NodeId& id, int signal) {
    Node& node = nodes_.at(id);
    node.leaving_ = signal;
    index(id, node);
}

void Nodes::set_prepares(const NodeId& id, Prepares prepares) {
    Node& node = nodes_.at(id);
    node.info.prepares = prepares;
    index(id, node);
}

void Nodes::set_lease(const NodeId& id, Instant end) {
    Node& node = nodes_.at(id);
    leases_.erase({node.lease_end_, id});
    node.lease_end_ = end;
    leases_.insert({end, id});
}

void Nodes::promise_lease(const NodeId& id, Instant end) {
    Node& node = nodes_.at(id);
    leases_.erase({node.lease_end_, id});
    node.lease_end_ = end;
}

Node Nodes::remove(const NodeId& id) {
    const auto found = nodes_.find(id);
    DDP_CHECK(found != nodes_.end(), id.value());
    const Node& node = found->second;
    if (node.connection_) {
        by_connection_.erase(*node.connection_);
    }
    if (node.info.node_rank) {
        const auto rank = node_ranks_.find(*node.info.node_rank);
        if (rank != node_ranks_.end() && rank->second == id) {
            node_ranks_.erase(rank);
        }
    }
    leases_.erase({node.lease_end_, id});
    suspects_.erase(id);
    ready_.erase(id);
    preparing_.erase(id);
    waiting_for_job_.erase(id);
    return std::move(nodes_.extract(found).mapped());
}

void Nodes::index(const NodeId& id, const Node& node) {
    const bool is_connected = node.connection_.has_value();
    put(ready_, id, node.standing_ == Standing::Ready && is_connected && !node.leaving_);
    const bool is_preparing = node.standing_ == Standing::Preparing && !node.leaving_;
    put(preparing_, id, is_preparing);
    put(waiting_for_job_, id, is_preparing && node.info.prepares == Prepares::Job);
    put(suspects_, id, !is_connected);
}

}  // namespace ddprun::rdzv
