#include <cstring>

#include "tests/fake_gpu/nccl/operation.hpp"

namespace fake_gpu {

namespace {

/// The transfers of one operation, as its loop over the ranks finds them.
class Plan {
public:
    Plan(const Operation& operation, std::vector<Transfer>& transfers, Parts& parts)
        : operation_(operation), transfers_(transfers), parts_(parts) {}

    void add_for(int rank) {
        const bool is_root = own() == operation_.peer;
        const bool is_of_root = rank == operation_.peer;
        const std::size_t part = static_cast<std::size_t>(rank) * operation_.bytes();
        switch (operation_.kind) {
            case OperationKind::AllReduce:
                send(rank, operation_.from);
                receive_part(rank);
                break;
            case OperationKind::Reduce:
                if (is_root) {
                    receive_part(rank);
                } else if (is_of_root) {
                    send(rank, operation_.from);
                }
                break;
            case OperationKind::ReduceScatter:
                send(rank, operation_.from + part);
                receive_part(rank);
                break;
            case OperationKind::AllGather:
                send(rank, operation_.from);
                receive(rank, operation_.to + part);
                break;
            case OperationKind::AllToAll:
                send(rank, operation_.from + part);
                receive(rank, operation_.to + part);
                break;
            case OperationKind::Broadcast:
                from_root(is_root, is_of_root, rank, operation_.from);
                break;
            case OperationKind::Scatter:
                from_root(is_root, is_of_root, rank, operation_.from + part);
                break;
            case OperationKind::Gather:
                if (is_root) {
                    receive(rank, operation_.to + part);
                } else if (is_of_root) {
                    send(rank, operation_.from);
                }
                break;
            case OperationKind::Send:
                if (is_of_root) {
                    send(rank, operation_.from);
                }
                break;
            case OperationKind::Receive:
                if (is_of_root) {
                    receive(rank, operation_.to);
                }
                break;
        }
    }

private:
    [[nodiscard]] int own() const { return operation_.communicator->rank(); }

    void from_root(bool is_root, bool is_of_root, int rank, const char* from) {
        if (is_root) {
            send(rank, from);
        } else if (is_of_root) {
            receive(rank, operation_.to);
        }
    }

    void send(int rank, const char* from) {
        add({.direction = Transfer::Direction::Send,
             .peer = rank,
             .at = const_cast<char*>(from),
             .left = operation_.bytes(),
             .waits_for_reader = operation_.kind == OperationKind::Send});
    }

    void receive(int rank, char* to) {
        add({.direction = Transfer::Direction::Receive,
             .peer = rank,
             .at = to,
             .left = operation_.bytes()});
    }

    void receive_part(int rank) {
        std::vector<char>& part = parts_.at(static_cast<std::size_t>(rank));
        part.resize(operation_.bytes());
        receive(rank, part.data());
    }

    void add(const Transfer& transfer) {
        if (transfer.peer != own() && transfer.left > 0) {
            transfers_.push_back(transfer);
        }
    }

    const Operation& operation_;
    std::vector<Transfer>& transfers_;
    Parts& parts_;
};

std::vector<const char*> all_parts(const Operation& operation, const char* mine,
                                   const Parts& parts) {
    std::vector<const char*> all;
    for (const std::vector<char>& part : parts) {
        all.push_back(part.data());
    }
    all.at(static_cast<std::size_t>(operation.communicator->rank())) = mine;
    return all;
}

}  // namespace

std::size_t Operation::bytes() const {
    return count * size_of(type);
}

void add_transfers(const Operation& operation, std::vector<Transfer>& transfers, Parts& parts) {
    Plan plan(operation, transfers, parts);
    for (int rank = 0; rank < operation.communicator->size(); ++rank) {
        plan.add_for(rank);
    }
}

void complete(const Operation& operation, const Parts& parts) {
    const std::size_t bytes = operation.bytes();
    if (bytes == 0) {
        return;
    }
    const int rank = operation.communicator->rank();
    const std::size_t own = static_cast<std::size_t>(rank) * bytes;
    const bool is_root = rank == operation.peer;
    switch (operation.kind) {
        case OperationKind::AllReduce:
            reduce(operation, all_parts(operation, operation.from, parts), operation.to);
            break;
        case OperationKind::Reduce:
            if (is_root) {
                reduce(operation, all_parts(operation, operation.from, parts), operation.to);
            }
            break;
        case OperationKind::ReduceScatter:
            reduce(operation, all_parts(operation, operation.from + own, parts), operation.to);
            break;
        case OperationKind::AllGather:
            std::memmove(operation.to + own, operation.from, bytes);
            break;
        case OperationKind::AllToAll:
            std::memmove(operation.to + own, operation.from + own, bytes);
            break;
        case OperationKind::Broadcast:
            if (is_root) {
                std::memmove(operation.to, operation.from, bytes);
            }
            break;
        case OperationKind::Gather:
            if (is_root) {
                std::memmove(operation.to + own, operation.from, bytes);
            }
            break;
        case OperationKind::Scatter:
            if (is_root) {
                std::memmove(operation.to, operation.from + own, bytes);
            }
            break;
        case OperationKind::Send:
        case OperationKind::Receive:
            break;
    }
}

}  // namespace fake_gpu
